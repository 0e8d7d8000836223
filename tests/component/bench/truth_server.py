"""A server whose truth is known: role chunk at 50 ms, first token at 200 ms, then gaps of 10 and 30 ms in turn.

The name of the model chooses the variant. It keeps the moments at which it really wrote (all processes of a machine share the
clock), so that a client's stamps can be compared with them and not with a schedule that a busy machine did not keep.

    python -m tests.component.bench.truth_server --port 8099
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

ROLE_S, FIRST_S, GAPS_S = 0.050, 0.200, (0.010, 0.030)
VARIANTS = (
    "truth",
    "truth-counted",
    "truth-2tok",
    "truth-2tok-counted",
    "truth-reasoning",
    "truth-tool",
    "truth-nousage",
    "truth-buffered",
    "truth-coalesced",
    "truth-error-200",
    "truth-cut",
    "truth-empty",
    "truth-plain-json",
    "truth-429",
    "truth-503",
    "truth-flaky",
    "truth-strict",
    "truth-moved",
)


@dataclass
class TruthServer:
    """Attributes: `scale` shortens all times (0: no waiting); `written_ns` request id -> [received, first, ..., last] chunk."""

    scale: float = 1.0
    accept_delay_s: float = 0.0
    is_closing: bool = False
    """End each answer with the connection instead of a length."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    written_ns: dict[str, list[int]] = field(default_factory=dict)
    pages: dict[str, list[Any]] = field(default_factory=dict)
    """Path -> what it answers in turn, the last one for ever; a string is sent as it is."""
    num_connections: int = 0
    num_requests: int = 0
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        await asyncio.sleep(self.accept_delay_s)
        try:
            while (request := await _read_request(reader)) is not None:
                await self._answer(*request, writer)
                if self.is_closing:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        received_ns = time.perf_counter_ns()
        if path == "/v1/models":
            return _write_json(writer, 200, {"object": "list", "data": [{"id": name, "object": "model"} for name in VARIANTS]})
        if path == "/truth":
            return _write_json(writer, 200, self.written_ns)
        if path in self.pages:
            return _write_json(writer, 200, self.pages[path].pop(0) if len(self.pages[path]) > 1 else self.pages[path][0])
        if not body:
            return _write_json(writer, 404, {"error": {"message": "no such page", "code": "unknown_url"}})
        request = json.loads(body)
        self.bodies.append(request)
        self.num_requests += 1
        variant = request["model"].removeprefix("truth").removeprefix("-")
        if variant in ("429", "503") or (variant == "flaky" and self.num_requests > 8 and self.num_requests % 3 == 0):
            error = {"error": {"message": "no room", "code": "slow_down"}}
            return _write_json(writer, 429 if variant == "429" else 503, error, "retry-after: 2\r\n")
        if variant == "strict" and ("ignore_eos" in request or "continuous_usage_stats" in request.get("stream_options", {})):
            return _write_json(writer, 400, {"error": {"message": "Unrecognized request argument", "code": "unknown_parameter"}})
        if variant == "plain-json":
            return _write_json(writer, 200, {"choices": [{"message": {"content": "hello"}, "finish_reason": "stop"}]})
        await _Stream(self, request, variant, writer, received_ns).send()
        return None


@dataclass
class _Stream:
    server: TruthServer
    request: dict[str, Any]
    variant: str
    writer: asyncio.StreamWriter
    received_ns: int
    held: bytes = b""

    async def send(self) -> None:
        num_tokens = int(self.request.get("max_tokens") or self.request.get("max_completion_tokens") or 16)
        request_id = f"r{self.server.num_requests}"
        stamps = self.server.written_ns[request_id] = [self.received_ns]
        tier = self.request.get("service_tier")
        served = "default" if self.variant == "moved" and tier else tier
        extra = f"x-ultrafast-tier-served: {served}\r\n" if served else ""
        timing = "server-timing: queue;dur=20.0, prefill;dur=150.0\r\n"
        framing = "connection: close\r\n" if self.server.is_closing else "transfer-encoding: chunked\r\n"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: {request_id}\r\n{extra}{timing}{framing}\r\n"
        self.writer.write(head.encode())
        await self._until(ROLE_S)
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        if self.variant == "error-200":
            self._event({"error": {"message": "out of memory", "code": "engine_failed"}})
        elif self.variant != "empty" and await self._tokens(num_tokens, stamps):
            return
        await self._finish(num_tokens)

    async def _tokens(self, num_tokens: int, stamps: list[int]) -> bool:
        """Every token at its moment; True when the stream was cut."""
        per_chunk = 2 if self.variant.startswith("2tok") else 1
        for number in range(0, num_tokens, per_chunk):
            await self._until(token_s(number + per_chunk - 1, per_chunk))
            stamps.append(time.perf_counter_ns())
            self._event(self._chunk(number, min(per_chunk, num_tokens - number), num_tokens))
            if self.variant == "cut" and number >= num_tokens // 2:
                self.writer.transport.abort()
                return True
        return False

    def _chunk(self, number: int, num_new: int, num_tokens: int) -> dict[str, Any]:
        text = " word" * num_new
        delta: dict[str, Any] = {"content": text}
        if self.variant == "reasoning" and number < num_tokens // 2:
            delta = {"reasoning_content": text}
        if self.variant == "tool":
            delta = {"tool_calls": [{"index": 0, "function": {"arguments": text}}]}
        event: dict[str, Any] = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        is_asked = self.request.get("stream_options", {}).get("continuous_usage_stats")
        if is_asked and self.variant.endswith("counted"):
            event["usage"] = {"prompt_tokens": self._num_prompt, "completion_tokens": number + num_new}
        return event

    @property
    def _num_prompt(self) -> int:
        """Five tokens of template, then one per word."""
        messages = self.request.get("messages") or [{"content": self.request.get("prompt", "")}]
        return 5 + sum(len(str(message.get("content", "")).split()) for message in messages)

    async def _finish(self, num_tokens: int) -> None:
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if self.variant != "nousage" and self.request.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": self._num_prompt, "completion_tokens": 0 if self.variant == "empty" else num_tokens}
            self._event({"choices": [], "usage": usage | {"prompt_tokens_details": {"cached_tokens": 0}}})
        self._event(None)
        self._flush()
        if not self.server.is_closing:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def _event(self, value: dict[str, Any] | None) -> None:
        data = b"[DONE]" if value is None else json.dumps(value).encode()
        self.held += b"data: " + data + b"\n\n"
        if self.variant == "buffered" and value is not None:
            return
        if self.variant == "coalesced" and value is not None and len(self.held) < 400:
            return
        self._flush()

    def _flush(self) -> None:
        if self.held:
            self.writer.write(self.held if self.server.is_closing else b"%x\r\n%s\r\n" % (len(self.held), self.held))
        self.held = b""

    async def _until(self, offset_s: float) -> None:
        due_ns = self.received_ns + int(offset_s * self.server.scale * 1e9)
        while (rest_ns := due_ns - time.perf_counter_ns()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(rest_ns / 1e9)


def token_s(number: int, num_first: int = 1) -> float:
    """When token `number` leaves, seconds after the request came; those of the first chunk leave together at `FIRST_S`."""
    gaps = number - (num_first - 1)
    return FIRST_S + gaps // 2 * sum(GAPS_S) + gaps % 2 * GAPS_S[0]


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes] | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    lines = head.decode().split("\r\n")
    lengths = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
    return lines[0].split()[1], await reader.readexactly(lengths[0]) if lengths else b""


def _write_json(writer: asyncio.StreamWriter, status: int, value: Any, extra: str = "") -> None:
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{extra}\r\n"
    writer.write(head.encode() + body)


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[TruthServer]:
    """A truth server on this event loop and a free port."""
    truth = TruthServer(**options)
    server = await asyncio.start_server(truth.handle, "127.0.0.1", 0, backlog=1024)
    truth.port = server.sockets[0].getsockname()[1]
    async with server:
        yield truth


async def _main(port: int, scale: float) -> None:
    truth = TruthServer(scale=scale)
    server = await asyncio.start_server(truth.handle, "127.0.0.1", port, backlog=1024)
    print(f"listening http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0)
    arguments = parser.parse_args()
    asyncio.run(_main(arguments.port, arguments.scale))
