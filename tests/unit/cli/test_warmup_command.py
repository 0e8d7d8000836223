"""`ultrafast warmup`: from a log, its older files included, to a plan."""

import msgspec
import pytest

from ultrafast.cli.main import main
from ultrafast.engine.warmup_plan import read_warmup_plan
from ultrafast.observe.request_log.key import key_path, make_key
from ultrafast.observe.request_log.record import LogHead, LogRecord


def write(path, *arrivals, head=None):
    records = [
        LogRecord(arrival=at, tier="flex", prompt_tokens=300, output_tokens=9, outcome="stop", ttft_s=0.1, e2e_s=1, prefix=["ab"])
        for at in arrivals
    ]
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in (head or LogHead(), *records)))


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "requests.jsonl"
    make_key(key_path(path))
    write(path, 300.0)
    write(tmp_path / "requests.jsonl.1", 200.0)
    write(tmp_path / "requests.jsonl.2", 100.0)
    return path


def test_a_plan_is_shown_and_written(log, tmp_path, capsys):
    out = tmp_path / "plan.json"
    assert main(["warmup", "--from-log", str(log), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "3 requests in 3 min 20 s" in told
    assert "prefill chunks: 300 tokens" in told
    assert f"--set engine.warmup_plan={out}" in told
    plan = read_warmup_plan(out)
    assert [(one.name, one.num_uses, one.num_tokens) for one in plan.prefixes] == [("ab", 3, 128)]
    assert plan.key_file == str(key_path(log))


def test_json_and_limits(log, capsys):
    assert main(["warmup", "--from-log", str(log), "--min-uses", "4", "--max-prefix-tokens", "9", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out)["prefixes"] == []


def test_a_log_without_its_key_is_refused(log, capsys):
    key_path(log).unlink()
    assert main(["warmup", "--from-log", str(log)]) == 2
    assert "hint: It lies beside the log" in capsys.readouterr().err


@pytest.mark.parametrize("has_key", [True, False])
def test_what_is_no_log_is_refused(log, capsys, has_key):
    log.write_text("hello\n")
    if not has_key:
        key_path(log).unlink()
    assert main(["warmup", "--from-log", str(log)]) == 1
    told = capsys.readouterr().err
    assert "line 1" in told
    assert "hint: It must be a file that `request_log.path` names." in told


def test_a_log_that_is_not_there_is_no_missing_key(tmp_path, capsys):
    assert main(["warmup", "--from-log", str(tmp_path / "none.jsonl")]) == 1
    told = capsys.readouterr().err
    assert f"{tmp_path / 'none.jsonl'} cannot be read: No such file or directory." in told
    assert "hint: It must be a file that `request_log.path` names." in told


def test_files_with_other_pieces_are_refused(log, capsys):
    write(log, 1.0, head=LogHead(block_tokens=64))
    assert main(["warmup", "--from-log", str(log)]) == 2
    told = capsys.readouterr().err
    assert "different lengths" in told
    assert "hint: Move the older ones away." in told


def test_where_the_plan_cannot_go_is_said_first(tmp_path, capsys):
    assert main(["warmup", "--from-log", str(tmp_path / "log"), "--out", str(tmp_path / "none" / "plan.json")]) == 2
    error = capsys.readouterr().err
    assert "there is no folder" in error
    assert "hint:" in error
