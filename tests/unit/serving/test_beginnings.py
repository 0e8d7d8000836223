"""What is computed before anybody asks: how its end is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.unit.serving.fakes import finished

from ultrafast.core.errors import EngineFailedError
from ultrafast.core.events import Event, TokenProduced
from ultrafast.core.request import FinishReason
from ultrafast.serving.beginnings import end_of, prefill_request

REQUEST = prefill_request("r", [1, 2], "", 0.0)


class Stream:
    """Gives its batches, then goes on for ever if it is `open`."""

    num_delivered: int | None = None

    def __init__(self, *batches: tuple[Event, ...], is_open: bool = False) -> None:
        self.batches = batches
        self.is_open = is_open
        self.num_aborted = 0
        self.output_tokens: list[int] = []

    async def __aiter__(self) -> AsyncIterator[tuple[Event, ...]]:
        for batch in self.batches:
            yield batch
        if self.is_open:
            await asyncio.Event().wait()

    def abort(self) -> None:
        self.num_aborted += 1


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.ABORT, FinishReason.ERROR])
async def test_the_end_is_told_whatever_came_before_it(reason: FinishReason) -> None:
    end = finished(REQUEST, reason)
    token = TokenProduced("r", 5)
    for batches in ([(end,)], [(token,), (end,)], [(token, end)]):
        assert await end_of(Stream(*batches)) is end  # type: ignore[arg-type]


async def test_who_does_not_wait_for_the_end_aborts_it() -> None:
    stream = Stream((TokenProduced("r", 5),), is_open=True)
    task = asyncio.create_task(end_of(stream))  # type: ignore[arg-type]  # noqa: TID251
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stream.num_aborted == 1


async def test_a_stream_without_an_end_is_the_engines_failure() -> None:
    stream = Stream((TokenProduced("r", 5),))
    with pytest.raises(EngineFailedError):
        await end_of(stream)  # type: ignore[arg-type]
    assert stream.num_aborted == 1
