"""The Grafana dashboard: percentiles per tier against their objectives, the four parts, queue, KV, outcomes, steps.

Reads the server's own metrics only, so it works without the recording rules.
"""

from __future__ import annotations

import json

from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import LatencyPart
from ultrafast.observe.monitoring import grafana
from ultrafast.observe.monitoring.grafana import Json, Query, Row
from ultrafast.observe.monitoring.inputs import MonitoringInputs, TierObjectives, edge
from ultrafast.observe.monitoring.panels import JOB, SCOPE, machine_rows, quantile, rate

TITLE = "Ultrafast"
UID = "ultrafast"
_PERCENTILES = (50, 90, 99)
_HISTOGRAMS = (
    ("ttft", "Time to first token", "ttft_s"),
    ("itl", "Time between tokens", "tpot_s"),
    ("tpot", "Mean time per output token", "tpot_s"),
    ("e2e", "Arrival to last byte", None),
)
_PART_STEPS = {
    LatencyPart.NETWORK: grafana.rising(0.1, 0.25),
    LatencyPart.QUEUE: grafana.rising(0.1, 0.25),
    LatencyPart.COMPUTE: grafana.falling(0.6, 0.8),
    LatencyPart.OUTPUT: grafana.rising(0.05, 0.1),
}
_PART_TEXTS = {
    LatencyPart.NETWORK: "Reading requests and waiting for slow readers. Green below 10 %, red from 25 % of the time.",
    LatencyPart.QUEUE: "Waiting for a place in the engine. Green below 10 %, red from 25 % of the time.",
    LatencyPart.COMPUTE: "First step to last token. A healthy server spends its time here: green from 80 %, red below 60 %.",
    LatencyPart.OUTPUT: "Template, tokeniser, text, JSON, the way between processes. Green below 5 %, red from 10 % of the time.",
}


def dashboard_file(inputs: MonitoringInputs) -> str:
    """The dashboard as JSON text for Grafana's import."""
    return json.dumps(dashboard(inputs), indent=2, ensure_ascii=False) + "\n"


def dashboard(inputs: MonitoringInputs) -> Json:
    """The dashboard as JSON values."""
    rows = [_overview(inputs), _parts()]
    rows += [_tier(objectives) for objectives in inputs.objectives]
    rows += machine_rows(inputs.max_num_running)
    return {
        "title": TITLE,
        "uid": UID,
        "id": None,
        "description": "LLM server by service tier. Made by `ultrafast monitoring dashboard`.",
        "tags": ["llm", "ultrafast"],
        "schemaVersion": grafana.SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "links": [],
        "panels": grafana.lay_out(rows),
    }


def _variables() -> list[Json]:
    tiers = f"label_values(ultrafast_ttft_seconds_count{{{JOB}}}, tier)"
    return [
        grafana.datasource_variable(),
        grafana.variable("job", "Job", "label_values(ultrafast_build_info, job)", is_multi=False),
        grafana.variable("instance", "Instance", f"label_values(ultrafast_build_info{{{JOB}}}, instance)", is_multi=True),
        grafana.variable("tier", "Tier of the four parts", tiers, is_multi=True),
    ]


def _overview(inputs: MonitoringInputs) -> Row:
    share = inputs.slo_percent / 100
    steps = grafana.falling(round(1 - 2 * inputs.budget, 6), share)
    ttft = [_attainment("ttft", one.tier, one.ttft_s) for one in inputs.objectives]
    tpot = [_attainment("tpot", one.tier, one.tpot_s) for one in inputs.objectives]
    goal = f"Goal: {inputs.slo_percent:g} %. Exact: the objective is a bucket edge. Over the shown time."
    calls = Query(f"sum by (outcome) ({rate('ultrafast_requests_total', SCOPE)})", "{{outcome}}")
    return Row(
        "Objectives",
        (
            grafana.stat("First token in time", ttft, "percentunit", goal, steps, top=1),
            grafana.stat("Tokens in time", tpot, "percentunit", goal, steps, top=1),
            grafana.graph(
                "Calls by outcome",
                [calls],
                "reqps",
                "completed; rejected before the queue; invalid: the client's mistake; expired in the queue; "
                "aborted by the client; failed: our fault.",
                is_stacked=True,
            ),
        ),
        width=8,
        height=7,
    )


def _attainment(name: str, tier: ServiceTier, limit_s: float) -> Query:
    metric = f"ultrafast_{name}_seconds"
    in_time = f'sum(increase({metric}_bucket{{{SCOPE},tier="{tier}",le="{edge(limit_s)}"}}[$__range]))'
    everything = f'sum(increase({metric}_count{{{SCOPE},tier="{tier}"}}[$__range]))'
    return Query(f"{in_time} / ({everything} > 0)", f"{tier} (≤ {_milliseconds(limit_s)})", is_instant=True)


def _parts() -> Row:
    scope = f'{SCOPE},tier=~"$tier"'
    total = f"sum({rate('ultrafast_latency_part_seconds_sum', scope)})"
    stats = [
        grafana.stat(
            f"{part.value.capitalize()}: share of time",
            [Query(f"sum({_part_rate(part, scope)}) / ({total} > 0)", part.value)],
            "percentunit",
            _PART_TEXTS[part],
            _PART_STEPS[part],
            top=1,
        )
        for part in LatencyPart
    ]
    mean = (
        f"sum by (part) ({rate('ultrafast_latency_part_seconds_sum', scope)})\n"
        f"  / (sum by (part) ({rate('ultrafast_latency_part_seconds_count', scope)}) > 0)"
    )
    stacked = grafana.graph(
        "Mean time per call, by part",
        [Query(mean, "{{part}}")],
        "s",
        "The four parts of a completed call; together they are its time from arrival to last byte.",
        is_stacked=True,
    )
    percentiles = [
        grafana.graph(
            f"P{percentile} of each part",
            [Query(quantile(percentile, "ultrafast_latency_part_seconds", scope, "part"), "{{part}}")],
            "s",
            "Percentiles of parts do not add up to the percentile of the whole.",
        )
        for percentile in (50, 99)
    ]
    by_tier = grafana.bars(
        "P99 of each part, by tier",
        [Query(quantile(99, "ultrafast_latency_part_seconds", scope, "tier", "part"), "{{tier}} {{part}}", is_instant=True)],
        "s",
        "Green below 0.2 s, red from 1 s; compute grows with the length of the answer.",
        grafana.rising(0.2, 1),
    )
    return Row("Where the time goes: network, queue, compute, output", (*stats, stacked, *percentiles, by_tier), 6, 7)


def _part_rate(part: LatencyPart, scope: str) -> str:
    return rate("ultrafast_latency_part_seconds_sum", f'{scope},part="{part}"')


def _tier(objectives: TierObjectives) -> Row:
    ttft, tpot = _milliseconds(objectives.ttft_s), _milliseconds(objectives.tpot_s)
    title = f"Tier {objectives.tier}: first token within {ttft}, {tpot} per token"
    scope = f'{SCOPE},tier="{objectives.tier}"'
    panels = []
    for name, what, objective in _HISTOGRAMS:
        queries = [Query(quantile(p, f"ultrafast_{name}_seconds", scope), f"P{p}") for p in _PERCENTILES]
        if objective is None:
            panels.append(grafana.graph(f"{what} (E2E)", queries, "s", "No objective: it depends on the length of the answer."))
            continue
        limit_s = getattr(objectives, objective)
        heading = f"{what} ({name.upper()}), objective {_milliseconds(limit_s)}"
        text = "Dashed: the objective. Percentiles are interpolated between bucket edges; the objective is an edge."
        panels.append(grafana.graph(heading, queries, "s", text, steps=grafana.limit(limit_s)))
    is_collapsed = objectives.tier not in (ServiceTier.ULTRAFAST, ServiceTier.DEFAULT)
    return Row(title, tuple(panels), width=6, height=8, is_collapsed=is_collapsed)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.6g} ms"
