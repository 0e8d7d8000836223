"""The next turn of a conversation with about 1,000 tokens of history: its TTFT by where the history's KV is.

One request at a time. Three sets of conversations, each used for one level, so that every next turn computes as much: the end of
the answer, the question, and what the template puts around it.

server 1   cache on                         turn 1, a pause, then turn 2           device
server 2   the device keeps nothing idle    turn 1 of two sets, then turn 2 of     host memory
                                            the first set
server 3   the same, started anew           turn 2 of the second set               disk
server 4   cache off                        turn 2 of all                          recomputation

The pause after each answer is what a person needs to read it; the server begins the next turn meanwhile (docs/kv-cache.md).
"""

from __future__ import annotations

import asyncio
import random
import re
import tempfile

from benchmarks.client import Answer, Client
from benchmarks.load import Body
from benchmarks.options import Options
from benchmarks.ours import is_all_on_disk, start_ours
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval

NUM_HISTORY_TOKENS = 1000
NUM_ANSWER_TOKENS = 8
GOALS = {"device": 0.025, "host": 0.03, "disk": 0.05}
DISK_BYTES = 2 << 30
PAUSE_S = 1.5
_QUESTION = "Go on."


def run(options: Options) -> Report:
    rng = random.Random(options.seed)
    num_chats = 2 if options.is_quick else 8
    chats = {way: [unique_chat(rng, NUM_HISTORY_TOKENS, NUM_ANSWER_TOKENS) for _ in range(num_chats)] for way in GOALS}
    with tempfile.TemporaryDirectory(prefix="kv-levels-") as folder:
        answers, hits = _measure(options, chats, folder)
    report = Report(columns=("conversation", *(f"{way} ms (recompute)" for way in GOALS)))
    ttfts_s = {way: [(cached.ttft_s, computed.ttft_s) for cached, computed in pairs] for way, pairs in answers.items()}
    for number in range(num_chats):
        pairs = (ttfts_s[way][number] for way in GOALS)
        report.rows.append((number + 1, *(f"{cached * 1e3:.0f} ({computed * 1e3:.0f})" for cached, computed in pairs)))
    for way, goal in GOALS.items():
        ratio = median_interval([cached / computed for cached, computed in ttfts_s[way]])
        report.add_goal_at_most(f"TTFT of the next turn from {way}, over recomputation", ratio.median, goal, str(ratio))
    report.notes.append(f"prompt tokens that the servers took from each level: {hits}")
    for way, level_pairs in answers.items():
        num_new = [cached.num_prompt_tokens - cached.num_cached_tokens for cached, _ in level_pairs]
        num_prompt = level_pairs[0][0].num_prompt_tokens
        report.notes.append(f"{way}: {min(num_new)} to {max(num_new)} of {num_prompt} prompt tokens had to be computed")
    report.data = {"ttfts_s": ttfts_s, "hits": hits}
    return report


def _measure(
    options: Options, chats: dict[str, list[Body]], folder: str
) -> tuple[dict[str, list[tuple[Answer, Answer]]], dict[str, int]]:
    cache = (f"engine.kv_disk_bytes={DISK_BYTES}", f"engine.kv_disk_path={folder}", "engine.kv_host_bytes=1073741824")
    off_device = (*cache, "engine.max_cached_tokens=1")
    cached: dict[str, list[Answer]] = {}
    turns: dict[str, list[Body]] = {}
    hits = {"device": 0, "host": 0, "disk": 0}
    with start_ours(options, options.log_dir / "kv_levels_1.log", settings=cache[2:]) as server:
        turns["device"], cached["device"] = asyncio.run(_both_turns(server.url, chats["device"]))
        _add(hits, asyncio.run(_hits(server.url)))
    with start_ours(options, options.log_dir / "kv_levels_2.log", settings=off_device) as server:
        for way in ("host", "disk"):
            turns[way] = asyncio.run(_first_turns(server.url, chats[way]))
        cached["host"] = asyncio.run(_next_turns(server.url, turns["host"]))
        _add(hits, asyncio.run(_hits(server.url)))
    with start_ours(options, options.log_dir / "kv_levels_3.log", settings=off_device) as server:
        cached["disk"] = asyncio.run(_next_turns(server.url, turns["disk"]))
        _add(hits, asyncio.run(_hits(server.url)))
    with start_ours(options, options.log_dir / "kv_levels_4.log", settings=("engine.enable_prefix_cache=false",)) as server:
        computed = {way: asyncio.run(_next_turns(server.url, turns[way])) for way in GOALS}
    return {way: list(zip(cached[way], computed[way], strict=True)) for way in GOALS}, hits


async def _both_turns(url: str, chats: list[Body]) -> tuple[list[Body], list[Answer]]:
    """Turn 1 of each conversation and, after the pause, turn 2; returns what turn 2 starts from, and its answers."""
    turns, answers = [], []
    async with Client(url) as client:
        for chat in chats:
            turns.append(_answered(chat, _checked(await client.ask(chat))))
            await asyncio.sleep(PAUSE_S)
            answers.append(_checked(await client.ask(_asking(turns[-1]))))
    return turns, answers


async def _first_turns(url: str, chats: list[Body]) -> list[Body]:
    """Turn 1 of each; returns once all KV is on disk, too."""
    async with Client(url) as client:
        turns = []
        for chat in chats:
            turns.append(_answered(chat, _checked(await client.ask(chat))))
            await asyncio.sleep(PAUSE_S)
        while not await is_all_on_disk(client):  # noqa: ASYNC110 - there is nothing but asking
            await asyncio.sleep(0.05)
    return turns


async def _next_turns(url: str, turns: list[Body]) -> list[Answer]:
    async with Client(url) as client:
        return [_checked(await client.ask(_asking(turn))) for turn in turns]


async def _hits(url: str) -> dict[str, int]:
    async with Client(url) as client:
        text = (await client.get("/metrics")).body.decode()
    found = re.findall(r'^ultrafast_prefix_cache_hit_tokens_total\{level="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {level: int(float(value)) for level, value in found}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for level, value in more.items():
        total[level] += value


def _answered(chat: Body, answer: Answer) -> Body:
    return {**chat, "messages": [*chat["messages"], {"role": "assistant", "content": answer.text}]}


def _asking(turn: Body) -> Body:
    return {**turn, "messages": [*turn["messages"], {"role": "user", "content": _QUESTION}]}


def _checked(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    return answer


BENCHMARK = Benchmark(
    "kv_levels",
    "TTFT of a conversation's next turn from device, host memory and disk, against recomputation",
    lambda is_quick: 80 if is_quick else 220,
    run,
)
