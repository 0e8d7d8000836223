"""Deltas through the lane and through the events are one text in one order, whichever takes what."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.serving.fakes import FakeTokenizer, facts, finished

from ultrafast.core.events import DropReason, RequestScheduled, TokenProduced
from ultrafast.core.request import Request
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.stream import EngineStream
from ultrafast.serving.contract import ChatCall, ChoiceFinished, Delta, GenerationOptions, Placed
from ultrafast.serving.lane import DeltaLane
from ultrafast.serving.service import Service

TEXT = "Grüße 👋 to you and everybody else"


@dataclass
class Engine:
    """Real streams, which the test pushes to."""

    facts: object = field(default_factory=facts)
    requests: list[Request] = field(default_factory=list)
    streams: list[EngineStream] = field(default_factory=list)

    def looks_full(self, tier: ServiceTier, *, wholly: bool = False) -> bool:
        return False

    def submit(self, request: Request) -> EngineStream:
        self.requests.append(request)
        self.streams.append(EngineStream(request.request_id, lambda _: None))
        return self.streams[-1]


class World:
    def __init__(self, template: str = "{{ messages[0].content }}", **options: object) -> None:
        self.tokenizer = FakeTokenizer(template)
        self.engine = Engine()
        service = Service(self.engine, self.tokenizer, model_id="m", created_s=1, clock=lambda: 10.0)  # type: ignore[arg-type]
        self.is_open = True
        self.seen: list[tuple[str, object]] = []
        self.lane = DeltaLane(lambda: self.is_open, lambda delta: self.seen.append(("lane", delta)))
        call = ChatCall("id", "m", [{"role": "user", "content": "Hi"}], GenerationOptions(**options), 10.0)  # type: ignore[arg-type]
        self.events = service.chat(call, self.lane)

    async def read(self) -> None:
        async for event in self.events:
            self.seen.append(("events", event))

    def text(self, index: int = 0) -> str:
        return "".join(event.text for _, event in self.seen if isinstance(event, Delta) and event.index == index)

    def tokens(self, text: str = TEXT) -> list[int]:
        return self.tokenizer.tokenize(text, add_special=False, parse_special=False)

    def push(self, index: int, token: int) -> None:
        self.engine.streams[index].push(TokenProduced(self.engine.requests[index].request_id, token))

    def schedule(self, index: int) -> None:
        self.engine.streams[index].push(RequestScheduled(self.engine.requests[index].request_id, 10.5, 0))

    def finish(self, index: int, text: str = TEXT) -> None:
        self.engine.streams[index].push(finished(self.engine.requests[index], num_output=len(self.tokens(text))))


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=60, max_size=60))
async def test_the_text_is_whole_and_in_order(moments: list[tuple[bool, bool]]) -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        group.create_task(world.read())
        await turns()
        world.schedule(0)
        for token, (is_open, lets_read) in zip(world.tokens(), moments, strict=False):
            world.is_open = is_open
            world.push(0, token)
            if lets_read:
                await turns()
        world.finish(0)
    assert world.text() == TEXT
    assert isinstance(world.seen[-2][1], ChoiceFinished)
    assert sum(event.num_tokens for _, event in world.seen if isinstance(event, Delta)) == len(world.tokens())


async def test_the_usual_token_takes_the_lane() -> None:
    world = World()
    async with asyncio.TaskGroup() as group:
        group.create_task(world.read())
        await turns()
        world.schedule(0)
        for token in world.tokens():
            world.push(0, token)
            await turns()
        world.finish(0)
    ways = [way for way, event in world.seen if isinstance(event, Delta)]
    assert ways[0] == "events", "the first one comes with Started"
    assert set(ways[1:]) == {"lane"}


async def test_the_place_is_told_before_the_first_token_and_no_other_one() -> None:
    world = World(num_choices=2)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.read())
        await turns()
        assert world.lane.placed is None
        request_id = world.engine.requests[0].request_id
        moved = RequestScheduled(request_id, 12.5, 0, ServiceTier.FLEX, DropReason.SLO_AT_RISK)
        world.engine.streams[0].push(moved)
        await turns()
        placed = Placed(ServiceTier.FLEX, "slo_at_risk", 2.5)
        assert world.lane.placed == placed
        assert not world.seen
        world.schedule(1)
        await turns()
        assert world.lane.placed == placed
        for index in range(2):
            world.push(index, world.tokens()[0])
            world.finish(index)


async def test_reasoning_takes_the_lane_too() -> None:
    world = World("{# <think> </think> #}{{ messages[0].content }}")
    text = "<think>first this, then that</think>so it is"
    async with asyncio.TaskGroup() as group:
        group.create_task(world.read())
        await turns()
        world.schedule(0)
        for token in world.tokens(text):
            world.push(0, token)
            await turns()
        world.finish(0, text)
    deltas = [event for _, event in world.seen if isinstance(event, Delta)]
    assert "".join(delta.reasoning for delta in deltas) == "first this, then that"
    assert world.text() == "so it is"
    assert sum(delta.num_tokens for delta in deltas) == len(world.tokens(text))
    assert sum(way == "events" and isinstance(event, Delta) for way, event in world.seen) <= 2


@pytest.mark.parametrize("options", [{"num_choices": 2}, {"stop": ("##",)}])
async def test_where_order_or_text_could_change_nothing_does(options: dict[str, object]) -> None:
    world = World(**options)
    async with asyncio.TaskGroup() as group:
        group.create_task(world.read())
        await turns()
        indices = range(len(world.engine.streams))
        for index in indices:
            world.schedule(index)
        for token in world.tokens():
            for index in indices:
                world.push(index, token)
            await turns()
        for index in indices:
            world.finish(index)
    assert all(world.text(index) == TEXT for index in indices)
    assert {way for way, _ in world.seen} == {"events"}
