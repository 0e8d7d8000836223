"""`gate` and `compare` as commands against a server whose truth is known, over real sockets."""

import asyncio
import json
import sys

from tests.component.bench.truth_server import running

from ultrafast.bench.record_files import read_run

LOAD = ["--input-len", "8", "--output-len", "4", "--num-warmups", "4", "--seed", "3"]
# On a busy machine the client may well be late; what is tested here is the road to the verdict.
ACCEPT = [
    "--accept",
    "loop_lag",
    "--accept",
    "client_cpu",
    "--accept",
    "output_length",
    "--accept",
    "coalesced",
    "--accept",
    "buffered",
]


async def run(*arguments):
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ultrafast.cli.main", *arguments, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def gate(url, *arguments):
    code, out, err = await run("gate", "--url", url, *LOAD, *ACCEPT, "--json", *arguments)
    return code, json.loads(out), err


async def test_gate_stops_as_soon_as_it_is_certain(tmp_path):
    result = tmp_path / "run.jsonl"
    async with running(scale=0.02) as server:
        load = ["--model", "truth", "--max-concurrency", "8"]
        code, document, err = await gate(server.url, *load, "--target-p99", "60s", "--result-file", str(result))
        assert (code, document["verdict"]) == (0, "pass"), err
        assert 299 <= document["targets"][0]["num_requests"] < 600
        assert document["is_stopped_early"]
        saved = read_run(result)
        assert len(saved.requests) == 1840
        code, document, _ = await gate(server.url, *load, "--target-p99", "1")
        assert (code, document["verdict"]) == (1, "fail")
        assert 50 <= document["targets"][0]["num_requests"] < 100


async def test_gate_stops_early_with_several_processes_too():
    async with running(scale=0.02) as server:
        load = ["--model", "truth", "--max-concurrency", "8", "--processes", "2"]
        code, document, err = await gate(server.url, *load, "--target-p99", "60s")
        assert (code, document["verdict"]) == (0, "pass"), err
        assert 299 <= document["targets"][0]["num_requests"] < 600
        assert document["is_stopped_early"]


async def test_gate_says_inconclusive_when_the_budget_is_too_small_and_error_when_all_fails():
    async with running(scale=0.02) as server:
        load = ["--model", "truth", "--max-concurrency", "4", "--num-prompts", "60"]
        code, document, _ = await gate(server.url, *load, "--target-p99", "60s")
        assert (code, document["verdict"]) == (2, "inconclusive")
        assert (await gate(server.url, "--model", "truth-error-200", "--target-p99", "60s"))[0] == 3


async def test_compare_two_option_sets_on_one_server(tmp_path):
    async with running(scale=0.02) as server:
        sides = ["--a", "--model truth", "--b", "--model truth-nousage --api-key secret-key"]
        figures = ["--figure", "ttft:p50", "--margin", "90", "--runs", "2", "--min-runs", "2", "--num-prompts", "12"]
        code, out, err = await run("compare", server.url, *sides, *figures, *LOAD, "--result-dir", str(tmp_path), "--json")
        document = json.loads(out)
        assert code == document["exit_code"], err
        assert document["is_paired"]
        assert [mismatch["key"] for mismatch in document["allowed"]] == ["model"]
        assert document["figures"][0]["basis"] == "paired runs"
        assert "secret-key" not in out + err
        assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.jsonl")) == [
            "a/000.jsonl",
            "a/001.jsonl",
            "b/000.jsonl",
            "b/001.jsonl",
        ]
        a, b = read_run(tmp_path / "a" / "000.jsonl"), read_run(tmp_path / "b" / "000.jsonl")
        assert a.record.scenario.seed == b.record.scenario.seed == 3
        # Warm-up and measured requests of all runs; the preflight asks for 1 or 8 tokens.
        texts = [body["messages"][0]["content"] for body in server.bodies if body["max_tokens"] == 4]
        assert len(texts) == 4 * (4 + 12)
        assert len(set(texts)) == len(texts)
