"""`ultrafast bench` as a person runs it, against a server in another thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.component.bench.truth_server import TruthServer

from ultrafast.bench.record_files import read_run
from ultrafast.cli.main import main


@pytest.fixture(scope="module")
def server() -> Iterator[TruthServer]:
    truth = TruthServer(scale=0.02)
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(asyncio.start_server(truth.handle, "127.0.0.1", 0))
    truth.port = listener.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield truth
    loop.call_soon_threadsafe(listener.close)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.run_until_complete(_cancel_all())
    loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def bench(server: TruthServer, *arguments: str) -> int:
    common = ["bench", "--url", server.url, "--model", "truth-counted", "--num-prompts", "8", "--num-warmups", "2"]
    return main([*common, "--input-len", "40", "--output-len", "6", *arguments])


def test_a_table_a_report_and_a_result(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    report = tmp_path / "r.html"
    code = bench(
        server,
        "--tier-mix",
        "ultrafast=0.5,flex=0.5",
        "--goodput",
        "ttft:500",
        "--html",
        str(report),
        "--result-dir",
        str(tmp_path),
    )
    out = capsys.readouterr()
    assert code in (0, 3)
    assert "8 planned = 8 ok + 0 failed + 0 cancelled" in out.out
    assert "ultrafast" in out.out
    assert "plan     8 requests" in out.err
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    (result,) = tmp_path.glob("*.jsonl")
    assert len(read_run(result).requests) == 8


def test_json_on_stdout_and_nothing_else(server, capsys: pytest.CaptureFixture[str]):
    bench(server, "--json", "--metadata", "commit=abc")
    value = json.loads(capsys.readouterr().out)
    assert value["groups"][0]["num_ok"] == 8
    assert value["run"]["scenario"]["metadata"] == {"commit": "abc"}


def test_vllm_layout(server, capsys: pytest.CaptureFixture[str]):
    bench(server, "--format", "vllm", "--request-rate", "200")
    value = json.loads(capsys.readouterr().out)
    assert (value["completed"], value["request_rate"]) == (8, 200.0)


def test_a_sweep_has_its_own_prompts_at_each_load(server, capsys: pytest.CaptureFixture[str]):
    bench(server, "--sweep", "1,2", "--json", "--seed", "5")
    first, second = json.loads(capsys.readouterr().out)
    assert [one["run"]["scenario"]["concurrency"] for one in (first, second)] == [1, 2]
    assert [one["run"]["scenario"]["seed"] for one in (first, second)] == [5, 6]


def test_a_key_is_sent_and_shown_nowhere(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    secret = "sk-very-secret-key"
    bench(server, "--api-key", secret, "--json", "--html", str(tmp_path / "r.html"), "--result-dir", str(tmp_path))
    out = capsys.readouterr()
    assert secret not in out.out + out.err
    assert all(secret not in path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def test_a_dry_run_sends_nothing(server, capsys: pytest.CaptureFixture[str]):
    before = server.num_requests
    assert main(["bench", "--url", "http://127.0.0.1:1", "--dry-run", "--request-rate", "2", "--num-prompts", "50"]) == 0
    assert "50 requests" in capsys.readouterr().out
    assert server.num_requests == before


def test_nobody_there(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "--url", "http://127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert "No answer" in err
    assert "hint:" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--request-rate", "inf"],
        ["--request-rate", "0"],
        ["--constant-rate"],
        ["--input-len", "nonsense"],
        ["--goodput", "ttft"],
        ["--goodput", "nonsense:5"],
        ["--tier-mix", "a=0.5"],
        ["--metric-percentiles", "101"],
        ["--percentile-metrics", "nonsense"],
        ["--sweep", "1,x"],
        ["--extra-body", "[1]"],
        ["--metadata", "x"],
        ["--trace", "a.csv", "--prompts", "b.txt"],
        ["--api-key-file", "/nonexistent"],
        ["--burstiness", "0"],
        ["--timeout", "0"],
        ["--api-key", "a b"],
    ],
)
def test_wrong_options_say_what_to_do(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("error: ")
    assert told[-1].startswith("hint: ")
