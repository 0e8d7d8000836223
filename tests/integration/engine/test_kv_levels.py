"""KV that left the device and came back, on the real model: its text is the text of a fresh prefill, up to near-ties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.by_hand import Engine, options_for
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan
from ultrafast.engine.llama.executor import LlamaExecutor

pytestmark = pytest.mark.integration

TEXT = (
    "The lighthouse keeper wrote every evening what the sea had brought: rope, a bottle, the mast of a boat, once a crate of "
    "oranges. He never wrote what he thought of it. When the new keeper came, he read it from the first page to the last and "
    "found that the handwriting had become smaller every year. "
)


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
    engine = Engine(executor, options_for(model_path, speculation="off"))  # as many steps as tokens, however busy the machine
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
