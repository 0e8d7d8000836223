"""Everything at once on the real model: tiers that push each other aside, KV that leaves and comes back, drafts.

Whatever happened to a request, its text is what plain greedy decoding of its prompt gives, up to near-ties.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.engine.by_hand import Engine, options_for
from tests.integration.engine.greedy import free, greedy

from ultrafast.bench.greedy_run import GreedyRun
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.llama.executor import LlamaExecutor

pytestmark = pytest.mark.integration

FRUIT = "red apple, green pear, blue plum, yellow lemon, orange peach, purple grape, white melon, black cherry"
COPIES = f"The list is: {FRUIT}.\nOnce more, the list is: {FRUIT}.\nOnce more, the list is: red apple,"
STORIES = (
    "The lighthouse keeper wrote every evening what the sea had brought: rope, a bottle, the mast of a boat. The next day",
    "In the year of the long rain the baker of the village began to count the drops on his window. After a while he",
    "There are three ways to repair a clock. The first is to wait, the second is to ask an expert, and the third is",
    "The capital of France is Paris, the capital of Italy is Rome, the capital of Spain is Madrid, the capital of Portugal is",
)
NUM_TOKENS = 24
POOL_TOKENS, NUM_PLACES = 288, 2


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    instance = LlamaExecutor.load(options_for(model_path), lambda *_: None)
    yield instance
    instance.close()


def _prompts(executor: LlamaExecutor) -> dict[str, list[int]]:
    texts = {"copies": COPIES, **{f"story{i}": story for i, story in enumerate(STORIES)}, "again": COPIES}
    return {name: executor.vocab.tokenize(text, add_special=True, parse_special=True) for name, text in texts.items()}


def _plain(executor: LlamaExecutor, prompts: dict[str, list[int]]) -> dict[str, GreedyRun[int]]:
    """Greedy runs up to the first token that ends a text: the engine does not draw it."""
    runs = {}
    for name, prompt in prompts.items():
        run = greedy(executor, prompt, NUM_TOKENS)
        free(executor, 0)
        length = next((at for at, token in enumerate(run.tokens) if executor.vocab.is_end(token)), NUM_TOKENS)
        runs[name] = GreedyRun(run.tokens[:length], run.margins[:length])
    return runs


def _request(name: str, prompt: list[int], tier: ServiceTier) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return Request(name, tuple(prompt), sampling, tier, arrival_s=time.monotonic())


def _engine(executor: LlamaExecutor, model_path: Path) -> Engine:
    """Two places and a small pool; drafts are always worth it, whatever the machine is busy with."""
    engine = Engine(
        executor, options_for(model_path), kv_capacity_tokens=POOL_TOKENS, max_num_running=NUM_PLACES, max_num_paused=1
    )
    drafting = engine.scheduler._state.drafting
    for num_rows in range(1, 10):
        engine.scheduler.step_times.observe(num_rows, 0.01)
    drafting.times.observe = lambda *_: None  # type: ignore[method-assign]
    drafting._book_gain = lambda *_: None  # type: ignore[method-assign]
    return engine


def test_text_is_that_of_plain_greedy_decoding_whatever_happened(executor: LlamaExecutor, model_path: Path) -> None:
    prompts = _prompts(executor)
    plain = _plain(executor, prompts)
    engine = _engine(executor, model_path)
    waves = [
        (0, ServiceTier.FLEX, ("copies", "story0")),
        (6, ServiceTier.DEFAULT, ("story1",)),
        (10, ServiceTier.ULTRAFAST, ("story2", "story3")),
    ]
    num_turns = 0
    while engine.turn() or waves:
        if waves and num_turns >= waves[0][0]:
            _, tier, names = waves.pop(0)
            engine.add(*(_request(name, prompts[name], tier) for name in names))
        num_turns += 1
        assert num_turns < 2000
    engine.evict()  # the next one finds its prompt in host memory only
    engine.run(_request("again", prompts["again"], ServiceTier.FLEX))
    engine.close()

    ends = engine.finished
    assert sum(end.num_pauses for end in ends.values()) > 0
    assert sum(end.num_preemptions for end in ends.values()) > 0
    assert ends["again"].num_host_tokens > 0
    assert sum(step.num_accepted_tokens for step in engine.steps) > 0
    for name, prompt in prompts.items():
        assert len(engine.output[name]) == NUM_TOKENS, name
        assert plain[name].agrees_with(engine.output[name]), name
        assert len(plain[name].tokens) > 8, "there is something to compare"
        if name != "again":
            num_needed = len(prompt) - ends[name].num_cached_tokens + NUM_TOKENS - 1
            assert ends[name].num_computed_tokens == num_needed, "nothing is computed twice"
