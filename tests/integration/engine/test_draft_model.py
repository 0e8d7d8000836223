"""A draft model beside the real model, through the real scheduler. The draft is the model itself, or a mutilated copy of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.draft import DraftItem, DraftPlan, DraftResult
from ultrafast.core.errors import ConfigError
from ultrafast.core.events import StepFinished, TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.draft_vocab import check_draft_vocabulary
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.options import EngineOptions
from ultrafast.sched.scheduler import Scheduler

pytestmark = pytest.mark.integration

PROMPT = "<|im_start|>user\nTell me about the sea, ships and lighthouses.<|im_end|>\n<|im_start|>assistant\n"
NUM_TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


def options(model_path: Path, **changes: object) -> EngineOptions:
    plain = EngineOptions(
        str(model_path),
        draft_model_path=str(model_path),
        num_threads=1,
        threadpool_poll=0,
        kv_capacity_tokens=1024,
        max_num_running=4,
        max_num_cached=4,
        enable_prefix_cache=False,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    instance = LlamaExecutor.load(options(model_path), lambda *_: None)
    yield instance
    instance.close()


def cheap_scheduler(executor: LlamaExecutor) -> Scheduler:
    """A scheduler that believes in cheap drafts whatever it measures: a busy machine must not decide what is tested."""
    scheduler = make_scheduler(executor.facts, EngineOptions("", enable_prefix_cache=False))
    for num_rows in range(1, 30):
        scheduler.step_times.observe(num_rows, 0.01)
    drafting = scheduler._state.drafting
    assert drafting.model is not None
    drafting.times.observe = lambda *_: None  # type: ignore[method-assign]
    drafting._book_gain = lambda *_: None  # type: ignore[method-assign]
    drafting.model.times.observe = lambda *_: None  # type: ignore[method-assign]
    drafting.model.is_worth_reading = lambda *_: True  # type: ignore[method-assign]
    return scheduler


class Corrupt:
    """Turns every third guess into another token."""

    def __init__(self) -> None:
        self._num_guesses = 0

    def __call__(self, result: DraftResult) -> DraftResult:
        return replace(result, drafts=tuple((name, tuple(map(self._spoil, tokens))) for name, tokens in result.drafts))

    def _spoil(self, token: int) -> int:
        self._num_guesses += 1
        return token if self._num_guesses % 3 else 100 + token % 1000


def serve(executor: LlamaExecutor, *requests: Request, spoil=lambda result: result) -> tuple[dict[str, list[int]], int, int]:
    """Serve requests together; returns their tokens, guesses of the draft model, and right ones."""
    scheduler = cheap_scheduler(executor)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    drafted = accepted = 0
    now = 0.0
    for request in requests:
        executor.begin_request(request)
        scheduler.add(request, now)
    while scheduler.has_work:
        now += 1
        plan = scheduler.plan(now)
        assert executor.apply_kv(plan.kv_ops) == ()
        if plan.draft:
            plan = scheduler.drafted(plan, spoil(executor.propose(plan.draft)))
        result = executor.run(plan)
        for event in scheduler.complete(plan, result, now):
            if isinstance(event, TokenProduced):
                tokens[event.request_id].append(event.token)
            elif isinstance(event, StepFinished):
                drafted += event.num_model_drafted_tokens
                accepted += event.num_model_accepted_tokens
    for request in requests:
        executor.end_request(request.request_id)
    assert executor.draft is not None
    executor.propose(scheduler.plan(now).draft)
    assert executor.draft.lengths == [0] * 3, "draft KV of requests that ended"
    return tokens, drafted, accepted


def prompt_of(executor: LlamaExecutor, text: str = PROMPT) -> tuple[int, ...]:
    return tuple(executor.vocab.tokenize(text, add_special=True, parse_special=True))


def test_greedy_with_a_draft_model_is_plain_greedy_and_nearly_all_is_accepted(executor: LlamaExecutor) -> None:
    prompt = prompt_of(executor)
    plain = greedy(executor, list(prompt), NUM_TOKENS)
    free(executor, 0)
    tokens, drafted, accepted = serve(executor, Request("r", prompt, GREEDY))
    assert plain.agrees_with(tokens["r"])
    assert len(tokens["r"]) == NUM_TOKENS
    assert accepted > NUM_TOKENS // 3
    assert accepted >= 0.8 * drafted


def test_wrong_guesses_change_nothing(executor: LlamaExecutor) -> None:
    prompt = prompt_of(executor)
    plain = greedy(executor, list(prompt), NUM_TOKENS)
    free(executor, 0)
    tokens, drafted, accepted = serve(executor, Request("r", prompt, GREEDY), spoil=Corrupt())
    assert plain.agrees_with(tokens["r"])
    assert 0 < accepted < drafted


def test_a_draft_model_that_thinks_a_little_differently_changes_nothing(model_path: Path) -> None:
    """The same weights over KV of 4 bits: most guesses are right, some are not."""
    executor = LlamaExecutor.load(options(model_path, draft_model_path=None), lambda *_: None)
    executor.load_draft(options(model_path, kv_type_k="q4_0", kv_type_v="q4_0"), lambda *_: None)
    prompt = prompt_of(executor)
    plain = greedy(executor, list(prompt), NUM_TOKENS)
    free(executor, 0)
    tokens, drafted, accepted = serve(executor, Request("r", prompt, GREEDY))
    executor.close()
    assert plain.agrees_with(tokens["r"])
    assert 0 < accepted < drafted


def test_a_seeded_request_is_guessed_with_its_own_random_numbers(executor: LlamaExecutor) -> None:
    params = SamplingParams(temperature=0.9, top_k=40, seed=5, max_tokens=NUM_TOKENS, ignore_eos=True)
    _, drafted, accepted = serve(executor, Request("r", prompt_of(executor), params))
    assert drafted > 0
    assert accepted >= 0.7 * drafted


def test_a_long_prompt_is_read_in_pieces_while_two_requests_go_on(executor: LlamaExecutor) -> None:
    texts = [f"<|im_start|>user\nStory {i}. " + " ".join(f"word{j}" for j in range(60)) + PROMPT for i in range(2)]
    requests = [Request(f"r{i}", prompt_of(executor, text), GREEDY) for i, text in enumerate(texts)]
    plain = [greedy(executor, list(request.prompt_tokens), NUM_TOKENS, seq_id=i) for i, request in enumerate(requests)]
    free(executor, 0, 1)
    tokens, drafted, accepted = serve(executor, *requests)
    assert all(run.agrees_with(tokens[f"r{i}"]) for i, run in enumerate(plain))
    assert accepted >= 0.7 * drafted > 0


def test_what_was_loaded_is_told(executor: LlamaExecutor) -> None:
    facts = executor.facts.draft
    assert facts is not None
    assert facts.kv_capacity_tokens == 1024
    assert facts.kv_bytes == pytest.approx(1024 * executor.facts.state_bytes_per_token, rel=0.01)
    assert facts.vocab_size == executor.facts.vocab_size
    assert facts.model_bytes == executor.facts.model_bytes


def test_the_warm_up_measures_passes_and_leaves_nothing(executor: LlamaExecutor) -> None:
    passes = executor.warm_up_draft()
    assert {1, 2, 3, 32} <= {one.num_tokens for one in passes}
    assert all(one.duration_s > 0 for one in passes)
    assert executor.draft is not None
    assert executor.draft.lengths == [0] * 3


def test_a_pass_that_fails_is_told(executor: LlamaExecutor, monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    assert executor.draft is not None

    class Failing:
        def __getattr__(self, name: str) -> object:
            return (lambda *_: -3) if name == "llama_decode" else getattr(executor.model.c, name)

    executor.begin_request(Request("r", (1, 2, 3), GREEDY))
    monkeypatch.setattr(executor.draft, "_c", Failing())
    assert executor.propose(DraftPlan((), (DraftItem("r", 0, 0, (1, 2, 3), 2),))).is_broken
    assert "the draft model is off" in caplog.text
    executor.end_request("r")


def test_no_draft_model_is_loaded_where_nobody_may_guess(model_path: Path) -> None:
    instance = LlamaExecutor.load(options(model_path, speculation="off"), lambda *_: None)
    assert instance.draft is None
    assert instance.facts.draft is None
    instance.close()


def test_another_vocabulary_is_refused_with_a_hint(model_path: Path, sliding_window_model_path: Path) -> None:
    with pytest.raises(ConfigError, match="262144 tokens instead of 49152") as caught:
        LlamaExecutor.load(options(model_path, draft_model_path=str(sliding_window_model_path)), lambda *_: None)
    assert caught.value.param == "engine.draft_model_path"
    assert "same family" in str(caught.value.hint)


def test_a_vocabulary_is_compared_token_for_token(model_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = Vocab.load(str(model_path)), Vocab.load(str(model_path))
    check_draft_vocabulary(mine, other, "draft.gguf")
    pieces = other.grammar_pieces()
    pieces[123] += b"x"
    with monkeypatch.context() as patch:
        patch.setattr(other, "grammar_pieces", lambda: pieces)
        with pytest.raises(ConfigError, match="token 123 is"):
            check_draft_vocabulary(mine, other, "draft.gguf")
    for name, value, message in (("eos", 5, "EOS"), ("bos", None, "BOS"), ("end_tokens", frozenset((1,)), "end a text")):
        with monkeypatch.context() as patch:
            patch.setattr(other, name, value)
            with pytest.raises(ConfigError, match=message):
                check_draft_vocabulary(mine, other, "draft.gguf")
    mine.close()
    other.close()


def test_a_file_that_is_no_model_is_refused(model_path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ConfigError):
        LlamaExecutor.load(options(model_path, draft_model_path=str(broken)), lambda *_: None)
    assert abi.load(None).c is not None


def test_a_model_that_cannot_check_guesses_takes_no_draft_model(sliding_window_model_path: Path) -> None:
    path = sliding_window_model_path
    with pytest.raises(ConfigError, match="cannot check guesses") as caught:
        LlamaExecutor.load(options(path, draft_model_path=str(path), swa_full=False, max_num_running=1), lambda *_: None)
    assert caught.value.param == "engine.draft_model_path"
