"""How long the draft model takes, measured while it works: its passes of a few tokens, and a token of a long read."""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.core.draft import DraftPass
from ultrafast.sched.speculation.choice import Drafted
from ultrafast.sched.speculation.step_times import StepTimes

_SMALL_TOKENS = 16
"""Passes up to this size are remembered by size, larger ones by their time per token."""
FIRST_READ_TOKENS = 32
"""What is read at once before anybody knows how long that takes."""
_WEIGHT = 0.2


class DraftTimes:
    """Smoothed durations, seconds."""

    def __init__(self) -> None:
        self._small = StepTimes()
        self._token_s: float | None = None

    def observe(self, one: DraftPass) -> None:
        """Learn from a pass; a duration of 0 (no clock) teaches nothing."""
        if one.num_tokens <= _SMALL_TOKENS:
            self._small.observe(one.num_tokens, one.duration_s)
        elif one.duration_s > 0:
            token_s = one.duration_s / one.num_tokens
            self._token_s = token_s if self._token_s is None else self._token_s + _WEIGHT * (token_s - self._token_s)

    def pass_s(self, num_tokens: int) -> float:
        """The expected duration of a pass; 0 while nothing is known, so that somebody tries."""
        if self._token_s is not None and (num_tokens > _SMALL_TOKENS or not self._small.is_measured):
            return num_tokens * self._token_s
        return self._small.predict_s(num_tokens) if self._small.is_measured else 0.0

    def drafting_s(self, work: Sequence[Drafted]) -> float:
        """All passes that guess for these requests together: the first reads, each further one has a token per request."""
        if not work:
            return 0.0
        total_s = self.pass_s(sum(item.num_unread for item in work))
        for number in range(1, max(item.num_drafts for item in work)):
            total_s += self.pass_s(sum(item.num_drafts > number for item in work))
        return total_s

    def tokens_within(self, limit_s: float) -> int:
        """How many tokens can be read in so much time."""
        if self._token_s is None:
            return FIRST_READ_TOKENS if limit_s > 0 else 0
        return max(0, int(limit_s / self._token_s))
