"""The next turn begun ahead: only while nobody calls, exactly what the next prompt begins with, and dropped for any call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.engine_facts import engine_facts
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer, ScriptedEngine, finished, says

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import InvalidRequestError, UnavailableError
from ultrafast.core.events import Event
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import ChatCall, GenerationOptions, ServingEvent
from ultrafast.serving.next_turn import MAX_TURNS, NextTurns
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.service import Service

SAID = [{"role": "user", "content": "Hi"}]


async def tokenize(conversation: Conversation) -> list[int]:
    """One token per character, the role in front."""
    if any(message["content"] == "refused" for message in conversation.messages):
        raise InvalidRequestError("no")
    return [ord(letter) for message in conversation.messages for letter in f"<{message['role']}>{message['content']}"]


class Stream:
    """Of an engine that ends a request when it is told to."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.end: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()

    async def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        yield (finished(self.request, await self.end),)

    def abort(self) -> None:
        if not self.end.done():
            self.end.set_result(FinishReason.ABORT)


class Engine:
    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.error: Exception | None = None

    def submit(self, request: Request) -> Stream:
        if self.error is not None:
            raise self.error
        self.streams.append(Stream(request))
        return self.streams[-1]

    @property
    def prompts(self) -> list[str]:
        return ["".join(map(chr, stream.request.prompt_tokens)) for stream in self.streams]


@asynccontextmanager
async def running(engine: Any) -> AsyncIterator[NextTurns]:
    turns = NextTurns(engine, tokenize, ManualClock(5.0), idle_s=0.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(turns.run())
        yield turns
        task.cancel()


async def settle(until: Callable[[], bool] = lambda: False) -> None:
    for _ in range(50):
        if until():
            return
        await asyncio.sleep(0)


def answer(turns: NextTurns, text: str = "Hello", messages: list[dict[str, Any]] = SAID, salt: str = "") -> None:
    with turns.paused():
        turns.note(Conversation(messages, []), text, salt)


async def test_what_is_computed_is_what_every_next_prompt_begins_with() -> None:
    engine = Engine()
    async with running(engine) as turns:
        answer(turns, salt="mine")
        await settle()
        (stream,) = engine.streams
        stream.end.set_result(FinishReason.LENGTH)
        await settle()
    assert engine.prompts == ["<user>Hi<assistant>Hello<user>"]
    request = stream.request
    assert (request.cache_salt, request.tier, request.params.max_tokens) == ("mine", ServiceTier.FLEX, 1)
    assert request.is_internal
    assert request.is_admitted
    assert not request.is_pinned


async def test_nothing_is_computed_while_somebody_calls() -> None:
    engine = Engine()
    async with running(engine) as turns:
        with turns.paused():
            answer(turns)
            await settle()
            assert not engine.streams
        await settle()
        assert len(engine.streams) == 1


async def test_a_call_drops_what_is_being_computed_and_it_is_begun_again_afterwards() -> None:
    engine = Engine()
    async with running(engine) as turns:
        answer(turns)
        await settle()
        with turns.paused():
            assert engine.streams[0].end.done(), "the engine must know before the call's own request follows"
            await settle()
            assert len(engine.streams) == 1
        await settle()
        assert engine.prompts == ["<user>Hi<assistant>Hello<user>"] * 2


async def test_a_call_that_comes_while_the_prompt_is_made_is_waited_for() -> None:
    engine = Engine()
    made = asyncio.Event()

    async def slow(conversation: Conversation) -> list[int]:
        await made.wait()
        return await tokenize(conversation)

    turns = NextTurns(engine, slow, ManualClock(5.0), idle_s=0.0)  # type: ignore[arg-type]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(turns.run())
        answer(turns)
        await settle()
        with turns.paused():
            made.set()
            await settle()
            assert not engine.streams
        await settle()
        assert len(engine.streams) == 1
        task.cancel()


async def test_the_newest_comes_last_and_a_burst_is_bounded() -> None:
    engine = Engine()
    async with running(engine) as turns:
        with turns.paused():
            for number in range(MAX_TURNS + 3):
                answer(turns, str(number))
        for number in range(MAX_TURNS):
            await settle(lambda number=number: len(engine.streams) > number)  # type: ignore[misc]
            engine.streams[number].end.set_result(FinishReason.LENGTH)
        await settle()
    assert engine.prompts == [f"<user>Hi<assistant>{number}<user>" for number in range(3, MAX_TURNS + 3)]


@pytest.mark.parametrize("trouble", ["template", "engine"])
async def test_one_that_cannot_be_begun_is_forgotten_and_holds_up_no_other(trouble: str) -> None:
    engine = Engine()
    async with running(engine) as turns:
        if trouble == "engine":
            engine.error = UnavailableError("stopping")
        answer(turns, "refused")
        await settle()
        engine.error = None
        answer(turns)
        await settle()
    assert engine.prompts == ["<user>Hi<assistant>Hello<user>"]


# -- which calls have a next turn ---------------------------------------------------------------------------------------------


def _call(**options: Any) -> ChatCall:
    tools = options.pop("tools", [])
    return ChatCall("id", "m", SAID, GenerationOptions(**options), 10.0, tools)


async def _collect(stream: AsyncGenerator[ServingEvent, None]) -> None:
    async for _ in stream:
        pass


async def _begun(call: ChatCall, text: str = "Hello", *, is_on: bool = True) -> list[str]:
    """Answer a call and return the texts of the prompts that are begun then."""
    tokenizer = FakeTokenizer(templates.HERMES_TOOLS)
    engine = ScriptedEngine(says(tokenizer, text), engine_facts(deterministic="on", max_num_running=4))
    service = Service(engine, tokenizer, model_id="m", created_s=1, begins_next_turns=is_on)
    service._next_turns._idle_s = 0.0
    async with asyncio.TaskGroup() as group:
        task = group.create_task(service.run())
        await _collect(service.chat(call))
        num_asked = len(engine.requests)
        await settle()
        task.cancel()
    service.close()
    own = engine.requests[num_asked:]
    return ["".join(map(tokenizer.special_text, request.prompt_tokens)) for request in own]


async def test_a_plain_answer_has_one() -> None:
    (prompt,) = await _begun(_call())
    assert prompt.endswith("<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\n")


WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize(
    "call",
    [
        _call(stop=("ell",)),
        _call(num_choices=2),
        _call(is_cached=False),
        _call(is_deterministic=True),
        _call(tools=[WEATHER]),
    ],
    ids=["cut at a stop string", "several choices", "no cache", "deterministic", "tools"],
)
async def test_other_answers_have_none(call: ChatCall) -> None:
    assert await _begun(call) == []


async def test_it_can_be_switched_off() -> None:
    assert await _begun(_call(), is_on=False) == []
