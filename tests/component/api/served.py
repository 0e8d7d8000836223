"""A server process around the fake service, for tests that send signals: `python served.py DRAIN_TIMEOUT_S`."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator

from tests.component.api.edge import make
from tests.component.api.fake_service import Call, completed, started

from ultrafast.api.server import run
from ultrafast.serving.contract import ChoiceFinished, Delta, ServingEvent


async def talk(call: Call) -> AsyncGenerator[ServingEvent, None]:
    """Speak for as long as the call's `seed` says in tokens, 10 ms each."""
    yield started(call)
    for _ in range(call.options.seed or 1):
        yield Delta(0, "x", num_tokens=1)
        await asyncio.sleep(0.01)
    yield ChoiceFinished(0, "stop")
    yield completed(1)


async def tell_nodelay(call: Call) -> AsyncGenerator[ServingEvent, None]:
    """Say whether the caller's connection sends small pieces at once."""
    (exchange,) = setup.lifecycle._active
    sock = exchange.connection.abort.__self__.get_extra_info("socket")  # type: ignore[union-attr, attr-defined]
    yield started(call)
    yield Delta(0, f"nodelay={sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)}", num_tokens=1)
    yield ChoiceFinished(0, "stop")
    yield completed(1)


if __name__ == "__main__":
    setup = make({"talk": talk, "nodelay": tell_nodelay}, drain_timeout_s=float(sys.argv[1]))
    sys.exit(run(setup.app, "127.0.0.1", 0, on_listening=lambda _, port: print(port, flush=True)))
