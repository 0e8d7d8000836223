"""The light forward pass: takes time, ends answers, and does not let a wrong plan through."""

import pytest

from ultrafast.bench.simulate.engine_spec import StepCost
from ultrafast.bench.simulate.passes import SimulatedPasses
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import CopyPrefix, SequenceWork, StepPlan, TrimSequence

COST = StepCost(0.01, 0.001, 0.0001)


def passes(num_output=2, **cost):
    made = SimulatedPasses(StepCost(0.01, 0.001, 0.0001, **cost), 4)
    made.begin_request(Request("a", (1, 2, 3), SamplingParams()), num_output)
    return made


def step(*work):
    return StepPlan(0, (), work)


def prefill(start=0, num_tokens=3, *, samples=True):
    return SequenceWork("a", 0, start, (1,) * num_tokens, samples)


def test_a_prefill_and_a_decode_take_what_they_cost_and_the_answer_ends():
    made = passes()
    first = made.run(step(prefill()))
    assert first.duration_s == pytest.approx(0.01 + 0.001 + 3 * 0.0001)
    assert not first.sampled[0].is_complete
    second = made.run(step(SequenceWork("a", 0, 3, (0,), True, 1)))
    assert second.duration_s == pytest.approx(0.011)
    assert second.sampled[0].is_complete
    assert made.length(0) == 4


def test_a_chunk_that_does_not_end_the_prompt_draws_nothing():
    assert passes().run(step(prefill(num_tokens=1, samples=False))).sampled == ()


def test_noise_has_mean_one():
    made = passes(10**6, noise=0.3)
    durations = [made.run(step(prefill(start=3 * i))).duration_s for i in range(4000)]
    assert sum(durations) / len(durations) == pytest.approx(0.0113, rel=0.03)
    assert len(set(durations)) == 4000


def test_a_plan_that_starts_where_the_sequence_does_not_end_is_found():
    with pytest.raises(AssertionError, match="starts at 2 of 0"):
        passes().run(step(prefill(start=2)))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (TrimSequence(0, 9), "shorter than what is to be kept"),
        (CopyPrefix("a", 0, 1, 9), "shorter than what is to be shared"),
        (CopyPrefix("a", 0, 0, 1), "is not empty"),
    ],
)
def test_impossible_operations_are_found(op, message):
    made = passes()
    made.run(step(prefill()))
    with pytest.raises(AssertionError, match=message):
        made.apply_kv((op,))
