"""A tiny ablation of the bundled model: real servers, real savings, nothing left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
SMALL = ["--threads", "1", "--context", "1024", "--max-running", "4", "--set", "engine.threadpool_poll=0"]
SIZES = ["--workload", "turns", "--turns", "2", "--system-len", "24", "--input-len", "8", "--output-len", "3"]


def run(*arguments, **env):
    command = [sys.executable, "-m", "ultrafast.cli.main", "ablate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=550, check=False, env=os.environ | env)


def servers():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes()
        except OSError:
            continue
        if b"serve" in command.split(b"\0") and b"tokenizer.is_reloaded" in command:
            found.append(command)
    return found


@pytest.mark.parametrize("restart", [[], ["--restart"]], ids=["kept", "restarted"])
def test_ablate(model_path, tmp_path, restart):
    page = tmp_path / "page.html"
    chosen = ["--only", "prefix-reuse", "--only", "together", "--rounds", "1", "--seed", "1", "--html", str(page), "--json"]
    done = run("--model", str(model_path), *SMALL, *SIZES, *chosen, *restart, ULTRAFAST_API_KEY="secret-of-the-test")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (table,) = document["tables"]
    rows = {row["pipeline"]: row for row in table["rows"]}
    assert list(rows) == ["naive", "prefix-reuse", "together"]
    assert {(row["num_ok"], row["num_failed"]) for row in rows.values()} == {(2, 0)}
    assert rows["naive"]["num_cached_tokens"] == 0
    assert rows["prefix-reuse"]["num_cached_tokens"] > 20
    assert rows["together"]["num_cached_tokens"] > 20
    lengths = [row["num_prompt_tokens"] for row in rows.values()]
    assert max(lengths) - min(lengths) <= 0.1 * lengths[0]
    naive = rows["naive"]
    # Not streamed: the first text comes with the last.
    assert [percentile["value_s"] for percentile in naive["ttft"]] == [percentile["value_s"] for percentile in naive["e2e"]]
    assert rows["together"]["ttft"][0]["value_s"] < rows["together"]["e2e"][0]["value_s"]
    assert document["environment"]["server.flash_attention"] == "False"  # the naive server's
    assert not [flag for flag in document["flags"] if "flash attention" in flag or "reuse is off" in flag]
    assert "secret-of-the-test" not in done.stdout + done.stderr + page.read_text(encoding="utf-8")
    assert servers() == []


def test_the_end_of_the_command_is_the_end_of_its_servers(model_path):
    for number in (signal.SIGTERM, signal.SIGKILL):
        command = [sys.executable, "-m", "ultrafast.cli.main", "ablate", "--model", str(model_path), *SMALL, *SIZES]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        while "time " not in (line := process.stderr.readline()):
            assert line, "it ended before it had timed the naive pipeline"
        assert servers()
        process.send_signal(number)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == (130 if number == signal.SIGTERM else -number), rest
        wait_until_gone()


def wait_until_gone():
    deadline_s = time.monotonic() + 30
    while servers():
        assert time.monotonic() < deadline_s, "servers are left behind"
        time.sleep(0.05)


def test_a_server_that_cannot_start_is_an_error_with_its_reason(model_path):
    done = run("--model", str(model_path), *SMALL, *SIZES, "--set", "engine.kv_type_v=q8_0", "--only", "together")
    assert done.returncode == 1
    assert "A server did not start with" in done.stderr
    assert "hint:" in done.stderr
    assert servers() == []
