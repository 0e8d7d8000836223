"""One HTTP request and its answer: the stamps, the checks of the client's headers, and every write.

    arrival ---- body complete ---- start (headers) ---- write ... write ---- finish

Owns the connection to the client while the request lasts. Writes of one exchange may come from two tasks (the answer and
the keep-alive); each write is one whole event and the server keeps their order, so that events never mix.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from ultrafast.api.errors import Headers, status_of
from ultrafast.core.clock import Clock
from ultrafast.observe.logs import describe_failure, log_fields

_logger = logging.getLogger("ultrafast.api")

SCOPE_KEY = "ultrafast.exchange"
CONNECTION_KEY = "ultrafast.connection"
_SANE_ID = re.compile(r"[ -~]{1,128}\Z")
"""Printable ASCII: whatever ids a client has, and nothing that could break a header or a log line."""
_MAX_WRITE_BYTES = 64 * 1024


class Interruption(StrEnum):
    """Why an answer was broken off from outside."""

    DISCONNECTED = "client_disconnected"
    STALLED = "client_stalled"
    SHUTDOWN = "shutdown"


class ClientGoneError(Exception):
    """Nobody reads the answer any more; nothing may be sent."""

    def __init__(self, reason: Interruption) -> None:
        super().__init__(reason)
        self.reason = reason


class DirectWriter(Protocol):
    """Writes the head and pieces of the body past the server's coroutines."""

    def begin(self, status: int, headers: Headers, first: bytes = b"") -> bool:
        """Write status, headers and a first piece, if that is possible at this moment, and an ordinary answer.

        `first` is only for a body of unknown length. Returns False when nothing was written.
        """
        ...

    def is_flowing(self) -> bool:
        """Whether the client reads: the server's own writes would not wait."""
        ...

    def is_open(self) -> bool:
        """Whether a piece would go out at this moment: the body has begun, and the client reads."""
        ...

    def close(self) -> None:
        """Be closed from now on."""
        ...

    def __call__(self, data: bytes) -> None:
        """Write a piece; only at once after `is_open`."""
        ...


class Connection:
    """What the server knows of one request before the application does. Put into the scope by `api.protocol`.

    Attributes:
        on_lost: called when the client leaves before the end of the answer.
        is_lost: it has left.
    """

    __slots__ = ("abort", "arrival_s", "body_complete_s", "is_lost", "on_lost", "resume_reading", "writer")

    def __init__(self, arrival_s: float, abort: Callable[[], None], resume_reading: Callable[[], None]) -> None:
        self.arrival_s = arrival_s
        self.body_complete_s: float | None = None
        self.abort = abort
        self.resume_reading = resume_reading
        self.writer: DirectWriter | None = None
        self.on_lost: Callable[[], None] | None = None
        self.is_lost = False

    def lose(self) -> None:
        """The client has left."""
        self.is_lost = True
        if self.on_lost is not None:
            self.on_lost()


class Exchange:
    """See the module. Times are of `clock`, seconds.

    Attributes:
        request_id: the client's `x-request-id` if it is a sane one, else ours.
        route: the template of the matched route; "unmatched" until then.
        log_values: what else the log says of the request; asked for only if it is written.
        failure: the class of the error of ours (500) that ended the answer, before or after its headers.
        status: 0 until the answer started; 499 when the client left before its end.
        body_read_s: from the arrival until the whole body was there.
        write_blocked_s: time spent in writes, most of it waiting for a slow reader.
        direct: writes past the server's coroutines while it is open; who does sets `last_write_s`. None without `api.protocol`.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, clock: Clock, write_stall_timeout_s: float) -> None:
        connection: Connection | None = scope.get(CONNECTION_KEY)
        self.scope = scope
        self.receive = receive
        self.clock = clock
        self.write_stall_timeout_s = write_stall_timeout_s
        self.connection = connection
        self.arrival_s = connection.arrival_s if connection else clock()
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id_of(self.headers.get(b"x-request-id"))
        self.route = "unmatched"
        self.status = 0
        self.error_code: str | None = None
        self.failure: str | None = None
        self.key_name: str | None = None
        self.tenant = ""
        self.log_values: Callable[[], dict[str, Any]] = dict
        self.is_body_complete = False
        self.body_read_s = 0.0
        self.write_blocked_s = 0.0
        self.last_write_s = self.arrival_s
        self.write_started_s: float | None = None
        self.is_started = False
        self.is_complete = False
        self.interruption: Interruption | None = None
        self._is_bug_logged = False
        self._send = send
        self.direct: DirectWriter | None = connection.writer if connection else None
        self._timeout: asyncio.Timeout | None = None

    def processing_ms(self, now: float) -> bytes:
        """Return how long it took until `now`, as the header `openai-processing-ms` says it."""
        return b"%d" % round((now - self.arrival_s) * 1000)

    # -- reading

    @property
    def is_body_here(self) -> bool:
        """The server has the whole body: reading it takes no time."""
        return self.connection is not None and self.connection.body_complete_s is not None

    def on_body_complete(self) -> None:
        """The whole body is there: the network has done its part."""
        connection = self.connection
        done_s = connection.body_complete_s if connection else None
        self.body_read_s = max(0.0, (done_s or self.clock()) - self.arrival_s)
        self.is_body_complete = True

    def interrupt_when_lost(self) -> bool:
        """Have the answer interrupted as soon as the client closes its connection, without a task.

        Returns:
            False where the server does not tell; then there must be a task for `watch_disconnect`.
        """
        connection = self.connection
        if connection is None:
            return False
        if connection.is_lost:
            self.interrupt(Interruption.DISCONNECTED)
            return True
        connection.on_lost = self._on_lost
        # It stops while a large body waits to be taken, and would then not notice that the client leaves.
        connection.resume_reading()
        return True

    def _on_lost(self) -> None:
        self.interrupt(Interruption.DISCONNECTED)

    async def watch_disconnect(self) -> None:
        """The same for any server. Runs until the client leaves or until cancelled."""
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.interrupt(Interruption.DISCONNECTED)
                return

    # -- failing

    def note_error(self, error: Exception) -> None:
        """Keep for the log what went wrong, without its text."""
        self.error_code = getattr(error, "code", "internal_error")
        self.failure = type(error).__name__ if status_of(error) == 500 else None

    def log_bug(self, error: Exception) -> None:
        """Write down an error that should not be: where it is, once. Not its text, which may quote the client."""
        if not self._is_bug_logged:
            self._is_bug_logged = True
            fields = {"request_id": self.request_id, "exception": describe_failure(error)}
            log_fields(_logger, logging.ERROR, "request failed unexpectedly", fields)

    # -- being interrupted

    def interruptible(self) -> asyncio.Timeout:
        """Return the context inside which `interrupt` breaks in, as TimeoutError."""
        self._timeout = asyncio.timeout(0 if self.interruption else None)
        return self._timeout

    def end_interruptible(self) -> None:
        """The context was left: there is nothing to break into any more."""
        self._timeout = None
        if self.connection is not None:
            self.connection.on_lost = None

    def interrupt(self, reason: Interruption) -> None:
        """Break off whatever the answer is doing. The first reason stands. Call it on the event loop."""
        if self.interruption is not None or self.is_complete:
            return
        self.interruption = reason
        if self.direct is not None:
            self.direct.close()
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    # -- writing

    async def start(self, status: int, headers: Headers, first: bytes = b"") -> None:
        """Send status and headers, and a first piece of a body of unknown length with them."""
        self.is_started = True
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        if self.direct is not None and self.direct.begin(status, headers, first):
            self.last_write_s = self.clock()
            return
        await self._timed({"type": "http.response.start", "status": status, "headers": headers})
        if first:
            await self.write(first)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body. Suspends while the client reads too slowly."""
        if self.direct is None or not self.direct.is_open():
            await self._timed({"type": "http.response.body", "body": data, "more_body": True})
        elif data:
            self.direct(data)
            self.last_write_s = self.clock()

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self._timed({"type": "http.response.body", "body": data, "more_body": False})
        self.is_complete = True

    async def respond(
        self,
        status: int,
        headers: Headers,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        linger: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Send a whole answer. `linger` runs after the last byte and before the end of the response.

        Raises:
            ClientGoneError: the client took nothing for `write_stall_timeout_s`; the connection is closed.
        """
        headers += [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if linger is None and len(body) <= _MAX_WRITE_BYTES and self.direct is not None and self.direct.is_flowing():
            await self.start(status, headers)
            await (self.finish(body) if self.direct.is_flowing() else self.finish_within_stall(body))
            return
        try:
            await self._within_stall(self.start(status, headers))
            pieces = [body[i : i + _MAX_WRITE_BYTES] for i in range(0, len(body), _MAX_WRITE_BYTES)] or [b""]
            for piece in pieces[:-1]:
                await self._within_stall(self.write(piece))
            if linger is not None:
                await self._within_stall(self.write(pieces.pop()))
                await linger()
            await self._within_stall(self.finish(pieces[-1] if linger is None else b""))
        except TimeoutError:
            await self.abort_connection()
            raise ClientGoneError(Interruption.STALLED) from None

    async def finish_within_stall(self, data: bytes) -> None:
        """Send the last piece of the body, for which the client has `write_stall_timeout_s`.

        Raises:
            ClientGoneError: it did not take it; the connection is closed.
        """
        try:
            await self._within_stall(self.finish(data))
        except TimeoutError:
            await self.abort_connection()
            raise ClientGoneError(Interruption.STALLED) from None

    async def abort_connection(self) -> None:
        """Close the connection at once, without waiting for what is still to be written."""
        if self.connection is not None:
            self.connection.abort()
            # Lets the server see the loss before the application returns.
            await asyncio.sleep(0)

    async def _within_stall(self, write: Any) -> None:
        async with asyncio.timeout(self.write_stall_timeout_s):
            await write

    async def _timed(self, message: dict[str, Any]) -> None:
        clock = self.clock
        started_s = self.write_started_s = clock()
        try:
            await self._send(message)
        finally:
            ended_s = self.last_write_s = clock()
            self.write_started_s = None
            self.write_blocked_s += ended_s - started_s


def new_request_id() -> str:
    """Return an id for an answer whose request brought none."""
    return f"req_{os.urandom(16).hex()}"


def request_id_of(given: bytes | None) -> str:
    """Return the client's `x-request-id` if it is a sane one, else one of ours."""
    if given is None:
        return new_request_id()
    text = given.decode("latin-1")
    return text if _SANE_ID.match(text) else new_request_id()
