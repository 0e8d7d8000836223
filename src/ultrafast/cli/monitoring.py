"""`ultrafast monitoring rules|dashboard`: Prometheus rules and a Grafana dashboard with the objectives of the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ultrafast.cli.number_range import NumberRange
from ultrafast.cli.options import load_from_options, settings_options
from ultrafast.config.settings import Settings
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.monitoring.dashboard import dashboard_file
from ultrafast.observe.monitoring.inputs import (
    DEFAULT_JOB,
    DEFAULT_RUNBOOK,
    DEFAULT_SLO_PERCENT,
    MonitoringInputs,
    TierObjectives,
)
from ultrafast.observe.monitoring.rule_file import rule_file

_Command = TypeVar("_Command", bound=Callable[..., Any])

_MIN_SLO_PERCENT = 95.0
"""Below about 93 % the fastest burn rate, 14.4 times the budget, would be more than all calls, and never alert."""


@click.group()
def monitoring() -> None:
    """Print monitoring files that carry the objectives of your settings."""


def _slo_option(command: _Command) -> _Command:
    return click.option(
        "--slo-percent",
        type=NumberRange(_MIN_SLO_PERCENT, 100, max_open=True),
        default=DEFAULT_SLO_PERCENT,
        show_default=True,
        metavar="PERCENT",
        help="Share of calls that must meet an objective.",
    )(command)


@monitoring.command()
@_slo_option
@click.option("--job", default=DEFAULT_JOB, show_default=True, metavar="NAME", help="The `job` that Prometheus gives the server.")
@click.option(
    "--runbook", default=DEFAULT_RUNBOOK, show_default=True, metavar="URL", help="Where docs/runbook.md can be read by you."
)
@settings_options
def rules(slo_percent: float, job: str, runbook: str, **options: Any) -> None:
    """Print Prometheus recording and alerting rules."""
    if any(character in job for character in '"\\\n{}'):
        raise click.BadParameter("a job's name has no quotes, backslashes or braces here.", param_hint="--job")
    settings = load_from_options(options).settings
    click.echo(rule_file(monitoring_inputs(settings, slo_percent, job, runbook)), nl=False)


@monitoring.command()
@_slo_option
@settings_options
def dashboard(slo_percent: float, **options: Any) -> None:
    """Print a Grafana dashboard, JSON."""
    click.echo(dashboard_file(monitoring_inputs(load_from_options(options).settings, slo_percent)), nl=False)


def monitoring_inputs(
    settings: Settings, slo_percent: float = DEFAULT_SLO_PERCENT, job: str = DEFAULT_JOB, runbook: str = DEFAULT_RUNBOOK
) -> MonitoringInputs:
    """What the generators need of the settings. The same objectives as the server's histograms."""
    objectives = (
        # Divided as the server divides: both must name the same bucket.
        TierObjectives(tier, getattr(settings.tiers, tier).ttft_ms / 1000, getattr(settings.tiers, tier).tpot_ms / 1000)
        for tier in ServiceTier
    )
    return MonitoringInputs(
        objectives=tuple(objectives),
        max_num_running=settings.engine.max_num_running,
        stall_after_s=settings.server.stall_after_s,
        job=job,
        slo_percent=slo_percent,
        runbook=runbook,
    )
