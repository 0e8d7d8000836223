"""When a step is broken off: a prefill that had the machine to itself gives way to somebody who has just come.

    |---- a chunk of a long prompt ----:. . . . . . . .|         elapsed: computed for nothing, and computed again later
              lost                     ^     gained              rest: what the newcomer does not wait for
                                   newcomer

A step that nobody waits for is long, because long chunks cost less. Breaking it off costs the long prompt what was computed so
far, and spares the newcomer the rest. A second of a more urgent tier counts as several; within a tier only a shorter prompt goes
before a longer one, and only while nobody decodes.

What is lost is a debt, paid off by a quarter of the time of the steps that follow. While there is any, steps are shorter and are
not broken off: newcomers, however many, never cost a long prompt more than a quarter of its time and one step.
"""

from __future__ import annotations

from collections.abc import Mapping

from ultrafast.core.step import SequenceWork, StepResult, StepStatus, Yielding
from ultrafast.sched.cost import CostModel
from ultrafast.sched.live import LiveRequest

URGENT_WEIGHT = 3.0
"""A second that a more urgent request waits weighs as much as so many seconds of computation: at most a quarter of the step is
waited for, and at most three quarters of it are computed again."""
MIN_GAIN_S = 0.03
"""Less is not worth it: breaking off takes up to 20 ms itself (a large matrix product is finished first)."""
PAID_SHARE = 0.25


class Interruptions:
    """The debt, and which steps may be broken off. Owned by the scheduler's state.

    Args:
        can_interrupt: the engine can break a step off at all.
    """

    def __init__(self, *, can_interrupt: bool) -> None:
        self._can_interrupt = can_interrupt
        self._debt_s = 0.0

    @property
    def are_affordable(self) -> bool:
        """The next step may be broken off, and so may be long."""
        return self._can_interrupt and self._debt_s == 0.0

    def yielding(self, work: tuple[SequenceWork, ...], lives: Mapping[str, LiveRequest], cost: CostModel) -> Yielding | None:
        """Describe a step that may be broken off; None when this one may not."""
        if not self.are_affordable or not work or not cost.is_fitted:
            return None
        num_outputs = num_prefill_tokens = num_decodes = 0
        for item in work:
            if item.drafts:
                return None
            num_outputs += item.samples
            if item.is_decode:
                num_decodes += 1
            else:
                num_prefill_tokens += len(item.tokens)
        predicted_s = cost.predict_s(num_outputs, num_prefill_tokens)
        if predicted_s < 2 * MIN_GAIN_S:
            return None
        urgency = min([lives[item.request_id].urgency for item in work])
        return Yielding(urgency, 0 if num_decodes else num_prefill_tokens, predicted_s)

    def step_finished(self, result: StepResult) -> None:
        """Book what a step lost, or paid."""
        if result.status is StepStatus.INTERRUPTED:
            self._debt_s += result.duration_s
        elif self._debt_s:
            self._debt_s = max(0.0, self._debt_s - PAID_SHARE * result.duration_s)


def is_worth_it(step: Yielding, rank: int, num_prompt_tokens: int, elapsed_s: float) -> bool:
    """Whether a newcomer gains more than is lost.

    Args:
        step: what runs.
        rank: of the newcomer's tier.
        num_prompt_tokens: of the newcomer, cached ones included: what is known before it is looked at.
        elapsed_s: since the step began.
    """
    rest_s = step.predicted_s - elapsed_s
    if rest_s < MIN_GAIN_S:
        return False
    if rank < step.urgency:
        return rest_s * URGENT_WEIGHT > elapsed_s
    return rank == step.urgency and num_prompt_tokens < step.num_tokens and rest_s > elapsed_s
