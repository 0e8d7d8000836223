"""What a server exports, as read from its /metrics, and what rules and panels ask for that is not there."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client.parser import text_string_to_metric_families
from tests.unit.deploy.promql import Selector, read

FROM_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to every series of a target."""
PROMETHEUS_SERIES = {"up"}

Exported = Mapping[str, list[Mapping[str, str]]]
"""Name of a sample -> the label sets under which it is exported."""


def parse(text: str) -> Exported:
    series: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series[sample.name].append(sample.labels)
    return series


def missing(expr: str, exported: Exported, recorded: Iterable[str] = ()) -> list[str]:
    """Complaints about an expression; empty when everything that it names exists."""
    named = read(expr)
    known = set(recorded) | PROMETHEUS_SERIES
    complaints = [text for selector in named.selectors if selector.name not in known for text in _of(selector, exported)]
    labels = {label for selector in named.selectors for labels in exported.get(selector.name, []) for label in labels}
    if not any(selector.name in known for selector in named.selectors):
        complaints += [f"by {label}: no such label" for label in named.grouped - labels - FROM_PROMETHEUS]
    assert named.selectors or "vector(" in expr, f"names no series: {expr}"
    return complaints


def _of(selector: Selector, exported: Exported) -> list[str]:
    if selector.name not in exported:
        return [f"{selector.name}: no such metric"]
    sets = exported[selector.name]
    complaints = []
    for matcher in selector.matchers:
        if matcher.label in FROM_PROMETHEUS:
            continue
        values = {labels.get(matcher.label, "") for labels in sets}
        if matcher.value.startswith("$"):
            if values <= {""}:
                complaints.append(f"{selector.name}: no label {matcher.label}")
            continue
        wanted = matcher.value.split("|") if matcher.op == "=~" else [matcher.value]
        complaints += [f"{selector.name}: {matcher.label} is never {value!r}" for value in wanted if value not in values]
    fixed = {m.label: m.value for m in selector.matchers if m.op == "=" and m.label not in FROM_PROMETHEUS}
    if not complaints and not any(fixed.items() <= labels.items() for labels in sets):
        complaints.append(f"{selector.name}: never {fixed} together")
    return complaints


def legend_labels(legend: str) -> set[str]:
    return set(re.findall(r"{{\s*\$?(?:labels\.)?(\w+)\s*}}", legend))
