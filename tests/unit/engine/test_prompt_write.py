"""What is written past a transport's buffer arrives at once and in order, whatever the transport still holds."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ultrafast.engine.prompt_write import prompt_writer


async def connected() -> tuple[asyncio.Transport, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    theirs.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_unix_connection(asyncio.Protocol, sock=ours)
    return transport, theirs


async def read_all(theirs: socket.socket) -> bytes:
    received = b""
    while data := await asyncio.get_running_loop().sock_recv(theirs, 1 << 20):
        received += data
    return received


async def test_a_write_needs_no_turn_of_the_loop() -> None:
    transport, theirs = await connected()
    prompt_writer(transport)(b"now")
    assert theirs.recv(16) == b"now"
    transport.abort()
    theirs.close()


async def test_order_is_kept_when_the_peer_reads_slowly() -> None:
    transport, theirs = await connected()
    write = prompt_writer(transport)
    pieces = [bytes([number % 251]) * 50_000 for number in range(40)]
    for number, piece in enumerate(pieces):
        (transport.write if number % 3 == 2 else write)(piece)
    assert transport.get_write_buffer_size() > 0
    transport.close()
    assert await read_all(theirs) == b"".join(pieces)
    theirs.close()


@pytest.mark.parametrize("end", ["abort", "close"])
async def test_nothing_is_written_to_what_closes(end: str) -> None:
    transport, theirs = await connected()
    write = prompt_writer(transport)
    getattr(transport, end)()
    write(b"late")
    assert await read_all(theirs) == b""
    theirs.close()


async def test_a_peer_that_is_gone_is_the_transports_business() -> None:
    transport, theirs = await connected()
    write = prompt_writer(transport)
    theirs.close()
    write(b"nobody reads this")
    transport.abort()


def test_an_encrypted_connection_is_written_by_its_transport_alone() -> None:
    class Encrypted:
        written = b""

        def get_extra_info(self, name: str) -> object:
            return {"socket": socket.socket, "sslcontext": "one"}[name]

        def write(self, data: bytes) -> None:
            self.written += data

    transport = Encrypted()
    prompt_writer(transport)(b"secret")  # type: ignore[arg-type]
    assert transport.written == b"secret"
