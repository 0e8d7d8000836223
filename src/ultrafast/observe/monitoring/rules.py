"""Rules as values, and their text in Prometheus' rule file format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RecordingRule:
    """A series that Prometheus computes and stores under the name `record`."""

    record: str
    expr: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AlertRule:
    """A condition that somebody is told of.

    Attributes:
        for_: how long it must hold, in Prometheus' notation; empty: at once.
        severity: `page` (somebody must act now) or `ticket` (somebody must look within days).
        runbook: link to the entry of this alert.
    """

    alert: str
    expr: str
    for_: str
    severity: str
    summary: str
    description: str
    runbook: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that are evaluated one after the other, every `interval`."""

    name: str
    interval: str
    rules: tuple[RecordingRule | AlertRule, ...]


def to_yaml(groups: Iterable[RuleGroup], comment: str) -> str:
    """Return the groups as a rule file, with `comment` as its head."""
    lines = [f"# {line}" for line in comment.splitlines()] + ["groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", f"    interval: {group.interval}", "    rules:"]
        for rule in group.rules:
            lines += _alert(rule) if isinstance(rule, AlertRule) else _recording(rule)
    return "\n".join(lines) + "\n"


def _recording(rule: RecordingRule) -> list[str]:
    return [f"      - record: {rule.record}", *_expr(rule.expr), *_mapping("labels", rule.labels)]


def _alert(rule: AlertRule) -> list[str]:
    annotations = {"summary": rule.summary, "description": rule.description, "runbook": rule.runbook}
    return [
        f"      - alert: {rule.alert}",
        *_expr(rule.expr),
        *([f"        for: {rule.for_}"] if rule.for_ else []),
        *_mapping("labels", {"severity": rule.severity, **rule.labels}),
        *_mapping("annotations", annotations),
    ]


def _expr(expr: str) -> list[str]:
    return ["        expr: |", *(f"          {line}" for line in expr.splitlines())]


def _mapping(name: str, values: Mapping[str, str]) -> list[str]:
    # A JSON string is a valid double-quoted YAML scalar.
    return [f"        {name}:", *(f"          {key}: {json.dumps(value)}" for key, value in values.items())] if values else []
