"""Clients that come and go: 1,000 requests, 30 % of which are abandoned while they wait, while they prefill or while they decode.

Afterwards nothing may be left of them: no call in flight, no sequence with a place, no KV block but cached ones, no memory that
grows with the number of requests, no process. More clients than places (`engine.max_num_running = 8`), so that requests do wait.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks.client import DISCONNECTED, Answer, Client, Disconnect
from benchmarks.options import Options
from benchmarks.ours import engine_pid, start_ours
from benchmarks.processes import RunningServer, rss_bytes, rss_bytes_beside_buffers
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import slope

NUM_CLIENTS = 16
MAX_NUM_RUNNING = 8
SETTINGS = (
    f"engine.max_num_running={MAX_NUM_RUNNING}",
    # Caches that are full after the first requests: what grows then is a leak.
    "engine.kv_host_bytes=67108864",
    "tokenizer.cache_bytes=262144",
)
DISCONNECT_SHARE = 0.3
_SETTLE_TIMEOUT_S = 15.0
_SAMPLE_INTERVAL_S = 1.0
_GOAL_GROWTH_KIB = 4.0  # per request, over the second half
_SAMPLE = re.compile(r"^([a-z_]+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_GAUGES_TO_ZERO = ("ultrafast_requests_in_flight", "ultrafast_requests_running", "ultrafast_requests_waiting")


@dataclass(frozen=True, slots=True)
class Plan:
    """One request and when, if ever, its client leaves: `moment` says which phase was aimed at."""

    body: dict[str, Any]
    moment: str
    disconnect: Disconnect | None


@dataclass(slots=True)
class Outcome:
    """Counts of answers by moment and end, and memory over time.

    `memory`: (seconds, requests ended, RSS of API, RSS of engine, that beside the model's buffers).
    """

    ends: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    memory: list[tuple[float, int, int, int, int]] = field(default_factory=list)


def run(options: Options) -> Report:
    num_requests = 60 if options.is_quick else 1000
    plans = list(_plans(random.Random(options.seed), num_requests))
    outcome = Outcome()
    server = start_ours(options, options.log_dir / "soak.log", settings=SETTINGS)
    try:
        before = asyncio.run(_metrics(server.url))
        asyncio.run(_run_all(server, plans, outcome))
        after = asyncio.run(_wait_until_idle(server.url))
        last = asyncio.run(_last_request(server.url))
    finally:
        orphans = server.stop()
    report = _report(outcome, before, after, num_requests)
    report.goals.append(("next request", last.error or "ok", "ok", last.is_ok))
    report.goals.append(("processes left after SIGTERM", str(len(orphans)), "0", not orphans))
    report.goals.append(("exit code after SIGTERM", str(server.process.returncode), "0", server.process.returncode == 0))
    return report


def _plans(rng: random.Random, num_requests: int) -> Iterator[Plan]:
    for _ in range(num_requests):
        is_stream = rng.random() < 0.5
        fields: dict[str, Any] = {"stream": is_stream} if is_stream else {"stream": False, "stream_options": None}
        body = unique_chat(rng, rng.randrange(20, 200), rng.randrange(4, 33), **fields)
        moment, disconnect = "stays", None
        if rng.random() < DISCONNECT_SHARE:
            moment, disconnect = _leaving(rng, is_stream)
        yield Plan({key: value for key, value in body.items() if value is not None}, moment, disconnect)


def _leaving(rng: random.Random, is_stream: bool) -> tuple[str, Disconnect]:
    moment = rng.choice(("queued", "prefill", "decode"))
    if moment == "queued":
        return moment, Disconnect(after_s=rng.uniform(0.0, 0.05))
    if moment == "prefill":
        return moment, Disconnect(after_s=rng.uniform(0.05, 1.5))
    if is_stream:
        return moment, Disconnect(after_chunks=rng.randrange(1, 4))
    return moment, Disconnect(after_s=rng.uniform(1.0, 4.0))


async def _run_all(server: RunningServer, plans: list[Plan], outcome: Outcome) -> None:
    waiting = list(reversed(plans))

    async def one_client(client: Client) -> None:
        while waiting:
            plan = waiting.pop()
            _count(outcome, plan, await client.ask(plan.body, disconnect=plan.disconnect))

    async with Client(server.url) as client:
        sampler = asyncio.get_running_loop().create_task(_sample_memory(server, outcome))
        try:
            await asyncio.gather(*(one_client(client) for _ in range(NUM_CLIENTS)))
        finally:
            sampler.cancel()


def _count(outcome: Outcome, plan: Plan, answer: Answer) -> None:
    if answer.is_ok:
        end = "completed"
    elif answer.error == DISCONNECTED:
        end = "left"
    else:
        end = "failed"
        outcome.errors.append(str(answer.error))
    outcome.ends[f"{plan.moment}, {'stream' if plan.body['stream'] else 'whole'}: {end}"] += 1


async def _sample_memory(server: RunningServer, outcome: Outcome) -> None:
    begin_s = time.monotonic()
    while True:
        pid = engine_pid(server)
        engine = (rss_bytes(pid), rss_bytes_beside_buffers(pid)) if pid is not None else (0, 0)
        outcome.memory.append((time.monotonic() - begin_s, sum(outcome.ends.values()), rss_bytes(server.pid), *engine))
        await asyncio.sleep(_SAMPLE_INTERVAL_S)


async def _wait_until_idle(url: str) -> dict[str, float]:
    deadline_s = time.monotonic() + _SETTLE_TIMEOUT_S
    while True:
        found = await _metrics(url)
        if all(found.get(name, 0.0) == 0 for name in _GAUGES_TO_ZERO) or time.monotonic() > deadline_s:
            return found
        await asyncio.sleep(0.2)


async def _metrics(url: str) -> dict[str, float]:
    """Every sample of /metrics by `name` or `name{labels}`."""
    async with Client(url) as client:
        answer = await client.get("/metrics")
    assert answer.is_ok, f"/metrics: {answer.error}"
    samples = _SAMPLE.findall(answer.body.decode())
    return {f"{name}{{{labels}}}" if labels else name: float(value) for name, labels, value in samples}


async def _last_request(url: str) -> Answer:
    async with Client(url) as client:
        return await client.ask(unique_chat(random.Random(-1), 60, 8))


def _report(outcome: Outcome, before: dict[str, float], after: dict[str, float], num_requests: int) -> Report:
    report = Report(columns=("planned: end", "requests"))
    report.rows += [(label, count) for label, count in sorted(outcome.ends.items())]
    for name in _GAUGES_TO_ZERO:
        report.goals.append((name, str(after.get(name, "missing")), "0", after.get(name) == 0))
    _judge_blocks(report, after)
    report.goals.append(("requests that failed", str(len(outcome.errors)), "0", not outcome.errors))
    counted = _sum(after, "ultrafast_requests_total") - _sum(before, "ultrafast_requests_total")
    report.notes.append(
        f"the server counted {counted:.0f} ended calls of {num_requests} (one that left at once may never arrive)"
    )
    _judge_memory(report, outcome)
    report.notes += [f"failed: {error}" for error in outcome.errors[:5]]
    report.data = {"memory": outcome.memory, "ends": dict(outcome.ends), "errors": outcome.errors, "metrics": after}
    return report


def _judge_blocks(report: Report, metrics: dict[str, float]) -> None:
    device = 'level="device"'
    capacity = _sum(metrics, "ultrafast_kv_capacity_blocks", device)
    running, total = (_sum(metrics, "ultrafast_kv_blocks", part) for part in ('state="running"', device))
    report.goals.append(("KV blocks of running sequences", f"{running:g}", "0", running == 0))
    is_whole = total == capacity and capacity > 0
    report.goals.append(("KV blocks free + cached", f"{total - running:g}", f"all {capacity:g}", is_whole and running == 0))


def _judge_memory(report: Report, outcome: Outcome) -> None:
    """RSS must not grow with the number of requests once everything has been used: the second half decides."""
    half = outcome.memory[len(outcome.memory) // 2 :]
    report.notes.append(f"RSS of the engine, with the model's buffers: {_mib(outcome, 3)} MiB")
    for name, column in (("API process", 2), ("engine beside the model's buffers", 4)):
        growth_kib = slope([float(sample[1]) for sample in half], [float(sample[column]) for sample in half]) / 1024
        shown = f"{growth_kib:+.2f}; RSS {_mib(outcome, column)} MiB"
        report.add_goal_at_most(f"growth of the {name}, KiB per request", growth_kib, _GOAL_GROWTH_KIB, shown)


def _mib(outcome: Outcome, column: int) -> str:
    """At the beginning, in the middle and at the end."""
    memory = outcome.memory
    return " -> ".join(f"{sample[column] / 2**20:.0f}" for sample in (memory[0], memory[len(memory) // 2], memory[-1]))


def _sum(metrics: dict[str, float], name: str, part: str = "") -> float:
    return sum(value for key, value in metrics.items() if key.partition("{")[0] == name and part in key)


BENCHMARK = Benchmark(
    "soak",
    "1,000 requests, 30 % abandoned at random moments: nothing may be left",
    lambda is_quick: 35 if is_quick else 480,
    run,
)
