"""What a call cost: counts and times, gathered from the engine's events of all its requests."""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.core.events import RequestFinished, RequestScheduled
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import Started, Timings, Usage


class CallAccount:
    """Counts and times of one call. All times are monotonic seconds of one clock, shared with the engine."""

    def __init__(self, arrival_s: float, submitted_s: float, prompt_lengths: Sequence[int], num_choices: int) -> None:
        self._arrival_s = arrival_s
        self._submitted_s = submitted_s
        self._num_choices = num_choices
        self._num_prompt_tokens = sum(prompt_lengths)
        self._cached = [0] * len(prompt_lengths)
        self._scheduled_s: float | None = None
        self._first_token_s: float | None = None
        self._seen_first_token_s: float | None = None
        self._finished_s: float | None = None
        self._decode_s: list[float | None] = [None] * (len(prompt_lengths) * num_choices)

    def scheduled(self, number: int, event: RequestScheduled) -> None:
        """Take note of a start; only the first of a prompt's choices says what the cache had."""
        if number % self._num_choices == 0 and not self._cached[number // self._num_choices]:
            self._cached[number // self._num_choices] = event.num_cached_tokens
        self._scheduled_s = _earlier(self._scheduled_s, event.at_s)

    def finished(self, number: int, event: RequestFinished) -> None:
        """Take note of an end: the engine's own figures replace what was seen from here."""
        if number % self._num_choices == 0:
            self._cached[number // self._num_choices] = event.num_cached_tokens
        self._scheduled_s = _earlier(self._scheduled_s, event.scheduled_s)
        self._first_token_s = _earlier(self._first_token_s, event.first_token_s)
        self._finished_s = event.finished_s if self._finished_s is None else max(self._finished_s, event.finished_s)
        if event.first_token_s is not None:
            self._decode_s[number] = max(0.0, event.finished_s - event.first_token_s)

    def stopped(self, number: int, now: float) -> None:
        """A choice has all that it wants (a stop string) and will not hear of its end: the call's first token stands for its."""
        if self._seen_first_token_s is not None:
            self._decode_s[number] = max(0.0, now - self._seen_first_token_s)

    def ended(self, now: float) -> None:
        """The call is over; requests that were cut by a stop string have not reported an end of their own."""
        if self._finished_s is None:
            self._finished_s = now

    def started(self, now: float, tier: ServiceTier, tier_reason: str) -> Started:
        """The call's first token arrived at `now` (or the call ended without one)."""
        scheduled_s = now if self._scheduled_s is None else self._scheduled_s
        self._seen_first_token_s = now
        return Started(
            tier=tier,
            tier_reason=tier_reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_tokens=sum(self._cached),
            queue_s=max(0.0, scheduled_s - self._arrival_s),
            prefill_s=max(0.0, now - scheduled_s),
        )

    def usage(self, num_output_tokens: int) -> Usage:
        return Usage(self._num_prompt_tokens, num_output_tokens, sum(self._cached))

    def timings(self) -> Timings:
        """Parts of the call's time. The way into and out of the engine, templates and text are not in here: they are "output"."""
        finished_s = self._submitted_s if self._finished_s is None else self._finished_s
        scheduled_s = finished_s if self._scheduled_s is None else self._scheduled_s
        first_token_s = self._seen_first_token_s if self._first_token_s is None else self._first_token_s
        if first_token_s is None:
            first_token_s = finished_s
        return Timings(
            queue_s=max(0.0, scheduled_s - self._submitted_s),
            compute_s=max(0.0, finished_s - scheduled_s),
            prefill_s=max(0.0, first_token_s - scheduled_s),
            ttft_s=max(0.0, first_token_s - self._arrival_s),
            decode_s=tuple(0.0 if decode_s is None else decode_s for decode_s in self._decode_s),
        )


def _earlier(first: float | None, second: float | None) -> float | None:
    if first is None or second is None:
        return second if first is None else first
    return min(first, second)
