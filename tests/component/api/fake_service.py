"""A service whose answers a test writes down. Scripts are chosen by the model name; "m" is a plain answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tests.engine_facts import engine_facts

from ultrafast.core.errors import InvalidRequestError, ModelNotFoundError
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.health import EngineHealth, EngineState
from ultrafast.serving.contract import (
    ChatCall,
    ChoiceFinished,
    Completed,
    CompletionCall,
    Delta,
    Placed,
    ServingEvent,
    Started,
    Timings,
    Usage,
)
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.prompts import Conversation
from ultrafast.serving.service import ModelInfo

FACTS = engine_facts(build="b1", max_request_tokens=2048, vocab_size=256, has_flash_attention=True)

MAX_CHOICES = 128
"""More than any script has."""

Call = ChatCall | CompletionCall
Script = Callable[[Call], AsyncGenerator[ServingEvent | Placed, None]]


def started(call: Call) -> Started:
    tier = call.options.requested_tier
    return Started(tier or ServiceTier.DEFAULT, "requested" if tier else "default", 7, 3, 0.001, 0.002)


PLACED = Placed(ServiceTier.DEFAULT, "default", 0.001)


def completed(num_tokens: int) -> Completed:
    timings = Timings(queue_s=0.0, compute_s=0.0, prefill_s=0.0, ttft_s=0.0, decode_s=(0.0,) * MAX_CHOICES)
    return Completed(Usage(7, num_tokens, 3), timings)


def speaking(*texts: str, reason: str = "stop") -> Script:
    """Say each text as one token, in every choice."""

    async def script(call: Call) -> AsyncGenerator[ServingEvent, None]:
        num_prompts = len(call.prompts) if isinstance(call, CompletionCall) else 1
        indices = range(call.options.num_choices * num_prompts)
        yield started(call)
        for text in texts:
            for index in indices:
                yield Delta(index, text, num_tokens=1)
        for index in indices:
            yield ChoiceFinished(index, reason)
        yield completed(len(texts) * len(indices))

    return script


def playing(*events: ServingEvent | Placed | Exception) -> Script:
    """Yield the events; raise what is an exception."""

    async def script(_: Call) -> AsyncGenerator[ServingEvent | Placed, None]:
        for event in events:
            if isinstance(event, Exception):
                raise event
            yield event

    return script


def failing(error: Exception, num_tokens: int) -> Script:
    """Say some tokens, then raise."""

    async def script(call: Call) -> AsyncGenerator[ServingEvent, None]:
        if num_tokens:
            yield started(call)
        for _ in range(num_tokens):
            yield Delta(0, "x", num_tokens=1)
        raise error

    return script


@dataclass
class Gate:
    """Holds a script at a point; counts who is inside and how they left."""

    num_inside: int = 0
    num_aborted: int = 0
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        self.num_inside += 1
        self.entered.set()
        try:
            await self.opened.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.num_aborted += 1
            raise
        finally:
            self.num_inside -= 1
            self.left.set()


def waiting(gate: Gate, *before: str, after: Sequence[str] = ("end",)) -> Script:
    """Say some texts, wait at the gate, say the others. Without texts before, the wait is before the first token."""

    async def script(call: Call) -> AsyncGenerator[ServingEvent | Placed, None]:
        yield PLACED
        if before:
            yield started(call)
        for text in before:
            yield Delta(0, text, num_tokens=1)
        await gate.wait()
        if not before:
            yield started(call)
        for text in after:
            yield Delta(0, text, num_tokens=1)
        yield ChoiceFinished(0, "stop")
        yield completed(len(before) + len(after))

    return script


def flooding(piece: str, closed: asyncio.Event) -> Script:
    """Say a text for ever."""

    async def script(call: Call) -> AsyncGenerator[ServingEvent, None]:
        yield started(call)
        try:
            while True:
                yield Delta(0, piece, num_tokens=1)
                await asyncio.sleep(0)
        finally:
            closed.set()

    return script


async def _past(
    lane: DeltaLane | None, events: AsyncGenerator[ServingEvent | Placed, None]
) -> AsyncGenerator[ServingEvent, None]:
    """Every delta takes the lane that can, as in the real service. A place is told to the lane."""
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Placed):
                assert lane is not None
                lane.placed = event
            elif isinstance(event, Delta) and lane is not None and lane.is_open():
                lane.take(event)
            else:
                yield event


class FakeService:
    """Implements `api.ports.ServicePort`. `calls` are those that were begun, in order."""

    def __init__(self, scripts: dict[str, Script] | None = None) -> None:
        self.scripts: dict[str, Script] = {"m": speaking("Hello", " world"), **(scripts or {})}
        self.calls: list[Call] = []

    def models(self) -> list[ModelInfo]:
        return [ModelInfo("m", 1700000000, FACTS)]

    async def chat(self, call: ChatCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:
        async for event in _past(lane, self._play(call)):
            yield event

    async def complete(self, call: CompletionCall, lane: DeltaLane | None = None) -> AsyncGenerator[ServingEvent, None]:
        async for event in _past(lane, self._play(call)):
            yield event

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return [1] * add_special + list(text.encode())

    async def tokenize_chat(self, conversation: Conversation) -> list[int]:
        return [len(conversation.messages), len(conversation.tools)]

    async def detokenize(self, tokens: Sequence[int]) -> str:
        if any(token > 255 for token in tokens):
            raise InvalidRequestError("tokens: out of range", param="tokens")
        return bytes(tokens).decode("utf-8", "replace")

    async def token_texts(self, tokens: Sequence[int]) -> list[str]:
        return [await self.detokenize([token]) for token in tokens]

    async def _play(self, call: Call) -> AsyncGenerator[ServingEvent | Placed, None]:
        if call.model not in self.scripts:
            raise ModelNotFoundError(f"the model {call.model!r} is not served here", param="model")
        self.calls.append(call)
        events = self.scripts[call.model](call)
        try:
            async for event in events:
                yield event
        finally:
            await events.aclose()


def healthy() -> EngineHealth:
    return health(EngineState.READY)


def health(state: EngineState, *, is_stalled: bool = False) -> EngineHealth:
    return EngineHealth(state, 0.5, is_stalled, is_stalled, 0, 1)
