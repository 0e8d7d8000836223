"""Grammars are compiled in the order of tiers, within the bounds of the queue, and for nobody who has left."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import EngineFailedError, InvalidRequestError
from ultrafast.core.events import DropReason
from ultrafast.core.request import Request, RequestSlo, SamplingParams
from ultrafast.core.tiers import ServiceTier, TierPolicy
from ultrafast.engine.grammars import CompileBounds, Compiled, GrammarCompiler

WAIT_S = 20.0
POLICY = TierPolicy(ttft_s=1.0, tpot_s=0.1, max_num_waiting=3, max_waiting_tokens=100, queue_ttl_s=10.0)


class World:
    """A compiler whose thread begins "begun" and then waits for the test."""

    def __init__(self, num_places: int = 1, order: tuple[ServiceTier, ...] = tuple(ServiceTier)) -> None:
        self.gate, self.has_begun = threading.Event(), threading.Event()
        self.begun: list[str] = []
        self.done: queue.SimpleQueue[Compiled] = queue.SimpleQueue()
        self.compile_s = 0.0
        self.clock = ManualClock(100.0)
        self.errors: dict[str, Exception] = {}
        self.compiler = GrammarCompiler(
            self.prepare, self.done.put, self.clock, CompileBounds(order, (POLICY,) * len(order), num_places)
        )

    def prepare(self, request: Request) -> None:
        self.begun.append(request.request_id)
        self.has_begun.set()
        assert self.gate.wait(WAIT_S)
        self.clock.advance(self.compile_s)
        if request.request_id in self.errors:
            raise self.errors[request.request_id]

    def begin(self, tier: ServiceTier = ServiceTier.FLEX) -> None:
        self.compiler.submit(make("begun", tier))
        assert self.has_begun.wait(WAIT_S)

    def finish(self, num: int) -> list[Compiled]:
        self.gate.set()
        return [self.done.get(timeout=WAIT_S) for _ in range(num)]


@pytest.fixture
def world() -> Iterator[World]:
    instance = World()
    yield instance
    instance.gate.set()
    instance.compiler.close()


def make(name: str, tier: ServiceTier = ServiceTier.FLEX, num_tokens: int = 10, **fields: object) -> Request:
    params = SamplingParams(grammar="g")
    return replace(Request(name, (1,) * num_tokens, params, tier, arrival_s=100.0), **fields)  # type: ignore[arg-type]


def test_the_most_urgent_tier_is_compiled_first_and_in_order_of_arrival_within(world: World) -> None:
    world.begin()
    for name, tier in (
        ("f1", ServiceTier.FLEX),
        ("d", ServiceTier.DEFAULT),
        ("u1", ServiceTier.ULTRAFAST),
        ("f2", ServiceTier.FLEX),
    ):
        world.compiler.submit(make(name, tier))
    world.compiler.submit(make("u2", ServiceTier.ULTRAFAST))
    world.finish(6)
    assert world.begun == ["begun", "u1", "u2", "d", "f1", "f2"]


def test_the_order_is_the_servers() -> None:
    world = World(order=(ServiceTier.FLEX, ServiceTier.ULTRAFAST))
    world.begin()
    world.compiler.submit(make("u", ServiceTier.ULTRAFAST))
    world.compiler.submit(make("f", ServiceTier.FLEX))
    world.finish(3)
    assert world.begun == ["begun", "f", "u"]
    world.compiler.close()


def test_who_has_left_is_not_compiled(world: World) -> None:
    world.begin()
    for name in ("gone", "stays"):
        world.compiler.submit(make(name))
    assert world.compiler.take("gone") is not None
    assert world.compiler.take("gone") is None
    world.finish(2)
    assert world.begun == ["begun", "stays"]


def test_requests_that_come_and_go_leave_nothing_behind(world: World) -> None:
    world.begin()
    for number in range(1000):
        world.compiler.submit(make(f"r{number}"))
        world.compiler.take(f"r{number}")
    assert len(world.compiler._waiting) <= 2
    assert len(world.compiler._deadlines) <= 20


def test_who_waited_too_long_leaves_and_is_not_compiled(world: World) -> None:
    world.begin()
    hurried = make("hurried", slo=RequestSlo(queue_ttl_s=2.0))
    for request in (make("patient"), hurried, make("placed", had_place=True)):
        world.compiler.submit(request)
    assert world.compiler.next_deadline_s() == 102.0
    assert world.compiler.take_expired(101.9) == []
    assert world.compiler.take_expired(102.0) == [hurried]
    assert world.compiler.next_deadline_s() == 110.0
    assert [request.request_id for request in world.compiler.take_expired(110.0)] == ["begun", "patient"]
    assert world.compiler.next_deadline_s() is None, "who had a place does not expire"
    world.finish(2)
    assert world.begun == ["begun", "placed"]


def test_a_tier_has_its_queue_and_the_places_and_no_more(world: World) -> None:
    world.begin()
    for number in range(3):
        assert world.compiler.why_full(make("x")) is None
        world.compiler.submit(make(f"r{number}"))
    assert world.compiler.why_full(make("x")) is DropReason.QUEUE_FULL
    assert world.compiler.why_full(make("x", is_admitted=True)) is None, "it was admitted before a crash"
    assert world.compiler.why_full(make("x", ServiceTier.DEFAULT)) is None
    world.compiler.take("r0")
    assert world.compiler.why_full(make("x")) is None


def test_prompt_tokens_are_bounded_too(world: World) -> None:
    assert world.compiler.why_full(make("x", num_tokens=500)) is None, "a prompt above the bound alone is not refused for ever"
    world.begin()
    assert world.compiler.why_full(make("x", num_tokens=90)) is None
    assert world.compiler.why_full(make("x", num_tokens=91)) is DropReason.QUEUE_TOKENS_FULL


def test_the_advice_to_come_back_is_what_was_measured_and_spread(world: World) -> None:
    assert 1.0 <= world.compiler.retry_after_s(ServiceTier.FLEX) <= 1.5
    world.compile_s = 4.0
    world.begin()
    world.finish(1)
    world.compiler.take("begun")
    world.gate.clear()
    for number in range(3):
        world.compiler.submit(make(f"r{number}"))
    advice = [world.compiler.retry_after_s(ServiceTier.FLEX) for _ in range(20)]
    assert all(12.0 <= wait_s <= 18.0 for wait_s in advice)
    assert len(set(advice)) == 20
    assert world.compiler.retry_after_s(ServiceTier.DEFAULT) < 2.0, "nothing of its tier or above waits"


def test_a_failure_is_that_requests_and_the_others_go_on(world: World) -> None:
    bad = InvalidRequestError("it does not compile")
    world.errors = {"begun": RuntimeError("a bug"), "bad": bad}
    world.begin()
    for name in ("bad", "good"):
        world.compiler.submit(make(name))
    first, second, third = world.finish(3)
    assert isinstance(first.error, EngineFailedError)
    assert (second.error, third.error) == (bad, None)


def test_after_close_nothing_is_compiled(world: World) -> None:
    world.begin()
    world.compiler.submit(make("late"))
    world.compiler.close()
    world.finish(1)
    world.compiler._thread.shutdown(wait=True)
    assert world.begun == ["begun"]
