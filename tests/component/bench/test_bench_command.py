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
        ["--request-rate", "-1"],
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
        ["--resume"],
    ],
)
def test_wrong_options_say_what_to_do(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(["bench", *arguments]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("error: ")
    assert told[-1].startswith("hint: ")


def test_a_command_line_of_vllm_is_understood(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = "--random-input-len 40 --random-output-len 6 --request-rate inf --goodput ttft:500 tpot:100 --metadata a=1 b=2"
    arguments = ["bench", "--base-url", server.url, "--model", "truth-counted", "--num-prompts", "8", "--num-warmups", "2"]
    kept = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path), "--percentile-metrics", "ttft,e2el", "--json"]
    main([*arguments, *words.split(), *kept])
    scenario = json.loads(capsys.readouterr().out)["run"]["scenario"]
    assert (scenario["input_len"], scenario["output_len"], scenario["concurrency"]) == ("40", "6", 8)
    assert scenario["goodput"] == {"ttft": 0.5, "tpot": 0.1}
    assert scenario["metadata"] == {"a": "1", "b": "2"}
    assert len(list(tmp_path.glob("*.jsonl"))) == 1


@pytest.mark.parametrize(("option", "word"), [("--backend", "--endpoint"), ("--tokenizer", "leave it out"), ("--host", "--url")])
def test_an_option_that_only_vllm_has_is_explained(option: str, word: str, capsys: pytest.CaptureFixture[str]):
    assert main(["bench", option, "x"]) == 2
    hint = capsys.readouterr().err.splitlines()[-1]
    assert hint.startswith("hint: ")
    assert word in hint


def test_a_plan_for_programs(capsys: pytest.CaptureFixture[str]):
    arguments = ["--dry-run", "--json", "--request-rate", "2", "--sweep", "1,4", "--num-prompts", "50", "--max-duration", "60"]
    assert main(["bench", "--url", "http://127.0.0.1:1", *arguments]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert [plan["scenario"]["rate_per_s"] for plan in (first, second)] == [1.0, 4.0]
    assert (first["num_requests"], first["max_duration_s"]) == (50, 60.0)
    assert first["duration_s"] > second["duration_s"]


def test_a_stopped_sweep_goes_on(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ["--json", "--result-dir", str(tmp_path)]
    bench(server, "--max-concurrency", "2", *arguments)
    (first,) = tmp_path.glob("*.jsonl")
    (tmp_path / "other.jsonl").write_text("{}\n")
    capsys.readouterr()
    bench(server, "--sweep", "2,3", "--resume", "--goodput", "ttft:500", *arguments)
    captured = capsys.readouterr()
    old, new = json.loads(captured.out)
    assert old["run"]["run_id"] == read_run(first).record.run_id
    assert old["groups"][0]["goodput"]["num_scheduled"] == 8
    assert new["run"]["scenario"]["concurrency"] == 3
    assert "resumed  2 at once" in captured.err
    assert len(list(tmp_path.glob("*.jsonl"))) == 3
    bench(server, "--sweep", "2,3", "--resume", "--output-len", "7", *arguments)
    assert "resumed" not in capsys.readouterr().err


def test_the_budget_is_that_of_the_whole_sweep(server, capsys: pytest.CaptureFixture[str]):
    arguments = ["--sweep", "1,2,3,4", "--num-prompts", "5000", "--max-duration", "0.5", "--json"]
    assert bench(server, *arguments) == 3
    captured = capsys.readouterr()
    assert "loads were not measured" in captured.err
    runs = json.loads(captured.out)
    runs = runs if isinstance(runs, list) else [runs]
    assert len(runs) < 4
    assert runs[0]["groups"][0]["num_cancelled"] > 0
