"""A real Prometheus scrapes a real server, runs the rule file as it is shipped, and answers every panel of the dashboard."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.programs import find_program
from tests.unit.deploy.test_files import ROOT, RULES, panels_of

from ultrafast.models.registry import DEFAULT_MODEL
from ultrafast.observe.monitoring.rules import RecordingRule

pytestmark = [pytest.mark.integration, pytest.mark.needs_program("prometheus")]

RULE_FILE = ROOT / "deploy" / "prometheus" / "ultrafast.rules.yml"
TIMEOUT_S = 60
VARIABLES = {"$__rate_interval": "1m", "$__range": "5m", "$__interval": "15s", "$datasource": ""}
"""What Grafana puts in; every other variable of ours stands for a label and matches everything."""


class Prometheus:
    """One that runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **query: str) -> Any:
        """The `data` of an answer; AssertionError with its own words where it has an error."""
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{query}: {json.load(error)['error']}") from error

    def wait(self, what: str, is_done: Any) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not is_done():
            assert time.monotonic() < deadline_s, f"{what}: not within {TIMEOUT_S} s"
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def configuration(folder: Path, target: str) -> Path:
    """The example as it is shipped, with another target and in a hurry."""
    text = (RULE_FILE.parent / "prometheus.yml").read_text(encoding="utf-8")
    for old, new in (
        ("127.0.0.1:8080", target),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("evaluation_interval: 30s", "evaluation_interval: 1s"),
    ):
        assert old in text
        text = text.replace(old, new)
    file = folder / "prometheus.yml"
    file.write_text(text, encoding="utf-8")
    rules = re.sub(r"^( *)interval: \w+$", r"\1interval: 1s", RULE_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    (folder / RULE_FILE.name).write_text(rules, encoding="utf-8")
    return file


def ask(url: str) -> None:
    """One streamed call, read to its end."""
    body = {"model": DEFAULT_MODEL, "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 8, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.read()


@pytest.fixture(scope="module")
def prometheus(shared_server, tmp_path_factory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    ask(shared_server.url)
    port = free_port()
    program = find_program("prometheus")
    assert program is not None
    file = configuration(folder, shared_server.url.removeprefix("http://"))
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    running = Prometheus(f"http://127.0.0.1:{port}")

    def has_evaluated() -> bool:
        assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
        try:
            groups = running.get("rules")["groups"]
            is_scraped = running.get("query", query='up{job="ultrafast"} == 1')["result"]
        except OSError:
            return False
        return bool(groups and is_scraped) and all(rule["health"] != "unknown" for group in groups for rule in group["rules"])

    try:
        running.wait("rules and a scrape", has_evaluated)
        yield running
    finally:
        process.terminate()
        process.wait(30)


def test_every_rule_runs(prometheus):
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(RULES)
    assert [(rule["name"], rule["lastError"]) for rule in rules if rule["health"] != "ok"] == []


def test_nothing_fires_on_a_healthy_server(prometheus):
    alerts = prometheus.get("alerts")["alerts"]
    assert [alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"] == []


def test_recorded_series_come_to_be(prometheus, shared_server):
    """Percentiles and shares of what happened between two scrapes."""
    ask(shared_server.url)
    wanted = {rule.record for rule in RULES if isinstance(rule, RecordingRule) if "rate5m" in rule.record or "5m" in rule.record}
    assert len(wanted) > 5
    prometheus.wait("recorded series", lambda: wanted <= set(prometheus.get("label/__name__/values")))


def test_every_panel_is_answered(prometheus):
    board = json.loads((ROOT / "deploy" / "grafana" / "ultrafast.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in panels_of(board) for target in panel.get("targets", [])]
    assert len(expressions) > 50
    for expression in expressions:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        prometheus.get("query", query=re.sub(r"\$\{?\w+(:\w+)?\}?", ".*", expression))
