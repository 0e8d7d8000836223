"""The contract of `engine.executor.Executor`, the same for every implementation.

Texts are compared token by token on greedy output of a few tokens: where an implementation's arithmetic depends on the batch,
its fixture picks a model and a prompt whose top-1 margins are wide.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from tests.contract.executors import CAPACITY_TOKENS, COUNT, GREEDY, MAX_STEP_TOKENS, PROMPT, Driver, request

from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.request import SamplingParams
from ultrafast.core.step import CopyPrefix, SequenceWork, StepStatus, TrimSequence


def test_a_chunked_prefill_gives_the_same_output(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    assert driver.generate(one, 0, COUNT, chunk=16) == alone


def test_several_sequences_in_one_step_do_not_disturb_each_other(driver: Driver, alone: list[int]) -> None:
    one, other = request("one"), request("other", range(300, 340))
    driver.begin(one, other)
    first = driver.prefill(one, 0)
    tokens, position = [first.token], len(PROMPT)
    for index in range(1, COUNT):
        chunk = other.prompt_tokens[8 * (index - 1) : 8 * index]
        drawn = driver.draw(
            SequenceWork("one", 0, position, (tokens[-1],), True, index),
            SequenceWork("other", 1, 8 * (index - 1), chunk, 8 * index == 40),
        )
        tokens.append(drawn["one"].token)
        position += 1
    assert tokens == alone
    assert "other" in drawn


def test_a_shared_prefix_gives_the_same_output(driver: Driver, alone: list[int]) -> None:
    parent, child = request("parent", (*PROMPT[:40], 9, 9, 9)), request("child")
    driver.begin(parent, child)
    driver.prefill(parent, 0)
    assert driver.apply(CopyPrefix("child", 0, 1, 40)) == ()
    assert driver.generate(child, 1, COUNT, start=40) == alone


def test_a_shared_prefix_outlives_its_source(driver: Driver, alone: list[int]) -> None:
    parent, child = request("parent", PROMPT[:49]), request("child")
    driver.begin(parent, child)
    driver.prefill(parent, 0)
    assert driver.apply(CopyPrefix("child", 0, 1, 49), TrimSequence(0, 0)) == ()
    assert driver.generate(child, 1, COUNT, start=49) == alone


def test_shared_cells_count_once(driver: Driver) -> None:
    parent = request("parent", range(100, 400))
    children = [request(f"child{i}", (*range(100, 400), 500 + i)) for i in range(4)]
    driver.begin(parent, *children)
    driver.prefill(parent, 0)
    for i, child in enumerate(children):
        assert driver.apply(CopyPrefix(child.request_id, 0, i + 1, 300)) == ()
        driver.prefill(child, i + 1, start=300)


def test_a_copy_from_an_empty_sequence_is_reported_and_leaves_nothing(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    assert driver.apply(CopyPrefix("r", 3, 4, 20)) == ("r",)
    assert driver.generate(one, 4, COUNT) == alone


def test_a_trimmed_sequence_is_empty_and_its_cells_are_free(driver: Driver, alone: list[int]) -> None:
    for i in range(2):
        big = request(f"big{i}", range(100, 500))
        driver.begin(big)
        driver.prefill(big, 0)
        driver.executor.end_request(f"big{i}")
        driver.apply(TrimSequence(0, 0))
    one = request("r")
    driver.begin(one)
    assert driver.generate(one, 0, COUNT) == alone


def test_trimming_an_empty_sequence_is_allowed(driver: Driver) -> None:
    assert driver.apply(TrimSequence(5, 0)) == ()


def test_a_sequence_cut_short_goes_on_from_there(driver: Driver, alone: list[int]) -> None:
    long, one = request("long", (*PROMPT[:30], 7, 7, 7, 7)), request("r")
    driver.begin(long, one)
    driver.prefill(long, 2)
    driver.apply(TrimSequence(2, 30))
    assert driver.generate(one, 2, COUNT, start=30) == alone


def test_out_of_kv_changes_nothing(driver: Driver, alone: list[int]) -> None:
    one, big = request("one"), request("big", range(100, 500))
    driver.begin(one, big)
    first = driver.prefill(one, 0)
    driver.draw(*[SequenceWork("big", 1, 0, big.prompt_tokens[:MAX_STEP_TOKENS], False)])
    driver.draw(*[SequenceWork("big", 1, 128, big.prompt_tokens[128:256], False)])
    driver.draw(*[SequenceWork("big", 1, 256, big.prompt_tokens[256:384], False)])
    used = len(PROMPT) + 384
    too_many = CAPACITY_TOKENS - used + 1
    assert too_many <= MAX_STEP_TOKENS
    result = driver.run(SequenceWork("big", 1, 384, tuple(range(100, 100 + too_many)), False))
    assert result.status is StepStatus.OUT_OF_KV
    assert not result.sampled
    assert driver.decode(one, 0, first, COUNT) == alone
    driver.draw(SequenceWork("big", 1, 384, big.prompt_tokens[384:390], False))


def test_a_continued_request_draws_what_it_would_have_drawn(driver: Driver, alone: list[int]) -> None:
    one = request("r", output=tuple(alone[:3]))
    driver.begin(one)
    assert driver.generate(one, 0, COUNT) == alone


def test_draws_depend_on_the_seed_and_the_output_index_only(driver: Driver) -> None:
    params = SamplingParams(temperature=1.5, seed=42, max_tokens=64, ignore_eos=True)
    outputs = []
    for i, chunk in enumerate((MAX_STEP_TOKENS, MAX_STEP_TOKENS)):
        one = request(f"r{i}", params=params)
        driver.begin(one)
        outputs.append(driver.generate(one, i, COUNT, chunk=chunk))
    assert outputs[0] == outputs[1]
    continued = request("c", params=params, output=tuple(outputs[0][:2]))
    driver.begin(continued)
    assert driver.generate(continued, 2, COUNT) == outputs[0]


def test_another_seed_draws_other_tokens(driver: Driver) -> None:
    outputs = set()
    for seed in range(4):
        one = request(f"r{seed}", params=SamplingParams(temperature=1.5, seed=seed, max_tokens=64, ignore_eos=True))
        driver.begin(one)
        outputs.add(tuple(driver.generate(one, seed, COUNT)))
    assert len(outputs) > 1


def test_a_stop_token_ends_the_request(driver: Driver, alone: list[int]) -> None:
    one = request("r", params=replace(GREEDY, stop_token_ids=(alone[0],)))
    driver.begin(one)
    drawn = driver.prefill(one, 0)
    assert (drawn.token, drawn.is_end) == (alone[0], True)


def test_an_ordinary_token_does_not_end_the_request(driver: Driver, alone: list[int]) -> None:
    one = request("r")
    driver.begin(one)
    drawn = driver.prefill(one, 0)
    assert (drawn.token, drawn.is_end, drawn.is_complete) == (alone[0], False, False)


@pytest.mark.parametrize("num_logprobs", [None, 0, 1])
def test_log_probabilities_come_when_asked_for(driver: Driver, num_logprobs: int | None) -> None:
    one = request("r", params=replace(GREEDY, num_logprobs=num_logprobs))
    driver.begin(one)
    logprobs = driver.prefill(one, 0).logprobs
    if num_logprobs is None:
        assert logprobs is None
    else:
        assert logprobs is not None
        assert logprobs.logprob <= 0
        assert len(logprobs.top) == num_logprobs


def test_a_token_outside_the_vocabulary_is_refused_before_it_runs(driver: Driver) -> None:
    with pytest.raises(InvalidRequestError):
        driver.begin(request("r", (100, 10_000_000)))
    with pytest.raises(InvalidRequestError):
        driver.begin(request("s", (-1,)))


def test_preparing_refuses_what_beginning_refuses_and_may_come_before_it(driver: Driver, alone: list[int]) -> None:
    with pytest.raises(InvalidRequestError):
        driver.executor.prepare_request(request("bad", (100, 10_000_000)))
    one = request("r")
    driver.executor.prepare_request(one)
    driver.begin(one)
    assert driver.generate(one, 0, COUNT) == alone


def test_ending_what_was_never_begun_is_allowed(driver: Driver) -> None:
    driver.executor.end_request("unknown")


def test_an_id_can_be_used_again_after_its_request_ended(driver: Driver, alone: list[int]) -> None:
    for _ in range(2):
        one = request("again")
        driver.begin(one)
        assert driver.generate(one, 0, COUNT) == alone
        driver.executor.end_request("again")
        driver.apply(TrimSequence(0, 0))


def test_a_step_reports_its_duration(driver: Driver) -> None:
    one = request("r")
    driver.begin(one)
    assert driver.run(SequenceWork("r", 0, 0, PROMPT, True)).duration_s > 0


def test_a_step_that_was_asked_to_break_off_did_not_happen_or_did_as_a_whole(driver: Driver, alone: list[int]) -> None:
    """Whenever the question comes: before, while or after the pass runs."""
    one, other = request("one"), request("other", range(300, 400))
    driver.begin(one, other)
    driver.run(SequenceWork("other", 1, 0, tuple(range(300, 340)), False))
    start = 40
    for delay_s in (0.0, 0.0005, 0.002, 0.005, 0.02):
        timer = threading.Timer(delay_s, driver.executor.interrupt)
        timer.start()
        result = driver.run(SequenceWork("other", 1, start, tuple(range(300 + start, 310 + start)), False))
        timer.join()
        assert result.status in (StepStatus.OK, StepStatus.INTERRUPTED)
        assert not result.sampled
        start += 10 if result.status is StepStatus.OK else 0
    driver.executor.interrupt()  # between two passes: nothing
    assert driver.generate(one, 0, COUNT) == alone
    rest = SequenceWork("other", 1, start, tuple(range(300 + start, 400)), True)
    drawn = driver.draw(rest)["other"].token
    driver.apply(TrimSequence(1, 0))
    assert driver.prefill(other, 1).token == drawn
