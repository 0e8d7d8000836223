"""Requests before the window, so that compilation, page faults and cold caches are not measured.

Its prompts are its own: measured ones must not be in any cache. It sends as many at once as the run will, because some servers
compile per batch size, and goes on until two rounds in a row have about the same median TTFT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import msgspec

from ultrafast.bench.client import BenchClient
from ultrafast.bench.dialect import build_body
from ultrafast.bench.figures import figures_of
from ultrafast.bench.records import Outcome, RequestRecord, WarmUp
from ultrafast.bench.stats.percentiles import nearest_rank
from ultrafast.bench.target import Target, TargetError
from ultrafast.bench.workload import PlannedRequest, Session

STEADY_SHARE = 0.05
MAX_ROUNDS = 10
MAX_WARM_UP_S = 60.0
MIN_ROUND = 4
MAX_OUTPUT_TOKENS = 32


class WarmUpSpec(msgspec.Struct, kw_only=True, frozen=True):
    """How much warm-up. `num_requests`: exactly so many (0: none); None: until steady, at most `max_duration_s`."""

    concurrency: int
    num_requests: int | None = None
    max_duration_s: float = MAX_WARM_UP_S


async def warm_up(
    client: BenchClient, target: Target, sessions: Sequence[Session], spec: WarmUpSpec, extra: dict[str, Any]
) -> WarmUp:
    """Send first turns of `sessions` (over and over if there are too few) with short answers; nothing of it is kept.

    Raises:
        TargetError: not one request of a round succeeded; measuring would be in vain.
    """
    turns = cycle([session.turns[0] for session in sessions])
    start_ns = client.now_ns()
    medians: list[float] = []
    num_sent = 0
    while num_sent < (spec.num_requests if spec.num_requests is not None else MAX_ROUNDS * max(MIN_ROUND, spec.concurrency)):
        size = max(MIN_ROUND, spec.concurrency)
        if spec.num_requests is not None:
            size = min(size, spec.num_requests - num_sent)
        medians.append(await _round(client, target, turns, size, spec.concurrency, extra))
        num_sent += size
        elapsed_s = (client.now_ns() - start_ns) / 1e9
        if spec.num_requests is None and (_is_steady(medians) or elapsed_s > spec.max_duration_s):
            break
    return WarmUp(num_sent, (client.now_ns() - start_ns) / 1e9, _is_steady(medians), medians)


def _is_steady(medians: Sequence[float]) -> bool:
    return len(medians) > 1 and abs(medians[-1] - medians[-2]) <= STEADY_SHARE * medians[-2]


async def _round(
    client: BenchClient, target: Target, turns: Iterator[PlannedRequest], size: int, concurrency: int, extra: dict[str, Any]
) -> float:
    slots = asyncio.Semaphore(concurrency)
    records = [RequestRecord(index=number, outcome=Outcome.CANCELLED, scheduled_ns=0) for number in range(size)]
    async with asyncio.TaskGroup() as group:
        for record in records:
            group.create_task(_send(client, target, next(turns), record, slots, extra))
    ttfts = [ttft for record in records if record.is_ok and (ttft := figures_of(record).ttft_s) is not None]
    if not ttfts:
        failure = next(record.failure for record in records if record.failure)
        raise TargetError(f"Every warm-up request failed: {failure.message}", hint=f"Kind of failure: {failure.kind}.")
    return nearest_rank(ttfts, 0.5) or 0.0


async def _send(
    client: BenchClient,
    target: Target,
    turn: PlannedRequest,
    record: RequestRecord,
    slots: asyncio.Semaphore,
    extra: dict[str, Any],
) -> None:
    num_tokens = min(turn.num_output_tokens or MAX_OUTPUT_TOKENS, MAX_OUTPUT_TOKENS)
    body = build_body(target.model, turn.messages, target.dialect, num_output_tokens=num_tokens, tier=turn.tier, extra=extra)
    async with slots:
        record.scheduled_ns = client.now_ns()
        await client.ask(record, body)
