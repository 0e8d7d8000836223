"""Metrics of a real server, read and waited for by the tests beside this file."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable

from tests.servers import RunningServer

DEADLINE_S = 120.0
KV_BLOCK_TOKENS = 32
_ALL_PLACES = ("ultrafast_requests_in_flight", "ultrafast_requests_running", "ultrafast_requests_waiting")


def metrics_text(server: RunningServer) -> str:
    """Everything in Prometheus' text format."""
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=30) as answer:
        return answer.read().decode()


def metric(server: RunningServer, name: str) -> float:
    """The sum over all labels of a counter or gauge, or the sample that `name` gives with its labels; 0 when there is none."""
    found = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", metrics_text(server), re.MULTILINE)
    return sum(map(float, found))


async def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. The limit only ends a test that fails; nothing is measured."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"never: {what}"
        await asyncio.sleep(0.05)


async def is_idle(server: RunningServer, pool_tokens: int) -> None:
    """Wait until nothing runs, waits or holds a place; then every block of the KV must be accounted for."""
    for name in _ALL_PLACES:
        await wait_until(lambda name=name: metric(server, name) == 0, f"{name} = 0")  # type: ignore[misc]
    blocks = dict(re.findall(r'^ultrafast_kv_blocks{level="device",state="(\w+)"} (\S+)$', metrics_text(server), re.MULTILINE))
    assert float(blocks["running"]) == 0
    assert sum(map(float, blocks.values())) == pool_tokens // KV_BLOCK_TOKENS
