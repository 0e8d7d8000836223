"""Weighs B against A. Pure.

From five runs per side on, a figure is one number per run and what is tested is the mean of its logarithm: paired by
block where A and B ran in turns, Welch's test otherwise, and a permutation check before anything is called worse. With
fewer runs the interval comes from within the runs (bootstrap by request). It does not know how much one run differs from the
next on the same machine, so by default it decides nothing.

A figure is *worse* when it is proved to be worse by more than the margin, *same or better* when it is proved not to be. Holm's
correction over the figures for worse, since one is enough to fail; none for same or better, since all must hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import numpy as np

from ultrafast.bench.compare.metrics import Figure, Measured, smallest_run
from ultrafast.bench.records import Run
from ultrafast.bench.stats.bootstrap import central, jitter_draws, quantile_draws
from ultrafast.bench.stats.runlevel import holm, paired, permutation_p, sign_flip_p, welch

MIN_RUNS = 5
NUM_RESAMPLES = 2000
_CHECK_LIMIT = 0.05
_MAX_PAIRS = 16


class Outcome(StrEnum):
    """Of one figure, or of the whole comparison. `BETTER` and `SAME` are both "same or better"."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on both sides.

    Attributes:
        a, b: geometric means over runs (the figure itself for one run); None when not defined.
        ratio: B / A. low, high: its 95 % interval.
        p_worse: one-sided, against "worse by at most the margin", corrected over the figures (Holm).
        p_same: one-sided, against "worse by more than the margin".
        p_check: permutation check of the difference from the margin; None where it was not made.
        basis: "paired runs", "runs" or "within one run".
    """

    figure: Figure
    outcome: Outcome
    note: str = ""
    a: float | None = None
    b: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_worse: float | None = None
    p_same: float | None = None
    p_check: float | None = None
    basis: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """How to decide.

    Attributes:
        margin: relative change that does not matter, above 0; 0.05 is 5 %.
        confidence: two-sided, of the intervals; each one-sided test has half of the rest.
        is_paired: run i of A and run i of B ran next to each other.
        min_runs: per side; with fewer, nothing is decided.
        seed: of bootstrap and permutations.
    """

    margin: float = 0.05
    confidence: float = 0.95
    is_paired: bool = False
    min_runs: int = MIN_RUNS
    seed: int = 0

    @property
    def log_margin(self) -> float:
        return math.log1p(self.margin)

    @property
    def alpha(self) -> float:
        """Of one one-sided test."""
        return (1.0 - self.confidence) / 2.0


@dataclass(frozen=True, slots=True)
class _Weighed:
    """Costs are logarithms in which more is worse."""

    estimate: float
    low: float
    high: float
    p_worse: float
    p_same: float
    p_check: float | None
    basis: str


def compare_figures(a: Sequence[Run], b: Sequence[Run], figures: Sequence[Figure], rules: Rules) -> list[Compared]:
    """Compare every figure; the order is kept. Each side holds at least one run."""
    measured_a, measured_b = [Measured(run) for run in a], [Measured(run) for run in b]
    drafts = [_compare(measured_a, measured_b, figure, rules) for figure in figures]
    tested = [index for index, draft in enumerate(drafts) if draft.p_worse is not None]
    adjusted = holm([drafts[index].p_worse or 0.0 for index in tested])
    for index, p_worse in zip(tested, adjusted, strict=True):
        drafts[index] = _decide(msgspec.structs.replace(drafts[index], p_worse=p_worse), min(len(a), len(b)), rules)
    return drafts


def _compare(a: Sequence[Measured], b: Sequence[Measured], figure: Figure, rules: Rules) -> Compared:
    first, second = [run.figure(figure) for run in a], [run.figure(figure) for run in b]
    known_a, known_b = _positive(first), _positive(second)
    if known_a is None or known_b is None:
        return Compared(figure=figure, outcome=Outcome.INCONCLUSIVE, note=_why_undefined([*first, *second], figure))
    sign = -1.0 if figure.is_more_better else 1.0
    logs_a, logs_b = np.log(known_a), np.log(known_b)
    shown = Compared(
        figure=figure,
        outcome=Outcome.INCONCLUSIVE,
        a=float(np.exp(logs_a.mean())),
        b=float(np.exp(logs_b.mean())),
        ratio=float(np.exp(logs_b.mean() - logs_a.mean())),
    )
    if min(len(a), len(b)) >= max(2, min(rules.min_runs, MIN_RUNS)):
        weighed: _Weighed | None = _weigh_runs(sign * logs_a, sign * logs_b, rules)
    else:
        weighed = _weigh_within(a, b, figure, rules)
    if weighed is None:
        return msgspec.structs.replace(shown, note="the rate of a single run has no interval")
    ends = sorted((math.exp(sign * weighed.low), math.exp(sign * weighed.high)))
    return msgspec.structs.replace(
        shown,
        low=ends[0],
        high=ends[1],
        p_worse=weighed.p_worse,
        p_same=weighed.p_same,
        p_check=weighed.p_check,
        basis=weighed.basis,
    )


def _positive(values: Sequence[float | None]) -> list[float] | None:
    """The values if all are finite and above 0, which a logarithm needs."""
    known = [value for value in values if value is not None and 0.0 < value < math.inf]
    return known if len(known) == len(values) else None


def _why_undefined(values: Sequence[float | None], figure: Figure) -> str:
    if any(value == math.inf for value in values):
        return "failed requests reach into this percentile"
    if any(value == 0.0 for value in values):
        return "it is 0 in a run, and a ratio to 0 says nothing"
    return f"not defined in every run; a run needs at least {smallest_run(figure)} samples" if figure.quantile else "not defined"


def _weigh_runs(a: np.typing.NDArray[np.float64], b: np.typing.NDArray[np.float64], rules: Rules) -> _Weighed:
    is_paired = rules.is_paired and len(a) == len(b)
    difference = paired(list(a), list(b)) if is_paired else welch(list(a), list(b))
    low, high = difference.bounds(rules.confidence)
    shifted = b - rules.log_margin
    if is_paired and len(a) <= _MAX_PAIRS:
        p_check, smallest = sign_flip_p(list(shifted - a)), 2.0 / 2 ** len(a)
    else:
        p_check = permutation_p(list(a), list(shifted), seed=rules.seed)
        smallest = 2.0 / math.comb(len(a) + len(b), len(a))
    return _Weighed(
        estimate=difference.estimate,
        low=low,
        high=high,
        p_worse=difference.p_above(rules.log_margin),
        p_same=difference.p_below(rules.log_margin),
        p_check=p_check if smallest <= _CHECK_LIMIT else None,
        basis="paired runs" if is_paired else "runs",
    )


def _weigh_within(a: Sequence[Measured], b: Sequence[Measured], figure: Figure, rules: Rules) -> _Weighed | None:
    if figure.is_more_better:
        return None  # no request has a rate
    draws = [_draw(runs, figure, rules.seed + side) for side, runs in enumerate((a, b))]
    if any(not len(each) or np.isinf(each).any() or (each <= 0).any() for each in draws):
        return None
    costs = np.log(draws[1]) - np.log(draws[0])
    interval = central(costs, rules.confidence)
    return _Weighed(
        estimate=float(np.median(costs)),
        low=interval.low,
        high=interval.high,
        p_worse=_tail(costs <= rules.log_margin),
        p_same=_tail(costs >= rules.log_margin),
        p_check=None,
        basis="within one run",
    )


def _tail(hits: np.typing.NDArray[np.bool_]) -> float:
    """Share of draws on the other side; never 0, which so many draws cannot show."""
    return (int(np.count_nonzero(hits)) + 1) / (len(hits) + 1)


def _draw(runs: Sequence[Measured], figure: Figure, seed: int) -> np.typing.NDArray[np.float64]:
    if figure.quantile is None:
        return jitter_draws([gaps for run in runs for gaps in run.gaps()], seed=seed, num_resamples=NUM_RESAMPLES)
    clusters = [cluster for run in runs for cluster in run.clusters(figure.metric)]
    return quantile_draws(clusters, figure.quantile, seed=seed, num_resamples=NUM_RESAMPLES)


def _decide(compared: Compared, num_runs: int, rules: Rules) -> Compared:
    """The outcome, now that the p-values are corrected."""
    assert compared.p_worse is not None and compared.p_same is not None, "only tested figures are decided"  # noqa: PT018
    if num_runs < rules.min_runs:
        note = f"{num_runs} of {rules.min_runs} runs per side"
        return msgspec.structs.replace(compared, note=note)
    if compared.p_worse <= rules.alpha:
        if compared.p_check is not None and compared.p_check > _CHECK_LIMIT:
            return msgspec.structs.replace(compared, note="Student's t says worse, the permutation check does not")
        return msgspec.structs.replace(compared, outcome=Outcome.WORSE)
    if compared.p_same <= rules.alpha:
        low, high = compared.low or 0.0, compared.high or math.inf
        is_better = low > 1.0 if compared.figure.is_more_better else high < 1.0
        return msgspec.structs.replace(compared, outcome=Outcome.BETTER if is_better else Outcome.SAME)
    return msgspec.structs.replace(compared, note=f"the interval reaches across the margin of {rules.margin * 100:g} %")
