"""LlamaExecutor on the real bundled model: sharing, verification, sampling, and what must never abort the process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import llguidance
import numpy as np
import pytest
from tests.integration.engine.greedy import free, greedy

from ultrafast.core.errors import ConfigError, InvalidRequestError, ModelFileError
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import CopyPrefix, SequenceWork, StepPlan, StepStatus, TrimSequence
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.llama.idle_cells import measure_idle_cell_s
from ultrafast.engine.llama.sampler import DeadEndError, SamplingError
from ultrafast.engine.llama.warmup import run_step
from ultrafast.engine.options import EngineOptions
from ultrafast.serving.structured import JSON_OPTIONS

pytestmark = pytest.mark.integration

PROMPT = "<|im_start|>user\nName three colours of the rainbow.<|im_end|>\n<|im_start|>assistant\n"


def load(path: Path, **options: object) -> LlamaExecutor:
    return LlamaExecutor.load(EngineOptions(str(path), **{"max_num_running": 8, "max_num_cached": 8, **options}), lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def executor(model_path: Path) -> Iterator[LlamaExecutor]:
    instance = load(model_path, kv_capacity_tokens=2048)
    yield instance
    instance.close()


@pytest.fixture
def prompt(executor: LlamaExecutor) -> list[int]:
    return executor.vocab.tokenize(PROMPT, add_special=True, parse_special=True)


def generate(
    executor: LlamaExecutor, prompt: list[int], params: SamplingParams, output: tuple[int, ...] = (), num: int = 12
) -> list[int]:
    """Draw `num` tokens on sequence 0, after `output` that was drawn before."""
    executor.begin_request(Request("r", tuple(prompt), params, output_tokens=output))
    tokens, feed = list(output), tuple(prompt) + output
    while len(tokens) < num:
        work = SequenceWork("r", 0, executor.lengths[0], feed, samples=True, output_index=len(tokens))
        result = executor.run(StepPlan(0, work=(work,)))
        assert result.status is StepStatus.OK
        assert not result.failed, result.failed
        if result.sampled[0].is_end:
            break
        tokens.append(result.sampled[0].token)
        feed = (tokens[-1],)
        if result.sampled[0].is_complete:
            break
    executor.end_request("r")
    free(executor, 0)
    return tokens


def test_facts_are_read_back(executor: LlamaExecutor) -> None:
    facts = executor.facts
    assert facts.has_flash_attention
    assert facts.can_trim
    assert facts.kv_capacity_tokens == 2048
    assert facts.max_request_tokens <= facts.kv_capacity_tokens
    assert facts.vocab_size == 49152
    assert 20_000 < facts.state_bytes_per_token < 30_000  # 30 layers x 3 KV heads x 64 x 2 x f16, plus bookkeeping
    assert len(facts.model_hash) >= 32


def test_shared_prefix_continues_like_a_fresh_prefill(executor: LlamaExecutor, prompt: list[int]) -> None:
    fresh = greedy(executor, prompt, 16)
    assert executor.apply_kv([CopyPrefix("plain", 0, 1, len(prompt) - 1)]) == ()
    shared = greedy(executor, prompt, 16, seq_id=1)
    free(executor, 0, 1)
    assert fresh.agrees_with(shared.tokens)


def test_chunked_prefill_continues_like_one_pass(executor: LlamaExecutor, prompt: list[int]) -> None:
    whole = greedy(executor, prompt, 16)
    chunked = greedy(executor, prompt, 16, seq_id=1, chunk=5)
    free(executor, 0, 1)
    assert whole.agrees_with(chunked.tokens)


def test_a_share_of_tokens_that_are_not_there_is_refused(executor: LlamaExecutor, prompt: list[int]) -> None:
    greedy(executor, prompt, 1)
    assert executor.apply_kv([CopyPrefix("r", 0, 1, len(prompt) + 5)]) == ("r",)
    assert executor.lengths[1] == 0
    free(executor, 0)


def test_sampling_with_a_seed_repeats_and_continues(executor: LlamaExecutor, prompt: list[int]) -> None:
    params = SamplingParams(temperature=1.0, top_k=40, top_p=0.95, seed=7)
    whole = generate(executor, prompt, params)
    assert generate(executor, prompt, params) == whole
    assert generate(executor, prompt, params, output=tuple(whole[:5]))[:6] == whole[:6]
    others = [generate(executor, prompt, SamplingParams(temperature=1.5, seed=seed), num=6) for seed in range(4)]
    assert len({tuple(tokens) for tokens in others}) > 1


def test_penalties_bias_and_bans(executor: LlamaExecutor, prompt: list[int]) -> None:
    plain = generate(executor, prompt, SamplingParams(temperature=0))
    banned = generate(executor, prompt, SamplingParams(temperature=0, logit_bias=((plain[0], -100.0),)))
    assert banned[0] != plain[0]
    forced = generate(executor, prompt, SamplingParams(temperature=0, logit_bias=((42, 200.0),)), num=4)
    assert forced == [42] * 4
    penalised = generate(executor, prompt, SamplingParams(temperature=0, logit_bias=((42, 30.0),), frequency_penalty=2.0), num=30)
    assert 1 < penalised.count(42) < 30
    repeat = generate(executor, prompt, SamplingParams(temperature=0, logit_bias=((42, 30.0),), repeat_penalty=3.0), num=8)
    assert repeat.count(42) < 8


def test_end_tokens_wait_for_min_tokens(executor: LlamaExecutor, prompt: list[int]) -> None:
    bias = tuple((token, 100.0) for token in executor.vocab.end_tokens)
    assert generate(executor, prompt, SamplingParams(temperature=0, logit_bias=bias)) == []
    assert len(generate(executor, prompt, SamplingParams(temperature=0, logit_bias=bias, min_tokens=5))) == 5
    ignored = generate(executor, prompt, SamplingParams(temperature=0, logit_bias=bias, ignore_eos=True))
    assert len(ignored) == 12
    assert set(ignored) <= executor.vocab.end_tokens  # drawn like any other token, and not the end
    stop = SamplingParams(temperature=0, logit_bias=bias, ignore_eos=True, stop_token_ids=tuple(executor.vocab.end_tokens))
    assert generate(executor, prompt, stop) == []
    assert generate(executor, prompt, SamplingParams(temperature=0, logit_bias=((42, 200.0),), stop_token_ids=(42,))) == []


def test_stop_tokens_wait_for_min_tokens_where_nothing_else_is_asked_for(executor: LlamaExecutor, prompt: list[int]) -> None:
    first = generate(executor, prompt, SamplingParams(temperature=0), num=1)[0]
    assert generate(executor, prompt, SamplingParams(temperature=0, stop_token_ids=(first,))) == []
    later = generate(executor, prompt, SamplingParams(temperature=0, stop_token_ids=(first,), min_tokens=3), num=3)
    assert len(later) == 3
    assert first not in later


def test_logprobs_are_a_distribution(executor: LlamaExecutor, prompt: list[int]) -> None:
    executor.begin_request(Request("r", tuple(prompt), SamplingParams(temperature=0, num_logprobs=5)))
    result = executor.run(StepPlan(0, work=(SequenceWork("r", 0, 0, tuple(prompt), samples=True),)))
    executor.end_request("r")
    free(executor, 0)
    logprobs = result.sampled[0].logprobs
    assert logprobs is not None
    assert logprobs.top[0] == (result.sampled[0].token, pytest.approx(logprobs.logprob))
    values = [value for _, value in logprobs.top]
    assert values == sorted(values, reverse=True)
    assert 0 < np.exp(values).sum() <= 1


def test_grammar_is_obeyed_even_when_the_model_resists(executor: LlamaExecutor, prompt: list[int]) -> None:
    grammar = llguidance.LLMatcher.grammar_from_regex("[0-9]{4}-[0-9]{2}")
    for temperature in (0.0, 1.5):
        tokens = generate(executor, prompt, SamplingParams(temperature=temperature, grammar=grammar), num=30)
        text = b"".join(executor.vocab.pieces[token] for token in tokens).decode()
        assert len(text) == 7
        assert text.replace("-", "").isdigit()


def test_a_dead_end_is_told_from_a_broken_model(executor: LlamaExecutor, prompt: list[int]) -> None:
    executor.begin_request(Request("r", tuple(prompt), SamplingParams(temperature=0)))
    sampler = executor._samplers["r"]
    with pytest.raises(DeadEndError):
        sampler.draw(np.full(executor.vocab.size, -np.inf, dtype=np.float32), 0)
    with pytest.raises(SamplingError, match="NaN") as caught:
        sampler.draw(np.full(executor.vocab.size, np.nan, dtype=np.float32), 0)
    assert not isinstance(caught.value, DeadEndError)
    executor.end_request("r")


def test_a_continued_output_resumes_its_grammar(executor: LlamaExecutor, prompt: list[int]) -> None:
    params = SamplingParams(temperature=0, grammar=llguidance.LLMatcher.grammar_from_regex("[a-z]{12}"))
    whole = generate(executor, prompt, params, num=30)
    assert generate(executor, prompt, params, output=tuple(whole[:2]), num=30) == whole


@pytest.mark.parametrize(
    "grammar", ["{", "", "not a grammar", '{"grammars": [{"json_schema": {"type": "nonsense"}}]}', '{"grammars": []}']
)
def test_a_broken_grammar_is_an_error_and_the_process_lives(executor: LlamaExecutor, prompt: list[int], grammar: str) -> None:
    with pytest.raises(InvalidRequestError):
        executor.begin_request(Request("bad", tuple(prompt), SamplingParams(grammar=grammar)))
    executor.end_request("bad")
    assert generate(executor, prompt, SamplingParams(temperature=0), num=2)


def test_a_grammar_without_any_output_is_refused_before_it_runs(executor: LlamaExecutor, prompt: list[int]) -> None:
    grammar = llguidance.LLMatcher.grammar_from_json_schema({"$ref": "#"})
    with pytest.raises(InvalidRequestError, match="cannot be satisfied") as caught:
        executor.prepare_request(Request("bad", tuple(prompt), SamplingParams(grammar=grammar)))
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_json_schema")


def test_a_grammar_that_is_too_complex_to_follow_is_not_called_impossible(executor: LlamaExecutor, prompt: list[int]) -> None:
    """`{"x": "..."}` matches this schema; the library gives up before it has followed all that may come."""
    choices = [
        {"anyOf": [{"properties": {f"p{k}{i}": {"type": "string", "maxLength": i + 1}}} for i in range(5)]} for k in range(4)
    ]
    schema = {"type": "object", "properties": {"x": {"type": "string"}}, "allOf": choices}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=JSON_OPTIONS)
    with pytest.raises(InvalidRequestError, match="cannot be enforced: too many of its alternatives") as caught:
        executor.prepare_request(Request("bad", tuple(prompt), SamplingParams(grammar=grammar)))
    assert (caught.value.param, caught.value.code) == ("response_format", "invalid_json_schema")


def test_a_grammar_that_gets_stuck_fails_alone_and_tells_no_internals(executor: LlamaExecutor, prompt: list[int]) -> None:
    schema = {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "$defs": {"x": {"$ref": "#/$defs/x"}}}
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema)
    executor.begin_request(Request("stuck", tuple(prompt), SamplingParams(temperature=0, grammar=grammar)))
    failed: list[tuple[str, str]] = []
    written, tokens = 0, tuple(prompt)
    for step in range(8):
        result = executor.run(StepPlan(step, work=(SequenceWork("stuck", 0, written, tokens, samples=True, output_index=step),)))
        assert result.status is StepStatus.OK
        written += len(tokens)
        failed += result.failed
        if failed:
            break
        tokens = (result.sampled[0].token,)
    executor.end_request("stuck")
    free(executor, 0)
    [(request_id, message)] = failed
    assert request_id == "stuck"
    assert "cannot be satisfied" in message
    assert "$ref" not in message


@pytest.mark.parametrize("token", [-1, 49152, 2**31 - 1])
def test_token_ids_outside_the_vocabulary_never_reach_c(executor: LlamaExecutor, token: int) -> None:
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        executor.begin_request(Request("bad", (1, token), SamplingParams()))
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        executor.begin_request(Request("bad", (1,), SamplingParams(logit_bias=((token, 1.0),))))


def test_out_of_kv_changes_nothing_and_is_survived(executor: LlamaExecutor) -> None:
    executor.begin_request(Request("r", (1,), SamplingParams(temperature=0)))
    for seq_id in range(7):
        executor.run(StepPlan(0, work=(SequenceWork("r", seq_id, 0, (5,) * 256, samples=False),)))
    before = list(executor.lengths)
    work = (SequenceWork("r", 7, 0, (5,) * 250, samples=False),)
    statuses = [executor.run(StepPlan(0, work=work)).status]
    work = (SequenceWork("r", 8, 0, (5,) * 250, samples=False),)
    statuses.append(executor.run(StepPlan(0, work=work)).status)
    assert statuses == [StepStatus.OK, StepStatus.OUT_OF_KV]
    assert executor.lengths[8] == before[8]
    executor.apply_kv([TrimSequence(seq_id, 0) for seq_id in range(9)])
    assert executor.run(StepPlan(0, work=work)).status is StepStatus.OK
    free(executor, 8)
    executor.end_request("r")


def test_measuring_idle_cells_leaves_the_pool_as_it_was(executor: LlamaExecutor, prompt: list[int]) -> None:
    expected = generate(executor, prompt, SamplingParams(temperature=0))
    executor.begin_request(Request("measure", (1,), SamplingParams(temperature=0)))
    assert 0.0 <= measure_idle_cell_s(executor, "measure", partial(run_step, executor)) < 1e-3
    executor.end_request("measure")
    assert not any(executor.lengths)
    assert generate(executor, prompt, SamplingParams(temperature=0)) == expected


def test_a_step_is_broken_off_while_it_runs_and_nothing_of_it_stays(
    executor: LlamaExecutor, prompt: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    assert executor.facts.can_interrupt
    expected = generate(executor, prompt, SamplingParams(temperature=0))
    executor.begin_request(Request("long", (1,), SamplingParams(temperature=0)))
    executor.run(StepPlan(0, work=(SequenceWork("long", 3, 0, (5,) * 8, samples=False),)))
    work = (SequenceWork("long", 3, 8, (5,) * 248, samples=False),)
    statuses = set()
    for _ in range(20):  # a pass of 250 tokens takes long enough to be caught, if not at the first try
        timer = threading.Timer(0.02, executor.interrupt)
        timer.start()
        statuses.add(executor.run(StepPlan(0, work=work)).status)
        timer.join()
        executor.apply_kv([TrimSequence(3, 8)])
        assert executor.lengths[3] == 8
        if StepStatus.INTERRUPTED in statuses:
            break
    assert StepStatus.INTERRUPTED in statuses
    assert generate(executor, prompt, SamplingParams(temperature=0)) == expected, "the next pass is not broken off"
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING], "it is no error"
    executor.end_request("long")
    free(executor, 3)


def test_sliding_window_models_keep_the_whole_window_by_default(sliding_window_model_path: Path) -> None:
    executor = load(sliding_window_model_path, kv_capacity_tokens=4096)
    try:
        parent = executor.vocab.tokenize(
            "The quick brown fox jumps over the lazy dog. " * 130, add_special=True, parse_special=False
        )
        branch = [
            *parent[:100],
            *executor.vocab.tokenize(" Then the king of France said", add_special=False, parse_special=False),
        ]
        expected = greedy(executor, branch, 8)
        greedy(executor, parent, 1, seq_id=1)
        assert executor.facts.can_trim
        assert executor.apply_kv([CopyPrefix("plain", 1, 2, 100)]) == ()
        assert expected.agrees_with(greedy(executor, branch, 8, seq_id=2).tokens)
    finally:
        executor.close()


def test_a_branch_that_lost_its_window_is_refused_not_wrong(sliding_window_model_path: Path) -> None:
    executor = load(sliding_window_model_path, kv_capacity_tokens=4096, swa_full=False)
    try:
        assert not executor.facts.can_trim
        parent = executor.vocab.tokenize(
            "The quick brown fox jumps over the lazy dog. " * 190, add_special=True, parse_special=False
        )
        greedy(executor, parent, 1)
        assert executor.apply_kv([CopyPrefix("r", 0, 1, 100)]) == ("r",)
        whole = executor.lengths[0]
        assert executor.apply_kv([CopyPrefix("r", 0, 1, whole)]) == ()
        assert executor.lengths[1] == whole
    finally:
        executor.close()


def test_errors_before_anything_starts(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cores"):
        load(model_path, num_threads=4096)
    with pytest.raises(ConfigError, match="kv_type_k"):
        load(model_path, kv_type_k="q9")
    with pytest.raises(ConfigError, match="max_step_tokens"):
        load(model_path, max_step_tokens=4)
    with pytest.raises(ConfigError):
        load(model_path, max_num_running=300)
    with pytest.raises(ConfigError, match="libllama"):
        load(model_path, libllama_path=str(tmp_path / "no.so"))
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelFileError):
        load(wrong)
