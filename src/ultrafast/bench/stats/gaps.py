"""Statistics of the gaps between chunks, which are correlated within a request.

Pure. A "request's gaps" is a sequence of times between consecutive generated chunks, in one unit throughout. The unit
of resampling is always the request: gaps of one request share its batch, its neighbours and its pauses, so treating
them as independent would make intervals several times too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.distributions import student_t_quantile
from ultrafast.bench.stats.percentiles import Interval, Samples

MIN_GAPS = 3
"""Below this many gaps a request has no jitter: null, never 0."""

STALL_FACTOR = 5.0
STALL_FLOOR_S = 0.25

Gaps = NDArray[np.float64]


def request_jitter(gaps: Samples) -> float | None:
    """Population standard deviation of one request's gaps; None below `MIN_GAPS` gaps."""
    return float(np.std(np.asarray(gaps, dtype=np.float64))) if len(gaps) >= MIN_GAPS else None


def pooled_jitter(requests: Sequence[Samples]) -> float | None:
    """Standard deviation of gaps within requests: sqrt(sum_r sum_i (g_ri - mean_r)^2 / sum_r n_r).

    Differences in speed *between* requests do not enter, as they would into the deviation of all gaps together.
    Requests with fewer than `MIN_GAPS` gaps are left out; None when none is left.
    """
    squares, counts = _sums(requests)
    return math.sqrt(squares.sum() / counts.sum()) if len(counts) else None


def pooled_jitter_interval(requests: Sequence[Samples], confidence: float = 0.95) -> Interval | None:
    """Interval for `pooled_jitter` from the spread between requests.

    The variance is a ratio of two sums over requests; its logarithm gets the usual linearised (cluster-robust)
    standard error and a Student quantile with one degree of freedom less than requests (Cochran, *Sampling Techniques*,
    3rd ed., section 6.3; logarithm because the ratio is positive and skewed). None below 10 requests.
    """
    squares, counts = _sums(requests)
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


def cluster_bootstrap(
    requests: Sequence[Samples],
    statistic: Callable[[Sequence[Gaps]], float | None],
    *,
    seed: int,
    num_resamples: int = 1000,
    confidence: float = 0.95,
) -> Interval | None:
    """Percentile bootstrap of any statistic of gaps, drawing whole requests with replacement.

    Args:
        requests: the gaps of each request; requests without gaps are left out.
        statistic: of the gaps of the drawn requests; a resample for which it is None is skipped.
        seed: same seed, same interval.
        num_resamples: at least 1000 for a 95 % interval that does not wobble in its second digit.
        confidence: two-sided.

    Returns:
        None below 10 requests (Davison and Hinkley, *Bootstrap Methods*, section 3.8: clusters must be many).
    """
    clusters = [np.asarray(gaps, dtype=np.float64) for gaps in requests if len(gaps)]
    if len(clusters) < 10:
        return None
    generator = np.random.default_rng(seed)
    found: list[float] = []
    for _ in range(num_resamples):
        drawn = generator.integers(0, len(clusters), len(clusters))
        value = statistic([clusters[index] for index in drawn])
        if value is not None:
            found.append(value)
    if len(found) < num_resamples // 2:
        return None
    return bootstrap_interval(np.asarray(found), confidence)


def bootstrap_interval(values: NDArray[np.float64], confidence: float = 0.95) -> Interval:
    """The central `confidence` of bootstrap values, as nearest ranks so that `inf` is safe."""
    ordered = np.sort(values)
    tail = (1.0 - confidence) / 2.0
    low = int(np.floor(tail * (len(ordered) - 1)))
    return Interval(float(ordered[low]), float(ordered[len(ordered) - 1 - low]), confidence)


def _sums(requests: Sequence[Samples]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Squared deviations and number of gaps of each request that has a jitter."""
    kept = [gaps for gaps in requests if len(gaps) >= MIN_GAPS]
    counts = np.array([len(gaps) for gaps in kept], dtype=np.int64)
    if not kept:
        return np.zeros(0), np.zeros(0)
    flat = np.concatenate([np.asarray(gaps, dtype=np.float64) for gaps in kept])
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    means = np.add.reduceat(flat, starts) / counts
    squares: NDArray[np.float64] = np.add.reduceat(np.square(flat - np.repeat(means, counts)), starts)
    return squares, counts.astype(np.float64)
