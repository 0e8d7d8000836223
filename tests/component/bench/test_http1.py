"""The HTTP client against raw bytes of a real socket: framings, keep-alive, splits, broken answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ultrafast.bench.client import BenchClient
from ultrafast.bench.http1 import Address, BadUrlError, ConnectionPool, encode_request
from ultrafast.bench.records import ErrorClass, Outcome, RequestRecord

EVENTS = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVENTS), EVENTS)
SIZED = HEAD + b"content-length: %d\r\n\r\n%s" % (len(EVENTS), EVENTS)
CLOSED = HEAD + b"connection: close\r\n\r\n" + EVENTS


class Script:
    """Answers each request on a connection with the next bytes; b"" closes without an answer."""

    def __init__(self, *answers: bytes, piece_bytes: int = 1 << 20, closes_after: bool = False) -> None:
        self.answers = list(answers)
        self.piece_bytes = piece_bytes
        self.closes_after = closes_after
        self.num_connections = 0
        self.requests: list[bytes] = []

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                size = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length")), 0)
                self.requests.append(head + await reader.readexactly(size))
                answer = self.answers.pop(0)
                for start in range(0, len(answer), self.piece_bytes):
                    writer.write(answer[start : start + self.piece_bytes])
                    await writer.drain()
                    await asyncio.sleep(0)
                if not answer or self.closes_after or b"connection: close" in answer:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[BenchClient]:
    server = await asyncio.start_server(script.handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clock = iter(range(1_000_000, 1 << 40, 1_000_000)).__next__
    client = BenchClient(
        ConnectionPool(Address.parse(f"http://127.0.0.1:{port}"), clock), "/v1/chat/completions", 0, timeout_s=20
    )
    try:
        yield client
    finally:
        client.pool.close()
        server.close()
        await server.wait_closed()


async def ask(client: BenchClient) -> RequestRecord:
    record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=0)
    await client.ask(record, b'{"x":1}')
    return record


@pytest.mark.parametrize("piece_bytes", [1, 3, 1 << 20])
@pytest.mark.parametrize("answer", [CHUNKED, SIZED, CLOSED])
async def test_every_framing_in_any_pieces(answer: bytes, piece_bytes: int):
    async with scripted(Script(answer, piece_bytes=piece_bytes)) as client:
        record = await ask(client)
    assert record.outcome is Outcome.OK, record.failure
    assert len(record.chunks) == 1
    assert record.sent_ns is not None
    assert record.headers_ns is not None
    assert record.end_ns is not None
    assert record.sent_ns < record.headers_ns <= record.chunks[0].stamp_ns <= record.end_ns


async def test_a_continue_before_the_answer_is_skipped():
    async with scripted(Script(b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED)) as client:
        assert (await ask(client)).is_ok


async def test_connections_are_kept_and_said_to_be_new():
    script = Script(CHUNKED, SIZED, CHUNKED)
    async with scripted(script) as client:
        records = [await ask(client) for _ in range(3)]
    assert script.num_connections == 1
    assert [record.is_new_connection for record in records] == [True, False, False]


async def test_as_many_connections_as_requests_at_once():
    script = Script(*[CHUNKED] * 30)
    async with scripted(script) as client:
        records = await asyncio.gather(*(ask(client) for _ in range(30)))
    assert all(record.is_ok for record in records)
    assert script.num_connections == 30
    assert client.peak_in_flight == 30


async def test_a_kept_connection_that_the_server_dropped_is_replaced_silently():
    script = Script(CHUNKED, b"", CHUNKED)
    async with scripted(script) as client:
        first, second = await ask(client), await ask(client)
    assert first.is_ok
    assert second.is_ok
    assert second.is_new_connection
    assert len(script.requests) == 3


async def test_a_new_connection_that_ends_without_an_answer_is_a_failure():
    async with scripted(Script(b"")) as client:
        record = await ask(client)
    assert record.failure is not None
    assert record.failure.kind is ErrorClass.CUT


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"SSH-2.0-OpenSSH\r\n", ErrorClass.PROTOCOL),
        (CHUNKED[:-20], ErrorClass.CUT),
        (SIZED[:-20], ErrorClass.CUT),
        (HEAD + b"connection: close\r\n\r\n" + EVENTS[:40], ErrorClass.CUT),
        (b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n", ErrorClass.OVERLOADED),
    ],
)
async def test_broken_answers(answer: bytes, kind: ErrorClass):
    async with scripted(Script(answer, closes_after=True)) as client:
        record = await ask(client)
    assert record.outcome is Outcome.FAILED
    assert record.failure is not None
    assert record.failure.kind is kind


async def test_nobody_listens():
    async with scripted(Script()) as client:
        pass
    record = await ask(client)
    assert record.failure is not None
    assert record.failure.kind is ErrorClass.CONNECT


async def test_a_silent_server_times_out_and_its_connection_is_not_used_again():
    script = Script(HEAD + b"transfer-encoding: chunked\r\n\r\n", CHUNKED)
    async with scripted(script) as client:
        client.timeout_s = 0.05
        record = await ask(client)
        client.timeout_s = 20
        assert (await ask(client)).is_ok
    assert record.failure is not None
    assert record.failure.kind is ErrorClass.TIMEOUT
    assert script.num_connections == 2


async def test_a_cancelled_request_stays_cancelled_with_what_came():
    part = HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n" % (len(EVENTS[:48]), EVENTS[:48])
    async with scripted(Script(part, b"")) as client:
        record = RequestRecord(index=0, outcome=Outcome.CANCELLED, scheduled_ns=0)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(client.ask(record, b"{}"))
            await _until(lambda: bool(record.chunks))
            task.cancel()
    assert record.outcome is Outcome.CANCELLED
    assert len(record.chunks) == 1
    assert client.num_in_flight == 0


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(
    ("url", "shown", "host"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("localhost:9", "http://localhost:9", "localhost:9"),
        ("https://api.example.com/v1/", "https://api.example.com", "api.example.com"),
        ("http://[::1]:80/base/v1", "http://[::1]/base", "[::1]"),
    ],
)
def test_addresses(url: str, shown: str, host: str):
    address = Address.parse(url)
    assert (str(address), address.host_header) == (shown, host)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://x:99999", "http://user:secret@x"])
def test_bad_addresses_do_not_repeat_a_password(url: str):
    with pytest.raises(BadUrlError) as caught:
        Address.parse(url)
    assert "secret" not in caught.value.message


def test_a_request_goes_below_the_base_path():
    request = encode_request("POST", Address.parse("http://h:1/base/v1"), "/v1/x", {"authorization": "Bearer k"}, b"{}")
    assert request.startswith(b"POST /base/v1/x HTTP/1.1\r\nhost: h:1\r\n")
    assert request.endswith(b"content-length: 2\r\n\r\n{}")
