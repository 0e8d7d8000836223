"""The whole rule file."""

from __future__ import annotations

from ultrafast.observe.monitoring.alerts import alert_groups
from ultrafast.observe.monitoring.burn_rates import burn_rate_group
from ultrafast.observe.monitoring.indicators import recording_groups
from ultrafast.observe.monitoring.inputs import MonitoringInputs
from ultrafast.observe.monitoring.rules import RuleGroup, to_yaml

_HEAD = """Made by `ultrafast monitoring rules`: carries the objectives of the settings it was given.
Do not edit: make it again when `tiers.*`, `engine.max_num_running` or `server.stall_after_s` change."""


def rule_groups(inputs: MonitoringInputs) -> tuple[RuleGroup, ...]:
    """Recording rules first, then the alerts that read them."""
    return (*recording_groups(inputs), burn_rate_group(inputs), *alert_groups(inputs))


def rule_file(inputs: MonitoringInputs) -> str:
    """The rules as the text of a Prometheus rule file."""
    return to_yaml(rule_groups(inputs), _HEAD)
