"""Cluster bootstrap: intervals for statistics of gaps, by drawing whole requests with replacement.

Pure. Treating the gaps of a request as independent would make intervals several times too narrow: they share their batch,
their neighbours and their pauses. Source: Davison and Hinkley, *Bootstrap Methods and their Application*, section 3.8.

What is drawn is how often each request appears; weights then give quantiles and pooled deviations without building the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.gaps import jitter_sums
from ultrafast.bench.stats.percentiles import Interval, Samples

MIN_CLUSTERS = 10
"""With fewer requests the draws are too alike to say anything."""

_BLOCK_VALUES = 1 << 18
"""Values that are weighed at once: few enough to stay in the processor's cache."""

Values = NDArray[np.float64]


def cluster_bootstrap(
    requests: Sequence[Samples],
    statistic: Callable[[Sequence[Values]], float | None],
    *,
    seed: int,
    num_resamples: int = 1000,
    confidence: float = 0.95,
) -> Interval | None:
    """Percentile bootstrap of any statistic.

    Args:
        requests: the gaps of each request; requests without gaps are left out.
        statistic: of the gaps of the drawn requests; a draw for which it is None is skipped.
        seed: same seed, same interval.
        num_resamples: at least 1000 for a 95 % interval that does not wobble in its second digit.
        confidence: two-sided.

    Returns:
        None below `MIN_CLUSTERS` requests, or when the statistic exists for less than half of the draws.
    """
    clusters = [np.asarray(gaps, dtype=np.float64) for gaps in requests if len(gaps)]
    if len(clusters) < MIN_CLUSTERS:
        return None
    generator = np.random.default_rng(seed)
    draws = (generator.integers(0, len(clusters), len(clusters)) for _ in range(num_resamples))
    found = [value for drawn in draws if (value := statistic([clusters[index] for index in drawn])) is not None]
    return central(np.asarray(found), confidence) if len(found) >= num_resamples // 2 else None


def quantile_draws(requests: Sequence[Samples], quantile: float, *, seed: int, num_resamples: int) -> Values:
    """The nearest-rank quantile of all values of the drawn requests, once per draw; empty below `MIN_CLUSTERS` requests."""
    clusters = [np.asarray(values, dtype=np.float64) for values in requests if len(values)]
    if len(clusters) < MIN_CLUSTERS:
        return np.zeros(0)
    flat = np.concatenate(clusters)
    order = np.argsort(flat, kind="stable")
    ordered, owners = flat[order], np.repeat(np.arange(len(clusters)), [len(values) for values in clusters])[order]
    found = np.empty(num_resamples)
    counts, size = _draws(len(clusters), seed, num_resamples), max(1, _BLOCK_VALUES // len(flat))
    for begin in range(0, num_resamples, size):
        ranks = np.cumsum(counts[begin : begin + size, owners], axis=1)
        needed = np.maximum(1.0, np.ceil(quantile * ranks[:, -1:] - 1e-9))
        found[begin : begin + size] = ordered[(ranks < needed).sum(axis=1)]
    return found


def jitter_draws(requests: Sequence[Samples], *, seed: int, num_resamples: int) -> Values:
    """The pooled jitter of the drawn requests, once per draw; empty below `MIN_CLUSTERS` requests with a jitter."""
    squares, sizes = jitter_sums(requests)
    if len(sizes) < MIN_CLUSTERS:
        return np.zeros(0)
    counts = _draws(len(sizes), seed, num_resamples)
    found: Values = np.sqrt(counts @ squares / (counts @ sizes))
    return found


def central(values: Values, confidence: float = 0.95) -> Interval:
    """The central `confidence` of bootstrap values, as ranks so that `inf` is safe."""
    ordered = np.sort(values)
    skipped = int(np.floor((1.0 - confidence) / 2.0 * (len(ordered) - 1)))
    return Interval(float(ordered[skipped]), float(ordered[len(ordered) - 1 - skipped]), confidence)


def _draws(num_clusters: int, seed: int, num_resamples: int) -> NDArray[np.int64]:
    """How often each cluster was drawn, one row per draw."""
    equal = np.full(num_clusters, 1.0 / num_clusters)
    return np.random.default_rng(seed).multinomial(num_clusters, equal, size=num_resamples)
