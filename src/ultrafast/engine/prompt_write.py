"""Writes that go out at once.

uvloop's transports gather what is written and send it when everything else that the loop has to do at the moment is done. For a
token, and for a request on its way to the engine, all of that is work that nobody waits for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


def prompt_writer(transport: asyncio.Transport) -> Callable[[bytes | bytearray], None]:
    """Return a function that writes to a socket's transport, past its buffer while that is empty, else as the transport does.

    To be used like `transport.write`, and beside it: the order of bytes stays that of the calls.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or transport.get_extra_info("sslcontext") is not None:
        return transport.write
    fd = sock.fileno()
    is_closing, num_buffered, write_later = transport.is_closing, transport.get_write_buffer_size, transport.write

    def write(data: bytes | bytearray) -> None:
        # A transport that closes may have given its descriptor away.
        if not is_closing() and not num_buffered():
            try:
                num_sent = os.write(fd, data)
            except OSError:  # full, or broken: the transport finds out the same and deals with it
                num_sent = 0
            if num_sent == len(data):
                return
            data = data[num_sent:]
        write_later(data)

    return write
