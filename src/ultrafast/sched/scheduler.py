"""The scheduler: decides every step of the engine. Pure: it takes `now`, returns plans and events, and touches nothing else.

The engine's one thread calls it like this (and nobody else calls it at all):

    add / abort ...                          -> events
    plan(now)                                -> StepPlan
      the engine applies plan.kv_ops; if copies could not be proven: copies_failed(ids, now), plan(now) again
      if there is anything in plan.draft, the engine's draft model does it: drafted(plan, result) -> StepPlan
      the engine runs plan.work
    complete(plan, result, now)              -> events

    where there is no plan.work but plan.side: side_begun(chunk, now), turns as above while is_side_wanted, side_finished(...)

Exactly one `RequestFinished` comes for each added request. Events are handed out in the order in which they happened, each once,
by whichever call comes next; what happened while planning (scheduled, preempted) comes with `complete`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultrafast.core.draft import DraftPass, DraftResult
from ultrafast.core.events import DropReason, Event, RequestFinished
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.step import KvMoved, SequenceWork, StepPlan, StepResult, StepStatus, Yielding
from ultrafast.kv.ledger import KvUsage
from ultrafast.kv.run import FoundRun
from ultrafast.sched import outcome
from ultrafast.sched.beside import Beside
from ultrafast.sched.coming import NOBODY, Coming
from ultrafast.sched.cost import CostModel
from ultrafast.sched.gate import Gate
from ultrafast.sched.interruption import is_worth_it
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.planner import Planner, item_s
from ultrafast.sched.speculation.step_times import StepTimes
from ultrafast.sched.state import SchedulerState
from ultrafast.sched.worked import Worked


class Scheduler:
    """See the module. Not thread-safe: one thread owns it.

    Args:
        limits: facts of the engine; `kv.ledger.num_sequences(max_num_running, max_num_cached)` ids are used, from 0,
            with the paused counted among the running.
    """

    def __init__(self, limits: SchedulerLimits) -> None:
        self._state = SchedulerState(limits)
        self._planner = Planner(self._state)
        self._gate = Gate(self._state)
        self._step = 0
        self._num_added = 0
        self._planned_at_s = 0.0
        self._is_again = False
        self._unlearnt: tuple[StepPlan, Worked, StepResult] | None = None

    @property
    def has_work(self) -> bool:
        """Whether `plan` has anything to do: live requests, cells to free, KV to copy, or events to hand out."""
        state = self._state
        return len(state.live) > len(state.restorer.aside) or state.ledger.has_ops or state.has_events

    @property
    def num_running(self) -> int:
        return len(self._state.running)

    @property
    def num_paused(self) -> int:
        return len(self._state.paused)

    @property
    def num_waiting(self) -> int:
        """Requests without a sequence: queued, preempted, or waiting for a prefix that another computes."""
        return self._state.num_unplaced

    @property
    def is_waiting_for_kv(self) -> bool:
        """Requests wait for the disk: plan again when something came from it, and some time later even if nothing did."""
        return bool(self._state.restorer.aside)

    @property
    def limits(self) -> SchedulerLimits:
        return self._state.limits

    @property
    def top_rank(self) -> int | None:
        """See `SchedulerState.top_rank`."""
        return self._state.top_rank

    @property
    def kv_usage(self) -> KvUsage:
        return self._state.ledger.usage

    @property
    def cost(self) -> CostModel:
        """The learnt cost model; a warm-up may feed it with `observe` before the first plan."""
        return self._state.cost

    @property
    def step_times(self) -> StepTimes:
        """How long steps of decodes take; a warm-up may feed it too."""
        return self._state.drafting.times

    def share_queues_with(self, other: Scheduler) -> None:
        """Judge newcomers by the other one's queues and work too: both run on one machine, in turn."""
        self._gate.beside = Beside(other._state)

    def stood_by(self, duration_s: float, now: float) -> None:
        """The other one had the machine for so long: who waits here has waited."""
        state = self._state
        state.drain.step_finished(duration_s, [0] * len(state.limits.tiers), state.waiting.nums(), now)

    def observe_draft_passes(self, passes: Sequence[DraftPass]) -> None:
        """Learn how long the draft model takes; a warm-up may tell."""
        if self._state.drafting.model is not None:
            for one in passes:
                self._state.drafting.model.times.observe(one)

    def add(self, request: Request, now: float, coming: Coming = NOBODY) -> list[Event]:
        """Take a request, whose id must not be that of a live one.

        It finishes at once when it can never run (ERROR), has nothing left to produce (LENGTH), is refused (REJECT), or only
        asked whether it would be (ABORT). `coming`: see `answer`.
        """
        assert request.request_id not in self._state.live, f"request id {request.request_id} is already live"
        assert request.prompt_tokens, f"request {request.request_id} has no prompt tokens"
        self._num_added += 1
        limits = self._state.limits
        live = self._live(request)
        live.max_length = min(live.max_length, limits.max_request_tokens, limits.kv_capacity_tokens + 1)
        self._state.live[request.request_id] = live
        error = limits.why_never(live.num_prompt)
        if error:
            self._state.finish(live, FinishReason.ERROR, now, error)
        elif live.num_tokens >= live.max_length:
            self._state.finish(live, FinishReason.LENGTH, now)
        else:
            self._enqueue(live, now, coming)
            live.fold()
        return self._state.take_events()

    def answer(self, request: Request, now: float, coming: Coming = NOBODY) -> RequestFinished:
        """Return REJECT when such a request would be refused now, else ABORT.

        Touches no request and no event: it may be asked while a step runs. Who is refused comes no further: it has arrived here.
        `coming`: those who will be added before it.
        """
        live = self._live(request)
        verdict = self._gate.judge(live, now, coming)
        if verdict.is_refused:
            self._state.reservations.arrived(live, now)
        reason = FinishReason.REJECT if verdict.is_refused else FinishReason.ABORT
        why = verdict.reason if verdict.is_refused else None
        return live.finished_event(reason, now, None, why, verdict.retry_after_s)

    def abort(self, request_id: str, now: float) -> list[Event]:
        """End a request, whatever its state; the next plan frees its cells. An unknown id is ignored: it may just have ended."""
        live = self._state.live.get(request_id)
        if live is not None:
            self._state.finish(live, FinishReason.ABORT, now)
        return self._state.take_events()

    def fail_all(self, message: str, now: float) -> list[Event]:
        """End every live request with ERROR."""
        for live in list(self._state.live.values()):
            self._state.finish(live, FinishReason.ERROR, now, message)
        return self._state.take_events()

    def plan(self, now: float) -> StepPlan:
        """Decide the next step. The caller applies `kv_ops` even when it then plans again: no operation is handed out twice."""
        self._planned_at_s = now
        if self._unlearnt is not None:
            self._learn(*self._unlearnt)
            self._unlearnt = None
        work = self._planner.again(now)
        self._is_again = work is not None
        state, planner = self._state, self._planner
        if work is None:
            self._book_side_time(now)
            self._expire(now)
            work = planner.build(now)
            state.look_up_beliefs()
        yielding = state.interruptions.yielding(work, state.live, state.cost)
        return StepPlan(
            self._step, state.ledger.take_ops(), work, state.drafting.draft_plan, yielding, planner.side, planner.resume_s
        )

    def gives_way(self, step: Yielding, request: Request, elapsed_s: float) -> bool:
        """Whether a step that began `elapsed_s` ago should be broken off for a request that has just come.

        Reads nothing that ever changes: any thread may ask while the step runs.
        """
        limits = self._state.limits
        return is_worth_it(step, limits.rank_of(request.tier), request.num_prompt_tokens, elapsed_s)

    def drafted(self, plan: StepPlan, result: DraftResult) -> StepPlan:
        """Take what came of `plan.draft`; returns the plan to run and to complete, with the draft model's guesses."""
        return self._state.drafting.drafted(plan, result)

    @property
    def is_side_wanted(self) -> bool:
        """A side chunk is under way and its request still wants it; if not, it is to be broken off."""
        return self._state.side.chunk is not None

    def side_begun(self, chunk: SequenceWork, now: float) -> None:
        """The engine begins `plan.side`; `plan` and `complete` may follow until `side_finished`."""
        self._state.begin_side(self._state.live[chunk.request_id], chunk, now)

    def side_finished(self, chunk: SequenceWork, result: StepResult, now: float) -> list[Event]:
        """Book what came of a side chunk, which nobody may want any more: then it is as if it had never been."""
        state = self._state
        self._book_side_time(now)
        live = state.side.live
        state.give_up_side()
        state.side.is_under_way = False
        plan = StepPlan(self._step, work=(chunk,))
        worked = Worked(plan.work, state.live, state.beliefs.coefficients, len(state.limits.tiers))
        if live is None:
            result = StepResult(StepStatus.INTERRUPTED, duration_s=result.duration_s)
        elif result.status is StepStatus.OK:
            outcome.book(state, plan, worked, result, now)
        elif result.status is StepStatus.INVALID:
            state.side.unfit_id = live.request_id
            state.restart_without_reuse(live)
        event = outcome.step_finished(state, plan, worked, result, now, result.duration_s, 0.0)
        state.emit(event._replace(is_side=True))
        self._step += 1
        return state.take_events()

    def copies_failed(self, request_ids: Sequence[str], now: float) -> None:  # noqa: ARG002 - as every call of the loop
        """The engine left these requests' sequences empty instead of sharing a prefix: they compute everything. Plan again."""
        for request_id in request_ids:
            live = self._state.live.get(request_id)
            if live is not None and live.sequence is not None:
                self._state.restart_without_reuse(live)

    def adopt(self, found: Sequence[FoundRun], now: float) -> None:
        """Take over the KV that an earlier engine left on disk; before the first request."""
        levels = self._state.ledger.levels
        assert levels is not None, "there are no levels"
        levels.adopt(found, now)
        self._state.emit(levels.stats())

    def warm(self, digests: Sequence[bytes], now: float) -> int:
        """Have runs read from disk into host memory before anybody asks for them; before the first request.

        Each run comes after its predecessors. What host memory has no room for stays on disk. Returns the tokens being read.
        """
        levels = self._state.ledger.levels
        return levels.restore(digests, now) if levels is not None else 0

    def clear_cache(self, now: float, *, with_disk: bool) -> list[Event]:
        """Forget all KV that no request needs at this moment."""
        self._state.ledger.clear(now, with_disk=with_disk)
        if self._state.ledger.levels is not None:
            self._state.emit(self._state.ledger.levels.stats())
        return self._state.take_events()

    def kv_moved(self, results: Sequence[KvMoved], now: float) -> list[Event]:
        """Book transfers between the device, host memory and disk; results may come at any time, in any order."""
        levels = self._state.ledger.levels
        if levels is not None and results:
            levels.moved(results, now)
            self._state.take_back(now)
            self._state.emit(levels.stats())
        return self._state.take_events()

    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]:
        """Book the result of the last plan; ends with `StepFinished`, whose counts are 0 where the plan had no work.

        On FATAL the requests stay as they are: nothing more comes for them from this scheduler unless `fail_all` is called.
        """
        state = self._state
        duration_s = result.duration_s + state.drafting.drafting_s
        coefficients = state.beliefs.coefficients
        worked = Worked(plan.work, state.live, coefficients, len(state.limits.tiers))
        state.interruptions.step_finished(result)
        if result.status is StepStatus.OK and plan.work:
            if not self._is_again:  # else nobody waits, and nobody is owed anything
                self._book_shares(worked.costs_s, duration_s, item_s(coefficients), now)
            state.last_step_s = duration_s
            outcome.book(state, plan, worked, result, now)
            self._unlearnt = (plan, worked, result)
        else:
            outcome.book(state, plan, worked, result, now)
        if plan.work:  # else nothing ran that a side chunk had to wait for
            state.side.step_finished(now, result.duration_s if worked.num_prefill_tokens else 0.0)
        schedule_s = max(0.0, now - self._planned_at_s - duration_s)
        state.emit(outcome.step_finished(state, plan, worked, result, now, duration_s, schedule_s))
        self._step += 1
        return state.take_events()

    def _live(self, request: Request) -> LiveRequest:
        limits = self._state.limits
        request = request if limits.enable_prefix_cache else replace(request, use_cache=False)
        return LiveRequest(request, self._num_added, limits.policy_of(request.tier), limits.rank_of(request.tier))

    def _learn(self, plan: StepPlan, worked: Worked, result: StepResult) -> None:
        """Done when the next step is planned: a finished step's tokens are on their way by then, and need not wait for it."""
        state = self._state
        state.drafting.observe(plan, worked, result)
        state.ledger.idle_cell_s += state.idle_cell_s(worked.num_outputs, worked.num_prefill_tokens)
        if not worked.num_drafts:  # the cost model knows no drafts, and they come only where it is not asked
            state.cost.observe(worked.num_outputs, worked.num_prefill_tokens, result.duration_s)

    def _enqueue(self, live: LiveRequest, now: float, coming: Coming) -> None:
        state, tiers = self._state, self._state.limits.tiers
        if not live.request.is_admitted:
            state.reservations.arrived(live, now)
        verdict = self._gate.judge(live, now, coming)
        if verdict.is_refused:
            state.finish(live, FinishReason.REJECT, now, drop_reason=verdict.reason, retry_after_s=verdict.retry_after_s)
            return
        if verdict.tier is not live.tier:
            live.downgrade_reason = verdict.reason
            rank = state.limits.rank_of(verdict.tier)
            live.serve_in(verdict.tier, tiers[rank], rank)
        state.waiting.push(live)
        state.restorer.prefetch(live, now)
        deadline_s = live.request.queue_deadline_s(tiers[live.rank].queue_ttl_s)
        if deadline_s is not None:
            state.deadlines.push(live, deadline_s)

    def _expire(self, now: float) -> None:
        """End those that waited as long as they may for a first place, and those that had theirs as long as they may."""
        state = self._state
        for live in state.execution_deadlines.pop_due(state.live, now):
            state.finish(live, FinishReason.DEADLINE, now)
        due = list(state.deadlines.pop_due(state.live, now))
        for live in due:  # all of them first: none waits behind another that leaves now
            state.leave_queue(live)
        for live in due:
            wait_s = state.drain.turn_s(live.rank, state.num_waiting, now)
            retry_after_s = state.drain.retry_after_s(live.rank, wait_s, now)
            state.finish(live, FinishReason.EXPIRE, now, drop_reason=DropReason.QUEUE_TIMEOUT, retry_after_s=retry_after_s)

    def _book_side_time(self, now: float) -> None:
        """The time that the side chunk under way has had since it was looked at last is its tier's."""
        side = self._state.side
        if side.live is None or now <= side.booked_s:
            return
        costs_s = [0.0] * len(self._state.limits.tiers)
        costs_s[side.live.rank] = 1.0
        self._book_shares(costs_s, now - side.booked_s, item_s(self._state.cost.coefficients), now)
        side.booked_s = now

    def _book_shares(self, costs_s: Sequence[float], duration_s: float, one_item_s: float, now: float) -> None:
        """Before the outcome: a request that ends with this step has used it too."""
        state = self._state
        waiting = state.waiting.nums()
        wanting = [rank for rank, num_waiting in enumerate(waiting) if num_waiting or state.num_holding[rank]]
        state.shares.step_finished(duration_s, wanting, costs_s, one_item_s)
        state.drain.step_finished(duration_s, state.num_started, waiting, now)
        state.num_started = [0] * len(waiting)
