"""From raw requests to the table: percentiles of each pipeline, and what it saves of the naive one's time. Pure.

Saved = 1 - time / time of the naive pipeline; 0.8 is "80 % less", below 0 it costs. Requests that failed took forever.

Two kinds of interval, both 95 %:

- Mean E2E: the unit is the round, in which all pipelines had the same conversations next to each other. Paired t on the logarithm
  of the ratio of the rounds' means; it contains the difference between one round and the next. From 5 rounds on.
- Percentiles: of the pooled requests. Bootstrap that draws whole conversations, the same ones for both pipelines (the turns of
  one are not independent). It does not contain the difference between rounds. From 10 conversations on.

Sources: `bench.stats`: `runlevel` (paired t), `bootstrap` (cluster bootstrap), `percentiles` (order statistics).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ultrafast.bench.ablate.conversations import Workload
from ultrafast.bench.ablate.pipelines import NAIVE, Pipeline
from ultrafast.bench.ablate.records import Ablation, AblationRun
from ultrafast.bench.figures import figures_of
from ultrafast.bench.records import RequestRecord
from ultrafast.bench.stats.bootstrap import central, quantile_draws
from ultrafast.bench.stats.percentiles import nearest_rank, quantile_interval
from ultrafast.bench.stats.runlevel import paired

QUANTILES = (0.5, 0.95, 0.99)
MIN_ROUNDS = 5
_NUM_RESAMPLES = 2000


class Percentile(msgspec.Struct, frozen=True):
    """A percentile of all requests of a pipeline, seconds.

    Attributes:
        low, high: order-statistic interval; None where there are too few samples for one.
        is_largest: there are less than 1 / (1 - quantile) samples, so this is only the largest of them.
    """

    quantile: float
    value_s: float
    low_s: float | None
    high_s: float | None
    is_largest: bool


class Saved(msgspec.Struct, frozen=True):
    """A share of time that is saved. None: not defined (a request failed), or too few samples for an interval."""

    share: float | None
    low: float | None = None
    high: float | None = None

    @property
    def is_certain(self) -> bool:
        """The interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


class Row(msgspec.Struct, frozen=True):
    """One pipeline on one workload.

    Attributes:
        saved: against the naive pipeline: `e2e` (mean), `e2e_p50`, ..., `ttft_p99`. Empty for the naive one.
        base, added: the pipeline that it adds something to (or takes something from) where that is not the naive one, and what of
            the mean E2E that saves.
        num_prompt_tokens, num_cached_tokens: of all requests, as the server counts them; the difference was computed.
    """

    pipeline: str
    title: str
    num_ok: int
    num_failed: int
    mean_e2e_s: float
    e2e: list[Percentile]
    ttft: list[Percentile]
    saved: dict[str, Saved]
    base: str | None
    added: Saved | None
    num_prompt_tokens: int
    num_cached_tokens: int


class Table(msgspec.Struct, frozen=True):
    """All pipelines on one workload, the naive one first."""

    workload: str
    title: str
    rows: list[Row]

    def row(self, pipeline: str) -> Row | None:
        """The row of a pipeline, if it was measured."""
        return next((row for row in self.rows if row.pipeline == pipeline), None)


def tables(ablation: Ablation) -> list[Table]:
    """One table for each workload."""
    return [_table(ablation, workload) for workload in ablation.spec.workloads]


def saved_quantile(
    naive: Sequence[AblationRun], other: Sequence[AblationRun], metric: str, quantile: float, first_turn: int = 0
) -> Saved:
    """What a pipeline saves of a percentile of `ttft` or `e2e`; only of turns from `first_turn` on."""
    groups = [_conversations(runs, metric, first_turn) for runs in (naive, other)]
    before, after = (nearest_rank([value for group in side for value in group], quantile) for side in groups)
    if before is None or after is None or math.isinf(before) or math.isinf(after):
        return Saved(None)
    draws = [quantile_draws(side, quantile, seed=0, num_resamples=_NUM_RESAMPLES) for side in groups]
    if len(groups[0]) != len(groups[1]) or not all(len(drawn) and np.isfinite(drawn).all() for drawn in draws):
        return Saved(1 - after / before)
    interval = central(1 - draws[1] / draws[0])
    return Saved(1 - after / before, interval.low, interval.high)


def saved_mean(naive: Sequence[AblationRun], other: Sequence[AblationRun]) -> Saved:
    """What a pipeline saves of the mean E2E, from round to round."""
    before, after = ([_mean(values_of(run.requests, "e2e")) for run in runs] for runs in (naive, other))
    if not before or len(before) != len(after) or not all(math.isfinite(value) for value in (*before, *after)):
        return Saved(None)
    logs = [[math.log(value) for value in side] for side in (before, after)]
    if len(before) < 2:
        return Saved(1 - after[0] / before[0])
    difference = paired(*logs)
    share = 1 - math.exp(difference.estimate)
    if len(before) < MIN_ROUNDS:
        return Saved(share)
    low, high = difference.bounds()
    return Saved(share, 1 - math.exp(high), 1 - math.exp(low))


def values_of(requests: Sequence[RequestRecord], metric: str) -> list[float]:
    """Seconds of `ttft` or `e2e` of each request; infinite for those that failed."""
    values = []
    for record in requests:
        figures = figures_of(record)
        value = figures.ttft_s if metric == "ttft" else figures.e2e_s
        values.append(value if record.is_ok and value is not None else math.inf)
    return values


def _table(ablation: Ablation, workload: Workload) -> Table:
    rows = [_row(ablation, workload, pipeline) for pipeline in ablation.spec.pipelines]
    return Table(workload.name, workload.title, rows)


def _row(ablation: Ablation, workload: Workload, pipeline: Pipeline) -> Row:
    runs, naive = ablation.runs_of(pipeline.name, workload.name), ablation.runs_of(NAIVE, workload.name)
    requests = [record for run in runs for record in run.requests]
    saved: dict[str, Saved] = {}
    if pipeline.name != NAIVE:
        saved["e2e"] = saved_mean(naive, runs)
        for metric in ("e2e", "ttft"):
            saved |= {f"{metric}_p{q * 100:g}": saved_quantile(naive, runs, metric, q) for q in QUANTILES}
    base = pipeline.base if pipeline.base not in (None, NAIVE) else None
    base_runs = ablation.runs_of(base, workload.name) if base else []
    return Row(
        pipeline=pipeline.name,
        title=pipeline.title,
        num_ok=sum(record.is_ok for record in requests),
        num_failed=sum(not record.is_ok for record in requests),
        mean_e2e_s=_mean(values_of(requests, "e2e")),
        e2e=[_percentile(values_of(requests, "e2e"), q) for q in QUANTILES],
        ttft=[_percentile(values_of(requests, "ttft"), q) for q in QUANTILES],
        saved=saved,
        base=base if base_runs else None,
        added=saved_mean(base_runs, runs) if base_runs else None,
        num_prompt_tokens=sum(record.usage.num_prompt_tokens or 0 for record in requests),
        num_cached_tokens=sum(record.usage.num_cached_tokens or 0 for record in requests),
    )


def _percentile(values: list[float], quantile: float) -> Percentile:
    interval = quantile_interval(values, quantile)
    value = nearest_rank(values, quantile)
    assert value is not None, "a run has at least one request"
    is_largest = len(values) * (1 - quantile) < 1 - 1e-9
    return Percentile(quantile, value, interval.low if interval else None, interval.high if interval else None, is_largest)


def _conversations(runs: Sequence[AblationRun], metric: str, first_turn: int) -> list[list[float]]:
    """The values of each conversation, in the same order for every pipeline."""
    groups: dict[tuple[int, int], list[float]] = {}
    for run in runs:
        chosen = [record for record in run.requests if record.turn >= first_turn]
        for record, value in zip(chosen, values_of(chosen, metric), strict=True):
            groups.setdefault((run.round_number, record.session), []).append(value)
    return [groups[key] for key in sorted(groups)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
