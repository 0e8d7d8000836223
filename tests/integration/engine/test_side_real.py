"""A long prompt beside streams on the real model: in one context it is computed, in another they decode meanwhile.

Both say what plain greedy decoding says, up to near-ties.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.by_hand import Engine, options_for
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.llama.executor import LlamaExecutor

pytestmark = pytest.mark.integration

STORY = "In the year of the long rain the baker of the village began to count the drops on his window. After a while he"
LIST = " ".join(f"The {number}th of them was {word}." for number in range(3, 33) for word in ("late", "early", "lost"))
NUM_STREAM_TOKENS, NUM_TOKENS = 120, 12


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    instance = LlamaExecutor.load(options_for(model_path, kv_capacity_tokens=2048), lambda *_: None)
    yield instance
    instance.close()


@pytest.fixture
def engine(executor: LlamaExecutor, model_path: Path) -> Iterator[Engine]:
    """Steps cost what they do on a quiet machine, whatever this one is busy with: whether to compute beside depends on it."""
    made = Engine(executor, options_for(model_path, kv_capacity_tokens=2048))
    cost = made.scheduler.cost
    for num_outputs, num_tokens in ((0, 16), (0, 64), (0, 128), (1, 0), (2, 0)):
        cost.observe(num_outputs, num_tokens, 0.002 + 0.005 * num_outputs + 0.003 * num_tokens)
    cost.observe = lambda *_: None  # type: ignore[method-assign]
    yield made
    made.close()


def _request(name: str, prompt: list[int], num_tokens: int, tier: ServiceTier) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    return Request(name, tuple(prompt), sampling, tier, arrival_s=time.monotonic())


def _tokens(executor: LlamaExecutor, text: str) -> list[int]:
    return executor.vocab.tokenize(text, add_special=True, parse_special=True)


def _begin(engine: Engine, executor: LlamaExecutor) -> None:
    """A stream decodes, and a long prompt comes."""
    engine.add(_request("stream", _tokens(executor, STORY), NUM_STREAM_TOKENS, ServiceTier.ULTRAFAST))
    while len(engine.output.get("stream", ())) < 5:
        engine.turn()
    engine.add(_request("long", _tokens(executor, LIST), NUM_TOKENS, ServiceTier.DEFAULT))


def test_both_say_what_they_say_alone(engine: Engine, executor: LlamaExecutor) -> None:
    plain = {}
    for name, text, count in (("stream", STORY, NUM_STREAM_TOKENS), ("long", LIST, NUM_TOKENS)):
        plain[name] = greedy(executor, _tokens(executor, text), count)
        free(executor, 0)
    _begin(engine, executor)
    before = len(engine.output["stream"])
    while "long" not in engine.output:
        engine.turn()
    assert any(step.is_side for step in engine.steps)
    assert len(engine.output["stream"]) > before, "it went on meanwhile"
    engine.run()
    for name, run in plain.items():
        found = run.compare(engine.output[name])
        assert found.num_agreed == found.num_compared > 0, f"{name}: {found}"


def test_the_next_turn_finds_what_was_computed_beside(engine: Engine, executor: LlamaExecutor) -> None:
    _begin(engine, executor)
    engine.run()
    prompt = _tokens(executor, LIST)
    assert engine.ask("again", prompt).num_cached_tokens == len(prompt) - 1
    assert engine.output["again"] == engine.output["long"]


def test_the_client_may_leave_in_the_midst(engine: Engine, executor: LlamaExecutor) -> None:
    num_asked = 0

    def leave() -> None:
        nonlocal num_asked
        num_asked += 1
        if num_asked == 150:
            engine._take(engine.scheduler.abort("long", time.monotonic()))

    engine.on_side = leave
    _begin(engine, executor)
    engine.run()
    assert engine.finished["long"].reason is FinishReason.ABORT
    assert engine.finished["stream"].reason is FinishReason.LENGTH
    assert engine.scheduler.kv_usage.num_running_tokens == 0
    engine.on_side = lambda: None
    _begin(engine, executor)
    engine.run()
    assert engine.finished["long"].reason is FinishReason.LENGTH
