"""Against llama-server: one stream, eight closed-loop clients, and four requests with a common prefix.

It gets a slot for each request that is sent at once; with eight clients it is also measured as it comes, with four slots.
The clients are measured twice. With answers of one length llama-server's move in lockstep: all prompts in one batch, all answers
at once, which no traffic does; with answers of different lengths they do not.

Interleaved A B B A; within a group all servers get the same requests, each of them once. Every request is greedy and produces the
number of tokens that it asks for (`ignore_eos`). What is compared is the ratio within a group; the median over groups has a
bootstrap interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks.client import Answer, Client
from benchmarks.interleave import Field, group_ratio, settle_all
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.peer_llama_server import DEFAULT_SLOTS, start_peer
from benchmarks.processes import RunningServer
from benchmarks.prompts import shared_prefix_chats, unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval, percentile

PROMPT_LENGTHS = (60, 600)
OUTPUT_TOKENS = 64
NUM_CLIENTS = 8
CLIENTS_OUTPUT_TOKENS = ((16, 112), (64, 64))
PREFIX_TOKENS, SUFFIX_TOKENS, NUM_SHARING, SHARING_OUTPUT_TOKENS = 600, 20, 4, 32

PEER, PEER_AS_IT_COMES = "llama-server", f"llama-server, {DEFAULT_SLOTS} slots"

Body = dict[str, Any]
Figures = dict[str, float]


class MeasurementError(RuntimeError):
    """A request failed: there is nothing to compare."""


def run(options: Options) -> Report:
    report = Report(columns=("scenario", "groups", "ours", "llama-server", "ratio [95 % CI]"))
    scenarios: list[tuple[dict[str, int], Callable[[Field, Options, Report], None]]] = [
        ({PEER: DEFAULT_SLOTS}, _single_stream),
        ({PEER: NUM_CLIENTS, PEER_AS_IT_COMES: DEFAULT_SLOTS}, _throughput),
        ({PEER: NUM_SHARING}, _shared_prefix),
    ]
    for peers, scenario in scenarios:
        name = scenario.__name__.strip("_")
        with contextlib.ExitStack() as running:
            servers = [running.enter_context(start_ours(options, options.log_dir / "ours.log"))]
            for peer, num_slots in peers.items():
                log_path = options.log_dir / f"llama-server-{num_slots}.log"
                servers.append(running.enter_context(start_peer(options, log_path, num_slots=num_slots, name=peer)))
            try:
                field = settle_all(*servers)
                _warm(field, max(peers.values()))
                scenario(field, options, report)
                report.notes.append(f"{name}: {field.note()}")
            except MeasurementError as error:  # the other scenarios still count
                report.goals.append((name, f"not measured: {error}", "measured", False))
    return report


def _single_stream(field: Field, options: Options, report: Report) -> None:
    rng = random.Random(options.seed)
    for length in PROMPT_LENGTHS:
        num_groups = 1 if options.is_quick else (6 if length < 200 else 4)
        bodies = [[unique_chat(rng, length, OUTPUT_TOKENS)] for _ in range(2 * num_groups)]
        groups = _interleave(field, bodies, _one_after_another, report, f"single_stream_{length}")
        for figure, goal in (("ttft_ms", 1.05), ("tpot_ms", 1.05)):
            _compare(report, f"1 stream, {length}-token prompt, {figure}", groups, figure, at_most=goal)


def _throughput(field: Field, options: Options, report: Report) -> None:
    rng = random.Random(options.seed + 1)
    num_rounds = 4 if options.is_quick else 7

    async def closed_loop(url: str, bodies: Sequence[Body]) -> Figures:
        return await _closed_loop(url, bodies, num_rounds)

    for shortest, longest in CLIENTS_OUTPUT_TOKENS:
        bodies = [
            [unique_chat(rng, 60, rng.randint(shortest, longest)) for _ in range(400)]
            for _ in range(2 if options.is_quick else 6)
        ]
        lengths = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        groups = _interleave(field, bodies, closed_loop, report, f"throughput_{shortest}_{longest}")
        label = f"{NUM_CLIENTS} clients, answers of {lengths} tokens"
        for peer in (PEER, PEER_AS_IT_COMES):
            _compare(report, f"{label}, tokens/s", groups, "tokens_per_s", at_least=1.0, peer=peer)
            _compare(report, f"{label}, P50 TTFT ms", groups, "ttft_ms", peer=peer)
            _compare(report, f"{label}, P50 TPOT ms", groups, "tpot_ms", peer=peer)


def _shared_prefix(field: Field, options: Options, report: Report) -> None:
    rng = random.Random(options.seed + 2)
    num_groups = 1 if options.is_quick else 3
    bodies = [
        shared_prefix_chats(rng, NUM_SHARING, PREFIX_TOKENS, SUFFIX_TOKENS, SHARING_OUTPUT_TOKENS) for _ in range(2 * num_groups)
    ]
    groups = _interleave(field, bodies, _all_at_once, report, "shared_prefix")
    _compare(report, f"{NUM_SHARING} requests, shared prefix, wall s", groups, "wall_s", at_most=0.5)
    _compare(report, f"{NUM_SHARING} requests, computed prompt tokens", groups, "computed_tokens")


# -- how a block of requests is sent; each returns the block's figures ---------------------------------------------------------


async def _one_after_another(url: str, bodies: Sequence[Body]) -> Figures:
    async with Client(url) as client:
        answers = [_checked(await client.ask(body), body) for body in bodies]
    return _figures(answers)


async def _all_at_once(url: str, bodies: Sequence[Body]) -> Figures:
    begin_s = time.perf_counter()
    async with Client(url) as client:
        answers = await asyncio.gather(*(client.ask(body) for body in bodies))
    wall_s = time.perf_counter() - begin_s
    figures = _figures([_checked(answer, body) for answer, body in zip(answers, bodies, strict=True)])
    return {**figures, "wall_s": wall_s}


async def _closed_loop(url: str, bodies: Sequence[Body], num_rounds: int) -> Figures:
    """Eight clients, each with its next request as soon as it has an answer, until each has had `num_rounds` of them.

    The rate is the sum over clients of the output tokens per second of their whole requests, the first left out: all start
    together, which is not what a running server sees. Whole requests, because a server that answers in lockstep sends no token in
    one part of a round and many in the other: what a window of fixed length counts then depends on where it ends.
    """
    waiting = list(reversed(bodies))
    begin_s = time.perf_counter()
    answers: list[list[tuple[float, Answer]]] = [[] for _ in range(NUM_CLIENTS)]

    async def one_client(client: Client, own: list[tuple[float, Answer]]) -> None:
        while min(map(len, answers)) < num_rounds:  # who is done goes on: the others keep their load
            body = waiting.pop()
            answer = _checked(await client.ask(body), body)
            own.append((time.perf_counter() - begin_s, answer))

    async with Client(url) as client:
        await asyncio.gather(*(one_client(client, own) for own in answers))
    rates = [sum(answer.num_tokens for _, answer in own[1:num_rounds]) / (own[num_rounds - 1][0] - own[0][0]) for own in answers]
    return {**_figures([answer for own in answers for _, answer in own]), "tokens_per_s": sum(rates)}


def _checked(answer: Answer, body: Body) -> Answer:
    if answer.error is not None:
        raise MeasurementError(answer.error)
    if answer.num_tokens != body["max_tokens"]:
        raise MeasurementError(f"{body['max_tokens']} output tokens were asked for, {answer.num_tokens} came")
    return answer


def _figures(answers: Sequence[Answer]) -> Figures:
    return {
        "ttft_ms": percentile([answer.ttft_s * 1e3 for answer in answers], 50),
        "tpot_ms": percentile([answer.tpot_s * 1e3 for answer in answers], 50),
        "prompt_tokens": sum(answer.num_prompt_tokens for answer in answers),
        "computed_tokens": sum(answer.num_prompt_tokens - answer.num_cached_tokens for answer in answers),
        "tokens_per_chunk": sum(a.num_tokens for a in answers) / sum(len(a.stamps_ns) for a in answers),
        "coalesced_share": sum(a.num_coalesced for a in answers) / sum(len(a.stamps_ns) for a in answers),
    }


# -- comparing ----------------------------------------------------------------------------------------------------------------


def _interleave(
    field: Field,
    bodies: Sequence[Sequence[Body]],
    send: Callable[[str, Sequence[Body]], Awaitable[Figures]],
    report: Report,
    name: str,
) -> list[dict[str, list[Figures]]]:
    """Groups of A B B A or A B C C B A: two blocks of requests, each sent once to every server."""
    groups = []
    for i in range(0, len(bodies), 2):
        group: dict[str, list[Figures]] = {server.name: [] for server in field.servers}
        blocks = [block for block in bodies[i : i + 2] for _ in field.servers]
        for server, block in zip(field.there_and_back(), blocks, strict=True):
            with field.only(server):
                group[server.name].append(asyncio.run(_sent(send, server, block)))
        groups.append(group)
    report.data[name] = groups
    _note_differences(report, name, groups)
    return groups


async def _sent(
    send: Callable[[str, Sequence[Body]], Awaitable[Figures]], server: RunningServer, block: Sequence[Body]
) -> Figures:
    try:
        return await send(server.url, block)
    except MeasurementError as error:
        raise MeasurementError(f"{server.name}: {error}") from error


def _note_differences(report: Report, name: str, groups: Sequence[dict[str, list[Figures]]]) -> None:
    def mean(server: str, figure: str) -> float:
        values = [block[figure] for group in groups for block in group[server]]
        return sum(values) / len(values)

    if not name.startswith("throughput") and len({mean(server, "prompt_tokens") for server in groups[0]}) > 1:
        report.notes.append(f"{name}: the servers do not agree on the length of the prompts")
    for server in groups[0]:
        if mean(server, "tokens_per_chunk") > 1.1 or mean(server, "coalesced_share") > 0.05:
            report.notes.append(
                f"{name}: {server} sends {mean(server, 'tokens_per_chunk'):.2f} tokens a chunk, "
                f"{mean(server, 'coalesced_share'):.1%} of the chunks in one read with another"
            )


def _compare(
    report: Report,
    label: str,
    groups: Sequence[dict[str, list[Figures]]],
    figure: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    peer: str = PEER,
) -> None:
    label = label if peer == PEER else f"{label}, {peer}"
    ours, theirs = ([[block[figure] for block in group[name]] for group in groups] for name in ("ultrafast", peer))
    ratio = median_interval([group_ratio(a, b) for a, b in zip(ours, theirs, strict=True)])
    medians = [percentile([value for group in side for value in group], 50) for side in (ours, theirs)]
    report.rows.append((label, len(groups), f"{medians[0]:.2f}", f"{medians[1]:.2f}", str(ratio)))
    if at_most is not None:
        report.add_goal_at_most(f"{label}, ratio", ratio.median, at_most, str(ratio))
    if at_least is not None:
        report.add_goal_at_least(f"{label}, ratio", ratio.median, at_least, str(ratio))


def _warm(field: Field, num_requests: int) -> None:
    """Prompts of its own, as many at once as will be measured."""
    rng = random.Random(-1)
    for server in field.servers:
        asyncio.run(_all_at_once(server.url, [unique_chat(rng, 60, 16) for _ in range(num_requests)]))


BENCHMARK = Benchmark(
    "vs_llama_server",
    "one stream, eight clients and a shared prefix, against llama-server",
    lambda is_quick: 95 if is_quick else 660,
    run,
)
