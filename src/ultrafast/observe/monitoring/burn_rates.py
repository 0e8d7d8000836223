"""Burn-rate alerts: how fast the error budget of an objective is used up.

Factors and windows are those of the multiwindow, multi-burn-rate method of Google's SRE workbook, chapter "Alerting on
SLOs". The long window says that it matters, the short one that it still goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ultrafast.observe.monitoring.alerts import MIN_SAMPLES, PAGE, TICKET, runbook_link
from ultrafast.observe.monitoring.indicators import TPOT, TTFT, answers, error_ratio, late_ratio, total
from ultrafast.observe.monitoring.inputs import MonitoringInputs
from ultrafast.observe.monitoring.rules import AlertRule, RuleGroup


@dataclass(frozen=True, slots=True)
class BurnRate:
    """Fire when the budget burns `factor` times as fast as it may, in both windows."""

    factor: float
    long: str
    short: str
    severity: str


BURN_RATES = (
    BurnRate(14.4, "1h", "5m", PAGE),
    BurnRate(6, "6h", "30m", PAGE),
    BurnRate(1, "3d", "6h", TICKET),
)


@dataclass(frozen=True, slots=True)
class _Budget:
    alert: str
    what: str
    ratio: Callable[[str], str]
    total: Callable[[str], str]


_BUDGETS = (
    _Budget(
        "UltrafastTtftBudgetBurn",
        "calls got their first token later than the objective",
        lambda window: late_ratio(TTFT.name, window),
        lambda window: total(TTFT.name, window),
    ),
    _Budget(
        "UltrafastTpotBudgetBurn",
        "answers came slower per token than the objective",
        lambda window: late_ratio(TPOT.name, window),
        lambda window: total(TPOT.name, window),
    ),
    _Budget("UltrafastErrorBudgetBurn", "calls failed or expired", error_ratio, answers),
)


def burn_rate_group(inputs: MonitoringInputs) -> RuleGroup:
    """For each budget three alerts of one name, told apart by the labels `severity` and `window`."""
    return RuleGroup("ultrafast-budgets", "30s", tuple(_alerts(inputs)))


def _alerts(inputs: MonitoringInputs) -> Iterator[AlertRule]:
    for budget in _BUDGETS:
        for rate in BURN_RATES:
            limit = f"{rate.factor * inputs.budget:.6g}"
            yield AlertRule(
                budget.alert,
                f"({budget.ratio(rate.long)} > {limit} and {budget.total(rate.long)} >= {MIN_SAMPLES})\n"
                "and\n"
                f"({budget.ratio(rate.short)} > {limit} and {budget.total(rate.short)} > 0)",
                "",
                rate.severity,
                f"Tier {{{{ $labels.tier }}}}: {budget.what}",
                f"{{{{ $value | humanizePercentage }}}} of the last {rate.long}; {100 * inputs.budget:.4g} % may. At this pace "
                f"the budget of 30 days is used up in {_days(30 / rate.factor)}.",
                runbook_link(inputs.runbook, budget.alert),
                {"window": rate.long},
            )


def _days(days: float) -> str:
    return f"{days:.2g} days"
