"""How fast the queue drains, measured, and when a refused client should come back.

    own rate(rank)    = requests of this tier that got a place / time during which such requests waited
    common rate(rank) = the same of this and all more urgent tiers together

Only time with a backlog counts: without one, the rate would tell how fast requests arrive, not how fast they could be served. Old
time fades with a half-life of about `HALF_LIFE_S`. A wait is the longer one of what both rates say: the common rate knows who is
ahead now, the tier's own knows that more urgent ones will keep coming.

Refused clients get slots one after the other, each one place further down the queue, so that they do not come back as a herd. As
long as slots are promised, newcomers leave room in the queue (see `gate.py`) for those who come when told.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence

HALF_LIFE_S = 30.0
MIN_RETRY_S = 1.0
MAX_RETRY_S = 120.0
_JITTER = 0.2
_JITTER_SLOTS = 10.0
_UNKNOWN_RATE = 1.0
_GOLDEN = 0.6180339887498949
_GRACE_S = 1.0


class Drain:
    """Rates and retry slots, by rank."""

    def __init__(self, num_ranks: int) -> None:
        self._own = [_Rate() for _ in range(num_ranks)]
        self._common = [_Rate() for _ in range(num_ranks)]
        self._next_slot_s = [0.0] * num_ranks
        self._promised: list[deque[float]] = [deque() for _ in range(num_ranks)]
        self._num_told = 0
        self._had_backlog = False

    def step_finished(self, duration_s: float, num_started: Sequence[int], num_waiting: Sequence[int]) -> None:
        """Book one step: requests that got their first place in it, and those that wait after it, by rank."""
        has_backlog = any(num_waiting)
        if not (has_backlog or self._had_backlog):
            return  # no rate changes
        self._had_backlog = has_backlog
        started = waiting = 0
        for rank, (own, common) in enumerate(zip(self._own, self._common, strict=True)):
            started += num_started[rank]
            waiting += num_waiting[rank]
            own.book(duration_s, num_started[rank], has_backlog=num_waiting[rank] > 0)
            common.book(duration_s, started, has_backlog=waiting > 0)

    def rate(self, rank: int) -> float | None:
        """Requests of this tier that get a place per second, at the expense of no other; None before anything was measured."""
        rates = [rate for rate in (self._common[rank].per_s(), self._own[rank].at_most_per_s()) if rate is not None]
        return min(rates) if self._common[rank].per_s() is not None else None

    def wait_s(self, rank: int, num_waiting: Sequence[int]) -> float | None:
        """How long one more of a tier will wait for a place, seconds; None before anything was measured.

        Args:
            rank: of its tier.
            num_waiting: requests that wait now, by rank.
        """
        common, own = self._common[rank].per_s(), self.rate(rank)
        if common is None or own is None:
            return None
        return max((sum(num_waiting[: rank + 1]) + 1) / common, (num_waiting[rank] + 1) / own)

    def retry_after_s(self, rank: int, wait_s: float | None, now: float) -> float:
        """Return when a refused client should come back, in [1, 120] seconds; below that, it is promised a slot.

        Args:
            rank: of its tier.
            wait_s: how long it takes until coming back makes sense; None = unknown.
            now: seconds.
        """
        rate = self.rate(rank) or _UNKNOWN_RATE
        slot_s = max(now + (1.0 / rate if wait_s is None else wait_s), self._next_slot_s[rank])
        self._num_told += 1
        # Evenly spread without a random source: multiples of the golden ratio, modulo 1 (Weyl sequence).
        spread = _JITTER * ((self._num_told * _GOLDEN) % 1.0)
        if slot_s - now > MAX_RETRY_S:  # too far away for a promise, and no reason to send the next one further
            return MAX_RETRY_S * (1.0 - spread)
        self._next_slot_s[rank] = slot_s + 1.0 / rate
        retry_s = min(max(slot_s - now + spread * min(slot_s - now, _JITTER_SLOTS / rate), MIN_RETRY_S), MAX_RETRY_S)
        insort(self._promised[rank], now + retry_s)
        return retry_s

    def num_promised(self, rank: int, num_places: int, now: float) -> int:
        """Clients of a tier that were told to come back, and should do so before `num_places` of its queue have drained."""
        promised = self._promised[rank]
        while promised and promised[0] + _GRACE_S < now:
            promised.popleft()
        until_s = now + num_places / (self.rate(rank) or _UNKNOWN_RATE)
        return min(num_places, bisect_right(promised, until_s))


class _Rate:
    """Places over time with a backlog, both fading."""

    def __init__(self) -> None:
        self._num_started = 0.0
        self._backlog_s = 0.0
        self._had_backlog = False

    def book(self, duration_s: float, num_started: int, *, has_backlog: bool) -> None:
        # Those who found a free place waited for nobody: they say nothing about how fast places become free.
        if self._had_backlog:
            keep = 0.5 ** (duration_s / HALF_LIFE_S)
            self._num_started = self._num_started * keep + num_started
            self._backlog_s = self._backlog_s * keep + duration_s
        self._had_backlog = has_backlog

    def per_s(self) -> float | None:
        """None before anything was measured."""
        return self._num_started / self._backlog_s if self._num_started > 0 and self._backlog_s > 0 else None

    def at_most_per_s(self) -> float | None:
        """The same for one that may be starved: not even one place in so much time. None before there was a backlog."""
        return max(self._num_started, 1.0) / self._backlog_s if self._backlog_s > 0 else None
