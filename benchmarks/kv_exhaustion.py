"""A KV pool that is far too small: who fails, what is computed twice, and how much memory it takes.

bystanders   eight requests that need twice the pool together, one that needs more than the pool alone, and again four; all but
             the one that can never fit must be served to the end. llama-server gets the same, for comparison
resuming     three flex requests fill the pool; bursts of ultrafast ones push them out, three times each on average. Tokens that
             went through a forward pass, less those that had to, were computed again
memory       resident memory of all processes, against what they had after the start plus the host memory that KV may take
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event, Thread

from benchmarks.client import Answer, Client
from benchmarks.load import Body
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.peer_llama_server import start_peer
from benchmarks.processes import RunningServer, rss_bytes
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report

POOL_TOKENS = 1024
HOST_BYTES = 128 << 20
NUM_BYSTANDERS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 100, 150
NUM_FLEX, FLEX_PROMPT_TOKENS, FLEX_OUTPUT_TOKENS = 3, 160, 160
NUM_URGENT, URGENT_PROMPT_TOKENS, URGENT_OUTPUT_TOKENS = 3, 300, 2
NUM_PREEMPTIONS = 3
GOAL_MEMORY = 1.1
_MAX_BURSTS = 12


@dataclass(slots=True)
class Peak:
    """Most memory that was resident at once, bytes."""

    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Resumed:
    """What the second part found."""

    answers: list[Answer]
    num_preemptions: int
    num_recomputed: int


def run(options: Options) -> Report:
    small = replace(options, context_tokens=POOL_TOKENS)
    report = Report(columns=("server", "bystanders", "served whole", "the impossible one"))
    settings = (f"engine.kv_host_bytes={HOST_BYTES}", "engine.speculation=off")
    with start_ours(small, options.log_dir / "kv_exhaustion.log", settings=settings) as server:
        time.sleep(1.0)
        before_bytes = _rss_bytes(server)
        with _watched(server) as peak:
            _bystanders(server, options.seed, report, is_ours=True)
            resumed = asyncio.run(_resume(server.url, options.seed))
    with start_peer(small, options.log_dir / "kv_exhaustion_peer.log", num_slots=NUM_BYSTANDERS) as peer:
        _bystanders(peer, options.seed, report, is_ours=False)
    whole = sum(_is_whole(answer) for answer in resumed.answers)
    report.add_goal_at_least("preemptions per flex request, on average", resumed.num_preemptions / NUM_FLEX, NUM_PREEMPTIONS)
    report.add_goal_at_most("preempted or urgent requests that failed", len(resumed.answers) - whole, 0)
    report.add_goal_at_most("tokens computed again after preemption", resumed.num_recomputed, 0)
    limit_bytes = before_bytes + HOST_BYTES
    claim = "resident memory over (after the start + host memory for KV)"
    report.add_goal_at_most(claim, peak.num_bytes / limit_bytes, GOAL_MEMORY)
    report.notes.append(f"resident: {before_bytes >> 20} MiB after the start, {peak.num_bytes >> 20} MiB at most")
    report.data = {"rss_before": before_bytes, "rss_peak": peak.num_bytes, "num_preemptions": resumed.num_preemptions}
    return report


def _bystanders(server: RunningServer, seed: int, report: Report, *, is_ours: bool) -> None:
    rng = random.Random(seed)
    bodies = [unique_chat(rng, PROMPT_TOKENS, OUTPUT_TOKENS) for _ in range(NUM_BYSTANDERS)]
    impossible = unique_chat(rng, 2 * POOL_TOKENS, 8)
    later = [unique_chat(rng, PROMPT_TOKENS, OUTPUT_TOKENS) for _ in range(NUM_BYSTANDERS // 2)]

    async def ask() -> tuple[list[Answer], Answer]:
        async with Client(server.url) as client:
            *answers, refused = await asyncio.gather(*(client.ask(body) for body in (*bodies, impossible)))
            return answers + list(await asyncio.gather(*(client.ask(body) for body in later))), refused

    answers, refused = asyncio.run(ask())
    whole = sum(_is_whole(answer) for answer in answers)
    report.rows.append((server.name, len(answers), whole, f"status {refused.status}"))
    errors = sorted({str(answer.error) for answer in answers if answer.error is not None})
    report.notes += [f"{server.name}: {error[:200]}" for error in errors[:2]]
    if is_ours:
        report.add_goal_at_most("bystanders that failed or were cut short", len(answers) - whole, 0)
        report.add_goal_at_least("the request that can never fit was refused with 400", float(refused.status == 400), 1)


async def _resume(url: str, seed: int) -> Resumed:
    rng = random.Random(f"{seed}-resume")
    before = await _counters(url)
    answers: list[Answer] = []

    async def ask(client: Client, body: Body, begun: list[Answer] | None = None) -> None:
        answers.append(await client.ask(body, on_start=None if begun is None else begun.append))

    async with Client(url) as client, asyncio.TaskGroup() as group:
        flex: list[Answer] = []
        for _ in range(NUM_FLEX):
            body = unique_chat(rng, FLEX_PROMPT_TOKENS, FLEX_OUTPUT_TOKENS, service_tier="flex")
            group.create_task(ask(client, body, flex))
        while sum(bool(answer.stamps_ns) for answer in flex) < NUM_FLEX:  # noqa: ASYNC110 - nothing but looking
            await asyncio.sleep(0.02)
        for _ in range(_MAX_BURSTS):
            if any(answer.end_ns is not None for answer in flex) or (await _preempted(url, before)) >= NUM_FLEX * NUM_PREEMPTIONS:
                break
            burst = [
                unique_chat(rng, URGENT_PROMPT_TOKENS, URGENT_OUTPUT_TOKENS, service_tier="ultrafast") for _ in range(NUM_URGENT)
            ]
            await asyncio.gather(*(ask(client, body) for body in burst))
    after = await _counters(url)
    needed = sum(answer.num_prompt_tokens - answer.num_cached_tokens + answer.num_tokens - 1 for answer in answers)
    return Resumed(
        answers,
        round(after["preemptions"] - before["preemptions"]),
        round(after["computed_tokens"] - before["computed_tokens"]) - needed,
    )


async def _preempted(url: str, before: dict[str, float]) -> float:
    return (await _counters(url))["preemptions"] - before["preemptions"]


async def _counters(url: str) -> dict[str, float]:
    async with Client(url) as client:
        text = (await client.get("/metrics")).body.decode()
    found = {"preemptions": 0.0, "computed_tokens": 0.0}
    for name, value in re.findall(r"^ultrafast_(\w+)_total(?:\{[^}]*\})? (\S+)$", text, re.MULTILINE):
        if name in found:
            found[name] += float(value)
    return found


def _is_whole(answer: Answer) -> bool:
    return answer.is_ok and answer.num_tokens in (OUTPUT_TOKENS, FLEX_OUTPUT_TOKENS, URGENT_OUTPUT_TOKENS)


def _rss_bytes(server: RunningServer) -> int:
    return sum(rss_bytes(pid) for pid in server.pids)


@contextmanager
def _watched(server: RunningServer) -> Iterator[Peak]:
    """Look at the resident memory all the time."""
    peak, is_over = Peak(), Event()

    def watch() -> None:
        while not is_over.wait(0.2):
            peak.num_bytes = max(peak.num_bytes, _rss_bytes(server))

    thread = Thread(target=watch, name="memory")
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


BENCHMARK = Benchmark(
    "kv_exhaustion",
    "a KV pool that is too small: bystanders served, nothing computed twice after preemption, memory within its limits",
    lambda is_quick: 30 if is_quick else 40,
    run,
)
