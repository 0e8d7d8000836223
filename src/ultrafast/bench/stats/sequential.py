"""A test that may be looked at after every request: is the share of values above T at most 1 - q?

Pure. `P_q <= T` holds exactly when the share of values above T is at most p0 = 1 - q. Request r contributes
d_r = (violations_r - p0 * n_r) / n_max, where n_r is its number of values (1 for TTFT, its gaps for ITL) and n_max the
largest such number; d_r lies in [-p0, 1 - p0], whatever happens inside the request. Two players bet on it:

    against "the target is met":    W_fail = mean over rates of prod_r (1 + rate * d_r)
    against "the target is missed": W_pass = mean over rates of prod_r (1 - rate * d_r)

While the sign of the mean of d is as the other side claims, the wealth is a nonnegative supermartingale that starts at 1;
it ever reaches 1/alpha with probability at most alpha (Ville's inequality). So "stop and say FAIL once W_fail >= 1/alpha"
is wrong with probability at most alpha *however often we look*, and the same for PASS. For n_r = 1 a rate is a point
alternative of Wald's SPRT (rate = (theta - p0) / (p0 (1 - p0))) and the mean over rates is Robbins' mixture (1970).
Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86 (2024), sections
3-4; Howard, Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Statist.
49 (2021).

Validity needs each request's expected d, given the past, to be on one side of 0. Requests that follow each other through
a queue violate it in bursts. `dispersion` measures how much violations cluster beyond chance, and log wealth is divided
by it. By Jensen's inequality this can only keep the wealth below 1/alpha, never lift it above: the guarantee for
independent requests stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.distributions import binomial_cdf, chi_square_quantile, normal_quantile
from ultrafast.bench.stats.percentiles import rank_of_sorted

PASS_THETAS = (0.0, 0.1, 0.25, 0.5, 0.75)
"""Alternatives below p0, in units of p0. Nearly half of the stake is on 0: a clean server passes soon."""
_PASS_WEIGHTS = np.array([0.45, 0.2, 0.2, 0.1, 0.05])

FAIL_THETAS = (1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 25.0)
"""Alternatives above p0, in units of p0 while that stays below 0.9."""

CLUSTER_GAP = 5
"""Violations at most so many requests apart belong to one event."""

_MIN_BATCHES = 10
_MIN_TAIL_REQUESTS = 30


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the requests so far say about one target.

    Attributes:
        log_pass: log of the wealth of the bet against "the target is missed"; PASS is proved from log(1/alpha) on.
        log_fail: log of the wealth of the bet against "the target is met".
        dispersion: how much violations cluster in time; 1.0 for independent requests.
        num_requests: requests that had a value.
        num_violations: values above T.
        num_values: all values.
    """

    log_pass: float
    log_fail: float
    dispersion: float
    num_requests: int
    num_violations: int
    num_values: int

    def is_pass(self, alpha: float) -> bool:
        """Whether the target is proved to be met, wrong with probability at most `alpha`."""
        return self.log_pass >= -math.log(alpha) - 1e-9

    def is_fail(self, alpha: float) -> bool:
        """Whether the target is proved to be missed, wrong with probability at most `alpha`."""
        return self.log_fail >= -math.log(alpha) - 1e-9


def weigh(violations: NDArray[np.int64], sizes: NDArray[np.int64], quantile: float, min_spread: float = 1.0) -> Evidence:
    """Evidence about "`quantile` of the values do not exceed T" from requests in the order of their arrival.

    Args:
        violations: per request, the values above T.
        sizes: per request, all its values; requests without any must be left out.
        quantile: in (0, 1).
        min_spread: dispersion that is known from elsewhere (`tail_dispersion`), at least 1.

    A request may only be left out for a reason that is independent of its values. Requests that have not finished yet
    are slower than those that have: hand in the arrivals up to the first unfinished one, not whatever has finished.
    """
    assert len(violations) == len(sizes), "one size per request"
    if len(sizes) == 0:
        return Evidence(0.0, 0.0, 1.0, 0, 0, 0)
    share = 1.0 - quantile
    outcomes = (violations - share * sizes) / sizes.max()
    spread = max(min_spread, dispersion(outcomes))
    return Evidence(
        log_pass=_log_wealth(-outcomes, _pass_rates(share), _PASS_WEIGHTS, spread),
        log_fail=_log_wealth(outcomes, _fail_rates(share), None, spread),
        dispersion=spread,
        num_requests=len(sizes),
        num_violations=int(violations.sum()),
        num_values=int(sizes.sum()),
    )


def weigh_fixed(num_violations: int, num_values: int, quantile: float, spread: float = 1.0) -> tuple[float, float]:
    """One-sided binomial p-values (missed, met) for a sample whose size was chosen beforehand, one value per request.

    The first is the probability of so few violations if the target were just missed: small proves PASS. The second, of so
    many if it were just met: small proves FAIL. `spread` >= 1 divides the sample (`dispersion`). With no violation at
    all, P99 is proved by 299 requests at 95 % and by 459 at 99 %.
    """
    share = 1.0 - quantile
    size, hits = num_values / spread, num_violations / spread
    few = binomial_cdf(hits, size, share)
    many = 1.0 - binomial_cdf(hits - 1.0, size, share) if num_violations else 1.0
    return few, many


def dispersion(outcomes: NDArray[np.float64]) -> float:
    """How much more clustered in time the violations are than those of independent requests: a divisor >= 1 of n.

    The larger of two estimates. Batches: variance of the means of about sqrt(n) batches of consecutive requests over
    that of independent ones; only from 100 requests, and only when the excess is significant at 1 %. Clusters:
    violations at most `CLUSTER_GAP` requests apart count as one event (declustering of extremes; Coles, *An
    Introduction to Statistical Modeling of Extreme Values*, section 5.3.2), against the clusters that chance alone makes.
    """
    return max(1.0, _batch_ratio(outcomes), _cluster_ratio(outcomes > 0))


def tail_dispersion(values: NDArray[np.float64], quantile: float) -> float:
    """Clustering of the tail where it can be seen: at a lower level, P90 for a target on P99.

    A run without a single violation of its target says nothing about whether violations come in bursts, but the slowest tenth of
    its requests does.

    Args:
        values: one per request, in the order of arrival.
        quantile: of the target; the level is exceeded ten times as often, at most by half of the requests.
    """
    if len(values) < _MIN_TAIL_REQUESTS:
        return 1.0
    level = rank_of_sorted(np.sort(values), max(0.5, 1.0 - 10.0 * (1.0 - quantile)))
    above = values > level
    outcomes: NDArray[np.float64] = above.astype(np.float64) - float(above.mean())
    return max(1.0, _batch_ratio(outcomes), _significant_cluster_ratio(above))


def _batch_ratio(outcomes: NDArray[np.float64]) -> float:
    num_batches = max(_MIN_BATCHES, math.isqrt(len(outcomes)))
    length = len(outcomes) // num_batches
    variance = float(outcomes.var())
    if length < 10 or variance == 0.0:
        return 1.0
    means = outcomes[: length * num_batches].reshape(num_batches, length).mean(axis=1)
    ratio = float(means.var(ddof=1)) * length / variance
    limit = chi_square_quantile(0.99, num_batches - 1) / (num_batches - 1)
    return ratio if ratio > limit else 1.0


def _cluster_ratio(is_violation: NDArray[np.bool_]) -> float:
    positions = np.flatnonzero(is_violation)
    if len(positions) < 2:
        return 1.0
    num_clusters = 1 + int((np.diff(positions) > CLUSTER_GAP).sum())
    share = len(positions) / len(is_violation)
    return float(len(positions) * (1.0 - share) ** CLUSTER_GAP / num_clusters)


def _significant_cluster_ratio(is_above: NDArray[np.bool_]) -> float:
    """The cluster ratio if chance alone would hardly (1 %) make so few clusters of so many values; else 1."""
    ratio, num_above = _cluster_ratio(is_above), int(is_above.sum())
    alone = (1.0 - num_above / len(is_above)) ** CLUSTER_GAP  # probability that a value begins a cluster
    expected = num_above * alone
    if not 0.0 < alone < 1.0 or ratio <= 1.0:
        return 1.0
    limit = expected - normal_quantile(0.99) * math.sqrt(expected * (1.0 - alone))
    return ratio if expected / ratio < limit else 1.0


def _pass_rates(share: float) -> NDArray[np.float64]:
    thetas = np.array(PASS_THETAS) * share
    rates: NDArray[np.float64] = (share - thetas) / (share * (1.0 - share))
    return rates


def _fail_rates(share: float) -> NDArray[np.float64]:
    thetas = np.minimum(np.array(FAIL_THETAS) * share, share + 0.9 * (1.0 - share))
    rates: NDArray[np.float64] = (thetas - share) / (share * (1.0 - share))
    return rates


def _log_wealth(
    gains: NDArray[np.float64], rates: NDArray[np.float64], weights: NDArray[np.float64] | None, spread: float
) -> float:
    """Log of the weighted mean over rates of prod(1 + rate * gain), each product raised to 1/spread."""
    kinds, counts = np.unique(gains, return_counts=True)  # few distinct values: the products collapse
    with np.errstate(divide="ignore"):
        logs = np.log(np.maximum(1.0 + np.outer(rates, kinds), 0.0))
    totals = logs @ counts / spread
    stakes = np.full(len(rates), 1.0 / len(rates)) if weights is None else weights
    highest = float(totals.max())
    if highest == -math.inf:
        return -math.inf
    return highest + math.log(float(stakes @ np.exp(totals - highest)))
