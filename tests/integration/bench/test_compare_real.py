"""Two configurations of the bundled model, compared on real servers; nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MARK = "logging.format=json"
"""A setting that tells these servers from those of other tests."""
SMALL = ["engine.num_threads=1", "engine.kv_capacity_tokens=1024", "engine.max_num_running=4", "engine.threadpool_poll=0", MARK]
LOAD = [
    "--input-len",
    "48",
    "--output-len",
    "3",
    "--num-prompts",
    "3",
    "--num-warmups",
    "1",
    "--runs",
    "2",
    "--figure",
    "ttft:p50",
]


def command(model_path, *arguments):
    both = [f"--set={text}" for text in (*SMALL, f"model.path_or_name={model_path}")]
    return [sys.executable, "-m", "ultrafast.cli.main", "compare", *both, *LOAD, *arguments]


def servers():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and MARK.encode() in words:
            found.append(words)
    return found


def wait_until_gone():
    deadline_s = time.monotonic() + 30
    while servers():
        assert time.monotonic() < deadline_s, "servers are left behind"
        time.sleep(0.05)


def test_two_configurations(model_path, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("me secret-of-the-test\n")
    arguments = [
        "--set-b",
        "model.served_name=other",
        "--seed=1",  # with three requests a run, some seeds give runs whose prompts differ too much in length
        "--result-dir",
        str(tmp_path),
        "--json",
        "--set",
        f"server.api_key_file={keys}",
    ]
    env = os.environ | {"OPENAI_API_KEY": "of-another-service"}
    done = subprocess.run(command(model_path, *arguments), capture_output=True, text=True, timeout=250, check=False, env=env)
    assert done.returncode == 2, done.stderr  # two runs per side decide nothing
    document = json.loads(done.stdout)
    assert document["settings"] == [{"key": "model.served_name", "a": "none", "b": "other"}]
    assert [mismatch["key"] for mismatch in document["allowed"]] == ["model"]
    assert (document["a"]["name"], document["b"]["name"]) == ("ultrafast serve", "ultrafast serve --set model.served_name=other")
    assert (document["errors"]["num_failed_a"], document["errors"]["num_failed_b"]) == (0, 0)
    assert len(list(tmp_path.glob("[ab]/*.jsonl"))) == 4
    assert "secret-of-the-test" not in done.stdout + done.stderr
    assert servers() == []


@pytest.mark.parametrize(
    ("number", "code", "moment"),
    [
        (signal.SIGINT, 130, "start    B"),
        (signal.SIGINT, 130, "run      1"),
        (signal.SIGTERM, 130, "run      1"),
        (signal.SIGKILL, -signal.SIGKILL, "start    B"),
    ],
)
def test_the_end_of_the_command_is_the_end_of_its_servers(model_path, number, code, moment):
    arguments = command(model_path, "--set-b", "engine.speculation=off", "--num-prompts", "100000")
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith(moment):
        assert line, "it ended early"
    assert servers()
    process.send_signal(number)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == code, rest
    wait_until_gone()


def test_a_server_that_cannot_start_is_an_error_with_its_reason(model_path):
    arguments = command(model_path, "--set-b", "engine.libllama_path=/nowhere/libllama.so")
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert "A server did not start with" in done.stderr
    assert "hint:" in done.stderr
    assert servers() == []
