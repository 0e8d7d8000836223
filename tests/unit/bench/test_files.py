"""Traces, prompt files and results: read back what was written, and say which line is wrong."""

import json
from pathlib import Path

import pytest
from tests.unit.bench.stream_records import record_of, run_of, truth_reads

from ultrafast.bench.metrics import summarise
from ultrafast.bench.prompt_files import PromptFileError, read_prompts
from ultrafast.bench.record_files import ResultFileError, read_run, write_run
from ultrafast.bench.report_json import to_json, to_vllm
from ultrafast.bench.traces import TraceEntry, TraceError, read_trace, scale


@pytest.fixture
def write(tmp_path: Path):
    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write_file


def test_azure(write):
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.4799600,110,27\n"
    entries = read_trace(write("azure.csv", rows))
    assert [(e.due_s, e.num_prompt_tokens, e.num_output_tokens) for e in entries] == [
        (0.0, 4808, 10),
        (pytest.approx(0.5), 110, 27),
    ]


def test_azure_with_a_time_zone(write):
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,1,1\n"
    assert read_trace(write("a.csv", rows))[1].due_s == pytest.approx(0.99007)


def test_mooncake(write):
    lines = [
        {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]},
        {"timestamp": 27000, "input_length": 5, "output_length": 1},
    ]
    entries = read_trace(write("m.jsonl", "\n".join(map(json.dumps, lines))))
    assert entries == [TraceEntry(0.0, 5, 1), TraceEntry(pytest.approx(0.482), 6955, 52, None, (46, 47))]


def test_our_own_result_is_a_trace(tmp_path: Path):
    requests = [record_of(truth_reads(20), scheduled_ms=at) for at in (100, 350)]
    requests[1].tier_requested = "flex"
    write_run(run_of(requests), tmp_path / "run.jsonl")
    entries = read_trace(tmp_path / "run.jsonl")
    assert entries == [TraceEntry(0.0, 10, 20), TraceEntry(pytest.approx(0.25), 10, 20, "flex")]
    assert scale(entries, 2.0)[1].due_s == pytest.approx(0.125)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hello\n", "line 1"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,6\nnonsense,1,2\n", "line 3"),
        ('{"timestamp": 1, "input_length": 2, "output_length": 3}\n{"timestamp": "x"}\n', "line 2"),
    ],
)
def test_a_bad_trace_names_its_line(write, text: str, line: str):
    with pytest.raises(TraceError, match=line):
        read_trace(write("t", text))


def test_prompt_files(write):
    jsonl = '{"prompt": "a", "max_tokens": 3}\n\n{"messages": [{"role": "system", "content": "s"}]}\n'
    prompts = read_prompts(write("p.jsonl", jsonl))
    assert [prompt.num_output_tokens for prompt in prompts] == [3, None]
    assert prompts[0].messages == ({"role": "user", "content": "a"},)
    assert [p.messages[0]["content"] for p in read_prompts(write("p.txt", "one\n\ntwo\n"))] == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "text", "match"), [("p.jsonl", '{"x": 1}', "line 1"), ("p.jsonl", "{", "line 1"), ("p.txt", "\n", "no prompts")]
)
def test_bad_prompt_files(write, name: str, text: str, match: str):
    with pytest.raises(PromptFileError, match=match):
        read_prompts(write(name, text))


def test_a_run_survives_its_file(tmp_path: Path):
    run = run_of([record_of(truth_reads(20, per_chunk=2, is_counted=True)), record_of([], status=503)])
    write_run(run, tmp_path / "run.jsonl")
    assert read_run(tmp_path / "run.jsonl") == run
    assert list(tmp_path.iterdir()) == [tmp_path / "run.jsonl"]


@pytest.mark.parametrize(
    ("text", "match"),
    [("", "empty"), ("{}\n", "no result"), ('{"type":"run","schema_version":99}\n', "schema 99"), ('{"type":"run"}\n', "line 1")],
)
def test_bad_results(write, text: str, match: str):
    with pytest.raises(ResultFileError, match=match):
        read_run(write("r.jsonl", text))


def test_a_cut_result_names_its_line(tmp_path: Path):
    path = tmp_path / "run.jsonl"
    write_run(run_of([record_of(truth_reads(5)) for _ in range(2)]), path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ResultFileError, match="line 3"):
        read_run(path)


def test_the_vllm_layout():
    run = run_of([record_of(truth_reads(20)), record_of([], status=503)], rate_per_s=2.0)
    fields = to_vllm(run, [0.5, 0.99])
    assert fields["completed"] == 1
    assert fields["failed"] == 1
    assert fields["mean_ttft_ms"] == pytest.approx(200)
    assert fields["p99_tpot_ms"] == pytest.approx((10 * 10 + 9 * 30) / 19)
    assert fields["total_output_tokens"] == 20
    assert len(fields["itls"][0]) == 19
    assert {"mean_itl_ms", "median_e2el_ms", "std_ttft_ms", "request_throughput", "output_throughput"} <= set(fields)


def test_our_json_is_json(tmp_path: Path):
    run = run_of([record_of(truth_reads(20)), record_of([], status=503)])
    value = json.loads(json.dumps(to_json(run, summarise(run))))
    assert value["groups"][0]["metrics"]["ttft"]["percentiles"][-1]["value"] == 0.2
    assert value["run"]["scenario"]["name"] == "test"
