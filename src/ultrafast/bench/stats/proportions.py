"""Shares of requests: intervals, and how many clean requests prove a percentile.

Pure.
"""

from __future__ import annotations

import math

from ultrafast.bench.stats.distributions import normal_quantile
from ultrafast.bench.stats.percentiles import Interval


def wilson_interval(num_hits: int, num_trials: int, confidence: float = 0.95) -> Interval | None:
    """Interval for a share, good down to small counts and shares of 0 or 1 (Wilson, 1927); None without trials."""
    assert 0 <= num_hits <= num_trials, f"{num_hits} hits of {num_trials} trials"
    if num_trials == 0:
        return None
    z = normal_quantile(0.5 + confidence / 2.0)
    share = num_hits / num_trials
    scale = 1.0 + z * z / num_trials
    centre = (share + z * z / (2 * num_trials)) / scale
    reach = z * math.sqrt(share * (1 - share) / num_trials + z * z / (4 * num_trials**2)) / scale
    low = 0.0 if num_hits == 0 else max(0.0, centre - reach)
    high = 1.0 if num_hits == num_trials else min(1.0, centre + reach)
    return Interval(low, high, confidence)


def zero_violation_size(quantile: float, confidence: float = 0.95) -> int:
    """Requests that must all stay under T to prove, one-sided, that the quantile is at most T.

    If the true share above T were 1 - quantile or more, so many clean requests in a row would have a probability of at
    most 1 - confidence. P99: 299 at 95 %, 459 at 99 % (the sample size of MLPerf's early stopping).
    """
    return math.ceil(math.log(1.0 - confidence) / math.log(quantile) - 1e-9)
