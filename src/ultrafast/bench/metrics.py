"""The figures of a run: percentiles with intervals, jitter, throughput, goodput; over all requests and per tier.

Pure: records in, numbers out. Percentiles come from raw samples, nearest-rank. In the `adj` columns a failed request has an
infinite TTFT and E2E: a server must not look faster because it dropped its slow requests.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from ultrafast.bench.figures import RequestFigures, figures_of
from ultrafast.bench.records import Outcome, RequestRecord, Run, Window
from ultrafast.bench.stats.clustered import clustered_quantile_interval
from ultrafast.bench.stats.gaps import pooled_jitter, pooled_jitter_interval
from ultrafast.bench.stats.percentiles import nearest_rank, quantile_interval
from ultrafast.bench.stats.proportions import wilson_interval
from ultrafast.core.tiers import ServiceTier

DEFAULT_QUANTILES = (0.5, 0.9, 0.95, 0.99)
ADJUSTED = ("ttft", "ttft_service", "e2e")
"""Metrics in which a failed request counts as infinity."""
CORRELATED = ("gap", "itl")
"""Their samples are not independent within a request: their interval takes whole requests as the unit."""
METRICS = (
    "ttft", "ttft_service", "ttfot", "ttfb", "dispatch_lag", "tpot", "itl", "gap", "jitter", "max_gap", "e2e", "close_lag",
)  # fmt: skip
PARTS = ("network", "queue", "compute", "output")
SLO_METRICS = ("ttft", "tpot", "e2e", "jitter", "max_gap")


class Percentile(msgspec.Struct, frozen=True):
    """One percentile, seconds. `adj` and the 95 % interval count failures as infinity where the metric is in `ADJUSTED`.

    An interval below the sample size at which one exists is None. Infinity is None in JSON: see `is_adj_infinite`.
    """

    quantile: float
    value: float | None
    adj: float | None
    low: float | None
    high: float | None
    is_adj_infinite: bool = False


class MetricSummary(msgspec.Struct, frozen=True):
    """One metric, seconds. `num_null`: successful requests for which it is not defined."""

    num_samples: int
    num_null: int
    mean: float | None
    std: float | None
    low: float | None
    high: float | None
    percentiles: list[Percentile]


class Throughput(msgspec.Struct, frozen=True):
    """What was stamped inside the window, per second. Tokens of requests that were still running at its end count."""

    output_tokens_per_s: float | None
    prompt_tokens_per_s: float | None
    cached_tokens_per_s: float | None
    requests_per_s: float
    chunks_per_s: float
    drain_s: float


class Goodput(msgspec.Struct, frozen=True):
    """Requests scheduled in the window that met every SLO. `num_not_applicable`: metrics that were not defined, by name."""

    num_good: int
    num_scheduled: int
    per_s: float
    attainment: float | None
    low: float | None
    high: float | None
    num_not_applicable: dict[str, int]


class Group(msgspec.Struct, frozen=True):
    """The figures of a set of requests: all of them, or those of one tier."""

    name: str
    num_planned: int
    num_ok: int
    num_failed: int
    num_cancelled: int
    failures: dict[str, int]
    served: dict[str, int]
    metrics: dict[str, MetricSummary]
    jitter_s: float | None
    jitter_low_s: float | None
    jitter_high_s: float | None
    max_gap_s: float | None
    stall_share: float | None
    tokens_per_chunk: float | None
    max_tokens_per_chunk: int | None
    coalesced_share: float | None
    num_first_assumed: int
    throughput: Throughput
    goodput: Goodput | None
    parts_s: dict[str, float] | None
    """Mean of each of the four parts over requests whose server tells its share; they sum to the mean E2E of those."""
    num_with_parts: int = 0


class Summary(msgspec.Struct, frozen=True):
    """All groups of a run; the first is `all`."""

    groups: list[Group]

    @property
    def overall(self) -> Group:
        """Over all requests."""
        return self.groups[0]


def summarise(run: Run, quantiles: Sequence[float] = DEFAULT_QUANTILES) -> Summary:
    """Compute everything. Requests without a tier appear only under `all`."""
    tiers = tiers_of(run.requests)
    chosen = [("all", run.requests)] + [(tier, [r for r in run.requests if r.tier_requested == tier]) for tier in tiers]
    slos = run.record.scenario.goodput
    return Summary([_group(name, requests, run.record.window, slos, quantiles) for name, requests in chosen])


def tiers_of(requests: Sequence[RequestRecord]) -> list[str]:
    """Requested tiers, ours in order of urgency, then others by name."""
    found = {request.tier_requested for request in requests if request.tier_requested}
    return [tier.value for tier in ServiceTier if tier in found] + sorted(found - set(ServiceTier))


def samples(requests: Sequence[RequestRecord], metric: str, *, adjusted: bool = False) -> list[float]:
    """Raw samples of a metric from successful requests, seconds; `adjusted` adds infinity per failed one (see `ADJUSTED`).

    `gap` gives one sample per gap and `itl` one per token; every other metric at most one per request.
    """
    values: list[float] = []
    for request in requests:
        if request.is_ok:
            values += values_of(figures_of(request), metric)
    if adjusted and metric in ADJUSTED:
        values += [math.inf] * sum(request.outcome is not Outcome.OK for request in requests)
    return values


def values_of(figures: RequestFigures, metric: str) -> Sequence[float]:
    """The samples that one request gives to a metric of `METRICS`, seconds."""
    if metric == "gap":
        return figures.gaps_s
    if metric == "itl":
        return [value for value, num_tokens in figures.itl for _ in range(num_tokens)]
    value = getattr(figures, f"{metric}_s")
    return () if value is None else (value,)


def is_good(request: RequestRecord, figures: RequestFigures, slos_s: Mapping[str, float]) -> bool:
    """Succeeded and met every SLO that is defined for it."""
    if not request.is_ok:
        return False
    values = ((getattr(figures, f"{name}_s"), limit_s) for name, limit_s in slos_s.items())
    return all(value is None or value <= limit_s for value, limit_s in values)


def _group(
    name: str, planned: Sequence[RequestRecord], window: Window, slos_s: Mapping[str, float], quantiles: Sequence[float]
) -> Group:
    requests = [
        request for request in planned if request.scheduled_ns <= window.end_ns or request.outcome is not Outcome.CANCELLED
    ]
    num_lost = sum(request.outcome is not Outcome.OK for request in requests)
    ok = [request for request in requests if request.is_ok]
    figures = [figures_of(request) for request in ok]
    gaps = [figure.gaps_s for figure in figures]
    num_gaps = sum(map(len, gaps))
    jitter_interval = pooled_jitter_interval(gaps)
    count = Counter(request.outcome for request in planned)
    per_chunk, most = _tokens_per_chunk(ok)
    return Group(
        name=name,
        num_planned=len(planned),
        num_ok=count[Outcome.OK],
        num_failed=count[Outcome.FAILED],
        num_cancelled=count[Outcome.CANCELLED],
        failures=dict(Counter(request.failure.kind.value for request in planned if request.failure)),
        served=dict(Counter(request.tier_served for request in ok if request.tier_served)),
        metrics={metric: _metric(metric, figures, num_lost, quantiles) for metric in METRICS},
        jitter_s=pooled_jitter(gaps),
        jitter_low_s=jitter_interval.low if jitter_interval else None,
        jitter_high_s=jitter_interval.high if jitter_interval else None,
        max_gap_s=max((figure.max_gap_s for figure in figures if figure.max_gap_s is not None), default=None),
        stall_share=sum(figure.num_stalls for figure in figures) / num_gaps if num_gaps else None,
        tokens_per_chunk=per_chunk,
        max_tokens_per_chunk=most,
        coalesced_share=sum(figure.num_coalesced for figure in figures) / num_gaps if num_gaps else None,
        num_first_assumed=sum(figure.is_first_assumed for figure in figures),
        throughput=throughput_of(requests, window),
        goodput=_goodput(requests, window, slos_s) if slos_s else None,
        parts_s=_mean_parts(figures),
        num_with_parts=sum(figure.parts is not None for figure in figures),
    )


def _metric(metric: str, figures: Sequence[RequestFigures], num_lost: int, quantiles: Sequence[float]) -> MetricSummary:
    by_request = [values_of(figure, metric) for figure in figures]
    values = np.sort(np.asarray([value for each in by_request for value in each], dtype=np.float64))
    adjusted = np.append(values, np.full(num_lost if metric in ADJUSTED else 0, np.inf))
    has_samples = len(values) > 0
    return MetricSummary(
        num_samples=len(values),
        num_null=sum(not each for each in by_request),
        mean=float(values.mean()) if has_samples else None,
        std=float(values.std()) if has_samples else None,
        low=float(values[0]) if has_samples else None,
        high=float(values[-1]) if has_samples else None,
        percentiles=[
            _percentile(values, adjusted, quantile, by_request if metric in CORRELATED else None) for quantile in quantiles
        ],
    )


def _percentile(
    values: np.typing.NDArray[np.float64],
    adjusted: np.typing.NDArray[np.float64],
    q: float,
    clusters: Sequence[Sequence[float]] | None,
) -> Percentile:
    adj = nearest_rank(adjusted, q)
    interval = quantile_interval(adjusted, q) if clusters is None else clustered_quantile_interval(clusters, q)
    low, high = (interval.low, interval.high) if interval else (None, None)
    return Percentile(q, nearest_rank(values, q), adj, low, high, adj == math.inf)


def _tokens_per_chunk(ok: Sequence[RequestRecord]) -> tuple[float | None, int | None]:
    """Mean by usage over chunks, and the largest chunk that a server counted."""
    counted = [request for request in ok if request.usage.num_output_tokens is not None]
    num_chunks = sum(len(request.chunks) for request in counted)
    num_tokens = sum(request.usage.num_output_tokens or 0 for request in counted)
    known = [chunk.num_tokens for request in ok for chunk in request.chunks if chunk.num_tokens is not None]
    return (num_tokens / num_chunks if num_chunks else None), max(known, default=None)


def throughput_of(requests: Sequence[RequestRecord], window: Window) -> Throughput:
    """What these requests moved inside the window."""
    duration_s = max(window.duration_s, 1e-9)
    num_chunks = num_done = 0
    num_tokens = 0.0
    for request in requests:
        inside = [chunk for chunk in request.chunks if window.start_ns <= chunk.stamp_ns <= window.end_ns]
        num_chunks += len(inside)
        num_tokens += _tokens_inside(request, len(inside))
        num_done += request.is_ok and request.chunks[-1].stamp_ns <= window.end_ns
    is_known = all(request.usage.num_output_tokens is not None for request in requests if request.is_ok)
    # A prompt has been worked off when its first token comes.
    begun = [request.usage for request in requests if request.is_ok and request.chunks[0].stamp_ns <= window.end_ns]
    ends = [request.end_ns for request in requests if request.end_ns is not None]
    return Throughput(
        output_tokens_per_s=num_tokens / duration_s if is_known else None,
        prompt_tokens_per_s=_rate([usage.num_prompt_tokens for usage in begun], duration_s),
        cached_tokens_per_s=_rate([usage.num_cached_tokens for usage in begun], duration_s),
        requests_per_s=num_done / duration_s,
        chunks_per_s=num_chunks / duration_s,
        drain_s=max(0, max(ends, default=0) - window.end_ns) / 1e9,
    )


def _tokens_inside(request: RequestRecord, num_inside: int) -> float:
    """Tokens of the chunks inside the window; without counts per chunk, every chunk gets its equal share of the usage."""
    if not num_inside:
        return 0.0
    num_output = request.usage.num_output_tokens
    return num_inside * (num_output / len(request.chunks) if num_output is not None else 1.0)


def _rate(counts: Sequence[int | None], duration_s: float) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / duration_s if known and len(known) == len(counts) else None


def _goodput(requests: Sequence[RequestRecord], window: Window, slos_s: Mapping[str, float]) -> Goodput:
    scheduled = [request for request in requests if window.start_ns <= request.scheduled_ns <= window.end_ns]
    figures = [figures_of(request) for request in scheduled]
    num_good = sum(is_good(request, figure, slos_s) for request, figure in zip(scheduled, figures, strict=True))
    interval = wilson_interval(num_good, len(scheduled))
    missing: Counter[str] = Counter()
    for request, figure in zip(scheduled, figures, strict=True):
        missing.update(name for name in slos_s if request.is_ok and getattr(figure, f"{name}_s") is None)
    return Goodput(
        num_good=num_good,
        num_scheduled=len(scheduled),
        per_s=num_good / max(window.duration_s, 1e-9),
        attainment=num_good / len(scheduled) if scheduled else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        num_not_applicable=dict(missing),
    )


def _mean_parts(figures: Sequence[RequestFigures]) -> dict[str, float] | None:
    parts = [figure.parts for figure in figures if figure.parts is not None]
    if not parts:
        return None
    return {name: sum(getattr(part, f"{name}_s") for part in parts) / len(parts) for name in PARTS}
