"""What the server says of a call's time, against a stopwatch on the client's side of a real connection.

The client has a thread of its own, as it must go on while the event loop stands still. A busy machine can only add to what the
client sees, so the nearest of some attempts counts; a share of the time that nobody stamps is missing in all of them.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import pytest
from tests.component.api.edge import HELLO, Setup, listening, make, until
from tests.component.api.fake_service import Call, started

from ultrafast.serving.contract import ChoiceFinished, Completed, Delta, ServingEvent, Timings, Usage

PATH = "/v1/chat/completions"
PARTS = ("network", "queue", "compute", "output")
PAUSE_S = 0.2
"""Of the client, in the middle of its body and before it reads."""
QUEUE_S, COMPUTE_S, OUTPUT_S = 0.15, 0.3, 0.15
NUM_ATTEMPTS = 4
SHARE, SLACK_S = 0.05, 0.02
INTERVAL_S = 0.1
BLOCK_S = 0.5
MORE_THAN_BUFFERS = "x" * 8_000_000


async def slow(call: Call) -> AsyncGenerator[ServingEvent, None]:
    """Every part takes its time; the first delta is more than a client holds that does not read."""
    await asyncio.sleep(QUEUE_S)
    yield started(call)
    await asyncio.sleep(COMPUTE_S)
    yield Delta(0, MORE_THAN_BUFFERS, num_tokens=1)
    yield Delta(0, "y", num_tokens=1)
    await asyncio.sleep(OUTPUT_S)
    yield ChoiceFinished(0, "stop")
    yield Completed(Usage(7, 2, 3), Timings(queue_s=QUEUE_S, compute_s=COMPUTE_S, prefill_s=COMPUTE_S, ttft_s=QUEUE_S))


@dataclass(frozen=True)
class Seen:
    """The client's seconds, the server's, and what the answer itself says is the total."""

    client_s: float
    parts_s: dict[str, float]
    told_s: float

    @property
    def total_s(self) -> float:
        return sum(self.parts_s.values())

    @property
    def is_near(self) -> bool:
        return abs(self.client_s - self.total_s) <= SHARE * self.client_s + SLACK_S


def call_slowly(port: int) -> tuple[float, bytes]:
    """Send half a body, pause, send the rest, pause at the first byte of the answer, read it: seconds and the last bytes."""
    body = json.dumps({**HELLO, "stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        began_s = time.monotonic()
        sock.sendall(head + body[:9])
        time.sleep(PAUSE_S)
        sock.sendall(body[9:])
        tail = sock.recv(1)
        time.sleep(PAUSE_S)
        while not tail.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            data = sock.recv(1 << 20)
            assert data, "the answer is whole"
            tail = (tail + data)[-1000:]
        return time.monotonic() - began_s, tail


def parts(setup: Setup) -> dict[str, float]:
    return {part: setup.sample("ultrafast_latency_part_seconds_sum", tier="default", part=part) for part in PARTS}


async def measure(setup: Setup, port: int) -> Seen:
    before = parts(setup)
    client_s, tail = await asyncio.to_thread(call_slowly, port)
    await until(lambda: setup.sample("ultrafast_requests_in_flight") == 0)
    after = parts(setup)
    told = re.search(rb": server-timing .*total;dur=([\d.]+)\n", tail)
    assert told is not None
    return Seen(client_s, {part: after[part] - before[part] for part in PARTS}, float(told[1]) / 1000)


async def test_the_four_parts_sum_to_what_the_client_sees() -> None:
    setup = make({"m": slow})
    async with listening(setup) as port:
        attempts = []
        for _ in range(NUM_ATTEMPTS):
            seen = await measure(setup, port)
            attempts.append(seen)
            # What really happened is a lower bound of each part, however busy the machine is.
            assert seen.parts_s["queue"] == pytest.approx(QUEUE_S)
            assert seen.parts_s["compute"] == pytest.approx(COMPUTE_S)
            assert seen.parts_s["output"] > OUTPUT_S * 0.9
            assert seen.parts_s["network"] > 2 * PAUSE_S * 0.9, "while it sends, and while it does not read"
            assert seen.told_s <= seen.total_s + 0.001
            if seen.is_near:
                break
        assert attempts[-1].is_near, attempts


async def test_a_loop_that_stands_still_before_the_first_byte_shows_as_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ultrafast.observe.loop_lag.INTERVAL_S", INTERVAL_S)
    setup = make({"m": slow})
    async with listening(setup) as port:
        attempts = []
        for _ in range(NUM_ATTEMPTS):
            lag_s = setup.sample("ultrafast_event_loop_lag_seconds_sum")
            async with asyncio.TaskGroup() as group:
                calling = group.create_task(measure(setup, port))
                await asyncio.sleep(0)  # the client's thread is on its way
                time.sleep(BLOCK_S)  # noqa: ASYNC251 - the event loop stands still
            seen = calling.result()
            lag_s = setup.sample("ultrafast_event_loop_lag_seconds_sum") - lag_s
            assert lag_s >= BLOCK_S - INTERVAL_S
            missing_s = seen.client_s - seen.total_s
            attempts.append((seen, missing_s, lag_s))
            if BLOCK_S / 2 < missing_s <= lag_s + INTERVAL_S + SHARE * seen.client_s + SLACK_S:
                break
        else:
            pytest.fail(f"the parts should lack what the lag has: {attempts}")
