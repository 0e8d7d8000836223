"""One request from its planned moment to the end of its stream, written down as it happened.

The record is filled in place and begins as CANCELLED: whoever gives up on a request at any moment leaves a true record.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from ultrafast.bench.http1 import Connection, ConnectionPool, encode_request
from ultrafast.bench.records import Chunk, ErrorClass, Failure, Outcome, RequestRecord
from ultrafast.bench.sse import SseError, SseParser
from ultrafast.bench.wire import (
    DONE,
    TIMING_COMMENT,
    Event,
    decode_event,
    generated,
    read_error,
    read_error_body,
    read_server_timing,
    read_usage,
)

_OVERLOADED = (429, 503)


class StreamReader:
    """A `Sink` that fills a record. Knows nothing of sockets, so recorded bytes and stamps can be fed to it.

    Attributes:
        done: resolved when nothing more will come.
        text: of the answer, without reasoning.
        has_bytes: anything at all came back.
    """

    def __init__(self, record: RequestRecord, origin_ns: int, done: asyncio.Future[None] | None = None) -> None:
        self._record = record
        self._origin_ns = origin_ns
        self._sse = SseParser()
        self._status = 0
        self._is_stream = False
        self._is_done_said = False
        self._body: list[bytes] = []
        self._retry_after_s: float | None = None
        self._num_counted = 0
        self._last_read_ns: int | None = None
        self._texts: list[str] = []
        self.has_bytes = False
        self.done = done

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def on_head(self, status: int, headers: dict[str, str], stamp_ns: int) -> None:
        record, self.has_bytes, self._status = self._record, True, status
        record.headers_ns = stamp_ns - self._origin_ns
        record.request_id = headers.get("x-request-id")
        record.tier_served = headers.get("x-ultrafast-tier-served")
        record.server_timing = read_server_timing(headers.get("server-timing", ""))
        self._is_stream = status == 200 and "text/event-stream" in headers.get("content-type", "")
        self._retry_after_s = _seconds(headers.get("retry-after"))

    def on_body(self, piece: bytes, stamp_ns: int) -> None:
        if not self._is_stream:
            self._body.append(piece)
            return
        try:
            for data in self._sse.feed(piece):
                if data == DONE:
                    self._is_done_said = True
                else:
                    self._take(decode_event(data), stamp_ns - self._origin_ns)
        except (msgspec.DecodeError, UnicodeDecodeError, SseError) as error:
            self._fail(ErrorClass.PROTOCOL, f"an event that cannot be read: {error}")

    def on_end(self, stamp_ns: int) -> None:
        self._record.end_ns = stamp_ns - self._origin_ns
        self._conclude()

    def on_broken(self, reason: str, stamp_ns: int) -> None:
        self._record.end_ns = stamp_ns - self._origin_ns
        kind = ErrorClass.PROTOCOL if reason.startswith("no HTTP") else ErrorClass.CUT
        self._fail(kind, reason)
        self._conclude()

    def _take(self, event: Event, stamp_ns: int) -> None:
        record = self._record
        if event.error is not None:
            message, code = read_error(event.error)
            self._fail(ErrorClass.STREAM_ERROR, message, code)
            return
        if event.service_tier and record.tier_served is None:
            record.tier_served = event.service_tier
        num_tokens = self._count(event)
        for choice in event.choices or ():
            if (output := generated(choice)) is not None:
                kind, text = output
                is_coalesced = self._last_read_ns == stamp_ns
                record.chunks.append(Chunk(stamp_ns, num_tokens, is_coalesced, kind))
                self._last_read_ns = stamp_ns
                num_tokens = 0 if num_tokens is not None else None
                if kind == "content":
                    self._texts.append(text)
            if choice.finish_reason:
                record.finish_reason = choice.finish_reason

    def _count(self, event: Event) -> int | None:
        """Tokens new in this event, if it carries a running usage; the last usage seen is that of the request."""
        if event.usage is None:
            return None
        usage = read_usage(event.usage)
        if usage.num_output_tokens is not None or self._record.usage.num_output_tokens is None:
            self._record.usage = usage
        if usage.num_output_tokens is None or not event.choices or not any(map(generated, event.choices)):
            return None
        num_new = usage.num_output_tokens - self._num_counted
        self._num_counted = usage.num_output_tokens
        return max(0, num_new)

    def _fail(self, kind: ErrorClass, message: str, code: str | None = None) -> None:
        """Keep the first failure: what follows it is its consequence."""
        record = self._record
        if record.failure is None:
            record.failure = Failure(kind, message, self._status or None, code, self._retry_after_s)
        record.outcome = Outcome.FAILED

    def _conclude(self) -> None:
        record = self._record
        if self._sse.last_comment.startswith(TIMING_COMMENT):
            record.server_timing |= read_server_timing(self._sse.last_comment.removeprefix(TIMING_COMMENT).decode("latin-1"))
        if record.failure is None:
            self._judge()
        if record.failure is None:
            record.outcome = Outcome.OK
        if self.done is not None and not self.done.done():
            self.done.set_result(None)

    def _judge(self) -> None:
        if self._status in _OVERLOADED:
            self._fail(ErrorClass.OVERLOADED, *read_error_body(b"".join(self._body)))
        elif self._status != 200:
            kind = ErrorClass.CLIENT_ERROR if 400 <= self._status < 500 else ErrorClass.SERVER_ERROR
            self._fail(kind, *read_error_body(b"".join(self._body)))
        elif not self._is_stream:
            self._judge_plain()
        elif not (self._record.finish_reason or self._is_done_said):
            self._fail(ErrorClass.CUT, "the stream ended without a finish reason and without [DONE]")
        elif not self._record.chunks:
            self._fail(ErrorClass.EMPTY, "a complete answer without any output")

    def _judge_plain(self) -> None:
        message, code = read_error_body(b"".join(self._body))
        kind = ErrorClass.STREAM_ERROR if code else ErrorClass.PROTOCOL
        self._fail(kind, message if code else "HTTP 200, but no event stream: this server does not stream", code)


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else float(header)
    except ValueError:
        return None


@dataclass(slots=True)
class BenchClient:
    """Sends requests to one server. For one event loop.

    Attributes:
        origin_ns: of the run's stamps.
        timeout_s: for one request, from sending to the end of its stream.
        path: `/v1/chat/completions` or `/v1/completions`.
        headers: sent with each request; the API key is in here and nowhere else.
        reader_class: what reads the answers; for answers that are not streamed, `whole_answer.WholeAnswerReader`.
    """

    pool: ConnectionPool
    path: str
    origin_ns: int
    timeout_s: float = 600.0
    headers: dict[str, str] = field(default_factory=dict)
    num_in_flight: int = 0
    peak_in_flight: int = 0
    reader_class: type[StreamReader] = StreamReader

    async def ask(self, record: RequestRecord, body: bytes) -> str:
        """Send `body` and fill `record` to its end. Returns the text of the answer (empty when it failed).

        When cancelled, the connection is closed and the record stays CANCELLED with what came so far.
        """
        self.num_in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.num_in_flight)
        request = encode_request("POST", self.pool.address, self.path, self.headers, body)
        try:
            async with asyncio.timeout(self.timeout_s):
                return await self._exchange(record, request)
        except TimeoutError:
            record.end_ns = self.now_ns()
            record.outcome = Outcome.FAILED
            record.failure = Failure(ErrorClass.TIMEOUT, f"not finished after {self.timeout_s:g} s")
            return ""
        finally:
            self.num_in_flight -= 1
            if record.end_ns is None:
                record.end_ns = self.now_ns()

    def now_ns(self) -> int:
        """The present moment on the run's scale."""
        return self.pool.clock() - self.origin_ns

    async def _exchange(self, record: RequestRecord, request: bytes) -> str:
        while True:
            try:
                connection, record.is_new_connection = await self.pool.take()
            except OSError as error:
                record.end_ns = self.now_ns()
                record.outcome = Outcome.FAILED
                record.failure = Failure(ErrorClass.CONNECT, f"cannot connect to {self.pool.address}: {error}")
                return ""
            reader = self.reader_class(record, self.origin_ns, asyncio.get_running_loop().create_future())
            await self._send(connection, record, reader, request)
            if reader.has_bytes or record.is_new_connection:
                return reader.text if record.outcome is Outcome.OK else ""
            # The server had closed this kept connection while the request was on its way, as HTTP/1.1 allows. Send once
            # more on another one; the clock of the request runs on.
            record.failure, record.outcome, record.end_ns = None, Outcome.CANCELLED, None

    async def _send(self, connection: Connection, record: RequestRecord, reader: StreamReader, request: bytes) -> None:
        assert reader.done is not None
        try:
            sent_ns = connection.send(request, reader) - self.origin_ns
            if record.sent_ns is None:
                record.sent_ns = sent_ns
            await reader.done
        except BaseException:
            connection.abort()
            raise
        self.pool.give_back(connection)
