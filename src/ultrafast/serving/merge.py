"""Several engine streams as one, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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

    Attributes:
        number: of the stream that the last batch came from.
    """

    def __init__(self, streams: Sequence[EngineStream]) -> None:
        self.number = 0
        self._streams = streams
        self._tasks: list[asyncio.Task[None]] = []
        self._num_open = len(streams)
        if len(streams) > 1:
            self._group = asyncio.TaskGroup()
            self._queue: asyncio.Queue[Batch | Exception | None] = asyncio.Queue(_QUEUED_BATCHES)

    async def __aenter__(self) -> AsyncIterator[tuple[Event, ...]]:
        """Return the batches of all streams, until every one has ended."""
        if len(self._streams) == 1:
            return aiter(self._streams[0])  # no layer of our own: it would cost something for every token
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

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        while self._num_open:
            item = await self._queue.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                self.number, events = item
                return events
            self._num_open -= 1
        raise StopAsyncIteration

    async def _pump(self, number: int, stream: EngineStream) -> None:
        try:
            async for events in stream:
                await self._queue.put((number, events))
            await self._queue.put(None)
        except Exception as error:  # noqa: BLE001 - boundary: handed to the reader, who raises it
            await self._queue.put(error)
