"""Medians of ratios with an interval, and nearest-rank percentiles of raw samples."""

from __future__ import annotations

import math
import random
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


def percentile_ratio(ours: Sequence[float], peer: Sequence[float], percent: float, seed: int = 0) -> Interval:
    """Ratio of two percentiles, ours over the peer's, of independent requests; both sides resampled with replacement.

    The interval of a P95 or P99 is wide below 72 or 368 samples: then it says so by its width.
    """
    rng = random.Random(seed)
    ratios = sorted(
        percentile(rng.choices(ours, k=len(ours)), percent) / percentile(rng.choices(peer, k=len(peer)), percent)
        for _ in range(_NUM_RESAMPLES // 5)
    )
    low, high = ratios[round(0.025 * len(ratios))], ratios[round(0.975 * len(ratios)) - 1]
    return Interval(percentile(ours, percent) / percentile(peer, percent), low, high)


def wilson(num_good: int, total: int) -> str:
    """A share with its 95 % Wilson interval, as text."""
    if not total:
        return "nan"
    z, share = 1.96, num_good / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return f"{share:.3f} [{middle - half:.3f}, {min(1.0, middle + half):.3f}]"


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
