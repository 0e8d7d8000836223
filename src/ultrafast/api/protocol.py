"""uvicorn's HTTP protocol with what an edge needs beside it: early stamps, limits on headers, and our error bodies.

What is no HTTP, or too much of it, never becomes a request: it is refused here, after the answers to the requests before it.

    parse error, too large, too slow ---> [ earlier answers end ] ---> answer, half-close, linger ---> closed

Depends on uvicorn's own methods (0.54, `uvicorn/protocols/http/httptools_impl.py`); the component tests notice a change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.events import TimerHandle
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from ultrafast.api.errors import ApiError, Headers, error_body, status_phrase
from ultrafast.api.exchange import CONNECTION_KEY, Connection, request_id_of
from ultrafast.engine.prompt_write import prompt_writer
from ultrafast.observe.logs import log_fields

_logger = logging.getLogger("ultrafast.api")

MAX_HEADER_BYTES = 64 * 1024
MAX_PIPELINED = 8
LINGER_S = 2.0
"""After a refusal the client may go on sending for so long: closing on unread bytes would reset the connection, and the answer
might be lost."""


class EdgeProtocol(HttpToolsProtocol):
    """One client connection.

    A request's clock starts with its first byte. Request line and headers must arrive within `header_timeout_s` and have at most
    `MAX_HEADER_BYTES` together.
    """

    header_timeout_s = 30.0

    @staticmethod
    def on_refused(status: int) -> None:
        """Called with the status of what never became a request; for the metrics."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection: Connection | None = None
        self._header_timer: TimerHandle | None = None
        self._num_header_bytes = 0
        self._num_begun = 0  # messages that began in the data at hand
        self._is_in_headers = False
        self._is_in_body = False
        self._active: RequestResponseCycle | None = None
        self._upgrade_head: bytes | None = None
        self._refusal: ApiError | None = None
        self._refused_id = ""
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._write_now = prompt_writer(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)
        # With pipelined requests uvicorn tells only the newest one, which may not even have started.
        if self._active is not None:
            _disconnect(self._active)
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._num_begun = 0
        is_between = not (self._is_in_headers or self._is_in_body)
        self._unset_keepalive_if_required()
        rest = data
        while rest:
            rest = self._parse(rest)
        # All of the data belongs to headers that are still incomplete.
        if self._is_in_headers:
            if self._num_begun:
                self._start_header_timer()
            if self._num_begun == int(is_between):
                self._num_header_bytes += len(data)
                self._check_header_bytes()

    def _parse(self, data: bytes) -> bytes:
        """As uvicorn does, but an offer to upgrade is not taken, and no line is logged for what anybody may send.

        Returns:
            what is to be parsed next.
        """
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser takes what follows the headers for another protocol, the request's body included. Nobody has to accept
            # an offer (RFC 9110, section 7.8), and clients of Java make one with every first request: read it without the offer.
            head, self._upgrade_head = self._upgrade_head, None
            if head is not None:
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                return head + data[upgrade.args[0] :]
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        return b""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._connection = Connection(time.monotonic(), self.transport.abort, self.flow.resume_reading)
        self.scope[CONNECTION_KEY] = self._connection  # type: ignore[literal-required]
        self._num_begun += 1
        self._is_in_headers = True
        self._num_header_bytes = 0

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        num_bytes = len(self.url)
        for name, value in self.headers:
            num_bytes += len(name) + len(value) + 4
        self._num_header_bytes = num_bytes
        self._check_header_bytes()
        self._is_in_headers = False
        if self._refusal is not None:
            return
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrade_head = self._head_without_upgrade()
            return
        super().on_headers_complete()
        if self.url.startswith(b"//"):
            # uvicorn takes what follows for the name of a host; in a request it is a path like any other (RFC 9112, 3.2.1).
            raw_path = self.url.partition(b"?")[0]
            self.scope["path"] = unquote(raw_path.decode("ascii"))
            self.scope["raw_path"] = raw_path
        self._is_in_body = True
        if self.scope["http_version"] == "1.0":
            _close_instead_of_chunks(self.cycle)
        if self._connection is not None and self.cycle is not None:
            self._connection.writer = _ChunkWriter(self.cycle, self._write_now)
        # uvicorn stops reading while a pipelined request waits, and would then not notice that the client leaves.
        if len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if self._refusal is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refusal is not None or self._upgrade_head is not None:
            return
        self._is_in_body = False
        if self._connection is not None:
            self._connection.body_complete_s = time.monotonic()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._refuse_in_turn()

    def send_400_response(self, msg: str) -> None:
        """Refuse what uvicorn's parser cannot read: in the chunks of a body, or in what should be the beginning of a request."""
        broken = self.cycle if self._is_in_body else None
        if broken is None:
            self._refuse(ApiError(400, "invalid_http", msg))
            return
        waiting = [entry for entry in self.pipeline if entry[0] is not broken]
        self.pipeline.clear()
        self.pipeline.extend(waiting)
        if broken is self._active and broken.response_started:
            self.transport.close()  # it has its answer already, and nothing can follow a broken body
            return
        _disconnect(broken)
        if broken is self._active:
            self._active = None
        self._refuse(ApiError(400, "invalid_http", "The request's body is not valid chunked encoding."))

    def _head_without_upgrade(self) -> bytes:
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._active = cycle
        super()._start_asgi_task(cycle, app)

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        if self._refusal is not None:
            return
        self._header_timer = self.loop.call_later(self.header_timeout_s, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _on_header_timeout(self) -> None:
        message = f"The request's headers did not arrive within {self.header_timeout_s:g} s."
        self._refuse(ApiError(408, "request_timeout", message))

    def _check_header_bytes(self) -> None:
        if self._num_header_bytes > MAX_HEADER_BYTES:
            message = f"The request's headers are larger than {MAX_HEADER_BYTES} bytes."
            self._refuse(ApiError(431, "headers_too_large", message))

    def _refuse(self, error: ApiError) -> None:
        """Answer what never becomes a request, and close. The first refusal stands; nothing is parsed after it."""
        if self._refusal is None:
            self._refusal = error
            # Between two requests the headers at hand are those of the one before.
            headers = dict(self.headers) if self._is_in_headers or self._is_in_body else {}
            self._refused_id = request_id_of(headers.get(b"x-request-id"))
            self._stop_header_timer()
            self._refuse_in_turn()

    def _refuse_in_turn(self) -> None:
        """Send the refusal, if there is one, once every earlier request has its answer."""
        is_busy = self._active is not None and not self._active.response_complete
        if self._refusal is None or self._is_refused or is_busy or self.transport.is_closing():
            return
        self._is_refused = True
        self._unset_keepalive_if_required()
        error, request_id = self._refusal, self._refused_id
        body = error_body(error, request_id)
        head = (
            f"HTTP/1.1 {error.status} {status_phrase(error.status)}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nx-request-id: {request_id}\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.close)
        self.on_refused(error.status)
        log_fields(_logger, logging.INFO, "refused", {"request_id": request_id, "status": error.status, "error_code": error.code})


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Tell the application that nobody is there any more."""
    if not cycle.response_complete:
        cycle.disconnected = True
        cycle.message_event.set()
        connection: Connection = cycle.scope[CONNECTION_KEY]  # type: ignore[literal-required]
        connection.lose()


def _close_instead_of_chunks(cycle: RequestResponseCycle) -> None:
    """HTTP/1.0 has no chunks: a body of unknown length ends where the connection ends (RFC 9112, section 6.1)."""
    send, is_open_ended = cycle.send, False

    async def send_unframed(message: Any) -> None:
        nonlocal is_open_ended
        if message["type"] == "http.response.start":
            is_open_ended = all(name != b"content-length" for name, _ in message["headers"])
            cycle.chunked_encoding = False if is_open_ended else None
        elif is_open_ended:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_unframed  # type: ignore[method-assign]


class _ChunkWriter:
    """Writes the head, and pieces of a chunked body, as `RequestResponseCycle.send` does, but for what is not the usual case."""

    __slots__ = ("_cycle", "_flow", "_is_closed", "_write", "_write_now")

    def __init__(self, cycle: RequestResponseCycle, write_now: Callable[[bytes], None]) -> None:
        self._cycle = cycle
        self._is_closed = False
        self._flow = cycle.flow
        self._write = cycle.transport.write
        self._write_now = write_now

    def begin(self, status: int, headers: Headers, first: bytes = b"") -> bool:
        cycle, scope = self._cycle, self._cycle.scope
        is_usual = scope["http_version"] == "1.1" and scope["method"] != "HEAD" and status not in (204, 304)
        if not is_usual or cycle.response_started or cycle.access_log or not self.is_flowing():
            return False
        lines = [STATUS_LINE[status].rstrip()]
        length: int | None = None
        for name, value in (*cycle.default_headers, *headers):
            if name == b"content-length":
                length = int(value)
            elif name in (b"connection", b"transfer-encoding"):
                return False
            lines.append(b"%b: %b" % (name, value))
        if not cycle.keep_alive:
            lines.append(b"connection: close")
        if length is None:
            lines.append(b"transfer-encoding: chunked")
        lines += (b"", b"")
        data = b"\r\n".join(lines)
        if not data.count(b"\r") == data.count(b"\n") == len(lines) - 1:
            raise RuntimeError("a header has a line break")
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        cycle.chunked_encoding, cycle.expected_content_length = length is None, length or 0
        if first:
            self._write_now(data + _chunk(first))
        else:
            self._write(data)
        return True

    def is_flowing(self) -> bool:
        return not (self._flow.write_paused or self._cycle.disconnected or self._is_closed)

    def is_open(self) -> bool:
        cycle = self._cycle
        # The body is chunked once the headers are out and say so, and never for HEAD.
        return bool(cycle.chunked_encoding) and not (
            self._flow.write_paused or cycle.disconnected or cycle.response_complete or self._is_closed
        )

    def close(self) -> None:
        self._is_closed = True

    def __call__(self, data: bytes) -> None:
        self._write_now(_chunk(data))


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
