"""An ultrafast stream while somebody else's long prompt is computed: the gaps between its tokens, and the long prompt's TTFT.

First llama-server's best step size is looked for (`-b`): of those whose long prompt takes at most 1.3 times as long as with the
default, the one with the smallest longest gap. Then, interleaved A B C D D C B A: ours as it comes, ours with a looser objective,
llama-server with its default, and with that step size.

    stream   . . . . . . . .     .     .     .     .     . . . .        gaps counted: those that touch the time between
    long               ^ sent                       ^ first token       these two moments
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from benchmarks import peer_vllm
from benchmarks.client import Answer, Client
from benchmarks.interleave import Field, group_ratio, settle_all
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.peer_llama_server import start_peer
from benchmarks.peer_vllm import for_server
from benchmarks.processes import RunningServer
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval, percentile

LONG_PROMPT_TOKENS = 1600
BATCHES = (16, 32, 64, 128)
LONGER_TTFT_ALLOWED = 1.3
GOAL_BELOW_DEFAULT, GOAL_BELOW_BEST, GOAL_LONG_TTFT = 5.0, 2.0, 1.3
LOOSE_TPOT_MS = 100
LOOSE_SETTINGS = (f"tiers.ultrafast.tpot_ms={LOOSE_TPOT_MS}", f"engine.step_target_s={LOOSE_TPOT_MS / 1e3}")
"""Instead of the default of 50 ms: what a gap may be longer, the long prompt gets."""
_CALM_CHUNKS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """One long prompt beside one stream, seconds."""

    gaps_s: tuple[float, ...]
    calm_gaps_s: tuple[float, ...]
    long_ttft_s: float

    @property
    def longest_s(self) -> float:
        return max(self.gaps_s)

    @property
    def p99_s(self) -> float:
        return percentile(self.gaps_s, 99)


def run(options: Options) -> Report:
    num_tokens = 800 if options.is_quick else LONG_PROMPT_TOKENS
    report = Report(columns=("server", "long prompts", "gap P50 ms", "P99", "longest", "calm P50", "long TTFT ms"))
    rng = random.Random(options.seed)
    batch_tokens = 64 if options.is_quick else _best_batch(options, rng, num_tokens, report)
    log = options.log_dir
    with contextlib.ExitStack() as running:
        start = running.enter_context
        ours = start(start_ours(options, log / "long_prompt_gaps.log"))
        loose = start(
            start_ours(
                options, log / "long_prompt_gaps_loose.log", settings=LOOSE_SETTINGS, name=f"ultrafast, {LOOSE_TPOT_MS} ms"
            )
        )
        peer = start(start_peer(options, log / "long_prompt_gaps_peer.log"))
        tuned = start(start_peer(options, log / "long_prompt_gaps_tuned.log", batch_tokens=batch_tokens))
        all_servers = [ours, loose, peer, tuned]
        if peer_vllm.is_there(options):
            all_servers.append(start(peer_vllm.start_vllm(options, log / "long_prompt_gaps_vllm.log", num_places=4)))
        else:
            report.notes.append(peer_vllm.absence_note())
        servers = settle_all(*all_servers)
        groups = [_group(servers, rng, num_tokens, options.is_quick) for _ in range(1 if options.is_quick else 2)]
    for server in servers.servers:
        _add_row(report, server.name, [sample for group in groups for sample in group[server.name]])
    for one in (ours, loose):
        for server, goal in ((peer, GOAL_BELOW_DEFAULT), (tuned, GOAL_BELOW_BEST)):
            _compare(report, groups, one.name, server.name, goal)
    report.notes.append(f"long prompts of about {num_tokens} tokens; {servers.note()}")
    report.data["groups"] = [
        {name: [(sample.gaps_s, sample.long_ttft_s) for sample in samples] for name, samples in group.items()} for group in groups
    ]
    return report


def _group(servers: Field, rng: random.Random, num_tokens: int, is_quick: bool) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {server.name: [] for server in servers.servers}
    for server in servers.servers if is_quick else servers.there_and_back():
        with servers.only(server):
            found[server.name].append(asyncio.run(_sample(server, rng, num_tokens)))
    return found


async def _sample(server: RunningServer, rng: random.Random, num_tokens: int) -> Sample:
    async with Client(server.url) as client:
        _checked(await client.ask(for_server(server, unique_chat(rng, 40, 4, service_tier="ultrafast"))))
        stream: list[Answer] = []
        async with asyncio.TaskGroup() as group:
            body = for_server(server, unique_chat(rng, 40, 2000, service_tier="ultrafast"))
            task = group.create_task(client.ask(body, on_start=stream.append))
            while not stream or len(stream[0].stamps_ns) < _CALM_CHUNKS + 1:  # noqa: ASYNC110 - nothing but looking
                await asyncio.sleep(0.01)
            sent_ns = time.perf_counter_ns()
            long = _checked(await client.ask(for_server(server, unique_chat(rng, num_tokens, 1, service_tier="default"))))
            await asyncio.sleep(0.3)  # the gap that the first token of the long one ends in
            task.cancel()
    await asyncio.sleep(1.0)  # the server notices that the stream's client left
    pairs = list(itertools.pairwise(stream[0].stamps_ns))
    touched = [after - before for before, after in pairs if after > sent_ns and before < long.stamps_ns[0]]
    calm = [after - before for before, after in pairs if after <= sent_ns]
    return Sample(tuple(gap / 1e9 for gap in touched), tuple(gap / 1e9 for gap in calm), long.ttft_s)


def _best_batch(options: Options, rng: random.Random, num_tokens: int, report: Report) -> int:
    """The step size of llama-server with the smallest longest gap among those that do not slow the long prompt down."""
    tried = {}
    for batch_tokens in (0, *BATCHES):
        with start_peer(options, options.log_dir / "long_prompt_gaps_tuning.log", batch_tokens=batch_tokens) as peer:
            tried[batch_tokens] = asyncio.run(_sample(peer, rng, num_tokens))
    limit_s = LONGER_TTFT_ALLOWED * tried[0].long_ttft_s
    fitting = {batch: tried[batch].longest_s for batch in BATCHES if tried[batch].long_ttft_s <= limit_s}
    best = min(fitting, key=fitting.__getitem__, default=BATCHES[-1])
    shown = ", ".join(f"{b or 'default'}: {s.longest_s * 1e3:.0f} / {s.long_ttft_s * 1e3:.0f}" for b, s in tried.items())
    report.notes.append(f"llama-server by -b, longest gap / TTFT of the long prompt in ms: {shown}; best: {best}")
    return best


def _add_row(report: Report, name: str, samples: list[Sample]) -> None:
    gaps_s = [gap for sample in samples for gap in sample.gaps_s]
    calm_s = [gap for sample in samples for gap in sample.calm_gaps_s]
    figures = [percentile(gaps_s, 50), percentile(gaps_s, 99), max(gaps_s), percentile(calm_s, 50)]
    long_s = percentile([sample.long_ttft_s for sample in samples], 50)
    report.rows.append((name, len(samples), *(f"{value * 1e3:.1f}" for value in figures), f"{long_s * 1e3:.0f}"))


def _compare(report: Report, groups: list[dict[str, list[Sample]]], ours: str, peer: str, goal: float) -> None:
    for label, figure in (("longest gap", attrgetter("longest_s")), ("P99 gap", attrgetter("p99_s"))):
        value = median_interval([_ratio(group[peer], group[ours], figure) for group in groups])
        report.add_goal_at_least(f"{label}, {peer} over {ours}", value.median, goal, str(value))
    value = median_interval([_ratio(group[ours], group[peer], attrgetter("long_ttft_s")) for group in groups])
    report.add_goal_at_most(f"TTFT of the long prompt, {ours} over {peer}", value.median, GOAL_LONG_TTFT, str(value))


def _ratio(over: list[Sample], under: list[Sample], figure: Callable[[Sample], float]) -> float:
    return group_ratio([figure(sample) for sample in over], [figure(sample) for sample in under])


def _checked(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    return answer


BENCHMARK = Benchmark(
    "long_prompt_gaps",
    "gaps of an ultrafast stream while a long prompt is computed, against llama-server with its default and its best step size",
    lambda is_quick: 50 if is_quick else 360,
    run,
)
