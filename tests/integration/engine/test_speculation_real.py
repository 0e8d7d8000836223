"""Speculation on the real model through the real scheduler: text that repeats its prompt, with and without drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.events import TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import StepPlan, StepResult
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.llama.sampler import CandidateArray, SequenceSampler
from ultrafast.engine.options import EngineOptions

pytestmark = pytest.mark.integration

LIST = "red apple, green pear, blue plum, yellow lemon, orange peach, purple grape, white melon, black cherry"
PROMPT = f"The list is: {LIST}.\nOnce more, the list is: {LIST}.\nOnce more, the list is: red apple,"
NUM_TOKENS = 48
SEEDED = SamplingParams(temperature=1.0, top_k=40, seed=11, max_tokens=NUM_TOKENS, ignore_eos=True)
JSON = '{"grammars": [{"json_schema": {"type": "array", "items": {"type": "string", "maxLength": 9}, "minItems": 30}}]}'


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    options = EngineOptions(str(model_path), num_threads=1, kv_capacity_tokens=1024, max_num_running=4, max_num_cached=4)
    instance = LlamaExecutor.load(options, lambda *_: None)
    yield instance
    instance.close()


def run(
    executor: LlamaExecutor, request: Request, on_step: Callable[[StepPlan, StepResult], None] = lambda *_: None
) -> tuple[list[int], int]:
    """Serve one request with steps that cost the same whatever they carry; returns its tokens and how many were drafts."""
    scheduler = make_scheduler(executor.facts, EngineOptions("", enable_prefix_cache=False))
    for num_rows in range(1, 10):
        scheduler.step_times.observe(num_rows, 0.01)
    scheduler._state.drafting.times.observe = lambda *_: None  # type: ignore[method-assign]  # a busy machine must not decide
    scheduler._state.drafting._book_gain = lambda *_: None  # type: ignore[method-assign]
    executor.begin_request(request)
    scheduler.add(request, 0.0)
    tokens, num_accepted, now = [], 0, 0.0
    while scheduler.has_work:
        now += 1
        plan = scheduler.plan(now)
        assert executor.apply_kv(plan.kv_ops) == ()
        result = executor.run(plan)
        assert not result.failed
        if result.sampled:
            on_step(plan, result)
        num_accepted += max(0, len(result.sampled) - 1)
        tokens += [event.token for event in scheduler.complete(plan, result, now) if isinstance(event, TokenProduced)]
    executor.end_request(request.request_id)
    assert executor.lengths == [0] * len(executor.lengths)
    return tokens, num_accepted


def row_of(executor: LlamaExecutor, row: int) -> np.ndarray:
    """Logits of the last step; the sampler has only masked them, and masking again changes nothing."""
    pointer = executor.model.c.llama_get_logits_ith(executor.model.context, row)
    return np.frombuffer(abi.ffi.buffer(pointer, 4 * executor.vocab.size), dtype=np.float32).copy()


def tokens_of(executor: LlamaExecutor, text: str) -> list[int]:
    return executor.vocab.tokenize(text, add_special=True, parse_special=True)


def test_greedy_with_drafts_is_plain_greedy(executor: LlamaExecutor) -> None:
    prompt = tokens_of(executor, PROMPT)
    plain = greedy(executor, prompt, NUM_TOKENS)
    free(executor, 0)
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    tokens, num_accepted = run(executor, Request("r", tuple(prompt), params))
    assert len(tokens) == NUM_TOKENS
    assert num_accepted > NUM_TOKENS // 2
    assert plain.agrees_with(tokens)


def test_every_token_is_the_draw_that_its_seed_and_position_give(executor: LlamaExecutor) -> None:
    """Draw again from each row, with a sampler that knows nothing of drafts: position i of the output, row by row."""
    prompt = tokens_of(executor, PROMPT)
    again = SequenceSampler(
        executor.model.c,
        Request("again", tuple(prompt), SEEDED),
        executor.vocab.end_tokens,
        CandidateArray(executor.vocab.size),
        None,
    )
    drawn_again: list[int] = []

    def redraw(plan: StepPlan, result: StepResult) -> None:
        first_row = len(plan.work[0].tokens) - 1
        for i in range(len(result.sampled)):
            drawn_again.append(again.draw(row_of(executor, first_row + i), len(drawn_again))[0])

    tokens, num_accepted = run(executor, Request("r", tuple(prompt), SEEDED), redraw)
    assert num_accepted > 8
    assert tokens == drawn_again
    again.close()


def test_a_grammar_holds_over_drafts(executor: LlamaExecutor) -> None:
    prompt = tokens_of(executor, 'A JSON list: ["ab", "cd", "ab", "cd", "ab", "cd"]. Again: ')
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, grammar=JSON)
    plain_request = Request("p", tuple(prompt), params, may_speculate=False)
    plain, none_accepted = run(executor, plain_request)
    tokens, num_accepted = run(executor, Request("r", tuple(prompt), params))
    assert none_accepted == 0
    assert num_accepted > 0
    assert tokens[:8] == plain[:8]
    matcher = executor._grammars.matcher(JSON)
    for token in tokens:
        assert not matcher.forbidden()[token]
        matcher.accept(token)
