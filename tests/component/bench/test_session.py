"""Whole measurements of a server whose truth is known. Its times are shortened; figures are compared with what it really did."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest
from tests.component.bench.truth_server import TruthServer, running

from ultrafast.bench import processes, target
from ultrafast.bench.metrics import summarise
from ultrafast.bench.processes import WorkerError, pool_parts
from ultrafast.bench.records import FlagLevel, LoopLag, Outcome, RequestRecord, Run, Window
from ultrafast.bench.runner import PartialRun
from ultrafast.bench.session import BenchSpec, Listener, measure
from ultrafast.bench.target import TargetError
from ultrafast.bench.validity import touched
from ultrafast.bench.workload import WorkloadSpec

SCALE = 0.05


def spec(server: TruthServer, model: str = "truth", **options) -> BenchSpec:
    names = set(WorkloadSpec.__struct_fields__)
    workload = {"num_requests": 12, "input_len": "50", "output_len": "12", "seed": 7}
    workload |= {name: options.pop(name) for name in list(options) if name in names}
    defaults = {"name": "test", "url": server.url, "model": model, "concurrency": 4, "num_warmups": 4}
    return BenchSpec(**(defaults | options), workload=WorkloadSpec(**workload))


async def run_of(model: str, **options) -> tuple[Run, TruthServer]:
    async with running(scale=SCALE) as server:
        return await measure(spec(server, model, **options)), server


def compare_with_truth(run: Run, server: TruthServer) -> None:
    """Every chunk was stamped after the server wrote it, and every chunk it wrote was stamped; no other event became one."""
    assert run.requests
    for request in run.requests:
        assert request.request_id is not None
        written = server.written_ns[request.request_id][1:]
        assert len(request.chunks) == len(written)


@pytest.mark.parametrize("model", ["truth", "truth-counted", "truth-2tok", "truth-2tok-counted", "truth-reasoning", "truth-tool"])
async def test_every_generated_chunk_is_stamped_once_and_nothing_else(model: str):
    run, server = await run_of(model)
    assert [request.outcome for request in run.requests] == [Outcome.OK] * 12
    compare_with_truth(run, server)
    overall = summarise(run).overall
    assert overall.tokens_per_chunk == (2.0 if "2tok" in model else 1.0)
    assert (overall.metrics["itl"].num_samples > 0) == (model != "truth-2tok")
    assert (touched(run.record.flags, "itl")) or model != "truth-2tok"


async def test_prompt_lengths_are_what_was_asked():
    run, _ = await run_of("truth")
    assert {request.usage.num_prompt_tokens for request in run.requests} == {50}
    assert run.record.environment["server.template_tokens"] == "5"
    assert "prompt_length" not in {flag.code for flag in run.record.flags}


@pytest.mark.parametrize(
    ("model", "code", "metrics"),
    [
        ("truth-nousage", "tokens_unknown", ["tpot", "itl", "throughput"]),
        ("truth-2tok", "tokens_per_chunk", ["itl", "jitter", "tpot"]),
        ("truth-buffered", "buffered", ["ttft", "gap", "jitter"]),
        ("truth-coalesced", "coalesced", ["itl", "gap", "jitter"]),
    ],
)
async def test_what_cannot_be_right_is_marked(model: str, code: str, metrics: list[str]):
    run, _ = await run_of(model)
    assert code in {flag.code for flag in run.record.flags}
    assert all(touched(run.record.flags, metric) for metric in metrics)


@pytest.mark.parametrize("model", ["truth-error-200", "truth-cut", "truth-429", "truth-503", "truth-plain-json"])
async def test_a_server_that_never_answers_well_is_refused_before_the_window(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target, "_MAX_WAIT_S", 0.01)
    async with running(scale=0.0) as server:
        with pytest.raises(TargetError) as caught:
            await measure(spec(server, model))
    assert caught.value.hint


async def test_some_failures_are_counted_and_nothing_is_lost():
    run, _ = await run_of("truth-flaky", num_requests=30)
    overall = summarise(run).overall
    assert overall.num_failed > 0
    assert overall.num_ok + overall.num_failed == 30
    assert overall.failures == {"overloaded": overall.num_failed}
    failure = next(request.failure for request in run.requests if request.failure)
    assert failure.retry_after_s == 2.0


async def test_a_strict_server_gets_only_what_it_knows():
    run, server = await run_of("truth-strict")
    assert all(request.is_ok for request in run.requests)
    assert "ignore_eos" not in server.bodies[-1]
    assert server.bodies[-1]["stream_options"] == {"include_usage": True}
    assert not run.record.scenario.ignores_eos


async def test_open_loop_counts_from_the_planned_moment():
    run, server = await run_of("truth", arrival="poisson", rate_per_s=200.0, concurrency=None)
    compare_with_truth(run, server)
    planned = [request.scheduled_ns for request in run.requests]
    assert planned == sorted(planned)
    assert all(request.sent_ns is not None and request.sent_ns >= request.scheduled_ns for request in run.requests)
    assert run.record.window.end_ns >= planned[-1]


async def test_waiting_for_a_slot_of_a_capped_open_loop_is_latency():
    run, _ = await run_of("truth", arrival="constant", rate_per_s=5000.0, concurrency=1)
    ordered = sorted(run.requests, key=lambda request: request.scheduled_ns)
    for before, after in itertools.pairwise(ordered):
        assert after.sent_ns is not None
        assert before.end_ns is not None
        assert after.sent_ns >= before.end_ns
    assert run.record.peak_in_flight == 1
    assert summarise(run).overall.metrics["dispatch_lag"].high > 0


async def test_closed_loop_keeps_its_slots():
    run, _ = await run_of("truth", concurrency=3)
    assert run.record.peak_in_flight == 3
    assert run.record.scenario.rate_per_s is None


async def test_closed_loop_counts_from_the_moment_that_a_slot_is_free():
    run, _ = await run_of("truth", concurrency=1)
    for before, after in itertools.pairwise(run.requests):
        assert before.end_ns is not None
        assert after.sent_ns is not None
        assert before.end_ns <= after.scheduled_ns <= after.sent_ns


@pytest.mark.parametrize(("is_open_loop", "end_ns"), [(True, 30), (False, 20)])
def test_pooled_parts_keep_raw_records_and_the_worst_lag(is_open_loop: bool, end_ns: int):
    records = [RequestRecord(index=index, outcome=Outcome.OK, scheduled_ns=0) for index in range(4)]
    parts = [
        PartialRun(
            requests=records[number::2],
            window=Window(0, 20 + 10 * number),
            loop_lag=LoopLag(0.001, 0.01 * (2 - number), 0.1, 5),
            peak_in_flight=3,
            cpu_s=1.0,
            is_stopped=False,
        )
        for number in range(2)
    ]
    pooled = pool_parts(parts, is_open_loop=is_open_loop)
    assert [request.index for request in pooled.requests] == [0, 1, 2, 3]
    assert pooled.window == Window(0, end_ns)
    assert pooled.loop_lag == LoopLag(0.001, 0.02, 0.1, 10)
    assert (pooled.peak_in_flight, pooled.cpu_s) == (6, 2.0)


async def test_a_conversation_carries_its_answers():
    run, server = await run_of("truth", num_turns=3, num_requests=6, concurrency=2)
    assert [request.turn for request in run.requests] == [0, 1, 2, 0, 1, 2]
    assert all(request.is_ok for request in run.requests)
    roles = [[message["role"] for message in body["messages"]] for body in server.bodies[-6:]]
    assert ["user", "assistant", "user", "assistant", "user"] in roles
    for before, after in [(0, 1), (1, 2), (3, 4), (4, 5)]:
        assert run.requests[after].scheduled_ns >= (run.requests[before].end_ns or 0)


async def test_tiers_are_sent_and_what_was_served_is_written_down():
    run, server = await run_of("truth-moved", tier_mix={"ultrafast": 0.75, "flex": 0.25})
    sent = [body.get("service_tier") for body in server.bodies[-12:]]
    assert (sent.count("ultrafast"), sent.count("flex")) == (9, 3)
    assert {request.tier_served for request in run.requests} == {"default"}
    assert "tier_moved" in {flag.code for flag in run.record.flags}


async def test_measured_prompts_are_unique_and_never_warmed():
    _, server = await run_of("truth", num_warmups=None)
    prompts = [body["messages"][0]["content"] for body in server.bodies]
    measured = set(prompts[-12:])
    assert len(measured) == 12
    assert not measured & set(prompts[:-12])


async def test_a_client_that_is_the_bottleneck_says_so():
    class Slow(Listener):
        def on_record(self, record):
            time.sleep(0.1)

    async with running(scale=SCALE) as server:
        run = await measure(spec(server), Slow())
    assert run.record.loop_lag.p99_s >= 0.1
    assert not run.record.is_valid
    assert "it is the bottleneck, not the server" in next(flag.message for flag in run.record.flags if flag.code == "loop_lag")


async def test_what_the_server_counted_meanwhile_is_told():
    """Preemptions make a run unrepeatable, whatever its figures are."""
    pages = {
        "/metrics": ['vllm:num_preemptions_total{engine="0"} 3.0\n', 'vllm:num_preemptions_total{engine="0"} 5.0\n'],
        "/version": [{"version": "0.32.0"}],
        "/props": [{"total_slots": 4, "chat_template": "x" * 500, "default_generation_settings": {"n_ctx": 4096}}],
    }
    async with running(scale=SCALE, pages=pages) as server:
        run = await measure(spec(server))
    assert run.record.server_counted == {"preemptions": 2.0}
    assert touched(run.record.flags, "throughput")
    assert "preempted 2 sequences" in next(flag.message for flag in run.record.flags if flag.code == "preempted")
    facts = run.record.environment
    assert (facts["server.version"], facts["server.total_slots"], facts["server.n_ctx"]) == ("0.32.0", "4", "4096")
    assert "server.chat_template" not in facts


async def test_a_server_without_metrics_tells_nothing():
    run, _ = await run_of("truth")
    assert run.record.server_counted == {}
    assert "preempted" not in {flag.code for flag in run.record.flags}


async def test_a_budget_ends_the_run_and_the_rest_is_cancelled():
    async with running(scale=1.0) as server:
        run = await measure(spec(server, num_requests=40, max_duration_s=0.5, num_warmups=0, concurrency=2))
    overall = summarise(run).overall
    assert overall.num_cancelled > 0
    assert overall.num_ok + overall.num_failed + overall.num_cancelled == 40
    assert "conservation" not in {flag.code for flag in run.record.flags}


async def test_a_stop_keeps_what_was_measured():
    async with running(scale=SCALE) as server:
        stop = asyncio.Event()

        finished = []

        class StopSoon(Listener):
            def on_record(self, record):
                finished.append(record)
                if len(finished) == 60:
                    stop.set()

        run = await measure(spec(server, num_requests=2000), StopSoon(), stop)
    overall = summarise(run).overall
    assert overall.num_cancelled > 0
    assert overall.num_ok + overall.num_cancelled + overall.num_failed == 2000
    assert not overall.metrics["ttft"].percentiles[0].is_adj_infinite


async def test_worker_processes_pool_raw_records():
    async with running(scale=SCALE) as server:
        run = await measure(spec(server, num_processes=2, arrival="poisson", rate_per_s=50.0, concurrency=None))
        compare_with_truth(run, server)
    assert [request.index for request in run.requests] == list(range(12))
    assert {request.worker for request in run.requests} == {0, 1}
    assert all(request.is_ok for request in run.requests)


async def test_worker_processes_stop_when_asked_and_tell_what_they_saw():
    async with running(scale=1.0) as server:
        stop = asyncio.Event()

        class StopSoon(Listener):
            def on_warm_up(self, result):
                stop.set()

        run = await measure(spec(server, num_processes=2, num_requests=400, num_warmups=0), StopSoon(), stop)
    outcomes = [request.outcome for request in run.requests]
    assert len(outcomes) == 400
    assert outcomes.count(Outcome.CANCELLED) >= 396


async def test_worker_processes_tell_each_request_when_it_has_ended():
    heard = []

    class Hear(Listener):
        on_record = staticmethod(heard.append)

    async with running(scale=SCALE) as server:
        run = await measure(spec(server, num_processes=2), Hear())
    assert {record.index: record for record in heard} == {record.index: record for record in run.requests}
    assert len(heard) == len(run.requests)
    assert {record.worker for record in heard} == {0, 1}


async def test_worker_processes_end_when_what_they_told_is_enough():
    async with running(scale=0.02) as server:
        stop, heard = asyncio.Event(), []

        class StopSoon(Listener):
            def on_record(self, record):
                heard.append(record)
                if len(heard) == 60:
                    stop.set()

        run = await measure(spec(server, num_processes=2, num_requests=2000), StopSoon(), stop)
    outcomes = [request.outcome for request in run.requests]
    assert len(outcomes) == 2000
    assert outcomes.count(Outcome.OK) >= 60
    assert outcomes.count(Outcome.CANCELLED) > 0


async def test_a_worker_that_dies_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "READY", b"something else\n")
    async with running(scale=SCALE) as server:
        with pytest.raises(WorkerError):
            await measure(spec(server, num_processes=2))


async def test_a_trace_is_replayed(tmp_path: Path):
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00,30,5\n2024-01-01 00:00:00.1,40,7\n")
    run, _ = await run_of("truth", trace_path=path, concurrency=None)
    assert [(r.usage.num_prompt_tokens, r.usage.num_output_tokens) for r in run.requests] == [(30, 5), (40, 7)]
    assert run.record.scenario.arrival == "replay:trace.csv"


async def test_a_body_that_ends_with_the_connection():
    async with running(scale=SCALE, is_closing=True) as server:
        run = await measure(spec(server))
    assert all(request.is_ok and request.is_new_connection for request in run.requests)


async def test_a_slow_accept_is_part_of_the_latency():
    async with running(scale=0.0, accept_delay_s=0.1, is_closing=True) as server:
        run = await measure(spec(server, num_requests=3, num_warmups=0))
    assert all((request.chunks[0].stamp_ns - request.scheduled_ns) >= 100_000_000 for request in run.requests)


async def test_no_flag_says_invalid_for_a_small_run():
    run, _ = await run_of("truth")
    assert [
        flag for flag in run.record.flags if flag.level is FlagLevel.INVALID and flag.code not in ("loop_lag", "client_cpu")
    ] == []


async def test_an_unknown_model_names_those_there_are():
    async with running() as server:
        with pytest.raises(TargetError) as caught:
            await measure(spec(server, "nothing"))
    assert "truth" in (caught.value.hint or "")
