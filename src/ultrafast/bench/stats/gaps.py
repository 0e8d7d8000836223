"""Statistics of the gaps between chunks, which are correlated within a request.

Pure. A "request's gaps" is a sequence of times between consecutive generated chunks, in one unit throughout. What is
independent is the request: gaps of one request share its batch, its neighbours and its pauses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.distributions import student_t_quantile
from ultrafast.bench.stats.percentiles import Interval, Samples

MIN_GAPS = 3
"""Below this many gaps a request has no jitter: null, never 0."""

STALL_FACTOR = 5.0
STALL_FLOOR_S = 0.25


def request_jitter(gaps: Samples) -> float | None:
    """Population standard deviation of one request's gaps; None below `MIN_GAPS` gaps."""
    return float(np.std(np.asarray(gaps, dtype=np.float64))) if len(gaps) >= MIN_GAPS else None


def pooled_jitter(requests: Sequence[Samples]) -> float | None:
    """Standard deviation of gaps within requests: sqrt(sum_r sum_i (g_ri - mean_r)^2 / sum_r n_r).

    Differences in speed *between* requests do not enter, as they would into the deviation of all gaps together.
    Requests with fewer than `MIN_GAPS` gaps are left out; None when none is left.
    """
    squares, counts = jitter_sums(requests)
    return math.sqrt(squares.sum() / counts.sum()) if len(counts) else None


def pooled_jitter_interval(requests: Sequence[Samples], confidence: float = 0.95) -> Interval | None:
    """Interval for `pooled_jitter` from the spread between requests.

    The variance is a ratio of two sums over requests; its logarithm gets the usual linearised (cluster-robust)
    standard error and a Student quantile with one degree of freedom less than requests (Cochran, *Sampling Techniques*,
    3rd ed., section 6.3; logarithm because the ratio is positive and skewed). None below 10 requests.
    """
    squares, counts = jitter_sums(requests)
    num_requests = len(counts)
    if num_requests < 10:
        return None
    ratio = squares.sum() / counts.sum()
    if ratio == 0.0:
        return Interval(0.0, 0.0, confidence)
    residuals = (squares - ratio * counts) / counts.mean()
    error = math.sqrt(residuals.var(ddof=1) / num_requests) / ratio
    reach = student_t_quantile(0.5 + confidence / 2.0, num_requests - 1) * error
    return Interval(math.sqrt(ratio * math.exp(-reach)), math.sqrt(ratio * math.exp(reach)), confidence)


def stall_limit_s(gaps_s: Samples) -> float:
    """A gap longer than this is a stall: 5 times the request's median gap, and at least 250 ms. Needs a gap."""
    return max(STALL_FACTOR * float(np.median(np.asarray(gaps_s, dtype=np.float64))), STALL_FLOOR_S)


def stall_share(requests_s: Sequence[Samples]) -> float | None:
    """Share of all gaps, in seconds, that are stalls; None without gaps."""
    arrays = [np.asarray(gaps, dtype=np.float64) for gaps in requests_s if len(gaps)]
    num_gaps = sum(len(gaps) for gaps in arrays)
    if not num_gaps:
        return None
    return sum(int((gaps > stall_limit_s(gaps)).sum()) for gaps in arrays) / num_gaps


def jitter_sums(requests: Sequence[Samples]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum of squared deviations, and number of gaps, of each request that has a jitter."""
    kept = [gaps for gaps in requests if len(gaps) >= MIN_GAPS]
    counts = np.array([len(gaps) for gaps in kept], dtype=np.int64)
    if not kept:
        return np.zeros(0), np.zeros(0)
    flat = np.concatenate([np.asarray(gaps, dtype=np.float64) for gaps in kept])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(flat, starts) / counts
    squares: NDArray[np.float64] = np.add.reduceat(np.square(flat - np.repeat(means, counts)), starts)
    return squares, counts.astype(np.float64)
