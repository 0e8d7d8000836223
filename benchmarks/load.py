"""Load: requests at planned moments, and clients that always have one in flight.

Open loop: every request has a planned moment, whatever became of the ones before it. Its latency counts from that moment, so a
server that is slow to take requests cannot hide the wait. Closed loop: background work that keeps a server full.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.client import Answer, Client

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, and the moment for which its request was planned (nanoseconds of `time.perf_counter_ns`)."""

    planned_ns: int
    answer: Answer

    @property
    def ttft_s(self) -> float:
        """Planned moment to first generated chunk; infinite where none came or the request failed."""
        if not self.answer.is_ok or not self.answer.stamps_ns:
            return math.inf
        return (self.answer.stamps_ns[0] - self.planned_ns) / 1e9

    @property
    def dispatch_lag_s(self) -> float:
        """How late the client itself was."""
        return (self.answer.send_ns - self.planned_ns) / 1e9


@dataclass(slots=True)
class Background:
    """What the closed-loop clients have got so far; unfinished answers are in it too."""

    answers: list[Answer] = field(default_factory=list)

    def num_streaming(self) -> int:
        """Answers that are on their way."""
        return sum(len(answer.stamps_ns) > 1 and answer.end_ns is None for answer in self.answers)

    def tokens_between(self, begin_ns: int, end_ns: int) -> float:
        """Output tokens stamped inside the window; a chunk counts as many as the finished answers had per chunk."""
        done = [answer for answer in self.answers if answer.is_ok and answer.num_tokens and answer.stamps_ns]
        per_chunk = sum(a.num_tokens for a in done) / sum(len(a.stamps_ns) for a in done) if done else 1.0
        return per_chunk * sum(begin_ns <= stamp < end_ns for answer in self.answers for stamp in answer.stamps_ns)

    def prompt_tokens_between(self, begin_ns: int, end_ns: int) -> int:
        """Prompt tokens of the finished answers whose first token lies inside the window."""
        return sum(
            answer.num_prompt_tokens for answer in self.answers if answer.stamps_ns and begin_ns <= answer.stamps_ns[0] < end_ns
        )

    def errors(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]


def poisson_times_s(rng: random.Random, rate_per_s: float, duration_s: float, apart_s: float = 0.0) -> list[float]:
    """Arrivals within a window: exponential gaps, not rescaled; with `apart_s`, that is added to each of them."""
    times, now_s = [], rng.expovariate(rate_per_s)
    while now_s < duration_s:
        times.append(now_s)
        now_s += apart_s + rng.expovariate(rate_per_s)
    return times


async def send_at(
    client: Client, moments: Sequence[tuple[float, Body]], ask: Callable[[Client, Body], Awaitable[Answer]] | None = None
) -> list[Timed]:
    """Send each body at its moment (seconds from now) and wait for all answers."""
    begin_ns = time.perf_counter_ns()

    async def one(at_s: float, body: Body) -> Timed:
        planned_ns = begin_ns + round(at_s * 1e9)
        await asyncio.sleep(max(0.0, (planned_ns - time.perf_counter_ns()) / 1e9))
        return Timed(planned_ns, await (ask(client, body) if ask else client.ask(body)))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(at_s, body)) for at_s, body in moments]
    return [task.result() for task in tasks]


@contextlib.asynccontextmanager
async def background(url: str, bodies: Iterator[Body], num_clients: int, num_streaming: int) -> AsyncIterator[Background]:
    """So many clients, each with its next request as soon as it has an answer; entered once `num_streaming` answers flow."""
    found = Background()

    async def one_client(client: Client) -> None:
        while True:
            await client.ask(next(bodies), on_start=found.answers.append)

    async with Client(url) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one_client(client)) for _ in range(num_clients)]
        while found.num_streaming() < num_streaming:
            if errors := found.errors():
                raise RuntimeError(f"the background load failed: {errors[0]}")
            await asyncio.sleep(0.02)
        yield found
        for task in tasks:
            task.cancel()
