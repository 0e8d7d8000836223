"""How long a step of decodes takes by its number of output rows, measured while it runs.

A formula would not do: with kernels that work on blocks of rows, two rows can cost as much as four, and whether eight cost eight
times as much as one (a small model on a CPU) or hardly more (weights read once from slow memory) decides whether guessing pays.

    seconds        x measured, interpolated in between; beyond the last one a guess that is worth a try
       |        ..x
       |   .x''
       |  x
       +--1---4---9--> rows
"""

from __future__ import annotations

from bisect import bisect_left

_WEIGHT = 0.2
_MAX_CHANGE = 1.5
"""An observation counts as at most so many times what was believed: one stalled step must not switch anything off."""
_UNTRIED_ROW_SHARE = 0.1
"""A row beyond all measured ones is believed to cost this share of the smallest step, until somebody has tried."""


class StepTimes:
    """Smoothed durations, seconds, by number of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._sizes: list[int] = []

    def observe(self, num_rows: int, duration_s: float) -> None:
        """Learn from one step without prefill; a duration of 0 (no clock) teaches nothing."""
        if duration_s <= 0:
            return
        known = self._seconds.get(num_rows)
        if known is None:
            self._sizes.insert(bisect_left(self._sizes, num_rows), num_rows)
            self._seconds[num_rows] = duration_s
        else:
            self._seconds[num_rows] = known + _WEIGHT * (min(duration_s, _MAX_CHANGE * known) - known)

    @property
    def is_measured(self) -> bool:
        """Something was observed."""
        return bool(self._sizes)

    def measured_s(self, num_rows: int) -> float | None:
        """The smoothed duration of steps of exactly this size; None = there was none."""
        return self._seconds.get(num_rows)

    def predict_s(self, num_rows: int) -> float:
        """The expected duration; something must have been observed."""
        assert self._sizes, "no step was observed yet"
        at = bisect_left(self._sizes, num_rows)
        if at < len(self._sizes) and self._sizes[at] == num_rows:
            return self._seconds[num_rows]
        if at == 0:
            return self._seconds[self._sizes[0]]
        low = self._sizes[at - 1]
        if at == len(self._sizes):
            return self._seconds[low] + (num_rows - low) * _UNTRIED_ROW_SHARE * self._seconds[self._sizes[0]]
        high = self._sizes[at]
        share = (num_rows - low) / (high - low)
        return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])
