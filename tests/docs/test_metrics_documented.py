"""docs/metrics.md lists every metric by its exported name."""

import re

from tests.docs.documents import ROOT

from ultrafast.observe.metrics import Metrics


def exported_names() -> set[str]:
    names = set()
    for metric in Metrics().registry.collect():
        suffix = {"counter": "_total", "info": "_info"}.get(metric.type, "")
        names.add(metric.name + suffix)
    return {name for name in names if name.startswith("ultrafast_")}


def test_every_metric_is_documented_and_nothing_else():
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(ultrafast_\w+)`", text, re.MULTILINE))
    assert documented == exported_names()


def test_opentelemetry_names_are_documented():
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {metric.name for metric in Metrics().registry.collect() if metric.name.startswith("gen_ai_")}
    assert set(re.findall(r"^\| `(gen_ai_\w+)`", text, re.MULTILINE)) == names
    assert len(names) == 3
