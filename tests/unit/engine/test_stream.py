from __future__ import annotations

import asyncio

import pytest
from tests.unit.engine.test_ledger import finished, make_request

from ultrafast.core.events import TokenProduced
from ultrafast.engine.stream import EngineStream

END = finished(make_request("a"), 1)


async def test_what_comes_while_nobody_reads_is_one_batch() -> None:
    stream = EngineStream("a", pytest.fail)
    events = (TokenProduced("a", 1), TokenProduced("a", 2), END)
    for event in events:
        stream.push(event)
    assert [batch async for batch in stream] == [events]
    assert [batch async for batch in stream] == []


async def test_a_waiting_reader_is_woken() -> None:
    stream = EngineStream("a", pytest.fail)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(anext(stream))
        await asyncio.sleep(0)
        stream.push(TokenProduced("a", 1))
        stream.push(TokenProduced("a", 2))
        assert await reading == (TokenProduced("a", 1), TokenProduced("a", 2))
        reading = group.create_task(anext(stream))
        await asyncio.sleep(0)
        stream.push(END)
    assert reading.result() == (END,)


async def test_a_cancelled_wait_loses_nothing() -> None:
    stream = EngineStream("a", pytest.fail)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(stream)
    stream.push(END)
    assert await anext(stream) == (END,)


async def test_a_reader_cancelled_just_after_it_was_woken_loses_nothing() -> None:
    stream = EngineStream("a", pytest.fail)
    reading = asyncio.get_running_loop().create_task(anext(stream))
    await asyncio.sleep(0)
    stream.push(END)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await anext(stream) == (END,)


async def test_leaving_aborts_unless_it_is_over() -> None:
    aborted: list[str] = []
    async with EngineStream("a", aborted.append):
        pass
    async with EngineStream("b", aborted.append) as stream:
        stream.push(END)
    await EngineStream("c", aborted.append).aclose()
    assert aborted == ["a", "c"]


async def test_nothing_may_follow_the_end() -> None:
    stream = EngineStream("a", pytest.fail)
    stream.push(END)
    with pytest.raises(AssertionError, match="after the end"):
        stream.push(TokenProduced("a", 1))


async def test_a_shortcut_gets_only_what_finds_the_reader_idle_and_the_queue_empty() -> None:
    stream = EngineStream("a", pytest.fail)
    short: list[object] = []
    is_open = True

    def shortcut(event: object) -> bool:
        if is_open:
            short.append(event)
        return is_open

    stream.shortcut = shortcut
    stream.push(TokenProduced("a", 1))  # nobody reads yet
    assert await anext(stream) == (TokenProduced("a", 1),)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(anext(stream))
        await asyncio.sleep(0)
        stream.push(TokenProduced("a", 2))
        is_open = False
        stream.push(TokenProduced("a", 3))
        is_open = True
        stream.push(TokenProduced("a", 4))  # 3 waits: nothing may overtake it
    assert reading.result() == (TokenProduced("a", 3), TokenProduced("a", 4))
    assert short == [TokenProduced("a", 2)]


async def test_what_a_shortcut_raises_is_the_readers_trouble_alone() -> None:
    stream = EngineStream("a", pytest.fail)

    def shortcut(_: object) -> bool:
        raise ValueError("broken")

    stream.shortcut = shortcut

    async def read() -> None:
        with pytest.raises(ValueError, match="broken"):
            await anext(stream)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        await asyncio.sleep(0)
        stream.push(TokenProduced("a", 1))
        stream.push(END)
