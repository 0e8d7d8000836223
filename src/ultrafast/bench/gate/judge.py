"""Weighs the values of a metric against a target: PASS, FAIL or not decided.

Pure. Two ways, by how the sample size came about. `FIXED`: the run had its size before it began, as a saved result has;
exact binomial tails. `SEQUENTIAL`: somebody looks again and again and stops when the verdict is certain;
`stats.sequential` for percentiles, an alpha that is spent over the looks for the pooled jitter. Both keep
the probability of a wrong PASS and of a wrong FAIL at `alpha` each.

All targets must pass: a wrong PASS of the gate needs a wrong PASS of a target that is really missed, so every target is
tested at `alpha`. One failing target, or too many errors, fails the gate: they share `alpha` equally (Bonferroni).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.gate.samples import Sampled
from ultrafast.bench.gate.targets import POOLED_PER_REQUEST, Target
from ultrafast.bench.gate.verdicts import TargetResult, Verdict
from ultrafast.bench.stats.gaps import pooled_jitter, pooled_jitter_interval
from ultrafast.bench.stats.percentiles import nearest_rank
from ultrafast.bench.stats.proportions import wilson_interval
from ultrafast.bench.stats.sequential import Evidence, tail_dispersion, weigh, weigh_fixed

MIN_REQUESTS = 30
"""Fewer requests prove nothing, however clear they look: a start-up transient is not the server."""


HEADROOM = 1.5
"""With every value below limit / 1.5, bursts among them do not matter: even the slowest keep the limit with room to spare."""


class Mode(StrEnum):
    """How the sample size came about."""

    FIXED = "fixed"
    SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Rules:
    """How sure a verdict must be.

    Attributes:
        alpha: probability of a wrong PASS, and of a wrong FAIL, of the whole gate.
        num_targets: over which, and the limit on errors, the alpha of FAIL is divided.
        look: number of this look at the data, from 1; spends the alpha of the pooled jitter.
        has_bounds: also compute bounds of the true percentile; many times the work of the verdict alone.
    """

    alpha: float = 0.05
    num_targets: int = 1
    mode: Mode = Mode.FIXED
    look: int = 1
    has_bounds: bool = True

    @property
    def alpha_fail(self) -> float:
        """For one target, or for the limit on errors."""
        return self.alpha / (self.num_targets + 1)

    def spent(self, alpha: float) -> float:
        """The share of `alpha` that this look may use up: alpha / (k (k + 1)) sums to alpha over all k."""
        return alpha / (self.look * (self.look + 1)) if self.mode is Mode.SEQUENTIAL else alpha


def judge(target: Target, sampled: Sampled, rules: Rules) -> TargetResult:
    """The result of one target."""
    if not sampled.values:
        return _result(target, sampled, rules, Verdict.INCONCLUSIVE, f"{target}: no request has this figure")
    if target.quantile is None and target.is_time:
        return _judge_jitter(target, sampled, rules)
    if not target.is_time:
        return _judge_share(target, sampled, rules)
    return _judge_percentile(target, sampled, rules)


def _judge_percentile(target: Target, sampled: Sampled, rules: Rules) -> TargetResult:
    assert target.quantile is not None, "percentile targets have a quantile"
    tester = _Tester(sampled.values, target.quantile, rules, is_pooled=target.metric in POOLED_PER_REQUEST)
    is_pass, is_fail, evidence = tester.test(target.limit)
    verdict = _verdict(is_pass, is_fail, len(sampled.values))
    low, high = tester.bounds() if rules.has_bounds else (None, None)
    if verdict is Verdict.PASS:
        high = target.limit if high is None else min(high, target.limit)
    if verdict is Verdict.FAIL:
        low = target.limit if low is None else max(low, target.limit)
    observed = nearest_rank(np.concatenate(sampled.values), target.quantile)
    return _result(
        target,
        sampled,
        rules,
        verdict,
        _reason(target, verdict, observed, low, high, len(sampled.values)),
        observed=observed,
        low=low,
        high=high,
        num_violations=evidence.num_violations,
        dispersion=evidence.dispersion,
        method="betting e-process" if tester.is_betting else "exact binomial",
    )


class _Tester:
    """Tests any limit on the same values, and inverts the test into bounds of the true percentile."""

    def __init__(self, values: Sequence[NDArray[np.float64]], quantile: float, rules: Rules, *, is_pooled: bool) -> None:
        self._sizes = np.array([len(each) for each in values], dtype=np.int64)
        self._flat = np.concatenate(values)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._quantile = quantile
        self._rules = rules
        self._tail_spread = 1.0 if is_pooled else tail_dispersion(self._flat, quantile)
        self._largest = float(self._flat.max())
        self.is_betting = is_pooled or rules.mode is Mode.SEQUENTIAL

    def test(self, limit: float) -> tuple[bool, bool, Evidence]:
        """Whether "at most `limit`" is proved, whether it is disproved, and the evidence."""
        violations = np.add.reduceat((self._flat > limit).astype(np.int64), self._starts)
        min_spread = self._tail_spread if self._largest * HEADROOM > limit else 1.0
        evidence = weigh(violations, self._sizes, self._quantile, min_spread)
        if self.is_betting:
            return evidence.is_pass(self._rules.alpha), evidence.is_fail(self._rules.alpha_fail), evidence
        few, many = weigh_fixed(evidence.num_violations, evidence.num_values, self._quantile, evidence.dispersion)
        return few <= self._rules.alpha, many <= self._rules.alpha_fail, evidence

    def bounds(self) -> tuple[float | None, float | None]:
        """Bounds of the true percentile, each a sample; None where the values are too few for one.

        Every limit below the first sample that is not disproved is disproved; the first sample that is proved is a bound.
        """
        ordered = np.unique(self._flat)
        first_proved = _first(len(ordered), lambda index: self.test(float(ordered[index]))[0])
        first_open = _first(len(ordered), lambda index: not self.test(float(ordered[index]))[1])
        high = float(ordered[first_proved]) if first_proved < len(ordered) else None
        is_bounded_below = first_open > 0 or self.test(-math.inf)[1]
        low = float(ordered[min(first_open, len(ordered) - 1)]) if is_bounded_below else None
        return low, high


def _first(size: int, is_reached: Callable[[int], bool]) -> int:
    """The first index of 0..size-1 for which a monotone condition holds; `size` if none does."""
    return bisect_left(range(size), True, key=is_reached)


def _judge_jitter(target: Target, sampled: Sampled, rules: Rules) -> TargetResult:
    observed = pooled_jitter(sampled.values)
    bounds = [pooled_jitter_interval(sampled.values, 1.0 - 2.0 * rules.spent(alpha)) for alpha in (rules.alpha, rules.alpha_fail)]
    high = bounds[0].high if bounds[0] else None
    low = bounds[1].low if bounds[1] else None
    is_pass = high is not None and high <= target.limit
    is_fail = low is not None and low > target.limit
    verdict = _verdict(is_pass, is_fail, len(sampled.values))
    reason = _reason(target, verdict, observed, low, high, len(sampled.values))
    method = "ratio of sums over requests, Student's t"
    return _result(target, sampled, rules, verdict, reason, observed=observed, low=low, high=high, method=method)


def _judge_share(target: Target, sampled: Sampled, rules: Rules) -> TargetResult:
    hits = np.array([int(each[0] > 0.0) for each in sampled.values], dtype=np.int64)
    num_hits, num_requests = int(hits.sum()), len(hits)
    interval = wilson_interval(num_hits, num_requests, 1.0 - 2.0 * rules.alpha)
    observed = num_hits / num_requests
    if target.limit == 0.0:
        is_pass, is_fail, spread = num_hits == 0, num_hits > 0, 1.0
    else:
        evidence = weigh(hits, np.ones_like(hits), 1.0 - target.limit)
        spread = evidence.dispersion
        if rules.mode is Mode.SEQUENTIAL:
            is_pass, is_fail = evidence.is_pass(rules.alpha), evidence.is_fail(rules.alpha_fail)
        else:
            few, many = weigh_fixed(num_hits, num_requests, 1.0 - target.limit, spread)
            is_pass, is_fail = few <= rules.alpha, many <= rules.alpha_fail
    verdict = _verdict(is_pass, is_fail, num_requests)
    low, high = (interval.low, interval.high) if interval else (None, None)
    reason = _reason(target, verdict, observed, low, high, num_requests)
    return _result(
        target,
        sampled,
        rules,
        verdict,
        reason,
        observed=observed,
        low=low,
        high=high,
        num_violations=num_hits,
        dispersion=spread,
        method="share of requests",
    )


def _verdict(is_pass: bool, is_fail: bool, num_requests: int) -> Verdict:
    if num_requests < MIN_REQUESTS:
        return Verdict.INCONCLUSIVE
    if is_fail:
        return Verdict.FAIL
    return Verdict.PASS if is_pass else Verdict.INCONCLUSIVE


def _reason(
    target: Target, verdict: Verdict, observed: float | None, low: float | None, high: float | None, num_requests: int
) -> str:
    seen = "-" if observed is None else target.show(observed)
    after = f"after {num_requests} requests"
    if verdict is Verdict.PASS:
        bound = "" if high is None else f", at most {target.show(high)}"
        return f"{target}: {seen} seen{bound}, {after}"
    if verdict is Verdict.FAIL:
        bound = "" if low is None else f", at least {target.show(low)}"
        return f"{target}: {seen} seen{bound}, {after}"
    if num_requests < MIN_REQUESTS:
        return f"{target}: {num_requests} requests are too few, {MIN_REQUESTS} are the least"
    span = f"between {'?' if low is None else target.show(low)} and {'?' if high is None else target.show(high)}"
    return f"{target}: {seen} seen, but the true figure may lie {span}, {after}"


def _result(
    target: Target,
    sampled: Sampled,
    rules: Rules,
    verdict: Verdict,
    reason: str,
    *,
    observed: float | None = None,
    low: float | None = None,
    high: float | None = None,
    num_violations: int | None = None,
    dispersion: float = 1.0,
    method: str = "",
) -> TargetResult:
    """A result with the fields that are the same for every kind of target."""
    assert observed is None or not math.isnan(observed), "a figure is a number or absent"
    return TargetResult(
        target=target,
        verdict=verdict,
        reason=reason,
        observed=observed,
        low=low,
        high=high,
        confidence=1.0 - rules.alpha,
        num_requests=len(sampled.values),
        num_violations=num_violations,
        num_not_applicable=sampled.num_not_applicable,
        num_open=sampled.num_open,
        dispersion=dispersion,
        method=method,
    )
