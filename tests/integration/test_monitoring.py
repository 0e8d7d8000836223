"""Rules and panels against the /metrics of a real server; its metrics under a real Prometheus if one is installed."""

import json
import urllib.request

import pytest
from tests.unit.deploy import exported
from tests.unit.deploy.test_files import ROOT, RULES, panels_of

from ultrafast.models.registry import DEFAULT_MODEL
from ultrafast.observe.monitoring.rules import AlertRule, RecordingRule

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def exports(shared_server):
    """What the server exports after one streamed call."""
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 8, "stream": True}
    body["service_tier"] = "ultrafast"
    request = urllib.request.Request(
        f"{shared_server.url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()
    with urllib.request.urlopen(f"{shared_server.url}/metrics", timeout=10) as answer:
        return exported.parse(answer.read().decode())


def test_every_rule_reads_what_the_server_exports(exports):
    recorded = {rule.record for rule in RULES if isinstance(rule, RecordingRule)}
    assert [text for rule in RULES for text in exported.missing(rule.expr, exports, recorded)] == []


def test_every_alert_shows_labels_that_its_series_have(exports):
    known = {label for sets in exports.values() for labels in sets for label in labels} | exported.FROM_PROMETHEUS
    for rule in RULES:
        if isinstance(rule, AlertRule):
            assert exported.legend_labels(rule.summary + rule.description) <= known, rule.alert


def test_every_panel_shows_what_the_server_exports(exports):
    board = json.loads((ROOT / "deploy" / "grafana" / "ultrafast.json").read_text(encoding="utf-8"))
    targets = [(panel["title"], target) for panel in panels_of(board) for target in panel.get("targets", [])]
    assert len(targets) > 50
    assert [f"{title}: {text}" for title, target in targets for text in exported.missing(target["expr"], exports)] == []
    for title, target in targets:
        labels = exported.legend_labels(target["legendFormat"])
        assert all(label in target["expr"] or label == "instance" for label in labels), title
