"""Two schedulers that take turns on one machine: the shared pool, and a pool in which deterministic requests run one at a time.

    shared pool   |step|step|step|    |step|step|    |step|         many sequences in a step, prefixes shared
    alone                        |step|         |step|              one sequence in the step and in its pool

Floats are added in an order that depends on what else is in a step and where cells lie. So a deterministic request has both to
itself; only time is shared: the more urgent side goes first, the other one gets the minimum share of its most urgent tier,
and equally urgent ones take turns by the time they used. A tier's queue is one for both: each side's gate sees the other's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum

from ultrafast.core.draft import DraftResult
from ultrafast.core.events import Event, RequestFinished, StepFinished
from ultrafast.core.request import Request
from ultrafast.core.step import KvMoved, SequenceWork, StepPlan, StepResult, Yielding
from ultrafast.sched.coming import NOBODY, Coming
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

CHUNK_TOKENS = 32
"""Prompt tokens per step of a deterministic request. Never anything else: another cut would add floats in another order."""


class _Side(IntEnum):
    SHARED = 0
    ALONE = 1


class PairedScheduler:
    """Implements what the engine loop needs of a scheduler; see `Scheduler` for the contract.

    Args:
        shared: of the shared pool; owns the KV levels.
        alone: made from `limits_alone`.
    """

    def __init__(self, shared: Scheduler, alone: Scheduler) -> None:
        self._sides = (shared, alone)
        shared.share_queues_with(alone)
        alone.share_queues_with(shared)
        self._tiers = shared.limits.tiers
        self._side = _Side.SHARED
        self._is_background_next = False
        self._lesser: _Side | None = None
        self._share = 0.0
        self._credit_s = 0.0
        self._used_s = [0.0, 0.0]
        self._last_s = [0.0, 0.0]

    @property
    def has_work(self) -> bool:
        return any(side.has_work for side in self._sides)

    @property
    def is_waiting_for_kv(self) -> bool:
        return self._sides[_Side.SHARED].is_waiting_for_kv

    def add(self, request: Request, now: float, coming: Coming = NOBODY) -> list[Event]:
        return self._sides[_Side.ALONE if request.is_deterministic else _Side.SHARED].add(request, now, coming)

    def answer(self, request: Request, now: float, coming: Coming = NOBODY) -> RequestFinished:
        """See `Scheduler.answer`."""
        return self._sides[_Side.ALONE if request.is_deterministic else _Side.SHARED].answer(request, now, coming)

    def abort(self, request_id: str, now: float) -> list[Event]:
        return [event for side in self._sides for event in side.abort(request_id, now)]

    def kv_moved(self, results: Sequence[KvMoved], now: float) -> list[Event]:
        return self._sides[_Side.SHARED].kv_moved(results, now)

    def clear_cache(self, now: float, *, with_disk: bool) -> list[Event]:
        return self._sides[_Side.SHARED].clear_cache(now, with_disk=with_disk)

    def copies_failed(self, request_ids: Sequence[str], now: float) -> None:
        self._sides[_Side.SHARED].copies_failed(request_ids, now)

    def plan(self, now: float) -> StepPlan:
        """Decide whose step is next, and what it does."""
        self._side = self._choose()
        return self._sides[self._side].plan(now)

    def gives_way(self, step: Yielding, request: Request, elapsed_s: float) -> bool:
        """Only steps of the shared side are long enough."""
        return self._sides[_Side.SHARED].gives_way(step, request, elapsed_s)

    @property
    def is_side_wanted(self) -> bool:
        return self._sides[_Side.SHARED].is_side_wanted

    def side_begun(self, chunk: SequenceWork, now: float) -> None:
        """Only the shared side has long prompts beside its steps."""
        self._sides[_Side.SHARED].side_begun(chunk, now)

    def side_finished(self, chunk: SequenceWork, result: StepResult, now: float) -> list[Event]:
        """See `Scheduler.side_finished`."""
        self._sides[_Side.ALONE].stood_by(result.duration_s, now)
        events = self._sides[_Side.SHARED].side_finished(chunk, result, now)
        return [self._whole(event) if isinstance(event, StepFinished) else event for event in events]

    def drafted(self, plan: StepPlan, result: DraftResult) -> StepPlan:
        """Only the shared side guesses."""
        return self._sides[_Side.SHARED].drafted(plan, result)

    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        """Book the last plan on the side that made it."""
        if plan.work:
            self._book(result.duration_s)
            self._sides[1 - self._side].stood_by(result.duration_s, now)
        events = self._sides[self._side].complete(plan, result, now)
        return [self._whole(event) if isinstance(event, StepFinished) else event for event in events]

    def _choose(self) -> _Side:
        shared, alone = (side.top_rank for side in self._sides)
        if shared is None or alone is None:
            self._lesser, self._credit_s, self._used_s = None, 0.0, [0.0, 0.0]
            return self._choose_idle(alone is None)
        if shared == alone:
            self._lesser = None
            return _Side(self._used_s[_Side.ALONE] < self._used_s[_Side.SHARED])
        self._lesser = _Side(alone > shared)
        self._share = self._tiers[max(shared, alone)].min_share
        is_due = self._share > 0 and self._credit_s >= self._last_s[self._lesser]
        return self._lesser if is_due else _Side(1 - self._lesser)

    def _choose_idle(self, is_alone_idle: bool) -> _Side:
        """At most one side has requests; the other may have something to free, copy or tell."""
        busy = _Side.SHARED if is_alone_idle else _Side.ALONE
        other = _Side(1 - busy)
        self._is_background_next = not self._is_background_next
        if self._sides[other].has_work and (self._is_background_next or not self._sides[busy].has_work):
            return other
        return busy

    def _book(self, duration_s: float) -> None:
        side = self._side
        self._used_s[side] += duration_s
        self._last_s[side] = duration_s
        if self._lesser is side:
            self._credit_s = max(0.0, self._credit_s - duration_s)
        elif self._lesser is not None:
            self._credit_s += self._share * duration_s

    def _whole(self, event: StepFinished) -> StepFinished:
        """A step of one side, with the requests of both and the KV of the shared pool."""
        shared, alone = self._sides
        usage = shared.kv_usage
        return event._replace(
            num_running=shared.num_running + alone.num_running,
            num_waiting=shared.num_waiting + alone.num_waiting,
            num_paused=shared.num_paused + alone.num_paused,
            num_kv_tokens_running=usage.num_running_tokens,
            num_kv_tokens_cached=usage.num_cached_tokens,
            num_kv_tokens_free=usage.num_free_tokens,
        )


def limits_alone(shared: SchedulerLimits, first_seq_id: int) -> SchedulerLimits:
    """Return the limits of the pool for deterministic requests: one at a time, no reuse, prompts cut always alike."""
    return replace(
        shared,
        kv_capacity_tokens=shared.max_request_tokens,
        max_step_tokens=CHUNK_TOKENS,
        max_num_running=1,
        max_num_paused=0,
        max_num_cached=0,
        max_cached_tokens=None,
        enable_prefix_cache=False,
        enable_speculation=False,
        draft=None,
        enable_reservation=False,
        levels=None,
        fixed_chunk_tokens=CHUNK_TOKENS,
        max_side_tokens=0,
        first_seq_id=first_seq_id,
    )
