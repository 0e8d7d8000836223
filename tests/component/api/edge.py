"""Builds the application around a fake service, and runs it through ASGI or on a loopback port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from tests.component.api.fake_service import FakeService, Script, healthy

from ultrafast.api.app import build_app
from ultrafast.api.auth import ApiKeys
from ultrafast.api.edge import Edge
from ultrafast.api.lifecycle import Lifecycle
from ultrafast.api.server import serve
from ultrafast.config.settings import ServerSettings
from ultrafast.config.tier_settings import TiersSettings
from ultrafast.engine.health import EngineHealth
from ultrafast.observe.metrics import Metrics
from ultrafast.observe.recorder import Recorder

HELLO: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Setup:
    app: Edge
    service: FakeService
    lifecycle: Lifecycle
    metrics: Metrics

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def make(
    scripts: dict[str, Script] | None = None,
    *,
    keys: ApiKeys | None = None,
    engine_health: Callable[[], EngineHealth] = healthy,
    tiers: TiersSettings | None = None,
    **settings: Any,
) -> Setup:
    service, lifecycle, metrics = FakeService(scripts), Lifecycle(), Metrics()
    recorder = Recorder(metrics)
    app = build_app(service, engine_health, ServerSettings(**settings), recorder, keys=keys, lifecycle=lifecycle, tiers=tiers)
    return Setup(app, service, lifecycle, metrics)


def client(setup: Setup) -> httpx.AsyncClient:
    """A client that talks to the application without a socket."""
    transport = httpx.ASGITransport(app=setup.app)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url="http://test")


@asynccontextmanager
async def listening(setup: Setup) -> AsyncIterator[int]:
    """The application on a free port of this machine, under uvicorn; yields the port."""
    ready: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        server = group.create_task(serve(setup.app, "127.0.0.1", 0, on_listening=lambda _, port: ready.set_result(port)))
        try:
            yield await ready
        finally:
            server.cancel()


async def raw_request(port: int, path: str, body: bytes, headers: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a POST over a plain socket."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Wait for a condition. The limit only ends a test that fails; nothing is measured."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what it waits for tells nobody
            await asyncio.sleep(0.005)
