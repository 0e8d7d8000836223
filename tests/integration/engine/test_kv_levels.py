"""KV that left the device and came back, on the real model: its text is the text of a fresh prefill, up to near-ties."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.events import Event, RequestFinished, TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.kvstore.carrier import KvCarrier
from ultrafast.engine.kvstore.disk import DiskStore
from ultrafast.engine.kvstore.model_key import model_key
from ultrafast.engine.kvstore.setup import open_levels
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.options import EngineOptions
from ultrafast.sched.scheduler import Scheduler

pytestmark = pytest.mark.integration

TEXT = (
    "The lighthouse keeper wrote every evening what the sea had brought: rope, a bottle, the mast of a boat, once a crate of "
    "oranges. He never wrote what he thought of it. When the new keeper came, he read it from the first page to the last and "
    "found that the handwriting had become smaller every year. "
)


def options_for(path: Path, **changes: object) -> EngineOptions:
    values = {"max_num_running": 4, "max_num_cached": 4, "num_threads": 1, "threadpool_poll": 0, "kv_capacity_tokens": 1024}
    return EngineOptions(str(path), **{**values, "kv_host_bytes": 64 << 20, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    instance = LlamaExecutor.load(options_for(model_path), lambda *_: None)
    yield instance
    instance.close()


@pytest.fixture(scope="module")
def prompt(executor: LlamaExecutor) -> list[int]:
    return executor.vocab.tokenize(TEXT * 3, add_special=True, parse_special=True)[:200]


def fill(executor: LlamaExecutor, seq_id: int, tokens: list[int]) -> None:
    """Compute tokens without drawing any."""
    executor.run(StepPlan(0, work=(SequenceWork("fill", seq_id, executor.lengths[seq_id], tuple(tokens), samples=False),)))


class Engine:
    """Scheduler, carrier and executor, turned by hand as the loop turns them. The executor is shared and left empty."""

    def __init__(self, executor: LlamaExecutor, options: EngineOptions, disk_path: Path | None = None) -> None:
        self.executor = executor
        key = model_key(options, executor.facts)
        levels = open_levels(options, executor.facts, key, 1 << 30)
        self.disk: DiskStore | None = levels.disk
        self.scheduler: Scheduler = make_scheduler(executor.facts, options, levels.limits)
        if self.disk is not None:
            self.scheduler.adopt(self.disk.scan(), time.monotonic())
        self.carrier = KvCarrier(executor, time.monotonic, self.disk)
        self.output: dict[str, list[int]] = {}
        self.finished: dict[str, RequestFinished] = {}

    def run(self, *requests: Request) -> None:
        for request in requests:
            self.executor.begin_request(request)
            self._take(self.scheduler.add(request, time.monotonic()))
        while self.scheduler.has_work or self.scheduler.is_waiting_for_kv:
            plan = self.scheduler.plan(time.monotonic())
            failed = self.carrier.apply(plan.kv_ops)
            self._take(self.scheduler.kv_moved(self.carrier.poll(), time.monotonic()))
            if failed:
                self.scheduler.copies_failed(failed, time.monotonic())
            elif plan.work:
                self._take(self.scheduler.complete(plan, self.executor.run(plan), time.monotonic()))
            elif self.scheduler.is_waiting_for_kv:
                time.sleep(0.001)

    def ask(self, name: str, prompt: list[int], num_tokens: int = 12, **params: object) -> RequestFinished:
        sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, **params)  # type: ignore[arg-type]
        self.run(Request(name, tuple(prompt), sampling, arrival_s=time.monotonic()))
        return self.finished[name]

    def evict(self) -> None:
        """Take everything off the device."""
        while self.scheduler._state.ledger.evict_one():
            pass
        self.run()

    def close(self) -> None:
        free(self.executor, *range(len(self.executor.lengths)))
        if self.disk is not None:
            self.disk.close()

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TokenProduced):
                self.output.setdefault(event.request_id, []).append(event.token)
            elif isinstance(event, RequestFinished):
                self.finished[event.request_id] = event
                self.executor.end_request(event.request_id)


def test_a_piece_that_was_saved_and_loaded_continues_like_a_fresh_prefill(executor: LlamaExecutor, prompt: list[int]) -> None:
    fresh = greedy(executor, prompt, 16)
    pieces = [(0, 64), (64, 150), (150, len(prompt) - 1)]
    saved = [executor.save_kv(0, begin, end) for begin, end in pieces]
    free(executor, 0)
    for (begin, end), data in zip(pieces, saved, strict=True):
        assert data is not None
        assert executor.load_kv(1, begin, end, data)
    restored = greedy(executor, prompt, 16, seq_id=1)
    free(executor, 1)
    assert fresh.agrees_with(restored.tokens)


def test_a_part_of_a_piece_can_be_loaded(executor: LlamaExecutor, prompt: list[int]) -> None:
    fresh = greedy(executor, prompt, 16)
    data = executor.save_kv(0, 0, 150)
    free(executor, 0)
    assert data is not None
    fill(executor, 1, prompt[:30])
    assert executor.load_kv(1, 30, 120, data)
    restored = greedy(executor, prompt, 16, seq_id=1)
    free(executor, 1)
    assert fresh.agrees_with(restored.tokens)


def test_what_cannot_be_proven_leaves_an_empty_sequence(executor: LlamaExecutor, prompt: list[int]) -> None:
    fill(executor, 0, prompt[:64])
    data = executor.save_kv(0, 32, 64)
    free(executor, 0)
    assert data is not None
    assert not executor.load_kv(1, 0, 64, data), "its start is missing"
    assert executor.lengths[1] == 0
    assert not executor.load_kv(1, 0, 32, data[:1000]), "cut"
    fill(executor, 1, prompt[:32])
    assert executor.load_kv(1, 32, 64, data)
    free(executor, 1)


def test_the_measured_size_is_what_a_run_takes(executor: LlamaExecutor, prompt: list[int]) -> None:
    fill(executor, 0, prompt[:128])
    data = executor.save_kv(0, 0, 128)
    free(executor, 0)
    assert data is not None
    estimate = executor.facts.state_bytes_fixed + 128 * executor.facts.state_bytes_per_token
    assert abs(len(data) - estimate) < 4096


def test_an_evicted_prompt_comes_back_from_host_memory(executor: LlamaExecutor, model_path: Path, prompt: list[int]) -> None:
    fresh = greedy(executor, prompt, 12)
    free(executor, 0)
    engine = Engine(executor, options_for(model_path))
    engine.ask("first", prompt)
    engine.evict()
    second = engine.ask("second", prompt)
    engine.close()
    assert second.num_host_tokens == second.num_cached_tokens == len(prompt) - 1
    assert second.num_computed_tokens == 1 + 12 - 1
    assert fresh.agrees_with(engine.output["first"])
    assert fresh.agrees_with(engine.output["second"])


def test_a_new_engine_reads_what_the_old_one_wrote(
    executor: LlamaExecutor, model_path: Path, prompt: list[int], tmp_path: Path
) -> None:
    fresh = greedy(executor, prompt, 12)
    free(executor, 0)
    options = options_for(model_path, kv_disk_bytes=64 << 20, kv_disk_path=str(tmp_path))
    first = Engine(executor, options)
    first.ask("first", prompt)
    first.close()
    second = Engine(executor, options)
    finished = second.ask("second", prompt)
    second.close()
    assert finished.num_disk_tokens == len(prompt) - 1
    assert fresh.agrees_with(second.output["second"])


def test_a_preempted_request_continues_with_the_same_text(executor: LlamaExecutor, model_path: Path, prompt: list[int]) -> None:
    fresh = greedy(executor, prompt, 60)
    free(executor, 0)
    engine = Engine(executor, options_for(model_path))
    request = Request("r", tuple(prompt), SamplingParams(temperature=0, max_tokens=60, ignore_eos=True), arrival_s=1.0)
    executor.begin_request(request)
    engine.scheduler.add(request, 1.0)
    num_preempted = 0
    for _ in range(1000):
        if "r" in engine.finished:
            break
        state = engine.scheduler._state
        if state.running and state.running[0].num_output >= 12 * (num_preempted + 1):
            state.preempt(state.running[0], 1.0)
            num_preempted += 1
        plan = engine.scheduler.plan(1.0)
        assert engine.carrier.apply(plan.kv_ops) == ()
        engine._take(engine.scheduler.kv_moved(engine.carrier.poll(), 1.0))
        if plan.work:
            engine._take(engine.scheduler.complete(plan, executor.run(plan), 1.0))
    engine.close()
    assert engine.finished["r"].num_preemptions >= 3
    assert engine.finished["r"].num_computed_tokens == len(prompt) + 60 - 1
    assert fresh.agrees_with(engine.output["r"])
