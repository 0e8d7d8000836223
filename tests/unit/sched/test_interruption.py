"""What is worth breaking a step off for, and what the debt allows."""

from types import SimpleNamespace

import pytest

from ultrafast.core.step import SequenceWork, StepResult, StepStatus, Yielding
from ultrafast.sched.cost import CostModel
from ultrafast.sched.interruption import MIN_GAIN_S, PAID_SHARE, Interruptions, is_worth_it

STEP = Yielding(urgency=2, num_tokens=250, predicted_s=1.0)
PREFILL = (SequenceWork("long", 0, 0, tuple(range(250)), samples=False),)
DECODE = SequenceWork("other", 1, 40, (7,), samples=True)
LIVES = {"long": SimpleNamespace(urgency=2), "other": SimpleNamespace(urgency=3)}


@pytest.fixture
def cost() -> CostModel:
    model = CostModel()
    for num_tokens in (16, 64, 128, 256) * 4:
        model.observe(0, num_tokens, 0.004 + 0.004 * num_tokens)
    return model


@pytest.mark.parametrize(
    ("rank", "num_tokens", "elapsed_s", "is_worth"),
    [
        (1, 9_000, 0.0, True),
        (1, 9_000, 0.74, True),
        (1, 9_000, 0.76, False),  # three quarters are done
        (0, 10, 1.0 - MIN_GAIN_S / 2, False),
        (0, 10, 5.0, False),  # it takes longer than predicted: it may end at any moment
        (2, 249, 0.49, True),
        (2, 249, 0.51, False),
        (2, 250, 0.0, False),  # not shorter
        (3, 10, 0.0, False),
    ],
)
def test_a_newcomer_must_gain_more_than_is_lost(rank: int, num_tokens: int, elapsed_s: float, *, is_worth: bool) -> None:
    assert is_worth_it(STEP, rank, num_tokens, elapsed_s) is is_worth


def test_only_long_steps_yield(cost: CostModel) -> None:
    interruptions = Interruptions(can_interrupt=True)
    yielding = interruptions.yielding(PREFILL, LIVES, cost)
    assert yielding is not None
    assert (yielding.urgency, yielding.num_tokens) == (2, 250)
    assert yielding.predicted_s == pytest.approx(1.004, rel=0.05)
    beside = interruptions.yielding((*PREFILL, DECODE), LIVES, cost)
    assert beside is not None
    assert (beside.urgency, beside.num_tokens) == (2, 0), "with a stream in it only for the more urgent"
    assert not is_worth_it(beside, 2, 1, 0.0)
    assert interruptions.yielding((*PREFILL, DECODE._replace(drafts=(1, 2))), LIVES, cost) is None
    assert interruptions.yielding((SequenceWork("long", 0, 0, (1, 2), samples=True),), LIVES, cost) is None, "it is short"
    assert interruptions.yielding((), LIVES, cost) is None
    assert interruptions.yielding(PREFILL, LIVES, CostModel()) is None, "nobody knows how long it takes"
    assert Interruptions(can_interrupt=False).yielding(PREFILL, LIVES, cost) is None


def test_what_is_lost_is_paid_before_the_next_time(cost: CostModel) -> None:
    interruptions = Interruptions(can_interrupt=True)
    interruptions.step_finished(StepResult(StepStatus.INTERRUPTED, duration_s=0.5))
    computed_s = 0.0
    while not interruptions.are_affordable:
        assert interruptions.yielding(PREFILL, LIVES, cost) is None
        interruptions.step_finished(StepResult(StepStatus.OK, duration_s=0.1))
        computed_s += 0.1
    assert computed_s == pytest.approx(0.5 / PAID_SHARE, abs=0.11)
