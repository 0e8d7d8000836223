"""Whether one request goes on guessing with one source of guesses, and how likely these are right.

    on --16 misses in a row, or no gain measured, or no choice pays--> off --after a pause, with fresh beliefs--> on

The pause doubles each time, so a text that cannot be guessed costs a vanishing number of vain steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.sched.speculation.acceptance import Acceptance
from ultrafast.sched.speculation.choice import MIN_GAIN

MAX_MISSES = 16
MIN_PAUSE = 32
MAX_PAUSE = 512
"""Chances to guess that are let pass while off."""
_MIN_JUDGED_STEPS = 8
_FORGET = 0.95


class Trust:
    """Acceptance and measured gain of one request's guesses from one source; `priors` as in `Acceptance`."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = tuple(priors)
        self._pause = MIN_PAUSE
        self._is_off = False
        self._acceptance = Acceptance(self._priors)
        self._num_misses = 0
        self._num_passed = 0
        self._num_judged = 0
        self._plain_s = 0.0
        self._spent_s = 0.0

    @property
    def is_off(self) -> bool:
        return self._is_off

    def probability(self, kind: int) -> float:
        """See `Acceptance.probability`."""
        return self._acceptance.probability(kind)

    def pass_over(self) -> None:
        """A chance to guess was not taken. After enough of them, what is believed may be out of date: start afresh."""
        self._num_passed += 1
        if self._num_passed >= self._pause:
            self._pause = min(2 * self._pause, MAX_PAUSE)
            self._start_afresh()

    def observe(self, kind: int, num_drafts: int, num_accepted: int) -> None:
        """Learn how many of the drafts were right."""
        self._acceptance.observe(kind, num_drafts, num_accepted)
        self._num_passed = 0
        self._num_misses = 0 if num_accepted else self._num_misses + 1
        if self._num_misses >= MAX_MISSES:
            self._is_off = True

    def observe_gain(self, plain_s: float, spent_s: float) -> None:
        """Learn from a step with drafts: the time that its tokens would have taken without, and the time that it took."""
        self._plain_s = self._plain_s * _FORGET + plain_s
        self._spent_s = self._spent_s * _FORGET + spent_s
        self._num_judged += 1
        if self._num_judged < _MIN_JUDGED_STEPS:
            return
        if self._plain_s < MIN_GAIN * self._spent_s:
            self._is_off = True
        else:
            self._pause = MIN_PAUSE

    def _start_afresh(self) -> None:
        self._is_off = False
        self._acceptance = Acceptance(self._priors)
        self._num_misses = self._num_passed = self._num_judged = 0
        self._plain_s = self._spent_s = 0.0
