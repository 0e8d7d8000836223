"""The budget of one step: how much time it may take, as it fills with work from the most urgent tier down.

    0 ----------------------------------------------> time of the step, predicted by the cost model
    |rank 0 decodes|rank 0 chunk|rank 3 decode|.....|
                                              ^     ^ limit: the smallest slack of what is already in the step
                                              ^ further ones would make the more urgent ones late

The most urgent work in the step is bounded by nobody. What comes after must fit:

- beside a decode: into what is left until its next token is due (its TPOT objective after the last one, or sooner to make up
  for gaps that were longer); so must prefills of its own rank, as long as they have the time;
- beside a prefill: into a quarter more than what is in the step already, and into nothing while that would make it miss a
  deadline which it can still meet.

Prefill chunks are sized to the step's target time too, so that a step stays short when nothing urgent is in it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from ultrafast.sched.chunks import (
    ALONE_STRETCH,
    DECODE_STRETCH,
    DUE_SHARE,
    FALLBACK_CHUNK_TOKENS,
    FIRST_DUE_SHARE,
    IDLE_STRETCH,
    INTERRUPTIBLE_STRETCH,
    MIN_CHUNK_TOKENS,
    Prefills,
    due_key,
)
from ultrafast.sched.cost import CostModel
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest

PREFILL_STRETCH = 0.25
"""How much longer a step with a prefill may get for less urgent work. A prefill as a whole so takes at most this much longer."""


class StepBudget:
    """Filled rank by rank by the planner; knows numbers, not requests.

    Args:
        is_alone: the step serves the only request there is.
        may_be_long: it then gives way to a newcomer even while it runs.

    Attributes:
        num_outputs, num_prefill_tokens: what is in the step so far.
    """

    def __init__(
        self, cost: CostModel, limits: SchedulerLimits, now: float, *, is_alone: bool = False, may_be_long: bool = False
    ) -> None:
        self._cost = cost
        self._limits = limits
        self._now = now
        self._limit_s = math.inf
        alone_stretch = INTERRUPTIBLE_STRETCH if may_be_long else ALONE_STRETCH
        self._idle_stretch = alone_stretch if is_alone else IDLE_STRETCH
        self._may_be_long = may_be_long
        self._held_share = 0.0
        self.num_outputs = 0
        self.num_prefill_tokens = 0

    @property
    def num_tokens(self) -> int:
        return self.num_outputs + self.num_prefill_tokens

    @property
    def is_limited(self) -> bool:
        """More urgent work is in the step already."""
        return self._limit_s < math.inf

    def hold_back(self, share: float) -> None:
        """Before a rank: the share of the target time that it must leave for more urgent work that is likely to come; 0 = none.

        Then its work fills no more than the rest of the target: who comes waits for the step under way.
        """
        self._held_share = share

    @property
    def _target_s(self) -> float:
        return self._limits.step_target_s * (1.0 - self._held_share)

    def num_decodes_fitting(self, num_wanted: int) -> int:
        """How many more decodes fit; all of them while nothing more urgent is in the step or likely to come."""
        if not self.is_limited and not self._held_share:
            return num_wanted
        limit_s = min(self._limit_s, self._target_s) if self._held_share else self._limit_s
        count = bisect_right(range(1, num_wanted + 1), limit_s, key=lambda count: self._predict_s(count, 0))
        return count if self.is_limited else max(count, min(1, num_wanted))

    def slack_s(self, due_s: float, prefills: Prefills) -> float:
        """Return how long a step may take for prefills that can wait for the decodes of their own rank; else infinity.

        They can wait while even at the pace of the target step time their first tokens would come in time, with a margin.
        `due_s`: when the first of the decodes has its next token due; infinity = there are none.
        """
        slack_s = due_s - self._now
        if slack_s == math.inf or not self._cost.is_fitted:
            return math.inf
        token_s = self._cost.coefficients[2]
        decode_s = self._predict_s(0, 0)
        chunk_s = max(self._target_s - decode_s, MIN_CHUNK_TOKENS * token_s)
        rest_s = token_s * sum(prefills.lengths)
        needed_s = (rest_s + decode_s * rest_s / chunk_s if chunk_s > 0 else rest_s) * (1 + PREFILL_STRETCH)
        return slack_s if self._now + needed_s < prefills.first_due.deadline_s else math.inf

    def pressed(self, num_tokens: int, prefills: Prefills) -> LiveRequest | None:
        """Find the prefill that will be late unless it goes first: the first due of those that can be in time; None = nobody.

        One can be in time if all of the next steps' prefill tokens, `num_tokens` each, would do; it has time to spare while that
        is so after a step in which others went first, with a margin.
        """
        if len(prefills.lives) == 1 or num_tokens <= 0 or not self._cost.is_fitted:
            return None
        step_s = self._predict_s(0, num_tokens)
        token_s = step_s / num_tokens
        first, now = prefills.first_due, self._now
        if first.deadline_s < now + token_s * first.num_remaining:
            hopeful = [
                live
                for live, length in zip(prefills.lives, prefills.lengths, strict=True)
                if live.arrival_s + live.ttft_s >= now + token_s * length
            ]
            if not hopeful:
                return None
            first = min(hopeful, key=due_key)
        needed_s = step_s + token_s * max(0, first.num_remaining - num_tokens // FIRST_DUE_SHARE)
        return first if now + needed_s * (1 + PREFILL_STRETCH) > first.deadline_s else None

    def num_prefill_tokens_fitting(self, num_kept: int, slack_s: float = math.inf, due_s: float = math.inf) -> int:
        """Prefill tokens for the next rank.

        Args:
            num_kept: tokens of the step to leave for decodes that are not in it yet.
            slack_s: what the decodes of the same rank leave, see `slack_s`.
            due_s: when the first of these decodes has its next token due.
        """
        room = self._limits.max_step_tokens - self.num_tokens - num_kept
        if not self._cost.is_fitted:
            return max(0, min(room, FALLBACK_CHUNK_TOKENS - self.num_prefill_tokens))
        target_s = min(self._prefill_target_s(due_s), self._limit_s, slack_s)
        within = self._cost.prefill_tokens_within(target_s, self.num_outputs) - self.num_prefill_tokens
        # A small chunk always, unless it would make somebody late: more urgent work waits for nobody.
        floor = 0 if self.is_limited else MIN_CHUNK_TOKENS
        if floor and slack_s < math.inf:
            floor = min(floor, self._cost.prefill_tokens_within(slack_s, self.num_outputs) - self.num_prefill_tokens)
        return min(max(room, 0), max(floor, within))

    def _prefill_target_s(self, due_s: float) -> float:
        """How long the step may get for prefills that nobody more urgent bounds."""
        if self._held_share:
            return self._target_s
        if not self.num_outputs:
            return self._target_s * self._idle_stretch
        if not self._may_be_long or due_s == math.inf:
            return self._target_s
        return max(self._target_s, min(DUE_SHARE * (due_s - self._now), DECODE_STRETCH * self._target_s))

    def add_decodes(self, num_decodes: int) -> None:
        self.num_outputs += num_decodes

    def add_prefill(self, num_tokens: int) -> None:
        self.num_prefill_tokens += num_tokens

    def close_rank(self, due_s: float, prefills: Iterable[LiveRequest]) -> None:
        """All work of a rank is in: it now bounds what less urgent ranks may add. `due_s` as in `slack_s`."""
        self._limit_s = min(self._limit_s, due_s - self._now)
        for live in prefills:
            stretch = PREFILL_STRETCH if self._may_stretch(live) else 0.0
            self._limit_s = min(self._limit_s, self._predict_s(0, 0) * (1 + stretch))

    def _may_stretch(self, live: LiveRequest) -> bool:
        rest_s = live.num_remaining * self._cost.coefficients[2]
        slack_s = live.deadline_s - self._now
        return slack_s >= rest_s * (1 + PREFILL_STRETCH) or slack_s < rest_s

    def _predict_s(self, num_more_outputs: int, num_more_tokens: int) -> float:
        return self._cost.predict_s(self.num_outputs + num_more_outputs, self.num_prefill_tokens + num_more_tokens)
