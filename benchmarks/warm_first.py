"""Is the first request after a start as fast as the fifth? Fresh servers, unique prompts, one request at a time."""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks.client import Client
from benchmarks.options import Options
from benchmarks.ours import start_ours
from benchmarks.prompts import unique_chat
from benchmarks.report import Benchmark, Report
from benchmarks.stats import median_interval, percentile

NUM_REQUESTS = 5
GOAL_RATIO = 1.1


def run(options: Options) -> Report:
    rng = random.Random(options.seed)
    ttfts_ms: list[list[float]] = []
    starts_s = []
    for _ in range(1 if options.is_quick else 8):
        begin_s = time.monotonic()
        with start_ours(options, options.log_dir / "warm_first.log") as server:
            starts_s.append(time.monotonic() - begin_s)
            ttfts_ms.append(asyncio.run(_ttfts_ms(server.url, rng)))
    report = Report(columns=("start", "ready after s", *(f"request {i + 1} TTFT ms" for i in range(NUM_REQUESTS))))
    for i, row in enumerate(ttfts_ms):
        report.rows.append((i + 1, starts_s[i], *(f"{value:.1f}" for value in row)))
    ratio = median_interval([row[0] / row[-1] for row in ttfts_ms])
    report.add_goal_at_most("TTFT of request 1 over request 5", ratio.median, GOAL_RATIO, str(ratio))
    rest = median_interval([row[0] / percentile(row[1:], 50) for row in ttfts_ms])
    report.notes.append(f"request 1 over the median of the others: {rest}")
    report.data = {"ttfts_ms": ttfts_ms, "starts_s": starts_s}
    return report


async def _ttfts_ms(url: str, rng: random.Random) -> list[float]:
    async with Client(url) as client:
        answers = [await client.ask(unique_chat(rng, 60, 8)) for _ in range(NUM_REQUESTS)]
    failed = [answer.error for answer in answers if answer.error is not None]
    assert not failed, failed[0]
    return [answer.ttft_s * 1e3 for answer in answers]


BENCHMARK = Benchmark(
    "warm_first",
    "time to first token of the first request after a start, against the fifth",
    lambda is_quick: 12 if is_quick else 80,
    run,
)
