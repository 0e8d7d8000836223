"""Long work goes in the order of tiers, and not at all for a caller who has left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from tests.unit.serving import templates
from tests.unit.serving.fakes import FakeTokenizer, ScriptedEngine, facts, says

from ultrafast.core.tiers import ServiceTier
from ultrafast.serving.contract import CompletionCall, GenerationOptions
from ultrafast.serving.service import Service
from ultrafast.serving.workers import Workers

T = TypeVar("T")
WAIT_S = 20.0


def begin(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Several callers at once, each of which the test ends itself."""
    return asyncio.get_running_loop().create_task(work)


class Busy:
    """One thread, busy until `gate` opens; `done` are the names of what was done on it, in order."""

    def __init__(self) -> None:
        self.workers = Workers(1, "test")
        self.gate, self.has_begun = threading.Event(), threading.Event()
        self.done: list[str] = []

    def work(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.done.append(name)
            self.has_begun.set()
            assert self.gate.wait(WAIT_S)
            return name

        return work

    async def begin(self) -> asyncio.Task[str]:
        task = begin(self.workers.run(3, self.work("begun")))
        await asyncio.to_thread(self.has_begun.wait, WAIT_S)
        return task


@pytest.fixture
def busy() -> Iterator[Busy]:
    instance = Busy()
    yield instance
    instance.gate.set()
    instance.workers.close()


async def test_the_most_urgent_goes_first_and_in_order_within(busy: Busy) -> None:
    first = await busy.begin()
    ranks = {"flex": 3, "default": 2, "u1": 0, "u2": 0}
    tasks = [begin(busy.workers.run(rank, busy.work(name))) for name, rank in ranks.items()]
    await asyncio.sleep(0)
    busy.gate.set()
    assert await asyncio.gather(first, *tasks) == ["begun", *ranks]
    assert busy.done == ["begun", "u1", "u2", "default", "flex"]


async def test_nothing_is_done_for_a_caller_who_has_left(busy: Busy) -> None:
    first = await busy.begin()
    gone = begin(busy.workers.run(0, busy.work("gone")))
    stays = begin(busy.workers.run(3, busy.work("stays")))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    busy.gate.set()
    await asyncio.gather(first, stays)
    assert busy.done == ["begun", "stays"]


async def test_a_failure_is_the_callers(busy: Busy) -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await busy.workers.run(0, fail)
    busy.gate.set()
    assert await busy.workers.run(0, busy.work("next")) == "next"


async def test_close_cancels_who_still_waits(busy: Busy) -> None:
    first = await busy.begin()
    waits = begin(busy.workers.run(0, busy.work("waits")))
    await asyncio.sleep(0)
    closing = begin(asyncio.to_thread(busy.workers.close))
    with pytest.raises(asyncio.CancelledError):
        await waits
    busy.gate.set()
    await asyncio.gather(first, closing)
    assert busy.done == ["begun"]


class SlowTokenizer(FakeTokenizer):
    """Notes which texts it was given, by their first letter, and waits for the test with each."""

    def __init__(self) -> None:
        super().__init__(templates.CHATML)
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)
        self.seen: list[str] = []

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if len(text) > 10_000:
            self.seen.append(text[0])
            self.begun.release()
            assert self.gate.wait(WAIT_S)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


@pytest.mark.parametrize(("num_chars", "num_threads"), [(20_000, 2), (300_000, 1)])
async def test_an_urgent_prompt_does_not_wait_for_flex_prompts_that_have_not_begun(num_chars: int, num_threads: int) -> None:
    tokenizer = SlowTokenizer()
    engine = ScriptedEngine(says(tokenizer, "ok"), engine_facts=facts(max_request_tokens=1_000_000))
    service = Service(engine, tokenizer, model_id="m", created_s=1)

    def start(letter: str, tier: ServiceTier) -> asyncio.Task[None]:
        async def answer() -> None:
            options = GenerationOptions(requested_tier=tier, max_tokens=1)
            async for _ in service.complete(CompletionCall(letter, "m", [letter + "x" * num_chars], options, 0.0)):
                pass

        return begin(answer())

    tasks = [start(letter, ServiceTier.FLEX) for letter in "abcd"]
    for _ in range(num_threads):
        await asyncio.to_thread(tokenizer.begun.acquire, timeout=WAIT_S)
    tasks.append(start("u", ServiceTier.ULTRAFAST))
    await asyncio.sleep(0.01)  # it waits for a thread
    tokenizer.gate.set()
    await asyncio.gather(*tasks)
    service.close()
    assert "u" in tokenizer.seen[num_threads : 2 * num_threads], "the next thread that is free takes it"
