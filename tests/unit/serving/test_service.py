from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer, Script, ScriptedEngine, facts, finished, says

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import (
    ContextLengthError,
    EngineFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    UltrafastError,
    UnavailableError,
)
from ultrafast.core.events import Event, RequestFinished, TokenProduced
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.serving.contract import (
    ChatCall,
    ChoiceFinished,
    Completed,
    CompletionCall,
    Delta,
    GenerationOptions,
    ResponseFormat,
    ServingEvent,
    Started,
)
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.sampling import SamplingDefaults
from ultrafast.serving.service import Service

WEATHER = {"type": "function", "function": {"name": "weather"}}


class World:
    """A service over a fake tokenizer and a scripted engine; arrival at 10 s, now 10.25 s."""

    def __init__(
        self,
        text: str | list[str] = "Hello",
        template: str | None = templates.CHATML,
        script: Script | None = None,
        policies: dict[ServiceTier, TierPolicy] | None = None,
        **engine: Any,
    ) -> None:
        self.tokenizer = FakeTokenizer(template)
        self.engine = ScriptedEngine(script or says(self.tokenizer, text), **engine)
        self.service = Service(
            self.engine,
            self.tokenizer,
            model_id="m",
            created_s=1,
            defaults=SamplingDefaults(temperature=0.5),
            policies=policies,
            clock=ManualClock(10.25),
        )

    def chat(
        self,
        content: str = "Hi",
        *,
        model: str = "m",
        tools: list[dict[str, Any]] | None = None,
        choice: str = "auto",
        **options: Any,
    ) -> AsyncGenerator[ServingEvent, None]:
        call = ChatCall(
            "id", model, [{"role": "user", "content": content}], GenerationOptions(**options), 10.0, tools or [], choice
        )
        return self.service.chat(call)

    def complete(self, *prompts: str | list[int], **options: Any) -> AsyncGenerator[ServingEvent, None]:
        return self.service.complete(CompletionCall("id", "m", list(prompts), GenerationOptions(**options), 10.0))


@pytest.fixture
def make() -> Iterator[Any]:
    worlds: list[World] = []

    def build(*args: Any, **kwargs: Any) -> World:
        worlds.append(World(*args, **kwargs))
        return worlds[-1]

    yield build
    for world in worlds:
        world.service.close()


async def collect(stream: AsyncGenerator[ServingEvent, None]) -> list[ServingEvent]:
    return [event async for event in stream]


def texts(events: list[ServingEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


async def test_order_and_figures_of_a_chat(make: Any) -> None:
    world = make()
    events = await collect(world.chat(requested_tier=ServiceTier.PRIORITY))
    assert isinstance(events[0], Started)
    assert [type(event) for event in events[-2:]] == [ChoiceFinished, Completed]
    assert texts(events) == "Hello"
    (request,) = world.engine.requests
    started, completed = events[0], events[-1]
    assert (started.tier, started.tier_reason, started.num_cached_tokens) == (ServiceTier.PRIORITY, "requested", 3)
    assert started.num_prompt_tokens == len(request.prompt_tokens)
    assert started.queue_s == pytest.approx(0.5)
    assert isinstance(completed, Completed)
    assert completed.usage.num_output_tokens == 1
    assert completed.timings.queue_s == pytest.approx(0.25)
    assert completed.timings.prefill_s == pytest.approx(0.5)
    assert completed.timings.compute_s == pytest.approx(2.5)
    assert completed.timings.ttft_s == pytest.approx(1.0)
    assert completed.timings.decode_s == pytest.approx((2.0,))


async def test_each_choice_has_its_own_time_in_the_engine(make: Any) -> None:
    tokenizer = FakeTokenizer()
    play = says(tokenizer, ["abc", "long text"])

    def script(request: Request) -> list[tuple[Event, ...]]:
        *batches, (end,) = play(request)
        assert isinstance(end, RequestFinished)
        is_second = len(world.engine.streams) == 1
        return [*batches, (replace(end, finished_s=end.finished_s + 7.0 * is_second),)]

    world = make(script=script)
    completed = (await collect(world.chat(num_choices=2)))[-1]
    assert isinstance(completed, Completed)
    assert completed.timings.decode_s == pytest.approx((2.0, 9.0))


async def test_request_carries_options_defaults_and_arrival(make: Any) -> None:
    world = make()
    await collect(world.chat(top_p=0.3, cache_salt="s", is_cached=False, may_speculate=False, seed=5))
    (request,) = world.engine.requests
    assert (request.params.temperature, request.params.top_p, request.params.seed) == (0.5, 0.3, 5)
    assert (request.cache_salt, request.use_cache, request.arrival_s, request.tier) == ("s", False, 10.0, ServiceTier.DEFAULT)
    assert not request.may_speculate
    assert request.params.max_tokens == 1000 - request.num_prompt_tokens


async def test_a_deterministic_call_runs_alone_uncached_and_with_a_fixed_seed(make: Any) -> None:
    world = make(engine_facts=replace(facts(), deterministic="on"))
    await collect(world.chat(is_deterministic=True))
    await collect(world.chat(is_deterministic=True, seed=5))
    await collect(world.chat())
    asked, seeded, plain = world.engine.requests
    assert (asked.is_deterministic, asked.use_cache, asked.may_speculate, asked.params.seed) == (True, False, False, 0)
    assert seeded.params.seed == 5
    assert (plain.is_deterministic, plain.use_cache, plain.may_speculate) == (False, True, True)


async def test_a_server_can_make_every_call_deterministic(make: Any) -> None:
    world = make(engine_facts=replace(facts(), deterministic="always"))
    await collect(world.chat())
    assert world.engine.requests[0].is_deterministic


async def test_a_deterministic_call_is_refused_where_that_is_off(make: Any) -> None:
    world = make()
    with pytest.raises(InvalidRequestError) as caught:
        await collect(world.chat(is_deterministic=True))
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "deterministic")
    assert caught.value.hint is not None
    assert world.engine.requests == []


async def test_only_a_call_of_one_sequence_may_be_moved_to_another_tier(make: Any) -> None:
    world = make(["one", "two", "three"])
    await collect(world.chat())
    await collect(world.chat(num_choices=2))
    assert [request.slo.is_movable for request in world.engine.requests] == [True, False, False]


async def test_a_stop_string_ends_the_stream_as_complete(make: Any) -> None:
    world = make("Hello ## more")
    await collect(world.chat(stop=("##",)))
    assert world.engine.streams[0].is_stopped


async def test_choices_share_prompt_and_differ_in_seed(make: Any) -> None:
    world = make(["Hello user", "other\n", "third"])
    events = await collect(world.chat(num_choices=3, seed=7))
    assert [texts(events, index) for index in range(3)] == ["Hello user", "other\n", "third"]
    assert [request.params.seed for request in world.engine.requests] == [7, 8, 9]
    assert len({request.prompt_tokens for request in world.engine.requests}) == 1
    assert len({request.request_id for request in world.engine.requests}) == 3
    assert sum(isinstance(event, ChoiceFinished) for event in events) == 3
    assert sum(isinstance(event, Started) for event in events) == 1
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.usage.num_prompt_tokens == world.engine.requests[0].num_prompt_tokens
    assert completed.usage.num_cached_tokens == 3
    assert completed.usage.num_output_tokens == sum(event.num_tokens for event in events if isinstance(event, Delta))


async def test_stop_string_aborts_the_engine_and_counts_what_was_delivered(make: Any) -> None:
    world = make("ab##c and much more", hangs=True)
    events = await collect(world.chat(stop=("##",)))
    assert texts(events) == "ab"
    assert ChoiceFinished(0, "stop", "##") in events
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.usage.num_output_tokens == 2
    assert world.engine.streams[0].is_aborted


async def test_min_tokens_holds_for_stop_strings_too(make: Any) -> None:
    world = make("ab##c and ##")
    events = await collect(world.chat(stop=("##",), min_tokens=5))
    assert texts(events) == "ab##c and "


async def test_one_choice_stopped_while_another_goes_on(make: Any) -> None:
    world = make(["a##b", "long text without it"])
    events = await collect(world.chat(stop=("##",), num_choices=2))
    assert (texts(events, 0), texts(events, 1)) == ("a", "long text without it")


@pytest.mark.parametrize(("reason", "expected"), [(FinishReason.STOP, "stop"), (FinishReason.LENGTH, "length")])
async def test_finish_reasons(make: Any, reason: FinishReason, expected: str) -> None:
    tokenizer = FakeTokenizer()
    world = make(script=says(tokenizer, "x", reason))
    assert ChoiceFinished(0, expected) in await collect(world.chat())


async def test_an_execution_deadline_cuts_the_answer_and_is_named(make: Any) -> None:
    world = make(script=says(FakeTokenizer(), "x", FinishReason.DEADLINE))
    events = await collect(world.chat())
    assert texts(events) == "x"
    assert events[-2] == ChoiceFinished(0, "length", "execution_timeout")
    assert isinstance(events[-1], Completed)
    assert events[-1].is_timed_out


async def test_no_token_at_all_still_starts_and_completes(make: Any) -> None:
    events = await collect(make("").chat())
    assert [type(event) for event in events] == [Started, ChoiceFinished, Completed]


async def test_engine_error_is_raised(make: Any) -> None:
    world = make(script=lambda request: [(finished(request, FinishReason.ERROR, error="out of luck"),)])
    with pytest.raises(EngineFailedError, match="out of luck"):
        await collect(world.chat())


async def test_engine_error_after_the_first_token(make: Any) -> None:
    world = make(
        script=lambda request: [(TokenProduced(request.request_id, 80),), (finished(request, FinishReason.ERROR, error="x"),)]
    )
    stream = world.chat()
    assert isinstance(await anext(stream), Started)
    assert isinstance(await anext(stream), Delta)
    with pytest.raises(EngineFailedError):
        await anext(stream)


async def test_abort_by_the_engine_means_shutting_down(make: Any) -> None:
    world = make(script=lambda request: [(finished(request, FinishReason.ABORT),)])
    with pytest.raises(UnavailableError):
        await collect(world.chat())


async def test_stream_that_ends_without_a_terminal_event_is_an_error(make: Any) -> None:
    with pytest.raises(EngineFailedError):
        await collect(make(script=lambda request: []).chat(num_choices=2))


async def test_failing_submit_aborts_the_choices_before_it(make: Any) -> None:
    world = make()
    original = world.engine.submit

    def submit(request: Any) -> Any:
        if len(world.engine.streams) == 2:
            raise UnavailableError("full")
        return original(request)

    world.engine.submit = submit
    with pytest.raises(UnavailableError):
        await collect(world.chat(num_choices=3))
    assert all(stream.is_aborted for stream in world.engine.streams)


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_leaving_the_stream_aborts_everything(make: Any, num_choices: int) -> None:
    world = make("Hello user", hangs=True)
    stream = world.chat(num_choices=num_choices)
    assert isinstance(await anext(stream), Started)
    await stream.aclose()
    assert len(world.engine.streams) == num_choices
    assert all(stream.is_aborted for stream in world.engine.streams)


@pytest.mark.parametrize("num_choices", [1, 3])
async def test_cancelling_the_reader_aborts_everything(make: Any, num_choices: int) -> None:
    world = make("", script=lambda request: [], hangs=True)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(collect(world.chat(num_choices=num_choices)))
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(world.engine.streams) == num_choices
        task.cancel()
    assert task.cancelled()
    assert all(stream.is_aborted for stream in world.engine.streams)


@pytest.mark.parametrize(
    ("options", "error", "param"),
    [
        ({"model": "other"}, ModelNotFoundError, "model"),
        ({"content": "x" * 2000}, ContextLengthError, "messages"),
        ({"max_tokens": 990}, ContextLengthError, "max_tokens"),
        ({"logit_bias": ((99999, 1.0),)}, InvalidRequestError, "logit_bias"),
        ({"stop_token_ids": (-1,)}, InvalidRequestError, "stop_token_ids"),
        ({"num_choices": 500}, InvalidRequestError, "n"),
        ({"tools": [WEATHER]}, InvalidRequestError, "tools"),
        ({"response_format": ResponseFormat("json_schema", {"type": "zzz"})}, InvalidRequestError, "response_format"),
    ],
)
async def test_refusals_come_before_the_engine(
    make: Any, options: dict[str, Any], error: type[UltrafastError], param: str
) -> None:
    world = make()
    with pytest.raises(error) as caught:
        await collect(world.chat(**options))
    assert caught.value.param == param
    assert not world.engine.streams


async def test_long_prompts_are_prepared_on_a_worker(make: Any) -> None:
    world = make(engine_facts=facts(max_request_tokens=1_000_000))
    assert texts(await collect(world.chat("words " * 20_000))) == "Hello"


async def test_hopeless_text_is_never_tokenised(make: Any) -> None:
    world = make()
    with pytest.raises(ContextLengthError):
        await collect(world.chat("x" * 100_000))
    with pytest.raises(ContextLengthError):
        await collect(world.complete("x" * 100_000))
    with pytest.raises(InvalidRequestError, match="limit"):
        await world.service.tokenize("x" * 2_000_000)
    assert world.tokenizer.num_tokenized_chars == 0


async def test_completion_of_several_prompts(make: Any) -> None:
    world = make(["one", "two", "three", "four"])
    events = await collect(world.complete("ab", [80, 81], num_choices=2))
    assert [texts(events, index) for index in range(4)] == ["one", "two", "three", "four"]
    prompts = [request.prompt_tokens for request in world.engine.requests]
    assert prompts[0] == prompts[1]
    assert prompts[2] == prompts[3] == (80, 81)
    completed = events[-1]
    assert isinstance(completed, Completed)
    assert completed.usage.num_prompt_tokens == 4


async def test_control_tokens_of_a_completion_prompt_are_meant(make: Any) -> None:
    world = make()
    await collect(world.complete("<|im_start|>"))
    assert world.engine.requests[0].prompt_tokens == (world.tokenizer.control["<|im_start|>"],)


async def test_echo(make: Any) -> None:
    events = await collect(make("Hello").complete("user\n", num_choices=2, echo=True))
    assert [texts(events, index) for index in range(2)] == ["user\nHello"] * 2


@pytest.mark.parametrize(
    ("prompt", "options", "param"),
    [
        ([99999], {}, "prompt"),
        ([], {}, "prompt"),
        ("", {}, "prompt"),
        ("x", {"echo": True, "num_logprobs": 0}, "logprobs"),
    ],
)
async def test_bad_completions(make: Any, prompt: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await collect(make().complete(prompt, **options))
    assert caught.value.param == param


async def test_tool_call(make: Any) -> None:
    world = make('Hm.\n<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>', templates.HERMES_TOOLS)
    events = await collect(world.chat(tools=[WEATHER]))
    (call,) = [call for event in events if isinstance(event, Delta) for call in event.tool_calls]
    assert (call.name, call.arguments) == ("weather", '{"city": "Oslo"}')
    assert texts(events) == "Hm."
    assert ChoiceFinished(0, "tool_calls") in events
    prompt = await world.service.detokenize(world.engine.requests[0].prompt_tokens)
    assert '"name": "weather"' in prompt


async def test_tool_call_whose_marker_is_a_control_token(make: Any) -> None:
    world = make('[TOOL_CALLS][{"name": "weather", "arguments": {}}]', templates.MISTRAL_TOOLS)
    events = await collect(world.chat(tools=[WEATHER]))
    (call,) = [call for event in events if isinstance(event, Delta) for call in event.tool_calls]
    assert (call.name, call.arguments) == ("weather", "{}")
    assert ChoiceFinished(0, "tool_calls") in events


async def test_forced_tool_call_has_a_grammar(make: Any) -> None:
    world = make("x", templates.HERMES_TOOLS)
    await collect(world.chat(tools=[WEATHER], choice="required"))
    assert world.engine.requests[0].params.grammar is not None


async def test_reasoning_of_a_prompt_that_opens_it(make: Any) -> None:
    events = await collect(make("because\n</think>\n\nyes", templates.THINKING).chat())
    assert "".join(event.reasoning for event in events if isinstance(event, Delta)) == "because"
    assert texts(events) == "yes"


async def test_reasoning_tags_are_text_for_other_models(make: Any) -> None:
    assert texts(await collect(make("<think>x</think>y").chat())) == "<think>x</think>y"


async def test_tokenize_and_detokenize(make: Any) -> None:
    service = make().service
    tokens = await service.tokenize("Hello<|im_end|>")
    assert await service.detokenize(tokens) == "Hello<|im_end|>"
    chat = await service.tokenize_chat(Conversation([{"role": "user", "content": "Hello"}], []))
    assert await service.detokenize(chat) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(InvalidRequestError):
        await service.detokenize([5000])


class _Pieces(list[bytes]):
    """Notes which threads look one token up."""

    def __init__(self, pieces: list[bytes], watched: int) -> None:
        super().__init__(pieces)
        self.watched = watched
        self.threads: set[str] = set()

    def __getitem__(self, token: Any) -> Any:
        if token == self.watched:
            self.threads.add(threading.current_thread().name.split("_")[0])
        return super().__getitem__(token)


@pytest.mark.parametrize("work", ["detokenize", "token_texts", "echo"])
async def test_many_tokens_become_text_on_a_worker(make: Any, work: str) -> None:
    world = make("other", engine_facts=facts(max_request_tokens=20_000))
    (token,) = await world.service.tokenize("Hello")
    pieces = world.tokenizer.pieces = _Pieces(world.tokenizer.pieces, token)

    async def spell(num_tokens: int) -> None:
        if work == "echo":
            started = world.complete([token] * num_tokens, echo=True, max_tokens=1)
            await anext(started)
            echoed = await anext(started)
            await started.aclose()
            assert echoed.text == "Hello" * num_tokens
        else:
            text = await getattr(world.service, work)([token] * num_tokens)
            assert text == ("Hello" * num_tokens if work == "detokenize" else ["Hello"] * num_tokens)

    await spell(10_000)
    assert pieces.threads == {"prompt"}
    pieces.threads.clear()
    await spell(10)
    assert pieces.threads == {threading.main_thread().name}


async def test_ids_beyond_the_context_are_refused_unread(make: Any) -> None:
    with pytest.raises(ContextLengthError, match="at least 1000"):
        await collect(make().complete([99_999] * 1000))


async def test_the_texts_of_tokens_are_those_of_each_alone(make: Any) -> None:
    service = make().service
    tokens = await service.tokenize("Hello\u00e9<|im_end|>")
    assert await service.token_texts(tokens) == ["Hello", "\ufffd", "\ufffd", "<|im_end|>"]
    with pytest.raises(InvalidRequestError):
        await service.token_texts([*tokens, 5000])


def test_models(make: Any) -> None:
    (info,) = make().service.models()
    assert (info.model_id, info.created_s, info.facts.build) == ("m", 1, "b0")


async def test_times_of_a_restarted_clock_are_never_negative(make: Any) -> None:
    def script(request: Any) -> list[Any]:
        return [(replace(finished(request), scheduled_s=1.0, first_token_s=None, finished_s=0.5),)]

    completed = (await collect(make(script=script).chat()))[-1]
    assert isinstance(completed, Completed)
    assert min(completed.timings.queue_s, completed.timings.compute_s, completed.timings.prefill_s, completed.timings.ttft_s) >= 0


@pytest.mark.parametrize("kind", ["chat", "prompts"])
async def test_what_no_idle_engine_has_room_for_never_reaches_it(make: Any, kind: str) -> None:
    policies = {tier: replace(policy, max_num_waiting=2) for tier, policy in zip(ServiceTier, DEFAULT_POLICIES, strict=True)}
    world = make(policies=policies)
    most = world.engine.facts.max_num_running + 2

    def ask(num: int) -> AsyncGenerator[ServingEvent, None]:
        return world.chat(num_choices=num) if kind == "chat" else world.complete(*["a"] * num)

    await collect(ask(most))
    with pytest.raises(InvalidRequestError, match=f"at most {most}:"):
        await collect(ask(most + 1))
    assert len(world.engine.requests) == most


@pytest.mark.parametrize("is_last", [True, False], ids=["with_the_end", "before_it"])
async def test_the_engine_is_told_how_many_tokens_were_delivered(make: Any, is_last: bool) -> None:
    """What stands behind a stop string is in no usage; whoever counts the engine's tokens must not count it either."""
    world = make("abcSTOPde", engine_facts=facts())
    play = world.engine.script
    if is_last:  # the tokens and the end come in one batch
        world.engine.script = lambda request: [tuple(event for batch in play(request) for event in batch)]
    events = await collect(world.chat(stop=("STOP",)))
    (stream,) = world.engine.streams
    assert stream.is_counted
    assert isinstance(events[-1], Completed)
    assert stream.num_delivered == events[-1].usage.num_output_tokens == 3
    await collect(world.chat())
    assert not world.engine.streams[-1].is_counted
