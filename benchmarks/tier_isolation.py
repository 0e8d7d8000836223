"""Ultrafast requests while every place is held by flex work: how long they wait, and what that costs the flex work.

All servers have four places (llama-server's default) and six closed-loop flex clients, so two flex requests always queue. Into
that, ultrafast requests arrive at planned moments: random ones, at least 1.2 s apart, so that they wait for flex work and hardly
for each other. llama-server gets the same requests; it knows no tiers.

    there and back:  ours idle | ours, flex alone | ours, mixed | llama-server, mixed | llama-server -b N, mixed | ...

Flex loss: output tokens per second of the flex work beside ultrafast requests, against the same work alone on what is left of
the window when the time that the ultrafast requests take on an idle machine is subtracted. llama-server's own is shown beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks import peer_vllm
from benchmarks.client import Client
from benchmarks.interleave import Field, settle_all
from benchmarks.load import Body, Timed, background, poisson_times_s, send_at
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.peer_llama_server import start_peer
from benchmarks.peer_vllm import for_server
from benchmarks.processes import RunningServer
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile, percentile_ratio

NUM_PLACES, NUM_FLEX_CLIENTS = 4, 6
FLEX_PROMPT_TOKENS, FLEX_OUTPUT_TOKENS = 80, 128
ULTRA_PROMPT_TOKENS, ULTRA_OUTPUT_TOKENS = 56, 8
ULTRA_PER_S, ULTRA_APART_S = 1.25, 1.2  # a request every 2 s
PEER_BATCH_TOKENS = 64  # what `long_prompt_gaps` finds for the bundled model on two cores
GOAL_BELOW_FIFO, GOAL_IDLE_FACTOR, GOAL_FLEX_LOSS = 10.0, 1.5, 0.1
PERCENTS = (50, 95, 99)


@dataclass(slots=True)
class Samples:
    """Of one server and situation, over all its blocks."""

    ttfts_s: list[float] = field(default_factory=list)
    e2es_s: list[float] = field(default_factory=list)
    lags_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    flex_tokens: float = 0.0
    num_ultra: int = 0
    window_s: float = 0.0

    @property
    def flex_per_s(self) -> float:
        return self.flex_tokens / self.window_s


def run(options: Options) -> Report:
    window_s, num_passes = (8.0, 1) if options.is_quick else (35.0, 2)
    log = options.log_dir
    with contextlib.ExitStack() as running:
        start = running.enter_context
        ours = start(start_ours(options, log / "tier_isolation.log", settings=(f"engine.max_num_running={NUM_PLACES}",)))
        peer = start(start_peer(options, log / "tier_isolation_peer.log", num_slots=NUM_PLACES))
        tuned_log = log / "tier_isolation_tuned.log"
        tuned = start(start_peer(options, tuned_log, num_slots=NUM_PLACES, batch_tokens=PEER_BATCH_TOKENS))
        blocks = [("idle", ours), ("alone", ours), ("mixed", ours), ("alone", peer), ("mixed", peer), ("mixed", tuned)]
        if peer_vllm.is_there(options):
            vllm = start(peer_vllm.start_vllm(options, log / "tier_isolation_vllm.log", num_places=NUM_PLACES))
            blocks += [("idle", vllm), ("mixed", vllm)]
        servers = settle_all(*dict.fromkeys(server for _, server in blocks))
        found: dict[tuple[str, str], Samples] = {}
        for number in range(num_passes):
            for kind, server in blocks if number % 2 == 0 else reversed(blocks):
                samples = found.setdefault((server.name, kind), Samples())
                seed = f"{options.seed}-{number}"
                with servers.only(server):
                    asyncio.run(_block(kind, server, seed, window_s, samples))
    report = _report(found, servers, ours.name)
    report.notes.append(_vllm_note(found, ours.name) if peer_vllm.is_there(options) else peer_vllm.absence_note())
    return report


async def _block(kind: str, server: RunningServer, seed: str, window_s: float, samples: Samples) -> None:
    """All servers get the same ultrafast requests at the same moments, none of them twice."""
    rng = random.Random(seed)
    prompts = random.Random(f"{seed}-{kind}")  # ours must not know from the idle block what it is asked in the mixed one
    times_s = poisson_times_s(rng, ULTRA_PER_S, window_s, ULTRA_APART_S)
    moments = [(at_s, for_server(server, _ultra(prompts))) for at_s in times_s]
    samples.window_s += window_s
    async with Client(server.url) as client:
        await client.ask(
            for_server(server, _ultra(random.Random(seed + kind)))
        )  # opens a connection, and shows that the server is awake
        if kind == "idle":
            _book(samples, [timed for at_s, body in moments for timed in await send_at(client, [(0.0, body)])])
            return
        flex_bodies = (for_server(server, body) for body in _flex_bodies(random.Random(seed + server.name + kind)))
        async with background(server.url, flex_bodies, NUM_FLEX_CLIENTS, NUM_PLACES) as flex:
            begin_ns = time.perf_counter_ns()
            end_ns = begin_ns + round(window_s * 1e9)
            _book(samples, await send_at(client, moments if kind == "mixed" else []))
            await asyncio.sleep(max(0.0, (end_ns - time.perf_counter_ns()) / 1e9))
            samples.flex_tokens += flex.tokens_between(begin_ns, end_ns)
            samples.errors += flex.errors()
            for answer in flex.answers:
                stamps = [stamp for stamp in answer.stamps_ns if begin_ns <= stamp < end_ns]
                samples.gaps_s += [(after - before) / 1e9 for before, after in itertools.pairwise(stamps)]
    await asyncio.sleep(1.0)  # the server notices that the flex clients left


def _book(samples: Samples, answers: list[Timed]) -> None:
    samples.ttfts_s += [timed.ttft_s for timed in answers]
    samples.e2es_s += [timed.answer.e2e_s for timed in answers]
    samples.lags_s += [timed.dispatch_lag_s for timed in answers]
    samples.errors += [timed.answer.error for timed in answers if timed.answer.error is not None]
    samples.num_ultra += len(answers)


def _ultra(rng: random.Random) -> Body:
    return unique_chat(rng, ULTRA_PROMPT_TOKENS, ULTRA_OUTPUT_TOKENS, service_tier="ultrafast")


def _flex_bodies(rng: random.Random) -> Iterator[Body]:
    while True:
        # Of different lengths: places become free one by one.
        num_tokens = rng.randint(FLEX_OUTPUT_TOKENS // 2, FLEX_OUTPUT_TOKENS * 3 // 2)
        yield unique_chat(rng, FLEX_PROMPT_TOKENS, num_tokens, service_tier="flex")


def _report(found: dict[tuple[str, str], Samples], servers: Field, ours: str) -> Report:
    report = Report(
        columns=(
            "server",
            "load",
            "ultrafast",
            *(f"TTFT P{percent} ms" for percent in PERCENTS),
            "flex tokens/s",
            "flex gap P50 ms",
        )
    )
    for (name, kind), samples in found.items():
        ttfts = (f"{percentile(samples.ttfts_s, percent) * 1e3:.0f}" for percent in PERCENTS)
        gap_ms = percentile(samples.gaps_s, 50) * 1e3
        report.rows.append((name, kind, samples.num_ultra, *ttfts, f"{samples.flex_per_s:.1f}", f"{gap_ms:.1f}"))
    idle, alone, mixed = (found[ours, kind] for kind in ("idle", "alone", "mixed"))
    for (name, kind), samples in found.items():
        if kind == "mixed" and name not in (ours, peer_vllm.NAME):
            for percent in PERCENTS:
                ratio = percentile_ratio(samples.ttfts_s, mixed.ttfts_s, percent)
                claim = f"ultrafast TTFT P{percent}, {name} over ours"
                report.add_goal_at_least(claim, ratio.median, GOAL_BELOW_FIFO, str(ratio))
    step_s = percentile(alone.gaps_s, 50)
    for percent in PERCENTS:
        limit_s = GOAL_IDLE_FACTOR * percentile(idle.ttfts_s, percent) + step_s
        value_s = percentile(mixed.ttfts_s, percent)
        claim = f"ultrafast TTFT P{percent} ms beside flex work ({GOAL_IDLE_FACTOR} x idle + one step)"
        report.add_goal_at_most(claim, value_s * 1e3, round(limit_s * 1e3), f"{value_s * 1e3:.0f}")
    report.add_goal_at_most("flex throughput lost beyond the ultrafast work itself", _loss(alone, mixed, idle), GOAL_FLEX_LOSS)
    for name in [name for name, kind in found if kind == "alone" and name != ours]:
        loss = _loss(found[name, "alone"], found[name, "mixed"], idle)
        report.notes.append(f"{name} loses {loss:.3f} by the same reckoning (its ultrafast work taken to cost what ours does)")
    report.notes.append(f"ultrafast requests per server: {mixed.num_ultra}; a P95 has an interval from 72 on, a P99 from 368")
    worst_s = max(max(samples.lags_s, default=0.0) for samples in found.values())
    report.notes.append(f"the client sent at most {worst_s * 1e3:.1f} ms late; {servers.note()}")
    errors = [f"{name}, {kind}: {error}" for (name, kind), samples in found.items() for error in samples.errors]
    report.notes += errors[:5]
    report.data = {f"{name} {kind}": vars_of(samples) for (name, kind), samples in found.items()}
    return report


def _vllm_note(found: dict[tuple[str, str], Samples], ours: str) -> str:
    """Each against itself: it computes another format of the model."""
    parts = []
    for name in (ours, peer_vllm.NAME):
        idle, mixed = found[name, "idle"], found[name, "mixed"]
        parts.append(f"{name} {percentile_ratio(mixed.ttfts_s, idle.ttfts_s, 50)}")
    return f"ultrafast TTFT P50 beside flex work over idle, each server against itself: {', '.join(parts)}"


def _loss(alone: Samples, mixed: Samples, idle: Samples) -> float:
    """Flex tokens that are missing, as a share of what the rest of the window should have given."""
    ultra_s = mixed.num_ultra * sum(idle.e2es_s) / len(idle.e2es_s)
    return 1 - mixed.flex_per_s * mixed.window_s / (alone.flex_per_s * (mixed.window_s - ultra_s))


def vars_of(samples: Samples) -> dict[str, object]:
    """For the JSON file."""
    return {name: getattr(samples, name) for name in Samples.__slots__}


BENCHMARK = Benchmark(
    "tier_isolation",
    "ultrafast requests while flex work holds every place: TTFT against llama-server and idle, and what the flex work loses",
    lambda is_quick: 40 if is_quick else 290,
    run,
)
