"""Carries out a plan in one process: sends every request at its moment and waits for all of them, or for the budget's end.

Open loop: requests leave at absolute moments, whatever the server does. Closed loop: a fixed number of slots, each sends its next
request when the one before ended. A request's record exists before it is sent, so nothing planned can vanish.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from ultrafast.bench.client import BenchClient
from ultrafast.bench.dialect import Dialect, build_body
from ultrafast.bench.loop_lag import LoopLagProbe
from ultrafast.bench.progress import Progress, ProgressCounter
from ultrafast.bench.records import LoopLag, Outcome, RequestRecord, Window
from ultrafast.bench.workload import PlannedRequest, Session

OnProgress = Callable[[Progress], None]
OnRecord = Callable[[RequestRecord], None]
_REPORT_INTERVAL_S = 0.5


class RunnerSpec(msgspec.Struct, kw_only=True, frozen=True):
    """How to carry out a plan.

    Attributes:
        concurrency: slots in closed loop; in open loop a cap on requests in flight (None: no cap), and waiting for it
            counts as latency.
        budget_s: give up on everything after so many seconds. None: never.
    """

    model: str
    dialect: Dialect
    is_open_loop: bool
    concurrency: int | None = None
    budget_s: float | None = None
    extra: dict[str, Any] = {}


class PartialRun(msgspec.Struct, kw_only=True):
    """What one process saw."""

    requests: list[RequestRecord]
    window: Window
    loop_lag: LoopLag
    peak_in_flight: int
    cpu_s: float
    is_stopped: bool


class Runner:
    """Carries out one plan once. `client.origin_ns` is the start of the window; it may lie a little in the future."""

    def __init__(
        self,
        client: BenchClient,
        spec: RunnerSpec,
        sessions: Sequence[Session],
        on_progress: OnProgress | None = None,
        on_record: OnRecord | None = None,
    ) -> None:
        self._client = client
        self._spec = spec
        self._sessions = sessions
        self._on_progress = on_progress
        self._on_record = on_record
        self._records = {turn.index: _draft(turn) for session in sessions for turn in session.turns}
        self._counter = ProgressCounter(len(self._records))
        self._probe = LoopLagProbe(client.pool.clock)
        self._window_end_ns: int | None = None
        self._is_stopped = False

    async def run(self, stop: asyncio.Event | None = None) -> PartialRun:
        """Send everything. Setting `stop` ends the run early: what is unfinished stays CANCELLED."""
        start_cpu_s = time.process_time()
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._probe.run()), group.create_task(self._report())]
            work = group.create_task(self._work())
            helpers.append(group.create_task(self._end_early(work, stop or asyncio.Event())))
            await asyncio.wait([work])
            for helper in helpers:
                helper.cancel()
        self._place_unsent()
        return PartialRun(
            requests=[self._records[index] for index in sorted(self._records)],
            window=Window(0, self._end_ns()),
            loop_lag=self._probe.result(),
            peak_in_flight=self._client.peak_in_flight,
            cpu_s=time.process_time() - start_cpu_s,
            is_stopped=self._is_stopped,
        )

    async def _work(self) -> None:
        await self._sleep_until(0)
        if self._spec.is_open_loop:
            await self._send_on_schedule()
        else:
            await self._send_by_slots()

    async def _send_on_schedule(self) -> None:
        cap = asyncio.Semaphore(self._spec.concurrency) if self._spec.concurrency else None
        async with asyncio.TaskGroup() as group:
            for session in sorted(self._sessions, key=lambda session: session.turns[0].due_s or 0.0):
                await self._sleep_until(round((session.turns[0].due_s or 0.0) * 1e9))
                group.create_task(self._converse(session, cap))
            self._window_end_ns = self._client.now_ns()

    async def _send_by_slots(self) -> None:
        remaining = iter(self._sessions)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._spec.concurrency or 1):
                group.create_task(self._fill_slot(remaining))

    async def _fill_slot(self, remaining: Iterator[Session]) -> None:
        for session in remaining:
            self._records[session.turns[0].index].scheduled_ns = self._client.now_ns()
            await self._converse(session, None)
        if self._window_end_ns is None:
            self._window_end_ns = self._client.now_ns()

    async def _converse(self, session: Session, cap: asyncio.Semaphore | None) -> None:
        messages: list[dict[str, Any]] = []
        for turn in session.turns:
            record = self._records[turn.index]
            if turn.turn > 0:
                record.scheduled_ns = self._client.now_ns()
            messages += turn.messages
            async with cap or nullcontext():
                answer = await self._client.ask(record, self._body(turn, messages))
            self._counter.add(record)
            if self._on_record is not None:
                self._on_record(record)
            if not record.is_ok:
                return
            messages.append({"role": "assistant", "content": answer})

    def _body(self, turn: PlannedRequest, messages: Sequence[dict[str, Any]]) -> bytes:
        spec = self._spec
        num_tokens, tier = turn.num_output_tokens, turn.tier
        return build_body(spec.model, messages, spec.dialect, num_output_tokens=num_tokens, tier=tier, extra=spec.extra)

    async def _sleep_until(self, due_ns: int) -> None:
        # A timer may fire a little early; a loop, because then it is not yet time.
        while (remaining_ns := due_ns - self._client.now_ns()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(remaining_ns / 1e9)

    async def _end_early(self, work: asyncio.Task[None], stop: asyncio.Event) -> None:
        await self._sleep_until(0)
        try:
            async with asyncio.timeout(self._spec.budget_s):
                await stop.wait()
        except TimeoutError:
            pass
        self._is_stopped = True
        if self._window_end_ns is None:
            self._window_end_ns = self._client.now_ns()
        work.cancel()

    def _place_unsent(self) -> None:
        """What never became due because the run was stopped lies after the window; a turn after a failed one lies inside."""
        unsent_ns = self._end_ns() + self._is_stopped
        for session in self._sessions:
            for turn in session.turns:
                record = self._records[turn.index]
                if record.sent_ns is None and record.outcome is Outcome.CANCELLED and turn.due_s is None:
                    record.scheduled_ns = unsent_ns

    async def _report(self) -> None:
        while self._on_progress is not None:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            elapsed_s = max(0, self._client.now_ns()) / 1e9
            self._on_progress(self._counter.snapshot(self._client.num_in_flight, elapsed_s))

    def _end_ns(self) -> int:
        return self._window_end_ns if self._window_end_ns is not None else self._client.now_ns()


def _draft(turn: PlannedRequest) -> RequestRecord:
    """The record of a request that nobody has sent yet. A later turn's moment is set when the turn before it ends."""
    return RequestRecord(
        index=turn.index,
        outcome=Outcome.CANCELLED,
        scheduled_ns=round((turn.due_s or 0.0) * 1e9),
        prompt_id=turn.prompt_id,
        session=turn.session,
        turn=turn.turn,
        tier_requested=turn.tier,
        num_asked_prompt_tokens=turn.num_prompt_tokens,
        num_asked_output_tokens=turn.num_output_tokens,
    )
