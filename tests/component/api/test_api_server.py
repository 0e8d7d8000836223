"""The application under uvicorn on a loopback port: clients that leave, read slowly, send slowly, or stay for the shutdown."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from typing import Any

import httpx
import pytest
import uvicorn
from tests.component.api.edge import HELLO, Setup, listening, make, raw_request, until
from tests.component.api.fake_service import (
    PLACED,
    FakeService,
    Gate,
    completed,
    flooding,
    healthy,
    playing,
    speaking,
    started,
    waiting,
)
from uvicorn.server import ServerState

from ultrafast.api.app import build_app
from ultrafast.api.exchange import Exchange
from ultrafast.api.protocol import MAX_HEADER_BYTES, EdgeProtocol
from ultrafast.config.settings import ServerSettings
from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import EngineFailedError, InvalidRequestError, OverloadedError, UltrafastError, UnavailableError
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder
from ultrafast.serving.contract import ChoiceFinished, Delta

CHAT = "/v1/chat/completions"
GOOD = json.dumps(HELLO).encode()
STREAM = json.dumps({**HELLO, "stream": True}).encode()


def is_idle(setup: Setup) -> bool:
    return setup.sample("ultrafast_requests_in_flight") == 0 and setup.lifecycle.num_active == 0


def aborted(setup: Setup) -> float:
    return setup.sample("ultrafast_requests_total", tier="default", outcome="aborted")


async def post(port: int, body: bytes = GOOD) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        return await http.post(CHAT, content=body, headers={"content-type": "application/json"})


@pytest.mark.parametrize("is_reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("body", [GOOD, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize("before", [(), ("a",)], ids=["before_first_token", "mid_answer"])
async def test_a_client_that_leaves_aborts_its_request(before: tuple[str, ...], body: bytes, is_reset: bool) -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, *before)})
    async with listening(setup) as port:
        _, writer = await raw_request(port, CHAT, body)
        await gate.entered.wait()
        assert setup.sample("ultrafast_requests_in_flight") == 1
        if is_reset:
            writer.transport.abort()
        else:
            writer.close()
        await gate.left.wait()
        await until(lambda: is_idle(setup))
        assert gate.num_aborted == 1
        assert aborted(setup) == 1
        assert setup.sample("ultrafast_http_responses_total", route=CHAT, status_class="aborted") == 1
        setup.service.scripts["m"] = speaking("ok")
        assert (await post(port)).status_code == 200


@pytest.mark.parametrize("body", [GOOD, STREAM], ids=["whole", "stream"])
async def test_a_client_that_closes_its_sending_side_counts_as_gone(body: bytes) -> None:
    """The same FIN as that of one that left: see docs/api.md."""
    gate = Gate()
    setup = make({"m": waiting(gate)})
    async with listening(setup) as port:
        reader, writer = await raw_request(port, CHAT, body)
        await gate.entered.wait()
        writer.write_eof()
        await gate.left.wait()
        await until(lambda: is_idle(setup))
        assert await reader.read() == b""
        assert (gate.num_aborted, aborted(setup)) == (1, 1)
        writer.close()


async def test_many_that_leave_keep_no_place() -> None:
    gate = Gate()
    setup = make({"w": waiting(gate, "a"), "e": playing(EngineFailedError("x"))})
    bodies = [json.dumps({**HELLO, "model": model, "stream": i % 2 == 0}).encode() for i in range(10) for model in "weu"]
    async with listening(setup) as port:
        writers = [(await raw_request(port, CHAT, body))[1] for body in [*bodies, b"{", b""]]
        await until(lambda: gate.num_inside == 10)
        for writer in writers:
            writer.close()
        await until(lambda: is_idle(setup))
        assert gate.num_inside == 0
        assert aborted(setup) == 10


async def test_a_pipelined_second_request_does_not_hide_that_the_client_left() -> None:
    gate = Gate()
    # No ping may find out first.
    setup = make({"m": waiting(gate, "a")}, keepalive_interval_s=3600)
    async with listening(setup) as port:
        _, writer = await raw_request(port, CHAT, STREAM)
        await gate.entered.wait()
        writer.write(b"GET /health/live HTTP/1.1\r\nhost: t\r\n\r\n")
        await writer.drain()
        writer.close()
        await gate.left.wait()
        await until(lambda: is_idle(setup))
        assert len(setup.service.calls) == 1


async def test_a_reader_that_stops_loses_its_request_and_only_that() -> None:
    closed = asyncio.Event()
    setup = make({"flood": flooding("x" * 4000, closed)}, write_stall_timeout_s=0.2)
    body = json.dumps({**HELLO, "model": "flood", "stream": True}).encode()
    async with listening(setup) as port:
        sock = socket.create_connection(("127.0.0.1", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        sock.sendall(head + body)
        await until(closed.is_set)
        await until(lambda: is_idle(setup))
        assert (await post(port)).status_code == 200
        assert aborted(setup) == 1
        # Bounded: what the kernel holds for one connection, not what the model could say meanwhile.
        assert setup.sample("ultrafast_output_tokens_total", tier="default") * 4000 < 16 * 1024 * 1024
        sock.close()


async def test_a_write_that_never_ends_ends_the_request() -> None:
    closed = asyncio.Event()
    setup = make({"m": flooding("x", closed)}, write_stall_timeout_s=0.05)
    incoming = iter([{"type": "http.request", "body": STREAM, "more_body": False}])
    num_sent = 0

    async def receive() -> Any:
        message = next(incoming, None)
        if message is None:
            await asyncio.Event().wait()
        return message

    async def send(_: Any) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent == 5:
            await asyncio.Event().wait()

    headers = [(b"content-length", b"1")]
    await setup.app({"type": "http", "method": "POST", "path": CHAT, "headers": headers}, receive, send)
    assert closed.is_set()
    assert num_sent == 5
    assert aborted(setup) == 1


async def test_reading_and_blocked_writes_are_the_network_part() -> None:
    clock, metrics = ManualClock(100.0), Metrics()
    app = build_app(FakeService(), healthy, ServerSettings(), Recorder(metrics), clock=clock)
    body = iter([STREAM])

    async def receive() -> Any:
        piece = next(body, None)
        if piece is None:
            await asyncio.Event().wait()
        clock.advance(4)
        return {"type": "http.request", "body": piece, "more_body": False}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        clock.advance(1)

    headers = [(b"content-length", b"1")]
    await app({"type": "http", "method": "POST", "path": CHAT, "headers": headers}, receive, send)
    last = sent[-1]["body"].decode()
    assert "network;dur=8000.0, queue;dur=0.0, compute;dur=0.0, output;dur=0.0, total;dur=8000.0\n" in last
    labels = {"tier": "default", "part": "network"}
    # 4 s for the body; 1 s each for start, two deltas, finish, [DONE].
    assert metrics.registry.get_sample_value("ultrafast_latency_part_seconds_sum", labels) == 9
    assert metrics.registry.get_sample_value("ultrafast_e2e_seconds_sum", {"tier": "default"}) == 9
    assert metrics.registry.get_sample_value("ultrafast_ttft_seconds_sum", {"tier": "default"}) == 6


async def test_silence_is_filled_with_pings_between_events() -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a")}, keepalive_interval_s=0.02)
    async with listening(setup) as port:
        reader, writer = await raw_request(port, CHAT, STREAM)
        text = ""
        while text.count(": ping\n\n") < 2:
            text += (await reader.read(4096)).decode()
        assert text.index('"content":"a"') < text.index(": ping")
        gate.opened.set()
        while "[DONE]" not in text:
            text += (await reader.read(4096)).decode()
        events = [line for line in text.split("\r\n") if line.startswith(("data:", ":"))]
        assert all(event.endswith("\n\n") for event in events)
        writer.close()


@pytest.mark.parametrize("error", [OverloadedError("busy"), ZeroDivisionError("bug")])
async def test_errors_after_a_ping_come_in_the_stream(error: Exception) -> None:
    gate = Gate()

    async def script(call: Any) -> Any:
        yield PLACED
        await gate.wait()
        raise error

    setup = make({"m": script}, keepalive_interval_s=0.02)
    async with listening(setup) as port:
        reader, writer = await raw_request(port, CHAT, STREAM)
        text = ""
        while ": ping" not in text:
            text += (await reader.read(4096)).decode()
        assert text.startswith("HTTP/1.1 200")
        assert "server-timing: queue;dur=1.0\r\n" in text
        assert "x-ultrafast-tier-served: default\r\n" in text
        gate.opened.set()
        while "[DONE]" not in text:
            text += (await reader.read(4096)).decode()
        event = next(line for line in text.split("\r\n") if line.startswith("data: {"))
        assert json.loads(event.removeprefix("data: ").split("\n")[0])["error"]["message"]
        writer.close()
        await until(lambda: is_idle(setup))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OverloadedError("late", code="queue_timeout", retry_after_s=3), 429),
        (UnavailableError("gone", retry_after_s=3), 503),
        (InvalidRequestError("long"), 400),
    ],
)
async def test_what_is_refused_after_a_long_wait_for_a_place_has_its_status(error: UltrafastError, status: int) -> None:
    """No comment may come before there is a place: it would be the head of a success."""
    gate = Gate()

    async def script(call: Any) -> Any:
        await gate.wait()
        raise error
        yield started(call)

    setup = make({"m": script}, keepalive_interval_s=0.01)
    async with listening(setup) as port, asyncio.TaskGroup() as group:
        answer = group.create_task(post(port, STREAM))
        await gate.entered.wait()
        await asyncio.sleep(0.2)  # many intervals
        gate.opened.set()
        refused = await answer
    assert refused.status_code == status
    assert int(refused.headers.get("retry-after-ms", "0")) >= (0 if status == 400 else 3000)
    assert ": ping" not in refused.text
    assert refused.json()["error"]["code"] == error.code


async def test_pings_begin_once_there_is_a_place() -> None:
    in_queue, in_engine = Gate(), Gate()

    async def script(call: Any) -> Any:
        await in_queue.wait()
        yield PLACED
        await in_engine.wait()
        yield started(call)
        yield Delta(0, "x", num_tokens=1)
        yield ChoiceFinished(0, "stop")
        yield completed(1)

    setup = make({"m": script}, keepalive_interval_s=0.01)
    async with listening(setup) as port:
        reader, writer = await raw_request(port, CHAT, STREAM)
        await in_queue.entered.wait()
        in_queue.opened.set()
        assert b": ping" in await reader.readuntil(b": ping\n\n")
        in_engine.opened.set()
        assert b'"content":"x"' in await reader.readuntil(b"[DONE]")
        writer.close()


async def test_bodies_and_headers_that_never_come() -> None:
    setup = make(read_timeout_s=0.1)
    async with listening(setup) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\n{{".encode())
        text = (await reader.readuntil(b"}}")).decode()
        assert text.startswith("HTTP/1.1 408")
        assert '"code":"request_timeout"' in text
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        assert refusal_of(await everything(port, b"POST /v1/models HTTP/1.1\r\nx-slow: "), 408, "request_timeout")
        assert refusal_of(await everything(port), 408, "request_timeout")
        assert (await post(port)).status_code == 200


def head(extra: str = "", method: str = "POST", path: str = CHAT) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nhost: t\r\n{extra}\r\n".encode()


LIVE = head(method="GET", path="/health/live")
CHUNKED = head("transfer-encoding: chunked\r\n")


async def everything(port: int, *pieces: bytes) -> bytes:
    """Send pieces, each in a packet of its own, and return all that comes until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.01)
    answer = await reader.read()
    writer.close()
    return answer


def refusal_of(answer: bytes, status: int, code: str, request_id: str = "req_") -> str:
    """Check that the last answer is this refusal in the shape of every error; return its request id."""
    last = answer[answer.rindex(b"HTTP/1.1 ") :]
    headers, _, body = last.partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 %d " % status), answer
    error = json.loads(body)["error"]
    assert (error["code"], error["type"]) == (code, "invalid_request_error")
    assert b"connection: close" in headers
    assert error["request_id"].startswith(request_id)
    assert f"x-request-id: {error['request_id']}".encode() in headers
    return str(error["request_id"])


async def test_a_length_with_thousands_of_zeros_in_front_is_a_number_like_any_other() -> None:
    """Python refuses to read numbers of so many digits: an error of ours, were it left to itself."""
    headers = f"connection: close\r\ncontent-type: application/json\r\ncontent-length: {'0' * 5000}2\r\n"
    setup = make({"m": HELLO})
    async with listening(setup) as port:
        answer = await everything(port, head(headers) + b"{}")
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"missing_required_parameter" in answer


@pytest.mark.parametrize(
    ("request_bytes", "status", "code"),
    [
        (b"NONSENSE\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400, "invalid_http"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "invalid_http"),
        (head("content-length: 5\r\ntransfer-encoding: chunked\r\n") + b"0\r\n\r\n", 400, "invalid_http"),
        (head("content-length: 5\r\ncontent-length: 6\r\n") + b"123456", 400, "invalid_http"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_http"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 300_000, 431, "headers_too_large"),
        (b"GET /" + b"a" * 300_000, 431, "headers_too_large"),
        (head("x: " + "a" * MAX_HEADER_BYTES + "\r\n"), 431, "headers_too_large"),
        (head("x: y\r\n" * (MAX_HEADER_BYTES // 6)), 431, "headers_too_large"),
        (CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n", 400, "invalid_http"),
        (CHUNKED + b"2\r\n{}xx0\r\n\r\n", 400, "invalid_http"),
        (CHUNKED + b"fffffffffffffffffffff\r\n", 400, "invalid_http"),
        (CHUNKED + b"-1\r\n", 400, "invalid_http"),
    ],
)
async def test_requests_that_are_no_http_or_too_much(request_bytes: bytes, status: int, code: str) -> None:
    setup = make()
    async with listening(setup) as port:
        first = refusal_of(await everything(port, request_bytes), status, code)
        second = refusal_of(await everything(port, request_bytes[:40], request_bytes[40:]), status, code)
        assert first != second
        assert setup.sample("ultrafast_http_responses_total", route="unmatched", status_class="4xx") == 2
        assert (await post(port)).status_code == 200
        await until(lambda: is_idle(setup))


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (head(), 411),
        (head("content-length: 9999999999\r\nexpect: 100-continue\r\n"), 413),
        (head("content-length: 2\r\ncontent-encoding: gzip\r\n") + b"xx", 415),
        (head("transfer-encoding: gzip, chunked\r\n") + b"2\r\n{}\r\n0\r\n\r\n", 415),
    ],
)
async def test_requests_that_are_refused_by_their_headers(request_bytes: bytes, status: int) -> None:
    async with listening(make()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_bytes)
        text = await reader.readuntil(b"}}")
        assert text.startswith(f"HTTP/1.1 {status}".encode())
        assert b'{"error":{"message":' in text
        writer.close()


UPGRADES = [
    "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
    "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n",
]


@pytest.mark.parametrize("cut", [0, 30, -20, -1], ids=["whole", "in_headers", "in_body", "last_byte"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "websocket"])
async def test_an_offer_to_upgrade_is_not_taken_and_the_body_is_read(offer: str, is_chunked: bool, cut: int) -> None:
    setup = make()
    if is_chunked:
        request = head(offer + "transfer-encoding: chunked\r\n") + b"%x\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    else:
        request = head(offer + f"content-length: {len(GOOD)}\r\n") + GOOD
    last = head("connection: close\r\n", "GET", "/health/live")
    async with listening(setup) as port:
        answer = await everything(port, request[:cut], request[cut:] + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 2, answer
    assert b"Hello world" in answer
    assert b'{"status":"live"}' in answer
    assert [call.messages for call in setup.service.calls] == [HELLO["messages"]]  # type: ignore[union-attr]


ID = "x-request-id: mine 7\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status", "code", "request_id"),
    [
        (head(ID + "transfer-encoding: chunked\r\n") + b"zz\r\n", 400, "invalid_http", "mine 7"),
        (head(ID + "x: " + "a" * MAX_HEADER_BYTES + "\r\n"), 431, "headers_too_large", "mine 7"),
        (head(ID, "GET", "/" + "a" * MAX_HEADER_BYTES), 431, "headers_too_large", "mine 7"),
        (f"GET / HTTP/1.1\r\n{ID}x: y\r\nno colon\r\n\r\n".encode(), 400, "invalid_http", "mine 7"),
        (head(ID, "GET", "/health/live") + b"NONSENSE\r\n\r\n", 400, "invalid_http", "req_"),
        (head(ID, "GET", "/health/live") + b"\x16\x03\x01\r\n\r\n", 400, "invalid_http", "req_"),
    ],
)
async def test_a_refusal_names_the_clients_request_as_far_as_it_was_read(
    request_bytes: bytes, status: int, code: str, request_id: str
) -> None:
    async with listening(make()) as port:
        answer = await everything(port, request_bytes)
    assert refusal_of(answer, status, code, request_id)
    assert b"cache-control: no-store\r\n" in answer[answer.rindex(b"HTTP/1.1 ") :]


@pytest.mark.parametrize("offer", UPGRADES, ids=["h2c", "websocket"])
async def test_an_offer_without_a_body_is_an_ordinary_request(offer: str) -> None:
    async with listening(make()) as port:
        request = head(offer, "GET", "/health/live")
        answer = await everything(port, request * 500, request, head("connection: close\r\n", "GET", "/health/live"))
        assert answer.count(b"HTTP/1.1 200 OK") == 502
        refusal_of(await everything(port, b"CONNECT t:443 HTTP/1.1\r\nhost: t\r\n\r\n"), 400, "invalid_http")


async def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    async with listening(make()) as port:
        for body in (GOOD, STREAM):
            old = head(f"content-length: {len(body)}\r\n").replace(b"HTTP/1.1", b"HTTP/1.0") + body
            headers, _, rest = (await everything(port, old)).partition(b"\r\n\r\n")
            assert b"transfer-encoding" not in headers
            assert b"connection: close" in headers
            if body is STREAM:
                assert rest.startswith(b"data: {")
                assert rest.endswith(b"\n\ndata: [DONE]\n\n")
                assert b"\r" not in rest
            else:
                assert json.loads(rest)["choices"][0]["message"]["content"] == "Hello world"


async def test_headers_just_below_the_limit_are_taken() -> None:
    async with listening(make()) as port:
        big = head("x: " + "a" * (MAX_HEADER_BYTES - 200) + "\r\nconnection: close\r\n", "GET", "/health/live")
        for cut in (len(big), 1000):
            assert (await everything(port, big[:cut], big[cut:])).startswith(b"HTTP/1.1 200")


async def test_a_large_body_does_not_count_as_headers_of_the_next_request() -> None:
    padded = GOOD + b" " * 200_000
    request = head(f"content-length: {len(padded)}\r\n") + padded
    last = head("connection: close\r\n", "GET", "/health/live")
    async with listening(make()) as port:
        answer = await everything(port, request + last[:20], last[20:])
        assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize("garbage", [b"NONSENSE\r\n\r\n", CHUNKED + b"zz\r\n"], ids=["no_request", "bad_chunk"])
@pytest.mark.parametrize("body", [GOOD, STREAM], ids=["whole", "stream"])
async def test_what_came_before_the_garbage_is_still_answered(garbage: bytes, body: bytes) -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a", after=("b",))})
    async with listening(setup) as port, asyncio.TaskGroup() as group:
        request = head(f"content-length: {len(body)}\r\n") + body
        answer = group.create_task(everything(port, request, LIVE, garbage, LIVE))
        await gate.entered.wait()
        gate.opened.set()
        text = await answer
        refusal_of(text, 400, "invalid_http")
        assert text.count(b"HTTP/1.1 200") == 2
        assert b'{"status":"live"}' in text
        await until(lambda: is_idle(setup))
        assert gate.num_aborted == 0


async def test_a_broken_body_ends_a_request_that_waits_for_it() -> None:
    setup = make()
    async with listening(setup) as port:
        refusal_of(await everything(port, CHUNKED, b"5\r\n12345\r\n", b"zz\r\n"), 400, "invalid_http")
        await until(lambda: setup.sample("ultrafast_http_responses_total", route=CHAT, status_class="aborted") == 1)
        assert not setup.service.calls


async def test_a_large_refused_body_still_gets_its_answer() -> None:
    async with listening(make(max_body_bytes=4096)) as port:
        answer = await post(port, b" " * 3_000_000)
        assert answer.status_code == 413
        assert (await post(port)).status_code == 200


async def test_a_chunked_body_over_the_limit() -> None:
    async def pieces() -> Any:
        for _ in range(50):
            yield b" " * 1000

    async with listening(make(max_body_bytes=4096)) as port, httpx.AsyncClient() as http:
        headers = {"content-type": "application/json"}
        answer = await http.post(f"http://127.0.0.1:{port}{CHAT}", content=pieces(), headers=headers)
        assert answer.status_code == 413


async def test_one_connection_serves_many_requests() -> None:
    async with listening(make()) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        for _ in range(3):
            assert (await http.post(CHAT, json=HELLO)).status_code == 200
            assert (await http.get("/nope")).status_code == 404
            assert (await http.post(CHAT, json={**HELLO, "stream": True})).text.endswith("data: [DONE]\n\n")


class Recording(asyncio.Transport):
    """A connection without a socket, which keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...
    def resume_reading(self) -> None: ...


async def test_headers_and_first_piece_of_a_stream_are_one_write() -> None:
    """Each write wakes the client: the first would have only headers to read."""
    config = uvicorn.Config(make().app, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    transport = Recording()
    protocol = EdgeProtocol(config, ServerState(), {})
    protocol.connection_made(transport)
    protocol.data_received(f"POST {CHAT} HTTP/1.1\r\ncontent-length: {len(STREAM)}\r\n\r\n".encode() + STREAM)
    await until(lambda: any(b"[DONE]" in data for data in transport.written))
    protocol.connection_lost(ConnectionResetError())
    headers, _, first = transport.written[0].partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"content":"Hello"' in first
    assert b"world" not in first


async def test_drain_lets_running_answers_finish() -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a", after=("b",))})
    async with listening(setup) as port, asyncio.TaskGroup() as group:
        answer = group.create_task(post(port, STREAM))
        await gate.entered.wait()
        drain = group.create_task(setup.lifecycle.drain(60))
        await until(lambda: setup.lifecycle.is_draining)
        assert (await post(port)).status_code == 503
        gate.opened.set()
        assert await drain == 0
        assert '"content":"b"' in (await answer).text


@pytest.mark.parametrize("is_stream", [False, True])
async def test_drain_cuts_what_takes_too_long(is_stream: bool) -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a")})
    async with listening(setup) as port, asyncio.TaskGroup() as group:
        request = group.create_task(post(port, STREAM if is_stream else GOOD))
        await gate.entered.wait()
        assert await setup.lifecycle.drain(0) == 1
        answer = await request
        assert '"code":"shutting_down"' in answer.text
        assert answer.status_code == (200 if is_stream else 503)
        assert answer.text.endswith("data: [DONE]\n\n") == is_stream
        assert gate.num_aborted == 1


async def broken(call: Any) -> Any:
    """Raise an error of its own every time: a kept one would hold what its traceback shows."""
    raise EngineFailedError("x")
    yield started(call)


async def test_an_ended_request_leaves_nothing_behind() -> None:
    gate = Gate()
    setup = make({"w": waiting(gate, "a"), "e": broken})
    async with listening(setup) as port:
        for model in ("m", "e", "w"):
            for is_stream in (False, True):
                body = json.dumps({**HELLO, "model": model, "stream": is_stream}).encode()
                _, writer = await raw_request(port, CHAT, body)
                await until(lambda: len(setup.service.calls) == 1)
                await until(lambda: gate.num_inside == 1 if model == "w" else is_idle(setup))  # noqa: B023 - awaited at once
                writer.close()
                await until(lambda: is_idle(setup))
                setup.service.calls.clear()

        def num_exchanges() -> int:
            gc.collect()
            exchanges = [item for item in gc.get_objects() if isinstance(item, Exchange)]
            return sum(exchange.scope.get("server") == ("127.0.0.1", port) for exchange in exchanges)

        # The server forgets a connection when it has seen its end.
        await until(lambda: num_exchanges() == 0)


async def test_a_server_that_is_cancelled_lets_go_of_everything() -> None:
    gate = Gate()
    for _ in range(2):
        setup = make({"m": waiting(gate, "a")})
        gate.entered.clear()
        async with listening(setup) as port:
            reader, writer = await raw_request(port, CHAT, STREAM)
            await gate.entered.wait()
        await until(lambda: gate.num_inside == 0)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert b"[DONE]" not in await reader.read()
        writer.close()


async def test_nodelay_is_set() -> None:
    gate = Gate()
    setup = make({"m": waiting(gate, "a")})
    async with listening(setup) as port:
        _, writer = await raw_request(port, CHAT, STREAM)
        await gate.entered.wait()
        (exchange,) = setup.lifecycle._active
        assert exchange.connection is not None
        transport = exchange.connection.abort.__self__  # type: ignore[attr-defined]
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()
        await gate.left.wait()


@pytest.mark.parametrize(
    ("target", "path", "meant"),
    [
        ("//v1/models", "//v1/models", "/v1/models"),
        ("//v1/models?a=//b", "//v1/models", "/v1/models"),
        ("//v1//%6dodels", "//v1//models", "/v1/models"),
        ("///", "///", "/"),
        ("/v1//chat/completions", "/v1//chat/completions", "/v1/chat/completions"),
    ],
)
async def test_a_path_with_doubled_slashes_is_shown_as_it_was_sent(target: str, path: str, meant: str) -> None:
    """A base URL that ends with a slash; its second slash begins no name of a host."""
    async with listening(make()) as port:
        reader, writer = await raw_request(port, target, b"{}", "connection: close\r\n")
        answer = (await reader.read()).decode()
        writer.close()
    assert answer.startswith("HTTP/1.1 404")
    error = json.loads(answer.partition("\r\n\r\n")[2])["error"]
    assert (error["message"], error["hint"]) == (f"There is no {path} here.", f"it has a slash too many: {meant}")
