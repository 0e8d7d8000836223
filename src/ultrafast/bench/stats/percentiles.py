"""Percentiles of raw samples and what can be said about the true ones.

Pure. Percentiles are nearest-rank (the inverted distribution function): the answer is always a sample, so `inf`, which
stands for a request that never got its answer, is safe. Percentiles are never averaged: pool the raw samples instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.distributions import binomial_cdf

Samples = Sequence[float] | NDArray[np.float64]

_ROUNDING = 1e-9
"""0.99 * 300 is 297 to a person; rank arithmetic forgives the last bits of binary fractions."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A confidence interval, both ends included, in the unit of the samples. `confidence` is two-sided, in (0, 1)."""

    low: float
    high: float
    confidence: float

    def holds(self, value: float) -> bool:
        """Whether `value` lies in it."""
        return self.low <= value <= self.high


def nearest_rank(samples: Samples, quantile: float) -> float | None:
    """The smallest sample that at least `quantile` of all samples do not exceed; None without samples.

    Args:
        samples: any order; `inf` is allowed, NaN is not.
        quantile: in [0, 1]; 0.99 for P99. 0 gives the minimum.
    """
    return None if len(samples) == 0 else rank_of_sorted(np.sort(_checked(samples)), quantile)


def nearest_ranks(samples: Samples, quantiles: Sequence[float]) -> list[float | None]:
    """Several quantiles of the same samples, sorted once."""
    if len(samples) == 0:
        return [None for _ in quantiles]
    ordered = np.sort(_checked(samples))
    return [rank_of_sorted(ordered, quantile) for quantile in quantiles]


def rank_of_sorted(ordered: NDArray[np.float64], quantile: float) -> float:
    """`nearest_rank` of samples that are sorted already and not empty."""
    return float(ordered[_rank(len(ordered), quantile) - 1])


def _rank(num_samples: int, quantile: float) -> int:
    assert 0.0 <= quantile <= 1.0, f"a quantile lies between 0 and 1, not {quantile}"
    return min(num_samples, max(1, math.ceil(quantile * num_samples - _ROUNDING)))


def _checked(samples: Samples) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64)
    assert not np.isnan(values).any(), "a missing sample must be left out, not NaN"
    return values


def smallest_sample_size(quantile: float, confidence: float = 0.95) -> int:
    """Samples from which a two-sided interval for the quantile exists at all.

    At 95 %: P50 6, P90 36, P95 72, P99 368, P99.9 3688. With fewer, even the extreme sample may lie inside the true
    quantile too often: the extreme samples are then reported without an interval.
    """
    alpha = (1.0 - confidence) / 2.0
    return math.ceil(math.log(alpha) / math.log(max(quantile, 1.0 - quantile)) - _ROUNDING)


def quantile_interval(samples: Samples, quantile: float, confidence: float = 0.95) -> Interval | None:
    """Distribution-free interval for the true quantile: two order statistics, exact binomial tails.

    The number of samples below the true quantile is binomial, whatever the distribution (David and Nagaraja, *Order
    Statistics*, 3rd ed., section 7.1). Each tail is at most (1 - confidence) / 2, so that coverage is at least
    `confidence` for independent samples.

    Returns:
        None below `smallest_sample_size`: no interval exists. `high` may be `inf`.
    """
    if len(samples) < smallest_sample_size(quantile, confidence):
        return None
    ordered = np.sort(_checked(samples))
    low, high = interval_ranks(len(ordered), quantile, confidence)
    return Interval(float(ordered[low - 1]), float(ordered[high - 1]), confidence)


def interval_ranks(num_samples: int, quantile: float, confidence: float = 0.95) -> tuple[int, int]:
    """Ranks (from 1) of the two samples that bound the quantile; needs at least `smallest_sample_size` samples."""
    alpha = (1.0 - confidence) / 2.0
    low = _first_rank(num_samples, lambda rank: binomial_cdf(rank, num_samples, quantile) > alpha)
    high = _first_rank(num_samples, lambda rank: binomial_cdf(rank - 1, num_samples, quantile) >= 1.0 - alpha)
    return low, high


def _first_rank(num_samples: int, is_reached: Callable[[int], bool]) -> int:
    """The first rank in 1..num_samples for which a monotone condition holds (bisection); the last one if none does."""
    return 1 + bisect_left(range(1, num_samples), True, key=is_reached)
