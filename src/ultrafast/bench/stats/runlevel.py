"""Comparing two sides by the figures of whole runs: Welch, pairs, permutation, Holm.

Pure. A figure of a run is one number (its P99, its jitter, its throughput); all are positive and compared as logarithms,
so that a difference is a ratio and does not depend on the unit. Runs, unlike requests, are independent.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.stats.distributions import student_t_cdf, student_t_quantile

_MAX_EXACT = 20_000
"""Assignments up to which the permutation check looks at all of them."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Estimated difference of means, B - A, with what is needed for any interval or test about it.

    Attributes:
        estimate: of the difference (of logarithms, if logarithms went in).
        error: standard error; 0 when every run gave the same figure.
        freedom: degrees of freedom of Student's t.
    """

    estimate: float
    error: float
    freedom: float

    def bounds(self, confidence: float = 0.95) -> tuple[float, float]:
        """Two-sided interval."""
        reach = student_t_quantile(0.5 + confidence / 2.0, self.freedom) * self.error if self.error else 0.0
        return self.estimate - reach, self.estimate + reach

    def p_above(self, limit: float) -> float:
        """One-sided p-value against "the difference is at most `limit`": small proves that it is more."""
        if self.error == 0.0:
            return 0.0 if self.estimate > limit else 1.0
        return 1.0 - student_t_cdf((self.estimate - limit) / self.error, self.freedom)

    def p_below(self, limit: float) -> float:
        """One-sided p-value against "the difference is at least `limit`": small proves that it is less."""
        return Difference(-self.estimate, self.error, self.freedom).p_above(-limit)


def welch(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Difference of the means of two independent groups with unequal variances (Welch, 1947). Needs 2 runs per side."""
    first, second = _array(a), _array(b)
    assert min(len(first), len(second)) >= 2, "Welch's test needs at least two runs per side"
    parts = np.array([first.var(ddof=1) / len(first), second.var(ddof=1) / len(second)])
    total = float(parts.sum())
    estimate = float(second.mean() - first.mean())
    if total == 0.0:
        return Difference(estimate, 0.0, len(first) + len(second) - 2.0)
    freedom = total**2 / float((parts**2 / np.array([len(first) - 1, len(second) - 1])).sum())
    return Difference(estimate, math.sqrt(total), freedom)


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """Mean of the differences of pairs: one value per side and block, so that slow drift of the machine cancels."""
    differences = _array(b) - _array(a)
    assert len(differences) >= 2, "a paired test needs at least two pairs"
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return Difference(float(differences.mean()), error, len(differences) - 1.0)


def permutation_p(a: Sequence[float], b: Sequence[float], *, seed: int, num_draws: int = 5000) -> float:
    """Two-sided permutation p-value for "A and B come from the same distribution", by the difference of means.

    Exact over all assignments where there are at most 20,000 (5 + 5 runs: 252); else `num_draws` random ones. A check on
    Student's t that assumes no distribution; its smallest possible value is 2 of 252 with 5 runs per side.
    """
    pooled = np.concatenate([_array(a), _array(b)])
    size = len(b)
    observed = abs(float(_array(b).mean() - _array(a).mean()))
    if math.comb(len(pooled), size) <= _MAX_EXACT:
        chosen = np.array(list(itertools.combinations(range(len(pooled)), size)))
        extra = 0
    else:
        generator = np.random.default_rng(seed)
        chosen = np.array([generator.permutation(len(pooled))[:size] for _ in range(num_draws)])
        extra = 1  # the assignment that was observed belongs to the set
    inside = pooled[chosen].sum(axis=1)
    means = inside / size - (pooled.sum() - inside) / (len(pooled) - size)
    hits = int((np.abs(means) >= observed - 1e-12).sum())
    return (hits + extra) / (len(chosen) + extra)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided permutation p-value for pairs: flips the sign of each difference, all 2^n ways (n <= 16)."""
    values = _array(differences)
    assert 1 <= len(values) <= 16, "all sign flips are listed for at most 16 pairs"
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(values))))
    means = np.abs(signs @ values)
    return float((means >= abs(values.sum()) - 1e-12).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given: all below alpha are true findings with family-wise error alpha (Holm, 1979)."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted = [1.0] * len(p_values)
    highest = 0.0
    for position, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _array(values: Sequence[float]) -> NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
