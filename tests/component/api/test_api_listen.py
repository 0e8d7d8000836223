"""Addresses that cannot be listened on: each error says why, and hints at what to do about it."""

from __future__ import annotations

import socket

import pytest
from tests.component.api.edge import make

from ultrafast.api.server import serve
from ultrafast.core.errors import ConfigError


@pytest.mark.parametrize("host", ["nope.invalid", "x" * 70 + ".example", "192.0.2.1", "not a host"])
async def test_a_host_that_is_not_this_machine(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen on {host}:0: ") as caught:
        await serve(make().app, host, 0)
    assert caught.value.param == "server.host"
    assert "--host takes an address of this machine" in str(caught.value.hint)
    assert "port" not in str(caught.value.hint)


async def test_a_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: ") as caught:
            await serve(make().app, "127.0.0.1", port)
    assert caught.value.param == "server.port"
    assert "another server holds the port" in str(caught.value.hint)
