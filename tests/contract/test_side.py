"""The contract of `Executor.run_side`: a chunk of a prompt that is computed while other plans run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.executors import COUNT, PROMPT, Driver, request

from ultrafast.core.request import Request
from ultrafast.core.step import SequenceWork, StepStatus, TrimSequence


def chunk(one: Request, seq_id: int, start: int, end: int) -> SequenceWork:
    return SequenceWork(one.request_id, seq_id, start, one.prompt_tokens[start:end], samples=False)


def always() -> bool:
    return True


def after(count: int, what: Callable[[], object]) -> Callable[[], bool]:
    """Do something at the given question, and go on."""
    asked = 0

    def go_on() -> bool:
        nonlocal asked
        asked += 1
        if asked == count:
            what()
        return True

    return go_on


def test_a_side_chunk_is_as_if_it_had_been_computed_in_a_step(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    result = driver.executor.run_side(chunk(one, 0, 0, 49), always)
    assert result.status is StepStatus.OK
    assert driver.generate(one, 0, COUNT, start=49) == alone


def test_chunk_after_chunk_and_after_steps(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    driver.run(chunk(one, 0, 0, 10))
    for start, end in ((10, 20), (20, 33)):
        assert driver.executor.run_side(chunk(one, 0, start, end), always).status is StepStatus.OK
    driver.run(chunk(one, 0, 33, 40))
    assert driver.executor.run_side(chunk(one, 0, 40, 49), always).status is StepStatus.OK, "it brings what it does not have"
    assert driver.generate(one, 0, COUNT, start=49) == alone


def test_steps_of_others_run_in_between(driver: Driver, alone: list[int]) -> None:
    one, other = request("one"), request("other", (*PROMPT[:30], 7, 8, 9, *range(300, 317)))
    driver.begin(one, other)
    expected = driver.generate(other, 1, COUNT)
    driver.apply(TrimSequence(1, 0))
    output: list[int] = []

    def serve() -> None:
        output.extend(driver.generate(other, 1, COUNT))

    result = driver.executor.run_side(chunk(one, 0, 0, 49), after(2, serve))
    assert result.status is StepStatus.OK
    assert output == expected
    assert driver.generate(one, 0, COUNT, start=49) == alone


def test_a_chunk_that_is_broken_off_has_never_been(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    assert driver.executor.run_side(chunk(one, 0, 0, 20), always).status is StepStatus.OK
    assert driver.executor.run_side(chunk(one, 0, 20, 49), lambda: False).status is StepStatus.INTERRUPTED
    assert driver.executor.run_side(chunk(one, 0, 20, 49), always).status is StepStatus.OK
    assert driver.generate(one, 0, COUNT, start=49) == alone


def test_the_sequence_may_be_gone_when_a_chunk_is_broken_off(driver: Driver, alone: list[int]) -> None:
    one, other = request("one"), request("other")
    driver.begin(one, other)
    assert driver.executor.run_side(chunk(one, 0, 0, 20), always).status is StepStatus.OK

    def end() -> bool:
        driver.executor.end_request("one")
        driver.apply(TrimSequence(0, 0))
        return False

    assert driver.executor.run_side(chunk(one, 0, 20, 49), end).status is StepStatus.INTERRUPTED
    assert driver.executor.run_side(chunk(other, 0, 0, 49), always).status is StepStatus.OK
    assert driver.generate(other, 0, COUNT, start=49) == alone


def test_a_name_that_comes_again_brings_its_own_tokens(driver: Driver, alone: list[int]) -> None:
    first = request("r", range(300, 349))
    driver.begin(first)
    assert driver.executor.run_side(chunk(first, 0, 0, 30), always).status is StepStatus.OK
    driver.executor.end_request("r")
    driver.apply(TrimSequence(0, 0))
    one = request("r")
    driver.executor.begin_request(one)
    driver.run(chunk(one, 0, 0, 30))
    assert driver.executor.run_side(chunk(one, 0, 30, 49), always).status is StepStatus.OK
    assert driver.generate(one, 0, COUNT, start=49) == alone


def test_what_a_turn_raises_comes_out(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)

    def fail() -> bool:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        driver.executor.run_side(chunk(one, 0, 0, 49), fail)
    assert driver.executor.run_side(chunk(one, 0, 0, 49), always).status is StepStatus.OK
    assert driver.generate(one, 0, COUNT, start=49) == alone
