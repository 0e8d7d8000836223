"""Greedy answers under everything that moves KV or guesses, against plain greedy decoding: top-1, position by position.

plain        one request at a time on an idle server that reuses nothing and guesses nothing: tokens, and each one's lead over the
             runner-up. `raw_loop` shows that such a stream has the tokens of a bare libllama loop
mixed        all at once, beside sampled requests of other tiers and lengths
preemption   the same on a pool far too small for them, pushed out by urgent requests; KV waits in host memory and comes back
host         asked again once the device keeps nothing idle: prompts come from host memory
disk         asked again of a server started anew: prompts come from disk
beside       long prompts, one after another, that are computed while a stream decodes, in a pass that is suspended for it
n-gram       prompts that the answers copy, by few streams, so that guesses pay and are made

A position whose token led by less than `MARGIN` may turn out otherwise by rounding: it is filtered, and what follows a parting
there is unknown (`ultrafast.bench.greedy_run`). A scenario that did not happen (nothing from disk, say) fails the
benchmark.
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.client import Answer, Client
from benchmarks.load import Body
from benchmarks.options import Options
from benchmarks.ours import is_all_on_disk, start_ours
from benchmarks.prompts import chat_body, unique_chat, words
from benchmarks.report import Benchmark, Report
from ultrafast.bench.greedy_run import MARGIN, Agreement, GreedyRun

POOL_TOKENS = 1024
NUM_TOKENS = 32
NUM_BURSTS = 8
SETTINGS = ("engine.kv_host_bytes=1073741824",)
PLAIN = ("engine.enable_prefix_cache=false", "engine.speculation=off")
_TOPICS = (
    "a lighthouse",
    "the first train",
    "an old clock",
    "two brothers",
    "bread",
    "the sea",
    "a lost letter",
    "rain in summer",
)
_NAMES = "preemptions", "prefix_cache_hit_tokens", "spec_accepted_tokens"

Counters = dict[str, float]
Runs = Sequence[GreedyRun[str]]


def run(options: Options) -> Report:
    rng = random.Random(options.seed)
    num_chats = 4 if options.is_quick else 16
    chats = [_copy(rng) if number % 2 else _chat(rng, number) for number in range(num_chats)]
    copies = [_copy(rng) for _ in range(num_chats // 2)]
    longs = [_long(rng, number) for number in range(num_chats // 2)]
    report = Report(columns=("scenario", "requests", "compared", "equal", "%", "filtered", "unknown", "what happened"))
    with start_ours(options, options.log_dir / "correctness_plain.log", settings=PLAIN) as server:
        plain = [_as_run(answer) for answer in asyncio.run(_one_by_one(server.url, chats))]
        plain_copies = [_as_run(answer) for answer in asyncio.run(_one_by_one(server.url, copies))]
        plain_long = [_as_run(answer) for answer in asyncio.run(_one_by_one(server.url, longs))]
    with start_ours(options, options.log_dir / "correctness_mixed.log", settings=SETTINGS) as server:
        _judge(report, "mixed", plain, server.url, asyncio.run(_together(server.url, chats, rng)))
        answers = asyncio.run(_few_at_once(server.url, copies, rng))
        _judge(report, "n-gram", plain_copies, server.url, answers, "spec_accepted_tokens")
    with start_ours(
        options, options.log_dir / "correctness_beside.log", settings=("engine.enable_prefix_cache=false",)
    ) as server:
        _judge(report, "beside", plain_long, server.url, asyncio.run(_beside_a_stream(server.url, longs, rng)), "side")
    small = replace(options, context_tokens=POOL_TOKENS)
    with start_ours(small, options.log_dir / "correctness_small.log", settings=SETTINGS) as server:
        flex = [{**chat, "service_tier": "flex"} for chat in chats]
        _judge(report, "preemption", plain, server.url, asyncio.run(_pushed_out(server.url, flex, rng)), "preemptions")
    with tempfile.TemporaryDirectory(prefix="correctness-") as folder:
        off_device = (*SETTINGS, "engine.max_cached_tokens=1", "engine.kv_disk_bytes=2147483648", f"engine.kv_disk_path={folder}")
        with start_ours(options, options.log_dir / "correctness_host.log", settings=off_device) as server:
            asyncio.run(_leave_on_disk(server.url, chats))
            _judge(report, "host", plain, server.url, asyncio.run(_together(server.url, chats, rng)), "host")
        with start_ours(options, options.log_dir / "correctness_disk.log", settings=off_device) as server:
            _judge(report, "disk", plain, server.url, asyncio.run(_together(server.url, chats, rng)), "disk")
    report.notes.append(
        f"filtered: led by less than {MARGIN} (natural-log probability); unknown: after a parting at such a position"
    )
    return report


def _judge(report: Report, name: str, plain: Runs, url: str, answers: list[Answer], needs: str | None = None) -> None:
    counters = asyncio.run(_counters(url))
    assert needs is None or counters.get(needs, 0) > 0, f"{name}: {needs} did not happen"
    found = [one.compare(_tokens(answer)) for one, answer in zip(plain, answers, strict=True)]
    total = sum(found, Agreement())
    happened = ", ".join(f"{what} {count:.0f}" for what, count in counters.items() if count)
    report.rows.append(
        (
            name,
            len(answers),
            total.num_compared,
            total.num_agreed,
            f"{total.percent:.2f}",
            total.num_filtered,
            total.num_unknown,
            happened,
        )
    )
    report.add_goal_at_least(f"{name}: positions equal to plain greedy, %", total.percent, 100, f"{total.percent:.3f}")
    wrong = [number for number, one in enumerate(found) if one.num_agreed < one.num_compared]
    report.data[name] = {
        "wrong": [(number, list(plain[number].tokens), _tokens(answers[number])) for number in wrong],
        "counters": counters,
    }


# -- requests


def _chat(rng: random.Random, number: int) -> Body:
    system = f"You are a helpful assistant. Today's words: {words(rng, rng.choice((16, 60, 150)))}."
    return _greedy(chat_body(system, f"Write a story about {_TOPICS[number % len(_TOPICS)]}.", NUM_TOKENS))


def _long(rng: random.Random, number: int) -> Body:
    system = f"You are a helpful assistant. Today's words: {words(rng, rng.choice((300, 500)))}."
    return _greedy(chat_body(system, f"Write a story about {_TOPICS[number % len(_TOPICS)]}.", NUM_TOKENS))


def _copy(rng: random.Random) -> Body:
    page = ", ".join(f"{words(rng, 2)} {rng.randrange(10, 99)}" for _ in range(12))
    return _greedy(chat_body("Repeat the list.", f"The list is: {page}.\nOnce more: {page}.\nOnce more, please.", 2 * NUM_TOKENS))


def _greedy(body: Body) -> Body:
    return {**body, "logprobs": True, "top_logprobs": 2}


def _noise(rng: random.Random) -> Body:
    tier = rng.choice(("ultrafast", "priority", "default", "flex"))
    return unique_chat(rng, rng.randrange(30, 250), rng.randrange(2, 24), service_tier=tier, temperature=0.8)


# -- ways to ask


async def _one_by_one(url: str, bodies: Sequence[Body]) -> list[Answer]:
    async with Client(url) as client:
        return [_checked(await client.ask(body)) for body in bodies]


async def _together(url: str, bodies: Sequence[Body], rng: random.Random) -> list[Answer]:
    noise = [_noise(rng) for _ in range(len(bodies) // 2)]
    async with Client(url) as client:
        answers = await asyncio.gather(*(client.ask(body) for body in (*bodies, *noise)))
    return [_checked(answer) for answer in answers][: len(bodies)]


async def _few_at_once(url: str, bodies: Sequence[Body], rng: random.Random) -> list[Answer]:
    answers: list[Answer] = []
    async with Client(url) as client:
        for number in range(0, len(bodies), 2):
            pair = [*bodies[number : number + 2], *([_noise(rng)] if number % 4 == 0 else [])]
            found = await asyncio.gather(*(client.ask(body) for body in pair))
            answers += [_checked(answer) for answer in found][: len(bodies[number : number + 2])]
    return answers


async def _beside_a_stream(url: str, bodies: Sequence[Body], rng: random.Random) -> list[Answer]:
    async with Client(url) as client, asyncio.TaskGroup() as group:
        stream = group.create_task(client.ask(unique_chat(rng, 40, 4000, service_tier="ultrafast")))
        await asyncio.sleep(1.0)
        answers = [_checked(await client.ask(body)) for body in bodies]
        stream.cancel()
    return answers


async def _pushed_out(url: str, bodies: Sequence[Body], rng: random.Random) -> list[Answer]:
    """Bursts of urgent requests come while they are answered; not without an end, for then nobody else would find cells."""
    async with Client(url) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.ask(body)) for body in bodies]
        for _ in range(NUM_BURSTS):
            await asyncio.sleep(1.5)
            urgent = [unique_chat(rng, 300, 4, service_tier="ultrafast", temperature=0.8) for _ in range(3)]
            await asyncio.gather(*(client.ask(body) for body in urgent))
        answers = await asyncio.gather(*tasks)
    return [_checked(answer) for answer in answers]


async def _leave_on_disk(url: str, bodies: Sequence[Body]) -> None:
    """Ask once; returns when all KV that was left is on disk, too."""
    async with Client(url) as client:
        for body in bodies:
            _checked(await client.ask(body))
        while not await is_all_on_disk(client):  # noqa: ASYNC110 - there is nothing but asking
            await asyncio.sleep(0.05)


async def _counters(url: str) -> Counters:
    """What the server counted since its start; cache hits by level."""
    async with Client(url) as client:
        text = (await client.get("/metrics")).body.decode()
    found: Counters = {}
    for name, labels, value in re.findall(r"^ultrafast_(\w+)_total(?:\{([^}]*)\})? (\S+)$", text, re.MULTILINE):
        if name in _NAMES:
            level = re.search(r'level="(\w+)"', labels)
            key = level[1] if level else name
            found[key] = found.get(key, 0.0) + float(value)
    chunks = re.search(r'^ultrafast_step_seconds_count\{kind="side"\} (\S+)$', text, re.MULTILINE)
    return {**found, "side": float(chunks[1]) if chunks else 0.0}


def _tokens(answer: Answer) -> list[str]:
    return [entry["token"] for entry in answer.logprobs]


def _as_run(answer: Answer) -> GreedyRun[str]:
    pairs = [entry["top_logprobs"][:2] for entry in answer.logprobs]
    return GreedyRun(_tokens(answer), [first["logprob"] - second["logprob"] for first, second in pairs])


def _checked(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    return answer


BENCHMARK = Benchmark(
    "correctness",
    "greedy answers under mixed load, preemption, host memory, disk and guesses, against plain greedy decoding",
    lambda is_quick: 90 if is_quick else 400,
    run,
)
