"""The client's end of one request: an async iterator of event batches.

Lives on the event loop of the API process; one reader. Events that come while the reader is busy are merged into the next
batch; what waits is bounded by the request's own `max_tokens`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ultrafast.core.events import Event, RequestFinished


class EngineStream:
    """Events of one request, ending with exactly one `RequestFinished`.

    Leaving it early (`async with`, `aclose`) aborts the request. Iterating again after the end, or after a cancelled wait, is
    safe; two readers at once are not.

    Attributes:
        is_stopped: the reader has all that it wants (a stop string was found): the end that follows is no abort.
        shortcut: shown an event that comes while the reader waits and nothing is queued; True = it has dealt with it, and the
            reader sleeps on. What it raises ends the reader's iteration.
        is_counted: set by a reader that may deliver less than it gets (stop strings): how many tokens the request had is what it
            says in `num_delivered` before it leaves.
        output_tokens: what came so far, the owner's own list: to be read only.
        on_read: called once when the reader of an ended, counted request leaves.
    """

    __slots__ = (
        "_error",
        "_events",
        "_is_over",
        "_on_abort",
        "_waiter",
        "is_counted",
        "is_left",
        "is_stopped",
        "num_delivered",
        "on_read",
        "output_tokens",
        "request_id",
        "shortcut",
    )

    def __init__(self, request_id: str, on_abort: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._on_abort = on_abort
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_over = False
        self._error: Exception | None = None
        self.is_stopped = False
        self.is_left = False
        self.is_counted = False
        self.num_delivered: int | None = None
        self.output_tokens: Sequence[int] = ()
        self.on_read: Callable[[], None] | None = None
        self.shortcut: Callable[[Event], bool] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[Event, ...]:
        if not self._events:
            if self._is_over:
                raise StopAsyncIteration
            assert self._waiter is None, f"two readers of request {self.request_id}"
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
            if self._error is not None:
                raise self._error
        batch = tuple(self._events)
        self._events.clear()
        return batch

    def push(self, event: Event) -> None:
        """Append an event and wake the reader. Only for the owner of the request; nothing may follow `RequestFinished`."""
        assert not self._is_over, f"an event after the end of request {self.request_id}"
        waiter = self._waiter
        is_reader_idle = waiter is not None and not waiter.done()
        if self.shortcut is not None and is_reader_idle:
            try:
                if self.shortcut(event):
                    return
            except Exception as error:  # noqa: BLE001 - boundary: the pusher serves all requests, this is the trouble of one
                self._error = error
                self.shortcut = None
        self._is_over = isinstance(event, RequestFinished)
        self._events.append(event)
        if waiter is not None and is_reader_idle:
            waiter.set_result(None)

    def abort(self) -> None:
        """Leave: ask for the end of the request, unless it has ended; its `RequestFinished` still comes."""
        self.is_left = True
        if not self._is_over:
            self._on_abort(self.request_id)
        elif self.on_read is not None:
            on_read, self.on_read = self.on_read, None
            on_read()

    def stop(self) -> None:
        """The answer is complete, whatever the engine would still make of it; its `RequestFinished` says STOP."""
        self.is_stopped = True
        self.abort()

    async def aclose(self) -> None:
        """Same as `abort`: there is nothing to wait for."""
        self.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.abort()
