"""Figures over the last minute: percentiles and sums that forget, in bounded memory and without a clock of their own.

Time is cut into slices; the oldest falls out as a new one begins, so that a window holds the last 55 to 60 seconds:

    | 5 s | 5 s | ... | 5 s | now |      12 slices
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

SLICE_S = 5.0
NUM_SLICES = 12
WINDOW_S = SLICE_S * NUM_SLICES

_LOWEST_S = 1e-4
_GROWTH = 1.04
"""Buckets of a factor of 1.04: a percentile is right within 2 %."""
_INVERSE_LOG_GROWTH = 1 / math.log(_GROWTH)
_NUM_BUCKETS = math.ceil(math.log(1e7) * _INVERSE_LOG_GROWTH) + 1
"""From 0.1 ms to 1000 s."""

SliceT = TypeVar("SliceT")


class _Slices(Generic[SliceT]):
    """The slices of one window. `forget` is called with each that falls out."""

    def __init__(self, make: Callable[[], SliceT], forget: Callable[[SliceT], None]) -> None:
        self._make = make
        self._forget = forget
        self._slices: deque[SliceT] = deque([make()])
        self._number = 0

    def current(self, now: float) -> SliceT:
        """The slice of `now`. Time does not go back: an earlier `now` counts for the newest slice."""
        number = int(now / SLICE_S)
        if number > self._number:
            self._advance(min(number - self._number, NUM_SLICES))
            self._number = number
        return self._slices[-1]

    def _advance(self, num_new: int) -> None:
        for _ in range(num_new):
            self._slices.append(self._make())
            if len(self._slices) > NUM_SLICES:
                self._forget(self._slices.popleft())


class Latency(NamedTuple):
    """Percentiles in seconds (None without samples), samples, and how many of them met the objective (exact)."""

    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    num: int
    num_within: int


class LatencyWindow:
    """Percentiles of the durations of the last minute, and the share within an objective."""

    def __init__(self, objective_s: float) -> None:
        self.objective_s = objective_s
        self._counts = [0] * _NUM_BUCKETS
        self._within = SumWindow(2)
        self._slices: _Slices[dict[int, int]] = _Slices(dict, self._subtract)

    def observe(self, value_s: float, now: float, count: int = 1) -> None:
        """Add `count` samples of `value_s` seconds."""
        bucket = _bucket(value_s)
        part = self._slices.current(now)
        part[bucket] = part.get(bucket, 0) + count
        self._counts[bucket] += count
        self._within.add((count, count if value_s <= self.objective_s else 0), now)

    def read(self, now: float) -> Latency:
        self._slices.current(now)
        num, num_within = self._within.read(now)
        p50_s, p90_s, p99_s = self._percentiles(round(num))
        return Latency(p50_s, p90_s, p99_s, round(num), round(num_within))

    def _percentiles(self, num: int) -> tuple[float | None, float | None, float | None]:
        """Nearest rank: the smallest value with at least q of all samples at or below it."""
        if not num:
            return None, None, None
        ranks = [math.ceil(q * num) for q in (0.5, 0.9, 0.99)]
        found: list[float] = []
        so_far = 0
        for bucket, count in enumerate(self._counts):
            so_far += count
            while len(found) < len(ranks) and so_far >= ranks[len(found)]:
                found.append(_middle_s(bucket))
            if len(found) == len(ranks):
                break
        p50_s, p90_s, p99_s = found
        return p50_s, p90_s, p99_s

    def _subtract(self, part: dict[int, int]) -> None:
        for bucket, count in part.items():
            self._counts[bucket] -= count


class SumWindow:
    """Sums of `num_values` figures over the last minute."""

    def __init__(self, num_values: int) -> None:
        self._sums = [0.0] * num_values
        self._slices: _Slices[list[float]] = _Slices(lambda: [0.0] * num_values, self._subtract)

    def add(self, values: tuple[float, ...], now: float) -> None:
        part = self._slices.current(now)
        for index, value in enumerate(values):
            part[index] += value
            self._sums[index] += value

    def read(self, now: float) -> list[float]:
        self._slices.current(now)
        return [max(0.0, value) for value in self._sums]

    def _subtract(self, part: list[float]) -> None:
        for index, value in enumerate(part):
            self._sums[index] -= value


def _bucket(value_s: float) -> int:
    if value_s <= _LOWEST_S:
        return 0
    return min(_NUM_BUCKETS - 1, 1 + int(math.log(value_s / _LOWEST_S) * _INVERSE_LOG_GROWTH))


def _middle_s(bucket: int) -> float:
    return _LOWEST_S if bucket == 0 else _LOWEST_S * _GROWTH ** (bucket - 0.5)
