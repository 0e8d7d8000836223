"""The fake executor is strict: it must notice a scheduler that cheats."""

from __future__ import annotations

import pytest

from ultrafast.core.clock import ManualClock
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import CopyPrefix, SequenceWork, StepPlan, StepStatus, TrimSequence
from ultrafast.engine.fake import END_TOKEN, FakeExecutor, expected_tokens

REQUEST = Request("r", (1, 2, 3, 4), SamplingParams(max_tokens=3))


def _begun(**options: object) -> FakeExecutor:
    executor = FakeExecutor(**{"capacity_tokens": 10, "num_sequences": 4, **options})  # type: ignore[arg-type]
    executor.begin_request(REQUEST)
    return executor


def _work(seq_id: int, start: int, tokens: tuple[int, ...], samples: bool = False) -> StepPlan:
    return StepPlan(0, (), (SequenceWork("r", seq_id, start, tokens, samples),))


def test_reading_cells_that_were_never_written_is_noticed() -> None:
    executor = _begun()
    with pytest.raises(AssertionError, match="0 cells; the plan starts at 2"):
        executor.run(_work(0, 2, (3, 4)))


def test_writing_over_cells_is_noticed() -> None:
    executor = _begun()
    executor.run(_work(0, 0, (1, 2)))
    with pytest.raises(AssertionError, match="2 cells; the plan starts at 1"):
        executor.run(_work(0, 1, (2,)))


def test_sharing_wrong_cells_gives_wrong_tokens() -> None:
    executor = _begun()
    executor.run(_work(0, 0, (1, 2, 9)))
    executor.apply_kv([CopyPrefix("r", 0, 1, 3)])
    drawn = executor.run(_work(1, 3, (4,), samples=True)).sampled[0]
    assert [drawn.token] != expected_tokens(REQUEST)[:1]


def test_sharing_more_than_was_written_is_noticed() -> None:
    executor = _begun()
    executor.run(_work(0, 0, (1, 2)))
    with pytest.raises(AssertionError, match="2 cells, cannot share 3"):
        executor.apply_kv([CopyPrefix("r", 0, 1, 3)])


def test_copying_onto_a_used_sequence_is_noticed() -> None:
    executor = _begun()
    executor.run(_work(0, 0, (1, 2)))
    with pytest.raises(AssertionError, match="not empty"):
        executor.apply_kv([CopyPrefix("r", 0, 0, 1)])


def test_shared_cells_are_free_when_the_last_user_goes() -> None:
    executor = _begun()
    executor.run(_work(0, 0, (1, 2, 3)))
    executor.apply_kv([CopyPrefix("r", 0, 1, 2)])
    assert executor.num_free == 7
    executor.apply_kv([TrimSequence(0, 0)])
    assert executor.num_free == 8
    executor.apply_kv([TrimSequence(1, 0)])
    assert executor.num_free == 10


def test_a_model_that_cannot_trim_refuses_partial_sharing() -> None:
    executor = _begun(can_trim=False)
    executor.run(_work(0, 0, (1, 2, 3)))
    with pytest.raises(AssertionError, match="as a whole"):
        executor.apply_kv([CopyPrefix("r", 0, 1, 2)])


def test_a_full_pool_is_out_of_kv_and_time_moves_with_each_step() -> None:
    clock = ManualClock()
    executor = _begun(clock=clock)
    assert executor.run(_work(0, 0, tuple(range(11)))).status is StepStatus.OUT_OF_KV
    result = executor.run(_work(0, 0, (1, 2, 3)))
    assert result.duration_s > 0
    assert clock() > result.duration_s


def test_a_step_over_the_budget_is_noticed() -> None:
    executor = _begun(max_step_tokens=2)
    with pytest.raises(AssertionError, match="3 tokens in a step"):
        executor.run(_work(0, 0, (1, 2, 3)))


def test_a_request_that_was_not_begun_is_noticed() -> None:
    executor = FakeExecutor(capacity_tokens=10)
    with pytest.raises(AssertionError, match="not begun"):
        executor.run(_work(0, 0, (1,)))


def test_the_end_token_respects_min_tokens_and_ignore_eos() -> None:
    lengths = {}
    for name, params in {
        "plain": SamplingParams(max_tokens=50),
        "min": SamplingParams(max_tokens=50, min_tokens=20),
        "ignore": SamplingParams(max_tokens=50, ignore_eos=True),
    }.items():
        lengths[name] = len(expected_tokens(Request(name, (5, 6), params), end_every=3))
    assert lengths["plain"] < 20 <= lengths["min"] < 50
    assert lengths["ignore"] == 50
    ignored = Request("ignore", (5, 6), SamplingParams(max_tokens=50, ignore_eos=True))
    assert END_TOKEN in expected_tokens(ignored, end_every=3)
