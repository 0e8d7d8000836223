"""The files in deploy/ are what the generators make, name only what is exported, and link to a runbook that is there."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.deploy import exported
from tests.unit.deploy.promql import Matcher, Selector, read

from ultrafast.cli.monitoring import monitoring, monitoring_inputs
from ultrafast.config.settings import Settings
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.monitoring.burn_rates import BURN_RATES
from ultrafast.observe.monitoring.dashboard import dashboard
from ultrafast.observe.monitoring.rule_file import rule_groups
from ultrafast.observe.monitoring.rules import AlertRule, RecordingRule
from ultrafast.observe.recorder import Recorder

ROOT = Path(__file__).parents[3]
OWN = {"ultrafast": {"ttft_ms": 137.5, "tpot_ms": 11.3}, "flex": {"ttft_ms": 90000, "tpot_ms": 3000}}
SETTINGS = {"default": Settings(), "own": Settings(tiers=OWN)}
INPUTS = {name: monitoring_inputs(settings) for name, settings in SETTINGS.items()}
RULES = [rule for group in rule_groups(INPUTS["default"]) for rule in group.rules]
ALERTS = [rule for rule in RULES if isinstance(rule, AlertRule)]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")


def panels_of(board):
    for panel in board["panels"]:
        yield from [panel, *panel.get("panels", [])]


def server_exports(inputs):
    """What a server with these objectives exports, without starting one."""
    metrics = Metrics([one.ttft_s for one in inputs.objectives], [one.tpot_s for one in inputs.objectives])
    recorder = Recorder(metrics)
    recorder.on_response("/v1/models", "2xx")
    recorder.describe_build("1", "2", "3")
    return exported.parse(metrics.render().decode())


@pytest.mark.parametrize(
    ("command", "file"), [("rules", "prometheus/ultrafast.rules.yml"), ("dashboard", "grafana/ultrafast.json")]
)
def test_the_file_is_what_the_command_prints(command, file, monkeypatch):
    monkeypatch.delenv("ULTRAFAST_TIERS__ULTRAFAST__TTFT_MS", raising=False)
    printed = CliRunner().invoke(monitoring, [command], catch_exceptions=False).output
    assert (ROOT / "deploy" / file).read_text(encoding="utf-8") == printed, f"run: ultrafast monitoring {command} > deploy/{file}"


@pytest.mark.parametrize("name", SETTINGS)
def test_rules_name_only_what_exists(name):
    rules = [rule for group in rule_groups(INPUTS[name]) for rule in group.rules]
    recorded = {rule.record for rule in rules if isinstance(rule, RecordingRule)}
    exports = server_exports(INPUTS[name])
    assert [text for rule in rules for text in exported.missing(rule.expr, exports, recorded)] == []


def test_no_recorded_series_is_made_for_nobody():
    read_by_alerts = {selector.name for rule in ALERTS for selector in read(rule.expr).selectors}
    recorded = {rule.record for rule in RULES if isinstance(rule, RecordingRule)}
    assert [name for name in recorded - read_by_alerts if "_seconds:p" not in name] == []


@pytest.mark.parametrize("name", SETTINGS)
def test_panels_name_only_what_exists(name):
    exports = server_exports(INPUTS[name])
    complaints = [
        f"{panel['title']}: {text}"
        for panel in panels_of(dashboard(INPUTS[name]))
        for target in panel.get("targets", [])
        for text in exported.missing(target["expr"], exports)
    ]
    assert complaints == []


def test_rules_of_other_objectives_are_found_wrong():
    rules = [rule for group in rule_groups(INPUTS["own"]) for rule in group.rules if isinstance(rule, RecordingRule)]
    exports = server_exports(INPUTS["default"])
    complaints = {text for rule in rules for text in exported.missing(rule.expr, exports)}
    assert "ultrafast_ttft_seconds_bucket: le is never '0.1375'" in complaints


def test_percentiles_sum_the_buckets_and_keep_le():
    exprs = [rule.expr for rule in RULES]
    exprs += [t["expr"] for panel in panels_of(dashboard(INPUTS["default"])) for t in panel.get("targets", [])]
    percentiles = [expr for expr in exprs if "histogram_quantile" in expr]
    assert len(percentiles) > 30
    assert [e for e in percentiles if not re.match(r"histogram_quantile\(0\.\d+, sum by \(([\w, ]+, )?le\) \(rate\(", e)] == []


def test_every_alert_has_an_entry_in_the_runbook():
    anchors = {heading.lower() for heading in re.findall(r"^## (\w+)$", RUNBOOK, re.MULTILINE)}
    assert {rule.runbook for rule in ALERTS} == {f"docs/runbook.md#{anchor}" for anchor in anchors}


def test_every_entry_says_symptom_cause_check_fix():
    entries = re.split(r"^## ", RUNBOOK, flags=re.MULTILINE)[1:]
    wanted = ["Symptom", "Cause", "Check", "Fix"]
    assert [entry.split()[0] for entry in entries if re.findall(r"^\*\*(\w+)\.\*\* \S", entry, re.MULTILINE) != wanted] == []


def test_series_and_panels_in_the_runbook_exist():
    exports = server_exports(INPUTS["default"])
    names = set(re.findall(r"\bultrafast_\w+", RUNBOOK))
    assert names
    assert names - set(exports) == set()
    titles = {panel["title"] for panel in panels_of(dashboard(INPUTS["default"]))}
    pointed = {" ".join(text.split()) for text in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", RUNBOOK)}
    assert pointed
    assert {text for text in pointed if not any(title.startswith(text) for title in titles)} == set()


def test_alerts_say_what_and_how_bad():
    assert {rule.severity for rule in ALERTS} == {"page", "ticket"}
    labels = [(rule.alert, rule.severity, *rule.labels.items()) for rule in ALERTS]
    assert len(set(labels)) == len(labels)
    assert [rule.alert for rule in ALERTS if not rule.summary or not rule.description.endswith(".")] == []


def test_burn_rates_have_a_guard_on_both_windows():
    budgets = [rule for rule in ALERTS if rule.alert.endswith("BudgetBurn")]
    assert len(budgets) == 3 * len(BURN_RATES)
    for rule in budgets:
        assert re.search(r"increase\w+ >= 20\)\nand\n\(", rule.expr), rule.expr
        assert re.search(r":increase\w+ > 0\)$", rule.expr), rule.expr
    assert [(rate.factor, rate.long, rate.short) for rate in BURN_RATES] == [
        (14.4, "1h", "5m"),
        (6, "6h", "30m"),
        (1, "3d", "6h"),
    ]


@pytest.mark.parametrize("file", sorted((Path(__file__).parent / "promtool").glob("*.yml")), ids=lambda file: file.stem)
def test_promtool_evaluates_the_groups_in_the_order_of_the_file(file):
    listed = re.search(r"^group_eval_order:\n((?:  - .*\n)+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed
    assert re.findall(r"- (\S+)", listed[1]) == [group.name for group in rule_groups(INPUTS["default"])]


def test_the_goal_sets_the_thresholds():
    printed = CliRunner().invoke(monitoring, ["rules", "--slo-percent", "99.9", "--job", "llm"], catch_exceptions=False).output
    assert "job_tier:ultrafast_ttft_late:ratio_increase1h > 0.0144 " in printed
    assert 'job="ultrafast"' not in printed


@pytest.mark.parametrize("arguments", [["--slo-percent", "90"], ["--slo-percent", "100"], ["--job", 'a"b'], ["--job", "a\nb"]])
def test_what_could_never_alert_is_refused(arguments):
    assert CliRunner().invoke(monitoring, ["rules", *arguments]).exit_code == 2


def test_the_data_source_is_a_variable():
    text = (ROOT / "deploy" / "grafana" / "ultrafast.json").read_text(encoding="utf-8")
    board = json.loads(text)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"${datasource}", board["uid"]}
    assert [one["type"] for one in board["templating"]["list"] if one["name"] == "datasource"] == ["datasource"]
    used = set(re.findall(r"\$(?!__)\{?(\w+)", text))
    assert used == {one["name"] for one in board["templating"]["list"]}


def test_panels_are_complete_and_do_not_overlap():
    board = dashboard(INPUTS["default"])
    every = list(panels_of(board))
    assert len({panel["id"] for panel in every}) == len(every)
    for panel in every:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
    for group in [board["panels"], *(panel["panels"] for panel in board["panels"] if panel.get("panels"))]:
        cells = [
            (x, y)
            for panel in group
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells)
        assert max(x for x, _ in cells) < 24


def test_every_tier_has_its_percentiles_and_its_line():
    board = dashboard(INPUTS["own"])
    for one in INPUTS["own"].objectives:
        mine = [p for p in panels_of(board) if any(f'tier="{one.tier}"' in t["expr"] for t in p.get("targets", []))]
        graphs = [panel for panel in mine if panel["type"] == "timeseries"]
        assert [[t["legendFormat"] for t in panel["targets"]] for panel in graphs] == [["P50", "P90", "P99"]] * 4
        lines = [panel["fieldConfig"]["defaults"]["thresholds"]["steps"][-1]["value"] for panel in graphs]
        assert lines == [one.ttft_s, one.tpot_s, one.tpot_s, None]


def test_the_four_parts_are_green_yellow_and_red():
    panels = [p for p in panels_of(dashboard(INPUTS["default"])) if p["title"].endswith("share of time")]
    colors = [[step["color"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"]] for panel in panels]
    assert sorted(map(sorted, colors)) == [["green", "red", "yellow"]] * 4


def test_the_reader_of_expressions():
    named = read('sum by (job, tier) (rate(a_total{tier="x",le=~"1|2"}[5m])) / ignoring (le) b:c > 0.5 and on (job) up == 1')
    assert named.selectors == (
        Selector("a_total", (Matcher("tier", "=", "x"), Matcher("le", "=~", "1|2"))),
        Selector("b:c", ()),
        Selector("up", ()),
    )
    assert named.grouped == {"job", "tier", "le"}
