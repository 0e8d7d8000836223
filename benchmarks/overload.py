"""More requests than the machine can serve: 1.5 and 3 times its capacity, mixed tiers, planned arrivals (Poisson).

capacity     requests of the mix per second that closed-loop clients get; the larger one of ours and llama-server
objectives   multiples of what llama-server takes for one ultrafast request on the idle machine; ours is told them, too. Those of
             ultrafast requests can be met: they come in bursts, and at 3 times the capacity they alone take a third of the
             machine, so that with 4 times the TTFT and 5 times the TPOT 98 % would be in time if nobody else were there
good         a request that was planned inside the window, succeeded, and met both objectives of its tier, counted from the
             planned moment: whoever was refused and came back later has lost that time
goodput      good requests per second of the window

A refused client waits as long as `retry-after-ms` says and tries once more, as OpenAI's libraries do, and says so as they do
(`x-stainless-retry-count`). As much load then comes from clients that only wait: when those come back, they are newcomers to it.
llama-server refuses nobody; its clients leave when the longest objective has passed since the end of the window, so that a run
ends.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from benchmarks.client import DISCONNECTED, Answer, Client, Disconnect
from benchmarks.interleave import wait_until_idle
from benchmarks.load import Body, Timed, background, poisson_times_s, send_at
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.peer_llama_server import start_peer
from benchmarks.processes import RunningServer
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile, wilson

FACTORS = (1.5, 3.0)
OURS = "ultrafast"
ONLY_WAIT = "ultrafast, clients that only wait"
NUM_PLACES = 4  # llama-server's default
MAX_NUM_WAITING = 8
GOAL_ATTAINMENT, GOAL_GOODPUT, GOAL_RETRY = 0.99, 1.3, 0.9
_NUM_CALIBRATING = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests of one tier; objectives are multiples of TTFT and TPOT of one ultrafast request on the idle machine."""

    tier: str
    share: float
    num_prompt_tokens: int
    num_output_tokens: int
    ttft_factor: float
    tpot_factor: float


SHAPES = (
    Shape("ultrafast", 0.2, 32, 8, 6.0, 7.0),
    Shape("default", 0.4, 48, 16, 20.0, 10.0),
    Shape("flex", 0.4, 96, 32, 80.0, 40.0),
)


@dataclass(frozen=True, slots=True)
class Objectives:
    """Of one tier, seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Fate:
    """What became of one request."""

    shape: Shape
    timed: Timed | None = None
    refused: Answer | None = None

    def is_good(self, objectives: Objectives) -> bool:
        assert self.timed is not None
        tpot_s = self.timed.answer.tpot_s
        return self.timed.ttft_s <= objectives.ttft_s and (math.isnan(tpot_s) or tpot_s <= objectives.tpot_s)


@dataclass(slots=True)
class Block:
    """One server under one load. `server`: its name, and of which kind its clients are where that is not the SDKs'."""

    server: str
    factor: float
    window_s: float
    fates: list[Fate] = field(default_factory=list)

    def attainment(self, tier: str, objectives: dict[str, Objectives]) -> tuple[int, int]:
        """(good, all) of one tier."""
        fates = [fate for fate in self.fates if fate.shape.tier == tier]
        return sum(fate.is_good(objectives[tier]) for fate in fates), len(fates)

    def goodput(self, objectives: dict[str, Objectives]) -> float:
        return sum(fate.is_good(objectives[fate.shape.tier]) for fate in self.fates) / self.window_s

    def unanswered(self) -> list[str]:
        """Requests that got neither text nor a refusal."""
        answers = [fate.timed.answer for fate in self.fates if fate.timed is not None]
        return [answer.error for answer in answers if answer.error is not None and not _is_refusal(answer)]

    def retried(self) -> tuple[int, int]:
        """(succeeded at the first retry, refused at first)."""
        again = [fate for fate in self.fates if fate.refused is not None]
        return sum(fate.timed is not None and fate.timed.answer.is_ok for fate in again), len(again)


def run(options: Options) -> Report:
    window_s = 8.0 if options.is_quick else 25.0
    with start_peer(options, options.log_dir / "overload_peer.log", num_slots=NUM_PLACES) as peer:
        objectives = asyncio.run(_objectives(peer.url, options.seed))
        settings = [f"tiers.{tier}.ttft_ms={item.ttft_s * 1e3:.0f}" for tier, item in objectives.items()]
        settings += [f"tiers.{tier}.tpot_ms={item.tpot_s * 1e3:.0f}" for tier, item in objectives.items()]
        settings += [f"tiers.{tier}.max_num_waiting={MAX_NUM_WAITING}" for tier in objectives]
        settings += [f"engine.max_num_running={NUM_PLACES}"]
        with start_ours(options, options.log_dir / "overload.log", settings=tuple(settings)) as ours:
            rates = {server.name: asyncio.run(_capacity(server.url, options)) for server in (peer, ours)}
            blocks = []
            for factor, servers in zip(FACTORS, ((ours, peer), (peer, ours)), strict=True):
                rate_per_s = factor * max(rates.values())
                last_s = max(item.ttft_s for item in objectives.values())
                for server in servers:
                    blocks.append(asyncio.run(_block(server, factor, rate_per_s, window_s, last_s, options.seed)))
                    wait_until_idle(server)
                # Other requests: our prefix cache has the prompts of these.
                only_wait = _block(ours, factor, rate_per_s, window_s, last_s, options.seed + 1, says_so=False)
                blocks.append(asyncio.run(only_wait))
                wait_until_idle(ours)
    return _report(blocks, objectives, rates)


# -- calibration --------------------------------------------------------------------------------------------------------------


async def _objectives(url: str, seed: int) -> dict[str, Objectives]:
    rng = random.Random(seed)
    async with Client(url) as client:
        answers = [await client.ask(_body(rng, SHAPES[0])) for _ in range(_NUM_CALIBRATING)]
    assert all(answer.is_ok for answer in answers), answers[0].error
    ttft_s = percentile([answer.ttft_s for answer in answers[1:]], 50)
    tpot_s = percentile([answer.tpot_s for answer in answers[1:]], 50)
    return {shape.tier: Objectives(shape.ttft_factor * ttft_s, shape.tpot_factor * tpot_s) for shape in SHAPES}


async def _capacity(url: str, options: Options) -> float:
    """Requests of the mix per second with twice as many clients as places."""
    window_s = 5.0 if options.is_quick else 12.0
    async with background(url, _mix(random.Random(options.seed + 1)), 2 * NUM_PLACES, NUM_PLACES // 2) as found:
        begin_ns = time.perf_counter_ns()
        await asyncio.sleep(window_s)
        ends_ns = [answer.end_ns for answer in found.answers if answer.is_ok and answer.end_ns is not None]
    await asyncio.sleep(1.0)
    return sum(end_ns >= begin_ns for end_ns in ends_ns) / window_s


# -- one block ----------------------------------------------------------------------------------------------------------------


async def _block(
    server: RunningServer,
    factor: float,
    rate_per_s: float,
    window_s: float,
    longest_ttft_s: float,
    seed: int,
    *,
    says_so: bool = True,
) -> Block:
    """With the same seed, the same requests at the same moments. `says_so`: a client that comes back says that it does."""
    rng = random.Random(f"{seed}-{factor}")
    block = Block(server.name if says_so else ONLY_WAIT, factor, window_s)
    moments = []
    for at_s, body in zip(poisson_times_s(rng, rate_per_s, window_s), _mix(rng), strict=False):
        block.fates.append(Fate(next(shape for shape in SHAPES if shape.tier == body["service_tier"])))
        moments.append((at_s, body))
    fates = {id(body): fate for (_, body), fate in zip(moments, block.fates, strict=True)}
    begin_s = time.perf_counter()

    async def ask(client: Client, body: Body) -> Answer:
        left_s = begin_s + window_s + longest_ttft_s - time.perf_counter()
        leave = Disconnect(after_s=max(left_s, 0.1)) if server.name != OURS else None
        answer = await client.ask(body, disconnect=leave)
        if _is_refusal(answer) and "retry-after-ms" in answer.headers:
            fates[id(body)].refused = answer
            await asyncio.sleep(float(answer.headers["retry-after-ms"]) / 1e3)
            return await client.ask(body, headers={"x-stainless-retry-count": "1"} if says_so else None)
        return answer

    async with Client(server.url) as client:
        for fate, timed in zip(block.fates, await send_at(client, moments, ask), strict=True):
            fate.timed = timed
    return block


def _is_refusal(answer: Answer) -> bool:
    return answer.status in (429, 503)


def _mix(rng: random.Random) -> Iterator[Body]:
    weights = [shape.share for shape in SHAPES]
    while True:
        yield _body(rng, rng.choices(SHAPES, weights)[0])


def _body(rng: random.Random, shape: Shape) -> Body:
    return unique_chat(rng, shape.num_prompt_tokens, shape.num_output_tokens, service_tier=shape.tier)


# -- what was found -----------------------------------------------------------------------------------------------------------


def _report(blocks: list[Block], objectives: dict[str, Objectives], rates: dict[str, float]) -> Report:
    report = Report(
        columns=("load", "server", "requests", *(f"{tier} good" for tier in objectives), "good/s", "refused", "retried well")
    )
    for block in blocks:
        shares = ["{}/{}".format(*block.attainment(tier, objectives)) for tier in objectives]
        well, refused = block.retried()
        goodput = f"{block.goodput(objectives):.2f}"
        report.rows.append((f"{block.factor:g} x", block.server, len(block.fates), *shares, goodput, refused, well))
    for factor in FACTORS:
        ours, only_wait = _of(blocks, factor, OURS), _of(blocks, factor, ONLY_WAIT)
        (peer,) = (block for block in blocks if block.factor == factor and block not in (ours, only_wait))
        good, total = ours.attainment("ultrafast", objectives)
        report.add_goal_at_least(f"{factor:g} x: ultrafast attainment", good / total, GOAL_ATTAINMENT, wilson(good, total))
        peers = peer.goodput(objectives)
        ratio = ours.goodput(objectives) / peers if peers else math.inf
        report.add_goal_at_least(f"{factor:g} x: goodput over llama-server's", ratio, GOAL_GOODPUT)
        report.add_goal_at_most(f"{factor:g} x: requests without an answer", len(ours.unanswered()), 0)
        well, refused = ours.retried()
        if refused:
            report.add_goal_at_least(
                f"{factor:g} x: refused who succeed at the first retry", well / refused, GOAL_RETRY, wilson(well, refused)
            )
        well, refused = only_wait.retried()
        shown = wilson(well, refused) if refused else "nobody was refused"
        report.notes.append(f"{factor:g} x, clients that only wait: succeed at the first retry: {shown}")
        report.notes += [f"{factor:g} x, without an answer: {error}" for error in ours.unanswered()[:3]]
        left = sum(error == DISCONNECTED for error in peer.unanswered())
        report.notes.append(f"{factor:g} x: {left} clients left llama-server before they had their answer")
    shown = "; ".join(f"{tier} TTFT {o.ttft_s * 1e3:.0f} ms, TPOT {o.tpot_s * 1e3:.0f} ms" for tier, o in objectives.items())
    report.notes.append(f"objectives: {shown}")
    report.notes.append(f"capacity, requests/s: {', '.join(f'{name} {rate:.2f}' for name, rate in rates.items())}")
    report.data = {
        "rates": rates,
        "blocks": [(block.server, block.factor, [_raw(fate) for fate in block.fates]) for block in blocks],
    }
    return report


def _of(blocks: list[Block], factor: float, server: str) -> Block:
    return next(block for block in blocks if (block.factor, block.server) == (factor, server))


def _raw(fate: Fate) -> tuple[object, ...]:
    assert fate.timed is not None
    waited_ms = fate.refused.headers.get("retry-after-ms") if fate.refused is not None else None
    answer = fate.timed.answer
    return (fate.shape.tier, fate.timed.ttft_s, answer.tpot_s, answer.status, waited_ms, answer.error)


BENCHMARK = Benchmark(
    "overload",
    "1.5 and 3 times more requests than can be served: attainment, goodput against llama-server, refusals and retries",
    lambda is_quick: 90 if is_quick else 400,
    run,
)
