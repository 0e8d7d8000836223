"""Alerts about single conditions: server gone, engine stalled or restarting, queue, KV, jitter, errors, saturation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ultrafast.observe.monitoring.indicators import ALERT_WINDOW, JITTER, QUEUE, answers, error_ratio, late_ratio, total
from ultrafast.observe.monitoring.inputs import MonitoringInputs, edge
from ultrafast.observe.monitoring.rules import AlertRule, RuleGroup

PAGE = "page"
TICKET = "ticket"
MIN_SAMPLES = 20
"""Shares of fewer calls say little: one slow call among three is not an incident."""
MAX_QUEUE_LATE = 0.1
MAX_JITTER_LATE = 0.05
MAX_ERRORS = 0.05
MAX_REJECTED = 0.1
MAX_KV_RUNNING = 0.95
MAX_PREEMPTIONS = 10
MAX_RESTARTS = 3
MAX_ENGINE_BUSY = 0.95
MAX_API_CPU = 0.9
"""Of one core: the event loop of the API process cannot use more."""


@dataclass(frozen=True, slots=True)
class _Condition:
    alert: str
    expr: str
    for_: str
    severity: str
    summary: str
    description: str


def runbook_link(runbook: str, alert: str) -> str:
    """Where the runbook says what to do: its headings are the names of the alerts."""
    return f"{runbook}#{alert.lower()}"


def alert_groups(inputs: MonitoringInputs) -> Iterator[RuleGroup]:
    """The alerts, in two groups: the server itself, and what its users feel of it beside the burn rates."""
    yield _group("ultrafast-server", inputs, [*_presence(inputs), *_engine(inputs)])
    yield _group("ultrafast-load", inputs, [*_load(inputs), *_quality()])


def _group(name: str, inputs: MonitoringInputs, conditions: list[_Condition]) -> RuleGroup:
    rules = (
        AlertRule(c.alert, c.expr, c.for_, c.severity, c.summary, c.description, runbook_link(inputs.runbook, c.alert))
        for c in conditions
    )
    return RuleGroup(name, "30s", tuple(rules))


def _presence(inputs: MonitoringInputs) -> Iterator[_Condition]:
    job = f'{{job="{inputs.job}"}}'
    yield _Condition(
        "UltrafastDown",
        f"up{job} == 0",
        "2m",
        PAGE,
        "{{ $labels.instance }} does not answer /metrics",
        "Prometheus cannot read {{ $labels.instance }}: the process is gone, unreachable, or refuses the key.",
    )
    yield _Condition(
        "UltrafastAbsent",
        f"absent(ultrafast_build_info{job})",
        "5m",
        PAGE,
        f"No Ultrafast server in job {inputs.job}",
        "No target of the job has delivered a metric of Ultrafast. Every other alert is blind meanwhile.",
    )
    unknown = " unless ignoring (le) "
    yield _Condition(
        "UltrafastRulesOutdated",
        "\nor\n".join(
            f'ultrafast_{name}_seconds_count{{job="{inputs.job}",tier="{objectives.tier}"}}{unknown}'
            f'ultrafast_{name}_seconds_bucket{{job="{inputs.job}",tier="{objectives.tier}",le="{edge(limit_s)}"}}'
            for objectives in inputs.objectives
            for name, limit_s in (("ttft", objectives.ttft_s), ("tpot", objectives.tpot_s))
        ),
        "10m",
        TICKET,
        "{{ $labels.instance }} has other objectives for tier {{ $labels.tier }} than these rules",
        "The rules read a bucket that the server does not have, so the alerts on its objectives cannot fire.",
    )


def _engine(inputs: MonitoringInputs) -> Iterator[_Condition]:
    job = f'{{job="{inputs.job}"}}'
    yield _Condition(
        "UltrafastStepStalled",
        f"ultrafast_last_step_age_seconds{job} > {inputs.stall_after_s:g}\nand\nultrafast_requests_in_flight{job} > 0",
        "1m",
        PAGE,
        "The engine of {{ $labels.instance }} makes no steps while calls wait",
        "Last step {{ $value | humanizeDuration }} ago, with calls in flight.",
    )
    yield _Condition(
        "UltrafastEngineRestarted",
        f"increase(ultrafast_engine_restarts_total{job}[15m]) > 0",
        "",
        TICKET,
        "The engine of {{ $labels.instance }} was lost and replaced",
        "Streams paused and went on. The server's log says what ended it.",
    )
    yield _Condition(
        "UltrafastEngineRestartLoop",
        f"increase(ultrafast_engine_restarts_total{job}[30m]) >= {MAX_RESTARTS}",
        "",
        PAGE,
        "The engine of {{ $labels.instance }} is lost again and again",
        "{{ $value | humanize }} restarts within 30 minutes.",
    )
    yield _Condition(
        "UltrafastEngineBusy",
        f"sum by (job, instance) (rate(ultrafast_step_seconds_sum{job}[{ALERT_WINDOW}])) > {MAX_ENGINE_BUSY:g}",
        ALERT_WINDOW,
        TICKET,
        "The engine of {{ $labels.instance }} has no time left",
        "It computes {{ $value | humanizePercentage }} of the time: more load means longer waiting.",
    )
    yield _Condition(
        "UltrafastApiCpuSaturated",
        f"rate(process_cpu_seconds_total{job}[5m]) > {MAX_API_CPU:g}",
        "10m",
        TICKET,
        "The API process of {{ $labels.instance }} uses a whole core",
        "It uses {{ $value | humanizePercentage }} of a core: tokens are ready before they can be sent.",
    )


def _load(inputs: MonitoringInputs) -> Iterator[_Condition]:
    job = f'{{job="{inputs.job}"}}'
    yield _Condition(
        "UltrafastQueueLong",
        # The gauge is set by steps; without calls it would tell of the last one.
        f"ultrafast_requests_waiting{job} > {inputs.max_num_running}\nand\nultrafast_requests_in_flight{job} > 0",
        "5m",
        TICKET,
        "More sequences wait at {{ $labels.instance }} than may run at once",
        "{{ $value | humanize }} sequences wait for a place in the engine.",
    )
    yield _Condition(
        "UltrafastQueueTime",
        f"{late_ratio(QUEUE.name, ALERT_WINDOW)} > {MAX_QUEUE_LATE:g}\nand {total(QUEUE.name, ALERT_WINDOW)} >= {MIN_SAMPLES}",
        "5m",
        TICKET,
        "Tier {{ $labels.tier }}: waiting alone exceeds the time-to-first-token objective",
        "{{ $value | humanizePercentage }} of the sequences waited longer than the whole objective.",
    )
    yield _Condition(
        "UltrafastKvFull",
        f'ultrafast_kv_blocks{{job="{inputs.job}",state="running"}}\n'
        f"  / ignoring (state) (ultrafast_kv_capacity_blocks{job} > 0) > {MAX_KV_RUNNING:g}\n"
        f"and on (job, instance) sum by (job, instance) (rate(ultrafast_step_seconds_count{job}[5m])) > 0",
        "10m",
        TICKET,
        "Running sequences hold nearly all KV of {{ $labels.instance }}",
        "{{ $value | humanizePercentage }} of the KV blocks belong to running sequences; preemption is next.",
    )
    yield _Condition(
        "UltrafastPreemptions",
        f"sum by (job, instance) (increase(ultrafast_preemptions_total{job}[10m])) > {MAX_PREEMPTIONS}",
        "",
        TICKET,
        "Sequences lose their place at {{ $labels.instance }} for want of KV",
        "{{ $value | humanize }} preemptions within 10 minutes; each costs a recomputation and a pause.",
    )
    ended = f'increase(ultrafast_requests_total{{job="{inputs.job}"}}[10m])'
    refused = f'increase(ultrafast_requests_total{{job="{inputs.job}",outcome="rejected"}}[10m])'
    yield _Condition(
        "UltrafastRejecting",
        f"sum by (job, tier) ({refused})\n  / (sum by (job, tier) ({ended}) > 0) > {MAX_REJECTED:g}\n"
        f"and sum by (job, tier) ({ended}) >= {MIN_SAMPLES}",
        "5m",
        TICKET,
        "Tier {{ $labels.tier }}: calls are refused",
        "{{ $value | humanizePercentage }} of the calls were refused before the queue.",
    )


def _quality() -> Iterator[_Condition]:
    yield _Condition(
        "UltrafastJitter",
        f"{late_ratio(JITTER.name, ALERT_WINDOW)} > {MAX_JITTER_LATE:g}\nand {total(JITTER.name, ALERT_WINDOW)} >= {MIN_SAMPLES}",
        "5m",
        TICKET,
        "Tier {{ $labels.tier }}: answers stutter",
        "In {{ $value | humanizePercentage }} of the answers the gaps between tokens vary (standard deviation) by more than "
        "the objective for the time per output token.",
    )
    yield _Condition(
        "UltrafastErrorRatio",
        f"{error_ratio('5m')} > {MAX_ERRORS:g}\nand {answers('5m')} > 0\nand {answers('1h')} >= {MIN_SAMPLES}",
        "5m",
        TICKET,
        "Tier {{ $labels.tier }}: calls fail",
        "{{ $value | humanizePercentage }} of the calls failed or expired in the last 5 minutes.",
    )
