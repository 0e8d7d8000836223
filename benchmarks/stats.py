"""Medians of ratios with an interval, and nearest-rank percentiles of raw samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_NUM_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A median and the 95 % bootstrap interval (percentile method) around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """Median of independent samples (one per interleaved group), resampled with replacement."""
    values = np.asarray(samples, dtype=np.float64)
    rng = np.random.default_rng(seed)
    medians = np.median(rng.choice(values, size=(_NUM_RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [0.025, 0.975])
    return Interval(float(np.median(values)), float(low), float(high))


def percentile(samples: Sequence[float], percent: float) -> float:
    """Nearest rank; NaN of nothing. Infinite samples (failures) are welcome."""
    if not samples:
        return math.nan
    return sorted(samples)[max(0, math.ceil(percent / 100 * len(samples)) - 1)]


def slope(at: Sequence[float], values: Sequence[float]) -> float:
    """Least-squares slope; 0 with fewer than two points."""
    if len(at) < 2:
        return 0.0
    return float(np.polyfit(np.asarray(at), np.asarray(values), 1)[0])
