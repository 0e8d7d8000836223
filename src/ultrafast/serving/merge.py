"""Several engine streams as one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from ultrafast.core.events import Event
from ultrafast.serving.ports import EngineStream

_QUEUED_BATCHES = 64

Batch = tuple[int, tuple[Event, ...]]
"""(number of the stream, its events)"""


class MergedStreams:
    """Async context manager that reads the events of all streams. Leaving it aborts what still runs.

    A single stream is read directly; several are pumped into one bounded queue by tasks of a task group that ends with the
    context. Pumps never raise: a failed stream is reported to the reader, so that the group never cancels its owner.
    """

    def __init__(self, streams: Sequence[EngineStream]) -> None:
        self._streams = streams
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(_QUEUED_BATCHES)

    async def __aenter__(self) -> Self:
        if len(self._streams) > 1:
            await self._group.__aenter__()
            self._tasks = [self._group.create_task(self._pump(number, stream)) for number, stream in enumerate(self._streams)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stream in self._streams:
            stream.abort()
        if self._tasks:
            for task in self._tasks:
                task.cancel()
            await self._group.__aexit__(None, None, None)

    def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield all batches until every stream has ended; the caller closes the generator."""
        return self._read_queue() if self._tasks else self._read_single()

    async def _read_single(self) -> AsyncGenerator[Batch, None]:
        for stream in self._streams:
            async for events in stream:
                yield 0, events

    async def _read_queue(self) -> AsyncGenerator[Batch, None]:
        num_open = len(self._streams)
        while num_open:
            item = await self._queue.get()
            if item is None:
                num_open -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item

    async def _pump(self, number: int, stream: EngineStream) -> None:
        try:
            async for events in stream:
                await self._queue.put((number, events))
            await self._queue.put(None)
        except Exception as error:  # noqa: BLE001 - boundary: handed to the reader, who raises it
            await self._queue.put(error)
