"""Clients that leave a real server: whatever their request was doing, the engine is told, stops, and has its place back.

The prompts are token ids, so that what the engine computed can be compared with what was asked for, to the token.
"""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.integration.live_metrics import is_idle, metric, wait_until
from tests.servers import RunningServer, start_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
MODEL = "tiny"
POOL_TOKENS = 4096
NUM_PLACES = 2
STEP_TOKENS = 64
COMPUTED = "ultrafast_computed_tokens_total"
ABORTS = "ultrafast_aborts_total"
LEFT = 'ultrafast_requests_total{outcome="aborted",tier="default"}'
RUNNING = "ultrafast_requests_running"
WAITING = "ultrafast_requests_waiting"


@pytest.fixture(scope="module")
def server(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    instance = start_server(
        model_path,
        tmp_path_factory.mktemp("departing") / "server.log",
        model__served_name=MODEL,
        engine__kv_capacity_tokens=POOL_TOKENS,
        engine__max_num_running=NUM_PLACES,
        engine__max_step_tokens=STEP_TOKENS,
        engine__num_threads=1,
        engine__threadpool_poll=0,
    )
    try:
        yield instance
        instance.stop()
    finally:
        instance.kill()


class Visitor:
    """One request over a plain socket, whose client leaves by RST, or by FIN, after which the server still reads what it sent."""

    def __init__(self, server: RunningServer, *, first_token: int, num_prompt: int, max_tokens: int, stream: bool) -> None:
        self._server = server
        prompt = [first_token + i for i in range(num_prompt)]
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
        self._body = json.dumps(body).encode()

    async def come(self) -> Visitor:
        address = urlsplit(self._server.url)
        _, self._writer = await asyncio.open_connection(address.hostname, address.port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(self._body)}"
        self._writer.write(head.encode() + b"\r\n\r\n" + self._body)
        await self._writer.drain()
        return self

    def leave(self, *, is_reset: bool = True) -> None:
        if is_reset:
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._writer.close()


def ask_one_token(server: RunningServer) -> None:
    body = json.dumps({"model": MODEL, "prompt": [1, 2], "max_tokens": 1}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 200


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_at_once(server: RunningServer, stream: bool) -> None:
    """Whether or not the engine heard of it: no prompt of a client that is gone is computed to its end."""
    computed, left = metric(server, COMPUTED), metric(server, LEFT)
    visitor = await Visitor(server, first_token=1000 + stream, num_prompt=1000, max_tokens=400, stream=stream).come()
    visitor.leave(is_reset=False)
    await wait_until(lambda: metric(server, LEFT) > left, "the server has seen it come and go")
    assert metric(server, LEFT) - left == 1
    await asyncio.to_thread(ask_one_token, server)  # what the engine was told before it has told us by then
    await is_idle(server, POOL_TOKENS)
    assert metric(server, COMPUTED) - computed < 1000


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_while_the_prompt_is_computed(server: RunningServer, stream: bool) -> None:
    computed, aborts = metric(server, COMPUTED), metric(server, ABORTS)
    visitor = await Visitor(server, first_token=2000 + stream, num_prompt=1000, max_tokens=400, stream=stream).come()
    await wait_until(lambda: metric(server, COMPUTED) > computed, "its prompt is begun")
    visitor.leave()
    await is_idle(server, POOL_TOKENS)
    assert metric(server, ABORTS) - aborts == 1
    assert 0 < metric(server, COMPUTED) - computed < 1000, "it goes in the middle of its prompt"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_while_it_is_answered(server: RunningServer, stream: bool) -> None:
    computed, aborts = metric(server, COMPUTED), metric(server, ABORTS)
    visitor = await Visitor(server, first_token=4000 + stream, num_prompt=40, max_tokens=1000, stream=stream).come()
    await wait_until(lambda: metric(server, COMPUTED) > computed + 45, "some tokens are generated")
    visitor.leave()
    await is_idle(server, POOL_TOKENS)
    assert metric(server, ABORTS) - aborts == 1
    assert metric(server, COMPUTED) - computed < 40 + 500, "hundreds of tokens for nobody"


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_while_it_waits_for_a_place(server: RunningServer, stream: bool) -> None:
    computed, aborts = metric(server, COMPUTED), metric(server, ABORTS)
    first_tokens = [5000 + 100 * stream + 10 * i for i in range(NUM_PLACES)]
    holders = [
        await Visitor(server, first_token=first, num_prompt=4, max_tokens=1000, stream=True).come() for first in first_tokens
    ]
    await wait_until(lambda: metric(server, RUNNING) == NUM_PLACES, "all places are taken")
    visitor = await Visitor(server, first_token=6000 + stream, num_prompt=1500, max_tokens=400, stream=stream).come()
    await wait_until(lambda: metric(server, WAITING) == 1, "it waits")
    visitor.leave()
    await wait_until(lambda: metric(server, WAITING) == 0, "it waits no longer")
    assert metric(server, RUNNING) == NUM_PLACES, "nobody has made room for it"
    await wait_until(lambda: metric(server, ABORTS) > aborts, "it is counted")
    assert metric(server, ABORTS) - aborts == 1
    for holder in holders:
        holder.leave()
    await is_idle(server, POOL_TOKENS)
    assert metric(server, ABORTS) - aborts == 1 + NUM_PLACES
    assert metric(server, COMPUTED) - computed < NUM_PLACES * 1000, "neither its prompt, nor the answers of the others"
