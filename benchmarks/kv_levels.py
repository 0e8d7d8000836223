"""The next turn of a conversation with about 1,000 tokens of history: its TTFT by where the history's KV is.

One request at a time; the same conversations each time.

server 1   cache on        turn 1, then turn 2 at once       device
server 2   cache on, new   turn 2 of each                    disk
                           another turn 2 of each            host memory (the device keeps nothing here)
server 3   cache off       turn 2 of each                    recomputation
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
from typing import Any

from benchmarks.client import Answer, Client
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval

NUM_HISTORY_TOKENS = 1000
NUM_ANSWER_TOKENS = 8
GOALS = {"device": 0.025, "host": 0.03, "disk": 0.05}
DISK_BYTES = 2 << 30
_QUESTIONS = {"device": "Go on.", "disk": "And then?", "host": "Why?", "recompute": "Go on."}


def run(options: Options) -> Report:
    rng = random.Random(options.seed)
    chats = [unique_chat(rng, NUM_HISTORY_TOKENS, NUM_ANSWER_TOKENS) for _ in range(2 if options.is_quick else 10)]
    with tempfile.TemporaryDirectory(prefix="kv-levels-") as folder:
        ttfts_s, hits = _measure(options, chats, folder)
    report = Report(columns=("conversation", *(f"{way} ms" for way in ttfts_s)))
    for number in range(len(chats)):
        report.rows.append((number + 1, *(f"{values[number] * 1e3:.0f}" for values in ttfts_s.values())))
    for way, goal in GOALS.items():
        ratio = median_interval([a / b for a, b in zip(ttfts_s[way], ttfts_s["recompute"], strict=True)])
        report.add_goal_at_most(f"TTFT of the next turn from {way}, over recomputation", ratio.median, goal, str(ratio))
    report.notes.append(f"prompt tokens that the servers took from each level: {hits}")
    report.data = {"ttfts_s": ttfts_s, "hits": hits}
    return report


def _measure(options: Options, chats: list[dict[str, Any]], folder: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    cache = (f"engine.kv_disk_bytes={DISK_BYTES}", f"engine.kv_disk_path={folder}", "engine.kv_host_bytes=1073741824")
    ttfts_s: dict[str, list[float]] = {}
    hits = {"device": 0, "host": 0, "disk": 0}
    with start_ours(options, options.log_dir / "kv_levels_1.log", settings=cache) as server:
        turns, ttfts_s["device"] = asyncio.run(_first_turns(server.url, chats))
        _add(hits, asyncio.run(_hits(server.url)))
    with start_ours(options, options.log_dir / "kv_levels_2.log", settings=(*cache, "engine.max_cached_tokens=1")) as server:
        for way in ("disk", "host"):
            ttfts_s[way] = asyncio.run(_next_turns(server.url, turns, way))
        _add(hits, asyncio.run(_hits(server.url)))
    with start_ours(options, options.log_dir / "kv_levels_3.log", settings=("engine.enable_prefix_cache=false",)) as server:
        ttfts_s["recompute"] = asyncio.run(_next_turns(server.url, turns, "recompute"))
    return ttfts_s, hits


async def _first_turns(url: str, chats: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[float]]:
    """Turn 1 of each conversation and, at once, turn 2; returns what the next turns start from, and TTFTs of turn 2."""
    turns, ttfts_s = [], []
    async with Client(url) as client:
        for chat in chats:
            answer = _checked(await client.ask(chat))
            said = {"role": "assistant", "content": answer.text}
            turns.append({**chat, "messages": [*chat["messages"], said]})
            ttfts_s.append(_checked(await client.ask(_asking(turns[-1], "device"))).ttft_s)
        while not await _is_all_on_disk(client):  # noqa: ASYNC110 - there is nothing but asking
            await asyncio.sleep(0.05)
    return turns, ttfts_s


async def _next_turns(url: str, turns: list[dict[str, Any]], way: str) -> list[float]:
    async with Client(url) as client:
        return [_checked(await client.ask(_asking(turn, way))).ttft_s for turn in turns]


async def _is_all_on_disk(client: Client) -> bool:
    levels = json.loads((await client.get("/admin/cache")).body)["levels"]
    host, disk = (level["num_tokens"] for level in levels)
    return bool(host == disk > 0)


async def _hits(url: str) -> dict[str, int]:
    async with Client(url) as client:
        text = (await client.get("/metrics")).body.decode()
    found = re.findall(r'^ultrafast_prefix_cache_hit_tokens_total\{level="(\w+)"\} (\S+)', text, re.MULTILINE)
    return {level: int(float(value)) for level, value in found}


def _add(total: dict[str, int], more: dict[str, int]) -> None:
    for level, value in more.items():
        total[level] += value


def _asking(turn: dict[str, Any], way: str) -> dict[str, Any]:
    return {**turn, "messages": [*turn["messages"], {"role": "user", "content": _QUESTIONS[way]}]}


def _checked(answer: Answer) -> Answer:
    assert answer.error is None, answer.error
    return answer


BENCHMARK = Benchmark(
    "kv_levels",
    "TTFT of a conversation's next turn from device, host memory and disk, against recomputation",
    lambda is_quick: 60 if is_quick else 200,
    run,
)
