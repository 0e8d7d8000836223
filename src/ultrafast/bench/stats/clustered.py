"""Intervals for percentiles of gaps, which are not independent within a request.

Pure. The share of gaps that do not exceed the percentile seen is a ratio of sums over requests; its standard error, taken from
how much requests differ, says how far up and down the sorted gaps the true percentile may lie. Source: Woodruff, "Confidence
intervals for medians and other position measures", JASA 47 (1952), with the variance of a cluster sample (Cochran, *Sampling
Techniques*, section 9A). One pass over the gaps, where a bootstrap (`stats.bootstrap`, used between runs) takes a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ultrafast.bench.stats.distributions import student_t_quantile
from ultrafast.bench.stats.percentiles import Interval, Samples, rank_of_sorted

MIN_REQUESTS = 30
"""How much requests differ is not known from fewer."""
MIN_TAIL_REQUESTS = 8
"""So many requests must have a gap beyond the percentile: a tail that came from three of them is not known."""


def clustered_quantile_interval(requests: Sequence[Samples], quantile: float, confidence: float = 0.95) -> Interval | None:
    """Two-sided interval for the `quantile` of all values.

    Args:
        requests: the values of each request; those without any are left out.
        quantile: in (0, 1).
        confidence: of the interval, in (0, 1).

    Returns:
        None where the requests are too few for one, or where an end lies beyond all values.
    """
    clusters = [np.asarray(values, dtype=np.float64) for values in requests if len(values)]
    if len(clusters) < MIN_REQUESTS:
        return None
    sizes = np.array([len(values) for values in clusters], dtype=np.float64)
    flat = np.concatenate(clusters)
    ordered, num_values = np.sort(flat), len(flat)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    below = np.add.reduceat((flat <= rank_of_sorted(ordered, quantile)).astype(np.float64), starts)
    if int((below < sizes).sum()) < MIN_TAIL_REQUESTS:
        return None
    residuals = below - below.sum() / num_values * sizes
    variance = float(np.square(residuals).sum()) * len(clusters) / (len(clusters) - 1) / num_values**2
    # Not narrower than independent gaps would make it: requests that are all alike in this run need not be in the next.
    error = math.sqrt(max(variance, quantile * (1.0 - quantile) / num_values))
    reach = student_t_quantile(0.5 + confidence / 2.0, len(clusters) - 1.0) * error
    if quantile - reach <= 0.0 or quantile + reach >= 1.0:
        return None
    high = ordered[min(num_values - 1, math.ceil((quantile + reach) * num_values))]
    return Interval(rank_of_sorted(ordered, quantile - reach), float(high), confidence)
