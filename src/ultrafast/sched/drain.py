"""How fast the queue drains, measured, and when a refused client should come back.

    rate(rank) = requests of this or a more urgent tier that got a place / time during which such requests waited

Only time with a backlog counts: without one, the rate would tell how fast requests arrive, not how fast they could be served. Old
time fades with a half-life of about `HALF_LIFE_S`.

Refused clients get slots one after the other, each one place further down the queue, so that they do not come back as a herd.
"""

from __future__ import annotations

from collections.abc import Sequence

HALF_LIFE_S = 30.0
MIN_RETRY_S = 1.0
MAX_RETRY_S = 120.0
_JITTER = 0.2
_UNKNOWN_RATE = 1.0
_GOLDEN = 0.6180339887498949


class Drain:
    """Rates and retry slots, by rank."""

    def __init__(self, num_ranks: int) -> None:
        self._num_started = [0.0] * num_ranks
        self._backlog_s = [0.0] * num_ranks
        self._next_slot_s = [0.0] * num_ranks
        self._had_backlog = [False] * num_ranks
        self._num_told = 0

    def step_finished(self, duration_s: float, num_started: Sequence[int], num_waiting: Sequence[int]) -> None:
        """Book one step: requests that got their first place in it, and those that wait after it, by rank."""
        keep = 0.5 ** (duration_s / HALF_LIFE_S)
        started = waiting = 0
        for rank in range(len(self._num_started)):
            started += num_started[rank]
            waiting += num_waiting[rank]
            # Those who found a free place waited for nobody: they say nothing about how fast places become free.
            if self._had_backlog[rank]:
                self._num_started[rank] = self._num_started[rank] * keep + started
                self._backlog_s[rank] = self._backlog_s[rank] * keep + duration_s
            self._had_backlog[rank] = waiting > 0

    def rate(self, rank: int) -> float | None:
        """Requests of this and more urgent tiers that get a place per second; None before anything was measured."""
        if self._num_started[rank] <= 0 or self._backlog_s[rank] <= 0:
            return None
        return self._num_started[rank] / self._backlog_s[rank]

    def wait_s(self, rank: int, num_ahead: int) -> float | None:
        """How long one with so many ahead of it will wait for a place, seconds; None before anything was measured."""
        rate = self.rate(rank)
        return None if rate is None else (num_ahead + 1) / rate

    def retry_after_s(self, rank: int, num_ahead: int, now: float) -> float:
        """Return when a refused client should come back, in [1, 120] seconds.

        Args:
            rank: of its tier.
            num_ahead: requests that must get a place before it makes sense.
            now: seconds.
        """
        rate = self.rate(rank) or _UNKNOWN_RATE
        slot_s = max(now + max(1, num_ahead) / rate, self._next_slot_s[rank])
        self._next_slot_s[rank] = slot_s + 1.0 / rate
        self._num_told += 1
        # Evenly spread without a random source: multiples of the golden ratio, modulo 1 (Weyl sequence).
        jitter = 1.0 + _JITTER * ((self._num_told * _GOLDEN) % 1.0)
        return min(max((slot_s - now) * jitter, MIN_RETRY_S), MAX_RETRY_S)
