"""Recording rules: per tier, the share of calls that missed an objective, over several windows, and percentiles.

A share is read from the bucket that ends at the objective, so it is exact. Every share exists only where there was traffic:
the division by a total that is 0 is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ultrafast.observe.monitoring.inputs import MonitoringInputs, TierObjectives, edge
from ultrafast.observe.monitoring.rules import RecordingRule, RuleGroup

BURN_WINDOWS = ("5m", "30m", "1h", "6h", "3d")
ALERT_WINDOW = "15m"
PERCENTILE_WINDOW = "5m"
PERCENTILES = (50, 90, 99)
PERCENTILE_NAMES = ("ttft", "itl", "tpot", "e2e")
FAILURES = "failed|expired"
"""Outcomes that are the server's failure. A refusal or a client that left is not."""
ANSWERS = "completed|failed|expired"


@dataclass(frozen=True, slots=True)
class Indicator:
    """A histogram whose samples are good up to an objective of their tier.

    Attributes:
        name: of the histogram, without `ultrafast_` and `_seconds`.
        objective: which objective of the tier is its limit.
        windows: over which the share is recorded.
    """

    name: str
    objective: Literal["ttft_s", "tpot_s"]
    windows: tuple[str, ...]

    def limit_s(self, objectives: TierObjectives) -> float:
        """The limit of one tier, seconds."""
        return objectives.ttft_s if self.objective == "ttft_s" else objectives.tpot_s


TTFT = Indicator("ttft", "ttft_s", BURN_WINDOWS)
TPOT = Indicator("tpot", "tpot_s", BURN_WINDOWS)
QUEUE = Indicator("queue", "ttft_s", (ALERT_WINDOW,))
JITTER = Indicator("jitter", "tpot_s", (ALERT_WINDOW,))
INDICATORS = (TTFT, TPOT, QUEUE, JITTER)


def late_ratio(name: str, window: str) -> str:
    """Recorded series: share of samples above the objective of their tier, 0 to 1; none without traffic."""
    return f"job_tier:ultrafast_{name}_late:ratio_increase{window}"


def total(name: str, window: str) -> str:
    """Recorded series: number of samples in the window."""
    return f"job_tier:ultrafast_{name}_samples:increase{window}"


def error_ratio(window: str) -> str:
    """Recorded series: share of answers that failed or expired, 0 to 1; none without traffic."""
    return f"job_tier:ultrafast_errors:ratio_increase{window}"


def answers(window: str) -> str:
    """Recorded series: number of calls in the window that were answered or should have been."""
    return f"job_tier:ultrafast_answers:increase{window}"


def recording_groups(inputs: MonitoringInputs) -> Iterator[RuleGroup]:
    """Percentiles, and per window what the alerts read."""
    yield RuleGroup("ultrafast-percentiles", "30s", tuple(_percentiles(inputs.job)))
    for window in (*BURN_WINDOWS, ALERT_WINDOW):
        # Long windows are costly and change slowly. Below 5 minutes, after which Prometheus takes a series for gone.
        interval = "2m" if window in ("6h", "3d") else "30s"
        yield RuleGroup(f"ultrafast-objectives-{window}", interval, tuple(_window(inputs, window)))


def _percentiles(job: str) -> Iterator[RecordingRule]:
    for name in PERCENTILE_NAMES:
        for percentile in PERCENTILES:
            rate = f'rate(ultrafast_{name}_seconds_bucket{{job="{job}"}}[{PERCENTILE_WINDOW}])'
            yield RecordingRule(
                f"job_tier:ultrafast_{name}_seconds:p{percentile}_rate{PERCENTILE_WINDOW}",
                f"histogram_quantile({percentile / 100:g}, sum by (job, tier, le) ({rate}))",
            )


def _window(inputs: MonitoringInputs, window: str) -> Iterator[RecordingRule]:
    for indicator in INDICATORS:
        if window in indicator.windows:
            yield from _indicator(inputs, indicator, window)
    if window in BURN_WINDOWS:
        yield from _errors(inputs.job, window)


def _indicator(inputs: MonitoringInputs, indicator: Indicator, window: str) -> Iterator[RecordingRule]:
    metric = f"ultrafast_{indicator.name}_seconds"
    samples = f'sum by (job, tier) (increase({metric}_count{{job="{inputs.job}"}}[{window}]))'
    yield RecordingRule(total(indicator.name, window), samples)
    for objectives in inputs.objectives:
        tier = f'job="{inputs.job}",tier="{objectives.tier}"'
        limit = edge(indicator.limit_s(objectives))
        yield RecordingRule(
            late_ratio(indicator.name, window),
            f'1 - sum by (job, tier) (increase({metric}_bucket{{{tier},le="{limit}"}}[{window}]))\n'
            f"  / (sum by (job, tier) (increase({metric}_count{{{tier}}}[{window}])) > 0)",
            {"tier": str(objectives.tier)},
        )


def _errors(job: str, window: str) -> Iterator[RecordingRule]:
    def ended(outcomes: str) -> str:
        selector = f'job="{job}",outcome=~"{outcomes}"'
        return f"sum by (job, tier) (increase(ultrafast_requests_total{{{selector}}}[{window}]))"

    yield RecordingRule(answers(window), ended(ANSWERS))
    yield RecordingRule(error_ratio(window), f"{ended(FAILURES)}\n  / ({ended(ANSWERS)} > 0)")
