"""What the dashboard needs of an HTTP exchange. The edge's exchange satisfies it; the dashboard does not know the edge."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any, Protocol

HeaderList = list[tuple[bytes, bytes]]


class Exchange(Protocol):
    """One request and its answer; see `api.exchange.Exchange`."""

    scope: MutableMapping[str, Any]
    write_stall_timeout_s: float

    def interruptible(self) -> asyncio.Timeout: ...
    async def watch_disconnect(self) -> None: ...
    async def start(self, status: int, headers: HeaderList) -> None: ...
    async def write(self, data: bytes) -> None: ...
    async def finish(self, data: bytes = b"") -> None: ...
    async def abort_connection(self) -> None: ...
    async def respond(self, status: int, headers: HeaderList, body: bytes, *, content_type: bytes = ...) -> None: ...
