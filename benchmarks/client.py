"""A small load client for OpenAI-style endpoints that does not flatter and does not cost much.

Raw asyncio streams: an HTTP library costs more per chunk than a fast server (httpx puts 100 ms on a TTFT at 32 streams).
Every read from the socket is stamped with `perf_counter_ns` before anything is parsed. Only chunks with generated text count;
the role chunk, usage, keep-alives and `[DONE]` do not. A stream that does not end with a finish reason and `[DONE]` is a failure,
as is an error event under status 200.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import urlsplit

import httptools

CHAT_PATH = "/v1/chat/completions"
DISCONNECTED = "disconnected by the client"
_READ_BYTES = 256 * 1024
_Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(slots=True)
class Answer:
    """What came back. Stamps are nanoseconds of `time.perf_counter_ns`; None where it did not come so far.

    Attributes:
        stamps_ns, texts: one entry per generated chunk.
        num_coalesced: generated chunks that came out of the same read as the one before.
        logprobs: entries of `choices[].logprobs.content`, one per token, when they were asked for.
        body: the whole body of an answer that is no event stream.
        error: why it failed; None is success.
    """

    send_ns: int
    headers_ns: int | None = None
    end_ns: int | None = None
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    stamps_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    num_coalesced: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    body: bytes = b""
    error: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def num_tokens(self) -> int:
        """Output tokens by the server's own count."""
        return int(self.usage.get("completion_tokens", 0))

    @property
    def num_prompt_tokens(self) -> int:
        return int(self.usage.get("prompt_tokens", 0))

    @property
    def num_cached_tokens(self) -> int:
        return int((self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def ttft_s(self) -> float:
        """First byte written to first generated chunk. NaN without one."""
        return (self.stamps_ns[0] - self.send_ns) / 1e9 if self.stamps_ns else float("nan")

    @property
    def tpot_s(self) -> float:
        """Mean time per token after the first chunk (which is taken as one token). NaN below two tokens."""
        if len(self.stamps_ns) < 2 or self.num_tokens < 2:
            return float("nan")
        return (self.stamps_ns[-1] - self.stamps_ns[0]) / 1e9 / (self.num_tokens - 1)

    @property
    def e2e_s(self) -> float:
        """First byte written to last generated chunk (not streaming: to the end of the answer)."""
        last_ns = self.stamps_ns[-1] if self.stamps_ns else self.end_ns
        return (last_ns - self.send_ns) / 1e9 if last_ns is not None else float("nan")


@dataclass(frozen=True, slots=True)
class Disconnect:
    """When the client walks away: after so many seconds, or once it has so many generated chunks."""

    after_s: float | None = None
    after_chunks: int | None = None


class _StaleConnectionError(ConnectionError):
    """It ended before a byte of the answer came."""


class Client:
    """Keeps connections open for the next call, as SDKs do. For one event loop; `async with` closes it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection[1].transport.abort()
        self._idle.clear()

    async def ask(
        self,
        body: Mapping[str, Any],
        *,
        path: str = CHAT_PATH,
        timeout_s: float = 300.0,
        disconnect: Disconnect | None = None,
        on_start: Callable[[Answer], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """POST a body and read the answer to its end. Never raises for what the server does: see `Answer.error`.

        `on_start` gets the answer before there is anything in it, to be watched while it grows.
        """
        return await self._call("POST", path, json.dumps(body).encode(), timeout_s, disconnect, on_start, headers or {})

    async def get(self, path: str, timeout_s: float = 30.0) -> Answer:
        """GET a path."""
        return await self._call("GET", path, b"", timeout_s)

    async def _call(
        self,
        method: str,
        path: str,
        payload: bytes,
        timeout_s: float,
        disconnect: Disconnect | None = None,
        on_start: Callable[[Answer], None] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        more = "".join(f"\r\n{name}: {value}" for name, value in (headers or {}).items())
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}"
        )
        leave_s = disconnect.after_s if disconnect is not None else None
        answer = Answer(send_ns=time.perf_counter_ns())
        if on_start is not None:
            on_start(answer)
        connection: _Connection | None = None
        can_reuse = False
        try:
            async with asyncio.timeout(timeout_s if leave_s is None else leave_s):
                while True:
                    is_fresh = not self._idle
                    connection = await self._connect()
                    answer.send_ns = time.perf_counter_ns()
                    connection[1].write((head + more).encode() + b"\r\n\r\n" + payload)
                    leave_after_chunks = disconnect.after_chunks if disconnect is not None else None
                    try:
                        can_reuse = await _read_answer(connection[0], answer, leave_after_chunks)
                        break
                    except _StaleConnectionError:  # llama-server closes idle ones after five seconds, this one just now
                        connection[1].transport.abort()
                        if is_fresh:
                            raise
        except TimeoutError:
            answer.error = DISCONNECTED if leave_s is not None else f"no complete answer within {timeout_s:g} s"
        except OSError as error:
            answer.error = f"connection: {error}"
        except asyncio.CancelledError:
            answer.error = DISCONNECTED
            if connection is not None:
                connection[1].transport.abort()
            raise
        if connection is not None:
            if answer.is_ok and can_reuse:
                self._idle.append(connection)
            else:
                connection[1].transport.abort()
        return answer

    async def _connect(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof() and not connection[1].is_closing():
                return connection
        return await asyncio.open_connection(self._host, self._port)


async def _read_answer(reader: asyncio.StreamReader, answer: Answer, leave_after_chunks: int | None) -> bool:
    """Fill `answer`; return whether the connection can serve another call."""
    parsing = _Parsing(answer)
    while not parsing.is_complete:
        data = await reader.read(_READ_BYTES)
        parsing.now_ns = time.perf_counter_ns()
        if not data:
            if not parsing.has_begun:
                raise _StaleConnectionError("it ended before the answer")
            answer.error = "the connection ended before the end of the answer"
            break
        parsing.has_begun = True
        try:
            parsing.parser.feed_data(data)
        except httptools.HttpParserError as error:
            answer.error = f"not HTTP: {error}"
            break
        if leave_after_chunks is not None and len(answer.stamps_ns) >= leave_after_chunks:
            answer.error = DISCONNECTED
            break
    answer.end_ns = time.perf_counter_ns()
    if answer.error is None:
        parsing.judge()
    return parsing.can_reuse


class _Parsing:
    """Callbacks of httptools, and server-sent events out of body bytes."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.parser = httptools.HttpResponseParser(self)
        self.now_ns = 0
        self.is_complete = self.can_reuse = self.has_begun = False
        self._is_stream = False
        self._is_done = False
        self._rest = b""
        self._last_chunk_ns = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status = self.parser.get_status_code()
        self.answer.headers_ns = self.now_ns
        self._is_stream = self.answer.headers.get("content-type", "").startswith("text/event-stream")

    def on_body(self, body: bytes) -> None:
        self._rest += body
        if not self._is_stream:
            return
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            self._on_event(event)

    def on_message_complete(self) -> None:
        self.is_complete = True
        # Only in here: the parser then forgets that the body had an end of its own.
        self.can_reuse = self.parser.should_keep_alive()

    def judge(self) -> None:
        """Decide whether the complete answer is a success."""
        answer = self.answer
        answer.body = b"" if self._is_stream else self._rest
        if answer.status != 200:
            answer.error = f"status {answer.status}: {self._rest[:300].decode(errors='replace')}"
        elif self._is_stream:
            if answer.error is None and not (self._is_done and answer.finish_reason):
                answer.error = f"the stream ended without {'a finish reason' if self._is_done else '[DONE]'}"
        elif answer.headers.get("content-type", "").startswith("application/json"):
            self._on_whole(json.loads(self._rest))

    def _on_event(self, event: bytes) -> None:
        for line in event.split(b"\n"):
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self._is_done = True
            else:
                self._on_chunk(json.loads(data))

    def _on_chunk(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.answer.error = f"error event: {chunk['error']}"
            return
        if chunk.get("usage"):
            self.answer.usage = chunk["usage"]
        for choice in chunk.get("choices", ()):
            text = _generated_text(choice)
            if text:
                self.answer.num_coalesced += self._last_chunk_ns == self.now_ns
                self._last_chunk_ns = self.now_ns
                self.answer.stamps_ns.append(self.now_ns)
                self.answer.texts.append(text)
            self.answer.logprobs += (choice.get("logprobs") or {}).get("content") or ()
            self.answer.finish_reason = choice.get("finish_reason") or self.answer.finish_reason

    def _on_whole(self, whole: dict[str, Any]) -> None:
        self.answer.usage = whole.get("usage") or {}
        for choice in whole.get("choices", ()):
            message = choice.get("message") or {}
            self.answer.texts.append(message.get("content") or choice.get("text") or "")
            self.answer.finish_reason = choice.get("finish_reason")


def _generated_text(choice: Mapping[str, Any]) -> str:
    """Text of a chunk that counts as generated: content, reasoning or a tool call."""
    delta = choice.get("delta") or {}
    text = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or choice.get("text") or ""
    for call in delta.get("tool_calls") or ():
        function = call.get("function") or {}
        text += (function.get("name") or "") + (function.get("arguments") or "")
    return str(text)
