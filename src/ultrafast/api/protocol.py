"""uvicorn's HTTP protocol with what an edge needs beside it: early stamps, limits on headers, and our error bodies.

Depends on uvicorn's own methods (0.54, `uvicorn/protocols/http/httptools_impl.py`); the component tests notice a change.
"""

from __future__ import annotations

import asyncio
import time
from asyncio.events import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ultrafast.api.errors import ApiError, error_body, status_phrase
from ultrafast.api.exchange import CONNECTION_KEY, Connection

MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8


class EdgeProtocol(HttpToolsProtocol):
    """One client connection.

    A request's clock starts with its first byte. Headers must arrive within `header_timeout_s` and be below 64 KiB.
    """

    header_timeout_s = 30.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection: Connection | None = None
        self._header_timer: TimerHandle | None = None
        self._num_header_bytes = 0
        self._is_in_headers = True
        self._active: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)
        # With pipelined requests uvicorn tells only the newest one, which may not even have started.
        active = self._active
        if active is not None and not active.response_complete:
            active.disconnected = True
            active.message_event.set()
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_headers:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, "headers_too_large", f"The request's headers are larger than {MAX_HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._connection = Connection(time.monotonic(), self.transport.abort)
        self.scope[CONNECTION_KEY] = self._connection  # type: ignore[literal-required]
        self._is_in_headers = True
        self._num_header_bytes = 0
        self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        self._is_in_headers = False
        super().on_headers_complete()
        if self._connection is not None and self.cycle is not None:
            self._connection.writer = _ChunkWriter(self.cycle)
        # uvicorn stops reading while a pipelined request waits, and would then not notice that the client leaves.
        if len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        if self._connection is not None:
            self._connection.body_complete_s = time.monotonic()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", msg)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        self._refuse(408, "request_timeout", f"The request's headers did not arrive within {self.header_timeout_s:g} s.")

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer what never becomes a request, and close."""
        if self.transport is None or self.transport.is_closing():
            return
        # An answer that is still under way cannot be followed by anything.
        if self._active is None or self._active.response_complete:
            body = error_body(ApiError(status, code, message), "none")
            head = (
                f"HTTP/1.1 {status} {status_phrase(status)}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class _ChunkWriter:
    """Writes a piece of a chunked body as `RequestResponseCycle.send` does, but for what takes longer than a moment."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def is_open(self) -> bool:
        cycle = self._cycle
        # The body is chunked once the headers are out and say so, and never for HEAD.
        return bool(cycle.chunked_encoding) and not (self._flow.write_paused or cycle.disconnected or cycle.response_complete)

    def __call__(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))
