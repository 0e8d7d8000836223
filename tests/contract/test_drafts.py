"""The contract of drafts, the same for every executor: each token is what it would be without them; wrong ones leave nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.executors import COUNT, GREEDY, MAX_STEP_TOKENS, PROMPT, Driver, request

from ultrafast.core.request import SamplingParams
from ultrafast.core.step import SampledToken, SequenceWork, StepStatus

WRONG = 7


def alone(driver: Driver, params: SamplingParams = GREEDY) -> list[int]:
    """What the prompt gives one token at a time."""
    one = request("alone", params=params)
    driver.begin(one)
    output = driver.generate(one, 7, COUNT)
    driver.executor.end_request("alone")
    return output


def verify(driver: Driver, first: SampledToken, drafts: tuple[int, ...], params: SamplingParams = GREEDY) -> list[SampledToken]:
    """Run one decode of request "r" on sequence 0, whose prompt drew `first`, with drafts."""
    result = driver.run(SequenceWork("r", 0, len(PROMPT), (first.token,), True, 1, drafts))
    assert result.status is StepStatus.OK
    assert not result.failed
    return list(result.sampled)


def goes_on(driver: Driver, draws: list[SampledToken], first: SampledToken, params: SamplingParams = GREEDY) -> list[int]:
    """The rest of the output, one token at a time: positions must follow what was accepted."""
    output = [first.token, *(drawn.token for drawn in draws)]
    one = replace(request("r", params=params), output_tokens=tuple(output[:-1]))
    return driver.decode(one, 0, draws[-1], COUNT)


@pytest.mark.parametrize("num_right", range(5))
def test_right_drafts_are_accepted_up_to_the_first_wrong_one(driver: Driver, num_right: int) -> None:
    expected = alone(driver)
    driver.begin(request("r"))
    first = driver.prefill(request("r"), 0)
    drafts = (*expected[1 : 1 + num_right], *[WRONG] * (4 - num_right))
    draws = verify(driver, first, drafts)
    assert [drawn.token for drawn in draws] == expected[1 : 2 + num_right]
    assert goes_on(driver, draws, first) == expected


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.2, seed=42, max_tokens=64, ignore_eos=True),
        SamplingParams(temperature=0.7, top_k=40, top_p=0.95, seed=7, max_tokens=64, ignore_eos=True),
        SamplingParams(temperature=0, repeat_penalty=1.3, frequency_penalty=1.5, max_tokens=64, ignore_eos=True),
    ],
)
def test_seeds_and_penalties_are_those_of_single_tokens(driver: Driver, params: SamplingParams) -> None:
    expected = alone(driver, params)
    driver.begin(request("r", params=params))
    first = driver.prefill(request("r", params=params), 0)
    draws = verify(driver, first, (*expected[1:4], WRONG))
    assert [drawn.token for drawn in draws] == expected[1:5]
    assert goes_on(driver, draws, first, params) == expected


def test_an_end_inside_the_drafts_is_the_last_draw(driver: Driver) -> None:
    expected = alone(driver)
    stop = next(token for token in expected[2:] if token not in expected[:2])
    params = replace(GREEDY, stop_token_ids=(stop,))
    driver.begin(request("r", params=params))
    first = driver.prefill(request("r", params=params), 0)
    draws = verify(driver, first, tuple(expected[1:]))
    assert [drawn.token for drawn in draws] == expected[1 : expected.index(stop) + 1]
    assert [drawn.is_end for drawn in draws] == [False] * (len(draws) - 1) + [True]


def test_log_probabilities_come_with_each_draw(driver: Driver) -> None:
    params = replace(GREEDY, num_logprobs=1)
    expected = alone(driver, params)
    driver.begin(request("r", params=params))
    first = driver.prefill(request("r", params=params), 0)
    draws = verify(driver, first, tuple(expected[1:4]))
    assert all(drawn.logprobs is not None and drawn.logprobs.top[0][0] == drawn.token for drawn in draws)


def test_drafts_of_several_sequences_and_a_prefill_do_not_mix(driver: Driver) -> None:
    expected = alone(driver)
    one, two, other = request("r"), request("s"), request("other", range(300, 340))
    driver.begin(one, two, other)
    first = [driver.prefill(one, 0), driver.prefill(two, 1)]
    result = driver.run(
        SequenceWork("r", 0, len(PROMPT), (first[0].token,), True, 1, (expected[1], WRONG)),
        SequenceWork("other", 2, 0, other.prompt_tokens, True),
        SequenceWork("s", 1, len(PROMPT), (first[1].token,), True, 1, tuple(expected[1:4])),
    )
    tokens = {name: [d.token for d in result.sampled if d.request_id == name] for name in ("r", "s", "other")}
    assert tokens["r"] == expected[1:3]
    assert tokens["s"] == expected[1:5]
    assert len(tokens["other"]) == 1


def test_cells_of_wrong_drafts_are_free_again(driver: Driver) -> None:
    driver.begin(request("r"))
    first = driver.prefill(request("r"), 0)
    room = 512 - len(PROMPT) - 1
    verify(driver, first, (WRONG,) * 8)
    filler = request("filler", range(100, 100 + room))
    driver.begin(filler)
    driver.prefill(filler, 1, chunk=MAX_STEP_TOKENS)
