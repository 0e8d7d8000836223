"""`ultrafast gate` on saved runs: exit codes, output, files."""

import json
import xml.etree.ElementTree as ET

import pytest
from tests.unit.bench.synthetic import request, run_of

from ultrafast.bench.record_files import write_run
from ultrafast.bench.records import Outcome
from ultrafast.cli.gate import gate as gate_command
from ultrafast.cli.main import main


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "run.jsonl"
    write_run(run_of([request(i, 0.1, [0.01, 0.03] * 4, tier="flex" if i % 2 else "fast") for i in range(800)]), path)
    return path


def gate(path, *arguments):
    return main(["gate", "--from-result", str(path), *arguments])


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--target-p99", "300"], 0, "PASS: ttft p99 <= 300 ms: 100 ms seen, at most 100 ms, after 800 requests"),
        (["--target-p99", "0.3s", "--target-p95", "150ms", "--target-p50", "101", "--max-jitter", "11"], 0, "PASS: "),
        (["--target-p99", "50"], 1, "FAIL: ttft p99 <= 50 ms: 100 ms seen, at least 100 ms, after 800 requests"),
        (["--max-jitter", "9"], 1, "FAIL: jitter <= 9 ms"),
        (["--target", "itl:p99<=20ms@flex"], 1, "FAIL: itl p99 (flex) <= 20 ms"),
        (["--target", "ttft:p99.9<=300ms"], 2, "INCONCLUSIVE: ttft p99.9 <= 300 ms"),
    ],
)
def test_verdict_and_exit_code(saved, capsys, arguments, code, line):
    assert gate(saved, *arguments) == code
    assert capsys.readouterr().out.splitlines()[0].startswith(line)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "There is no target"),
        (["--target", "ttft<=3"], "names no percentile"),
        (["--target", "ttft:p99<=300ms@ultrafast"], "needs requests of tier ultrafast"),
        (["--target-p99", "300", "--target", "ttft:p99<=200ms"], "two targets for ttft p99"),
        (["--slo", "/does/not/exist.toml"], "Cannot read the SLO file"),
        (["--target-p99", "300", "--confidence", "2"], "--confidence"),
        (["--no-such-flag"], "No such option"),
        (["--target-p99", "300", "--request-rate", "4"], "--from-result sends nothing, so there is no use for --request-rate"),
    ],
)
def test_every_mistake_is_an_error_and_not_a_verdict(saved, capsys, arguments, words):
    assert gate(saved, *arguments) == 3
    captured = capsys.readouterr()
    assert words in captured.err
    assert "hint:" in captured.err


def test_a_missing_or_foreign_result(tmp_path, capsys):
    assert gate(tmp_path / "none.jsonl", "--target-p99", "300") == 3
    (tmp_path / "other.jsonl").write_text('{"type": "request"}\n', encoding="utf-8")
    assert gate(tmp_path / "other.jsonl", "--target-p99", "300") == 3
    assert "no result of" in capsys.readouterr().err


def test_nothing_got_through(tmp_path, capsys):
    path = tmp_path / "dead.jsonl"
    write_run(run_of([request(i, None, outcome=Outcome.FAILED) for i in range(50)]), path)
    assert gate(path, "--target-p99", "300") == 3
    assert capsys.readouterr().out.startswith("ERROR: all 50 requests failed; the first: HTTP 500")


def test_a_server_that_is_down(capsys):
    assert main(["gate", "--url", "http://127.0.0.1:9", "--target-p99", "300"]) == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("ERROR: No answer from")
    assert "hint:" in captured.err


def test_a_defect_of_ours_is_an_error(saved, capsys, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ultrafast.cli.gate.evaluate", broken)
    assert gate(saved, "--target-p99", "300") == 3
    assert "A defect in Ultrafast" in capsys.readouterr().err


def test_inconclusive_can_be_a_warning_and_fail_cannot(saved, capsys):
    assert gate(saved, "--target", "ttft:p99.9<=300ms", "--inconclusive", "warn") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("INCONCLUSIVE")
    assert "warning" in captured.err
    assert gate(saved, "--target-p99", "50", "--inconclusive", "warn") == 1


def test_slo_file_gates_the_tiers_of_the_load_and_names_the_others(saved, tmp_path, capsys):
    slo = tmp_path / "ultrafast.toml"
    slo.write_text("[tiers.priority]\nttft_ms = 300\n[tiers.ultrafast]\nttft_ms = 200\n", encoding="utf-8")
    assert gate(saved, "--slo", str(slo)) == 0
    captured = capsys.readouterr()
    assert "ttft p99 (priority) <= 300 ms" in captured.out
    assert "not gated, no such requests in the load: ttft p99 (ultrafast) <= 200 ms" in captured.err


def test_json_and_junit(saved, tmp_path, capsys):
    junit = tmp_path / "gate.xml"
    assert gate(saved, "--target-p99", "50", "--json", "--junit", str(junit)) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] == "fail"
    assert document["source"] == str(saved)
    assert ET.parse(junit).find("testsuite").get("failures") == "1"


def test_pre_checks_can_be_accepted(tmp_path, capsys):
    path = tmp_path / "late.jsonl"
    write_run(run_of([request(i, 0.1) for i in range(400)], loop_lag_s=0.1), path)
    assert gate(path, "--target-p99", "300") == 2
    assert "! loop_lag: the client itself was late" in capsys.readouterr().out
    assert gate(path, "--target-p99", "300", "--accept", "loop_lag") == 0


def test_a_run_that_was_stopped_early_is_not_judged_as_if_its_size_had_been_fixed(tmp_path, capsys):
    path = tmp_path / "stopped.jsonl"
    clean = [request(i, 0.1) for i in range(310)]
    write_run(run_of(clean), path)
    assert gate(path, "--target-p99", "300") == 0
    write_run(run_of([*clean, request(310, None, outcome=Outcome.CANCELLED, end_s=0.1)]), path)
    assert gate(path, "--target-p99", "300") == 2
    capsys.readouterr()


def test_help_names_the_exit_codes(capsys):
    assert main(["gate", "--help"]) == 0
    assert "0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 ERROR" in capsys.readouterr().out
    assert gate_command.name == "gate"
