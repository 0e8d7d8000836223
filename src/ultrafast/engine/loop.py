"""The engine thread: drain commands, ask the scheduler, run the step, report. Nothing else happens on it.

    post(command) --inbox-->  +--------------------------------------------------+
     (any thread)             |  drain -> begin + add, abort                     |
                              |  plan -> KV operations -> draft, forward pass    |  --> send(StepReport): one per step
                              |  complete -> events -> end finished requests     |
                              +--------------------------------------------------+
    step, last_step_s, has_work  <- read by the heartbeat thread

The scheduler decides, the executor obeys; the loop only carries values between them. It never parses, logs per token or waits on
a reader.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ultrafast.core.clock import Clock
from ultrafast.core.draft import DraftResult
from ultrafast.core.errors import InvalidRequestError, UltrafastError
from ultrafast.core.events import DropReason, Event, RequestFinished
from ultrafast.core.request import FinishReason, Request
from ultrafast.core.step import KvMoved, SequenceWork, StepPlan, StepResult, StepStatus, Yielding
from ultrafast.engine.executor import Executor
from ultrafast.engine.grammars import CompileBounds, Compiled, GrammarCompiler
from ultrafast.engine.kvstore.carrier import KvCarrier
from ultrafast.engine.kvstore.store import RunStore
from ultrafast.engine.messages import Abort, ClearCache, Shutdown, StepReport, Submit, ToEngine
from ultrafast.engine.reports import dropped, ended, refused, report_of
from ultrafast.sched.coming import NOBODY, Coming

MAX_KV_WAIT_S = 0.05
"""A request that waits for the disk is looked at again after so long, even if nothing came."""

MAX_BETWEEN_STEPS_S = 0.02
"""It takes about a millisecond to come from one step to the next."""


class FatalStepError(RuntimeError):
    """The executor's state is unknown after a step; the process must be replaced."""


class StepScheduler(Protocol):
    """What the loop needs of `sched.scheduler.Scheduler`; see there for the contract."""

    @property
    def has_work(self) -> bool: ...
    @property
    def is_waiting_for_kv(self) -> bool: ...
    def kv_moved(self, results: Sequence[KvMoved], now: float) -> list[Event]: ...
    def clear_cache(self, now: float, *, with_disk: bool) -> list[Event]: ...
    def add(self, request: Request, now: float, coming: Coming = NOBODY) -> list[Event]: ...
    def answer(self, request: Request, now: float, coming: Coming = NOBODY) -> RequestFinished: ...
    def abort(self, request_id: str, now: float) -> list[Event]: ...
    def plan(self, now: float) -> StepPlan: ...
    def copies_failed(self, request_ids: Sequence[str], now: float) -> None: ...
    def gives_way(self, step: Yielding, request: Request, elapsed_s: float) -> bool: ...
    def drafted(self, plan: StepPlan, result: DraftResult) -> StepPlan: ...
    def complete(self, plan: StepPlan, result: StepResult, now: float) -> list[Event]: ...
    @property
    def is_side_wanted(self) -> bool: ...
    def side_begun(self, chunk: SequenceWork, now: float) -> None: ...
    def side_finished(self, chunk: SequenceWork, result: StepResult, now: float) -> list[Event]: ...


class _KvDone(NamedTuple):
    """Something came from the disk."""


class _UnderWay(NamedTuple):
    """The step that runs now and may be broken off."""

    step: Yielding
    request_ids: frozenset[str]
    begin_s: float


class EngineLoop:
    """Owns scheduler and executor from the moment `run` is called until it returns.

    Attributes:
        step: number of finished steps. last_step_s: when the last one ended. has_work: whether more steps should follow.
    """

    def __init__(
        self,
        scheduler: StepScheduler,
        executor: Executor,
        clock: Clock,
        send: Callable[[StepReport], None],
        disk: RunStore | None = None,
        bounds: CompileBounds | None = None,
    ) -> None:
        """`bounds`: of the grammars that wait to be compiled; None = those of the default tiers."""
        self._scheduler = scheduler
        self._executor = executor
        self._kv = KvCarrier(executor, clock, disk)
        self._clock = clock
        self._send = send
        # Never blocks its writers. Its length is bounded by the requests that the API process admits.
        self._inbox: queue.SimpleQueue[ToEngine | Compiled | _KvDone] = queue.SimpleQueue()
        self._grammars = GrammarCompiler(executor.prepare_request, self._inbox.put, clock, bounds or CompileBounds())
        self._kv.on_done(lambda: self._inbox.put(_KvDone()))
        # Held by the engine thread whenever it may touch the scheduler, that is except while a step runs.
        self._decisions = threading.Lock()
        self._resume_s = 0.0  # before that nothing is due while a side chunk runs, unless somebody comes
        self._coming = Coming()  # since the step under way began; under `_decisions`
        self._under_way: _UnderWay | None = None  # written by the engine thread, read by those who post
        self._is_running = True
        self.step = 0
        self.last_step_s = clock()
        self.has_work = False

    def post(self, command: ToEngine) -> None:
        """Hand over a command: any thread; blocks hardly ever. The step under way is broken off if that is worth it."""
        if isinstance(command, Submit) and self._answer_meanwhile(command.request):
            return
        self._inbox.put(command)
        if isinstance(command, Abort):
            self._break_off_if_unwanted(command.request_ids)
        elif isinstance(command, Submit) and not command.request.is_inquiry:
            self._make_way_for(command.request)

    def _answer_meanwhile(self, request: Request) -> bool:
        """Refuse, or answer an inquiry, while a step runs: that does not wait for its end. False: it is for the inbox.

        Between two steps, an inquiry waits until the next one runs; a request must not, which may get into that one.
        """
        may_wait = request.is_inquiry and self.has_work
        if not self._decisions.acquire(timeout=MAX_BETWEEN_STEPS_S if may_wait else 0.0):
            return False
        try:
            answer = self._scheduler.answer(request, self._clock(), self._coming)
            if not request.is_inquiry and answer.reason is not FinishReason.REJECT:
                self._coming.add(request)
                return False
            self._send(StepReport(finished=[answer]))
        finally:
            self._decisions.release()
        return True

    def _make_way_for(self, request: Request) -> None:
        under_way = self._under_way
        if under_way and self._scheduler.gives_way(under_way.step, request, self._clock() - under_way.begin_s):
            self._executor.interrupt()

    def _break_off_if_unwanted(self, request_ids: Sequence[str]) -> None:
        under_way = self._under_way
        if under_way and under_way.request_ids.issubset(request_ids):
            self._executor.interrupt()

    def run(self) -> None:
        """Serve until `Shutdown`. Raises FatalStepError when the executor cannot go on; the process should then exit."""
        self._decisions.acquire()
        try:
            while self._is_running:
                self._turn()
        finally:
            self._decisions.release()
            self._grammars.close()

    def _turn(self) -> bool:
        """One step, or a side chunk with all the turns that fall into it. Returns whether there was such.

        What is not there costs nothing here: all of this runs between two steps, out of cold caches.
        """
        events = self._drain()
        plan = self._plan()
        self._resume_s = plan.resume_s
        if results := self._kv.poll():
            events += self._scheduler.kv_moved(results, self._clock())
        if plan.draft:
            plan = self._scheduler.drafted(plan, self._executor.propose(plan.draft))
        if plan.work:
            result = self._run(plan)
            if result.status is StepStatus.FATAL:
                raise FatalStepError(f"step {plan.step} left the engine in an unknown state")
            now = self._clock()
            events += self._scheduler.complete(plan, result, now)
            self.step += 1
            self.last_step_s = now
            self._report(events)
            return True
        events += self._scheduler.kv_moved((), self._clock())  # what it has to tell though nothing moved
        if events or plan.kv_ops:
            # Somebody came or went, or cells were freed: that is booked too, so that the gauges never stay behind.
            events += self._scheduler.complete(plan, StepResult(StepStatus.OK), self._clock())
            self._report(events)
        if plan.side is not None:
            self._run_side(plan.side)
        return plan.side is not None

    def _run_side(self, chunk: SequenceWork) -> None:
        """Compute a chunk of a long prompt, suspended for each turn that has something to do."""
        self._scheduler.side_begun(chunk, self._clock())
        self._decisions.release()
        try:
            result = self._executor.run_side(chunk, self._take_turns)
        finally:
            self._decisions.acquire()
        if result.status is StepStatus.FATAL:
            raise FatalStepError(f"a side chunk of {chunk.request_id} left the engine in an unknown state")
        now = self._clock()
        self._report(self._scheduler.side_finished(chunk, result, now))
        self.step += 1
        self.last_step_s = now

    def _take_turns(self) -> bool:
        """Asked hundreds of times per chunk: do what is due. Returns whether the chunk is still wanted."""
        if self._inbox.empty() and self._clock() < self._resume_s:
            return True
        with self._decisions:
            while self._is_side_wanted and self._turn():
                pass
            return self._is_side_wanted  # a turn without a step may have ended it, too, and then nobody asks again

    @property
    def _is_side_wanted(self) -> bool:
        return self._is_running and self._scheduler.is_side_wanted

    def _run(self, plan: StepPlan) -> StepResult:
        if plan.yielding is not None:
            self._under_way = _UnderWay(plan.yielding, frozenset(item.request_id for item in plan.work), self._clock())
        self._decisions.release()
        try:
            return self._executor.run(plan)
        finally:
            self._decisions.acquire()
            self._under_way = None

    def _plan(self) -> StepPlan:
        """Plan until every shared prefix in the plan is proven; each further round has at least one such prefix less."""
        while True:
            plan = self._scheduler.plan(self._clock())
            unproven = self._kv.apply(plan.kv_ops)
            if not unproven:
                return plan
            self._scheduler.copies_failed(unproven, self._clock())

    def _drain(self) -> list[Event]:
        """Take every command that is there; wait for one when there is nothing else to do."""
        self.has_work = self._scheduler.has_work
        self._coming.step_ended()
        events = self._expire_compiling() if self._grammars.has_deadlines else []
        if self.has_work and self._inbox.empty():
            results = self._kv.poll()
            return [*events, *self._scheduler.kv_moved(results, self._clock())] if results else events
        events += [] if self.has_work or events else self._wait()
        while self._is_running and not self._inbox.empty():
            events += self._obey(self._inbox.get())
        events += self._scheduler.kv_moved(self._kv.poll(), self._clock())
        self.has_work = self._scheduler.has_work
        return events

    def _wait(self) -> list[Event]:
        """Sleep until a command comes, and obey it; not for long while a request waits for the disk or may expire."""
        timeout_s = MAX_KV_WAIT_S if self._scheduler.is_waiting_for_kv else None
        if (deadline_s := self._grammars.next_deadline_s()) is not None:
            left_s = min(max(0.0, deadline_s - self._clock()), threading.TIMEOUT_MAX)
            timeout_s = left_s if timeout_s is None else min(timeout_s, left_s)
        try:
            command = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return []
        self.last_step_s = self._clock()  # idle until now: not a stall
        return self._obey(command)

    def _obey(self, command: ToEngine | Compiled | _KvDone) -> list[Event]:
        match command:
            case Submit(request):
                return self._submit(request)
            case Compiled(request, error):
                return self._start_compiled(request, error)
            case Abort(request_ids):
                return [event for request_id in request_ids for event in self._abort(request_id)]
            case ClearCache(with_disk):
                return self._scheduler.clear_cache(self._clock(), with_disk=with_disk)
            case Shutdown():
                self._is_running = False
        return []

    def _submit(self, request: Request) -> list[Event]:
        """A grammar is compiled before the scheduler gets the request; only if it would take it now and there is room."""
        if request.params.grammar is None:
            return self._start(request)
        if not request.is_admitted:
            verdict = self._scheduler.answer(request, self._clock(), self._coming)
            if verdict.reason is FinishReason.REJECT:
                return [verdict]
        if (why := self._grammars.why_full(request)) is not None:
            return [self._dropped(request, FinishReason.REJECT, why)]
        self._grammars.submit(request)
        return []

    def _start_compiled(self, request: Request, error: UltrafastError | None) -> list[Event]:
        if self._grammars.take(request.request_id) is None:  # aborted or expired meanwhile
            self._executor.end_request(request.request_id)
            return []
        return self._start(request) if error is None else [refused(request, error, self._clock())]

    def _expire_compiling(self) -> list[Event]:
        expired = self._grammars.take_expired(self._clock())
        return [self._dropped(request, FinishReason.EXPIRE, DropReason.QUEUE_TIMEOUT) for request in expired]

    def _start(self, request: Request) -> list[Event]:
        now = self._clock()
        if request.is_inquiry:
            return [self._scheduler.answer(request, now)]
        try:
            self._executor.begin_request(request)
        except InvalidRequestError as reason:
            return [refused(request, reason, now)]
        return self._scheduler.add(request, now, self._coming)

    def _abort(self, request_id: str) -> list[Event]:
        request = self._grammars.take(request_id)
        if request is not None:
            return [ended(request, FinishReason.ABORT, self._clock())]
        return self._scheduler.abort(request_id, self._clock())

    def _dropped(self, request: Request, reason: FinishReason, why: DropReason) -> RequestFinished:
        return dropped(request, reason, why, self._grammars.retry_after_s(request.tier), self._clock())

    def _report(self, events: list[Event]) -> None:
        report = report_of(events)
        for event in report.finished:
            self._executor.end_request(event.request_id)
        self._send(report)
