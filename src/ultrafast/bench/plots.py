"""The plots of a report, as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from ultrafast.bench.figures import figures_of
from ultrafast.bench.metrics import Group, MetricSummary, Percentile, Summary, samples, tiers_of
from ultrafast.bench.records import RequestRecord, Run
from ultrafast.bench.svg import WIDE, Plot, Point, height_of_rows, rows_scale, x_scale, y_scale
from ultrafast.bench.wording import milliseconds
from ultrafast.core.tiers import ServiceTier

_MAX_POINTS = 400
_MAX_ROWS = 60
_ROW_PIXELS = 9.0
_MAX_LOAD_TICKS = 6
_KNOWN_TIERS = tuple(ServiceTier)
_LOG_RATIO = 20.0
"""Distributions that span more than this get a logarithmic axis."""


def tier_style(tier: str | None, tiers: Sequence[str]) -> str:
    """The CSS class of a tier; tiers of other servers get one of the spare colours."""
    if tier is None or tier == "all":
        return "tier-all"
    if tier in _KNOWN_TIERS:
        return f"tier-{tier}"
    others = [name for name in tiers if name not in _KNOWN_TIERS]
    return f"tier-other{others.index(tier) % 3}"


def distribution(run: Run, metric: str, label: str, *, adjusted: bool) -> str:
    """ECDF of a metric, one curve per tier; a curve that ends below 100 % stands for requests without an answer."""
    tiers = tiers_of(run.requests)
    names = tiers or ["all"]
    values = {name: _values_of(run, None if name == "all" else name, metric, adjusted) for name in names}
    finite = [value * 1e3 for group in values.values() for value in group if math.isfinite(value)]
    is_log = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > _LOG_RATIO
    if is_log:
        # Gaps of one read are nearly 0 and would stretch a logarithmic axis over empty decades.
        finite = [max(value, max(finite) / 10_000) for value in finite]
    limit_s = run.record.scenario.goodput.get(metric)
    unit = "gaps" if metric == "gap" else "requests"
    x = x_scale([*finite, *([limit_s * 1e3] if limit_s else [])], is_log=is_log)
    plot = Plot(
        f"Distribution of {label}", f"{label} (ms{', log scale' if is_log else ''})", f"share of {unit} (%)", x, y_scale([0, 100])
    )
    for name in names:
        plot.line(_ecdf(values[name]), tier_style(name, tiers), name)
    if limit_s:
        plot.x_mark(limit_s * 1e3, f"SLO {limit_s * 1e3:g} ms")
    return plot.render()


def timeline(run: Run) -> str:
    """Each request a row: a thin line while it waits for its first token, then a stroke per chunk."""
    tiers = tiers_of(run.requests)
    chosen = _spread([request for request in run.requests if request.sent_ns is not None], _MAX_ROWS)
    height = height_of_rows(len(chosen), _ROW_PIXELS)
    ends = [(request.end_ns or request.scheduled_ns) / 1e9 for request in chosen]
    x = x_scale([0.0, *ends], WIDE, from_zero=True)
    label = f"requests by arrival ({len(chosen)} of {len(run.requests)})"
    plot = Plot(
        "Tokens of each request over time",
        "time since the start of the window (s)",
        label,
        x,
        rows_scale(len(chosen), height),
        height,
    )
    plot.width, plot.shows_y_ticks = WIDE, False
    for row, request in enumerate(chosen):
        style = tier_style(request.tier_requested, tiers)
        stamps = [chunk.stamp_ns / 1e9 for chunk in request.chunks]
        start, first = request.scheduled_ns / 1e9, stamps[0] if stamps else (request.end_ns or request.scheduled_ns) / 1e9
        plot.segment(start, first, row, "wait" if request.is_ok else "wait failed", _describe(request))
        plot.strokes(stamps, row, _ROW_PIXELS * 0.36, style)
        if not request.is_ok:
            plot.cross((request.end_ns or request.scheduled_ns) / 1e9, row, _ROW_PIXELS * 0.36, "failed")
    return plot.render()


def against_load(runs: Sequence[tuple[Run, Summary]], metric: str, label: str, load_label: str) -> str:
    """P50 and P99 of a metric over the loads of a sweep; whiskers are the 95 % intervals of P99, where they exist."""
    loads = [load_of(run) for run, _ in runs]
    metrics = [summary.overall.metrics[metric] for _, summary in runs]
    median, tail = [_points(loads, metrics, quantile) for quantile in (0.5, 0.99)]
    heights = [y for _, y in (*median, *tail)]
    bands = [(load, at(one, 0.99)) for load, one in zip(loads, metrics, strict=True)]
    known = [
        (load, p.low * 1e3, p.high * 1e3)
        for load, p in bands
        if p.low is not None and p.high is not None and math.isfinite(p.high)
    ]
    heights += [high for _, _, high in known]
    is_log = bool(heights) and min(heights) > 0 and max(heights) / min(heights) > _LOG_RATIO
    y = y_scale(heights, is_log=is_log, from_zero=not is_log)
    plot = Plot(f"{label} against load", load_label, f"{label} (ms{', log scale' if is_log else ''})", x_scale(loads), y)
    plot.x_ticks = sorted(set(loads)) if len(set(loads)) <= _MAX_LOAD_TICKS else None
    for load, low, high in known:
        plot.band(load, low, high, "p99")
    plot.line(median, "p50", "P50", has_dots=True)
    plot.line(tail, "p99", "P99 (failures count as infinite)", has_dots=True)
    return plot.render()


def load_of(run: Run) -> float:
    """Arrivals per second, or slots in closed loop."""
    scenario = run.record.scenario
    return scenario.rate_per_s if scenario.rate_per_s is not None else float(scenario.concurrency or 1)


def at(metric: MetricSummary, quantile: float) -> Percentile:
    """The percentile of a summary that is nearest to `quantile`."""
    return min(metric.percentiles, key=lambda percentile: abs(percentile.quantile - quantile))


def parts_bars(groups: Sequence[Group]) -> str:
    """Four parts of the mean E2E as one bar per group, as HTML: it wraps on a narrow screen, SVG text would shrink."""
    longest = max((sum(group.parts_s.values()) for group in groups if group.parts_s), default=0.0)
    rows = []
    for group in groups:
        if not group.parts_s or longest <= 0:
            continue
        total = sum(group.parts_s.values())
        pieces = "".join(_part(name, value, longest) for name, value in group.parts_s.items())
        numbers = ", ".join(f"{name} {milliseconds(value)}" for name, value in group.parts_s.items())
        told = f"in all {milliseconds(total)} ms ({group.num_with_parts} of {group.num_ok} requests)"
        rows.append(
            f'<div class="parts-row"><div class="parts-name">{escape(group.name)}</div><div class="parts-bar">{pieces}</div>'
            f'<div class="parts-text">{numbers}; {told}</div></div>'
        )
    return "".join(rows)


def _part(name: str, value_s: float, longest_s: float) -> str:
    width = f"width:{value_s / longest_s * 100:.2f}%"
    return f'<span class="part part-{name}" style="{width}" title="{name} {milliseconds(value_s)} ms"></span>'


def _values_of(run: Run, tier: str | None, metric: str, adjusted: bool) -> list[float]:
    requests = [request for request in run.requests if tier is None or request.tier_requested == tier]
    return samples([request for request in requests if request.sent_ns is not None], metric, adjusted=adjusted)


def _ecdf(values_s: Sequence[float]) -> list[Point]:
    """Steps from the first to the last finite sample, thinned to what a screen can show."""
    if not values_s:
        return []
    ordered = np.sort(np.asarray(values_s)) * 1e3
    num_finite = int(np.isfinite(ordered).sum())
    if not num_finite:
        return []
    ranks = np.unique(np.linspace(0, num_finite - 1, min(num_finite, _MAX_POINTS)).round().astype(int))
    points: list[Point] = []
    share = 0.0
    for rank in ranks:
        value = float(ordered[rank])
        points.append((value, share))
        share = (int(rank) + 1) / len(ordered) * 100
        points.append((value, share))
    return points


def _spread(requests: list[RequestRecord], most: int) -> list[RequestRecord]:
    requests = sorted(requests, key=lambda request: request.scheduled_ns)
    if len(requests) <= most:
        return requests
    return [requests[round(number)] for number in np.linspace(0, len(requests) - 1, most)]


def _points(loads: Sequence[float], metrics: Sequence[MetricSummary], quantile: float) -> list[Point]:
    pairs = [(load, at(metric, quantile).adj) for load, metric in zip(loads, metrics, strict=True)]
    return [(load, value * 1e3) for load, value in pairs if value is not None and math.isfinite(value)]


def _describe(request: RequestRecord) -> str:
    ttft_s = figures_of(request).ttft_s
    tier = f", {request.tier_requested}" if request.tier_requested else ""
    state = "ok" if request.is_ok else (request.failure.kind.value if request.failure else request.outcome.value)
    return f"request {request.index}{tier}, {state}, TTFT {milliseconds(ttft_s)} ms, {len(request.chunks)} chunks"
