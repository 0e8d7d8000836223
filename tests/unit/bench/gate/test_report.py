"""What programs and people read of a gate."""

import json
import xml.etree.ElementTree as ET

from tests.unit.bench.synthetic import request, run_of

from ultrafast.bench.gate.evaluate import evaluate
from ultrafast.bench.gate.judge import Rules
from ultrafast.bench.gate.prechecks import Limits
from ultrafast.bench.gate.report import as_json, as_junit, as_text, first_line
from ultrafast.bench.gate.targets import parse_target
from ultrafast.bench.gate.verdicts import GateReport, Verdict
from ultrafast.bench.records import Outcome


def report(*targets, num_requests=400, num_failed=0, **run):
    failed = set(range(0, num_requests, num_requests // num_failed)) if num_failed else set()
    requests = [
        request(index, None, outcome=Outcome.FAILED) if index in failed else request(index, 0.1) for index in range(num_requests)
    ]
    return evaluate(run_of(requests, **run), [parse_target(text) for text in targets], Rules(), Limits(), source="a.jsonl")


def test_one_line_and_a_table():
    good = report("ttft:p99<=300ms", "ttft:p50<=90ms")
    assert first_line(good).startswith("FAIL: ttft p50 <= 90 ms: 100 ms seen")
    table = as_text(good).splitlines()
    assert table[0].split()[:2] == ["target", "verdict"]
    assert "pass" in table[1]
    assert "fail" in table[2]
    assert as_text(GateReport(verdict=Verdict.ERROR, reason="x")) == ""


def test_json_holds_everything_even_infinity():
    document = json.loads(as_json(report("ttft:p99<=300ms", num_failed=20)))
    assert (document["type"], document["verdict"], document["exit_code"]) == ("gate", "fail", 1)
    assert document["targets"][0]["observed"] == "inf"
    assert document["targets"][0]["target"] == {"metric": "ttft", "quantile": 0.99, "limit": 0.3, "tier": None}
    assert document["prechecks"][0]["code"] == "errors"
    assert document["source"] == "a.jsonl"


def test_junit_counts():
    loud = report("ttft:p99<=300ms", "ttft:p50<=90ms", "jitter<=3ms")
    suite = ET.fromstring(as_junit(loud, is_inconclusive_failure=True)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "2", "0")
    calm = ET.fromstring(as_junit(loud, is_inconclusive_failure=False)).find("testsuite")
    assert (calm.get("failures"), calm.get("skipped")) == ("1", "1")
    error = ET.fromstring(as_junit(GateReport(verdict=Verdict.ERROR, reason='no <server> & "co"'), is_inconclusive_failure=True))
    assert error.find("testsuite").get("errors") == "1"
    assert error.find(".//error").get("message") == 'no <server> & "co"'


def test_junit_shows_prechecks():
    suite = ET.fromstring(as_junit(report("ttft:p99<=300ms", loop_lag_s=0.1), is_inconclusive_failure=True))
    assert [case.get("name") for case in suite.iter("testcase")] == ["ttft p99 <= 300 ms", "loop_lag"]
    assert [case.find("failure") is not None for case in suite.iter("testcase")] == [True, True]


def test_a_target_that_the_run_cannot_prove_is_inconclusive_wherever_it_is_shown():
    blocked = report("ttft:p99<=300ms", loop_lag_s=0.1)
    assert blocked.targets[0].verdict == "pass"
    assert as_text(blocked).splitlines()[1].split("  ")[1] == "inconclusive"
    (target,) = json.loads(as_json(blocked))["targets"]
    assert target["verdict"] == "inconclusive"
    assert "late" in target["reason"]
