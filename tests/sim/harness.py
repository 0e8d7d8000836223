"""Drives a Scheduler and a FakeExecutor on simulated time as the engine loop does, checking the invariants at every step."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.sim.memory_store import MemoryStore

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.events import (
    Event,
    KvLevelsChanged,
    RequestFinished,
    RequestPreempted,
    RequestScheduled,
    StepFinished,
    TokenProduced,
)
from ultrafast.core.request import FinishReason, Request, RequestSlo, RequestState, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.fake import FakeCost, FakeExecutor, expected_tokens
from ultrafast.engine.fake_draft import DraftingFakeExecutor, FakeDraftModel
from ultrafast.engine.kvstore.carrier import KvCarrier
from ultrafast.engine.kvstore.store import RunStore
from ultrafast.kv.ledger import num_sequences
from ultrafast.kv.run import Place
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

VOCAB_SIZE = 1000


def make_limits(**changes: object) -> SchedulerLimits:
    values: dict[str, object] = {
        "kv_capacity_tokens": 4096,
        "max_request_tokens": 4096,
        "max_step_tokens": 256,
        "step_target_s": 0.1,
        "max_num_running": 8,
        "max_num_cached": 8,
    }
    return SchedulerLimits(**{**values, **changes})  # type: ignore[arg-type]


def make_request(
    request_id: str,
    prompt: list[int] | int,
    max_tokens: int = 8,
    *,
    tier: ServiceTier = ServiceTier.DEFAULT,
    arrival_s: float = 0.0,
    output: tuple[int, ...] = (),
    salt: str = "",
    use_cache: bool = True,
    slo: RequestSlo | None = None,
    tpot_s: float | None = None,
    may_speculate: bool = True,
    is_deterministic: bool = False,
    **params: object,
) -> Request:
    """A prompt given as a number is that many tokens nobody else has."""
    tokens = tuple(tokens_of(request_id, prompt) if isinstance(prompt, int) else prompt)
    sampling = SamplingParams(max_tokens=max_tokens, seed=1, **params)  # type: ignore[arg-type]
    objectives = slo or RequestSlo(tpot_s=tpot_s)
    return Request(
        request_id,
        tokens,
        sampling,
        tier,
        arrival_s,
        output,
        salt,
        use_cache and not is_deterministic,
        slo=objectives,
        may_speculate=may_speculate and not is_deterministic,
        is_deterministic=is_deterministic,
    )


def tokens_of(name: str, count: int) -> list[int]:
    """Tokens that belong to a name: the same each time, different from those of other names."""
    return random.Random(name).choices(range(1, VOCAB_SIZE), k=count)


class Simulation:
    """One engine on simulated time. `events` and `plans` keep everything that happened.

    `on_turn` is called before each turn, `on_side` between two pieces of a side chunk: a test may add and abort there.
    """

    def __init__(
        self,
        limits: SchedulerLimits | None = None,
        *,
        end_every: int = 0,
        cost: FakeCost | None = None,
        disk: RunStore | None = None,
        loop: int = 0,
        draft: FakeDraftModel | None = None,
    ) -> None:
        self.limits = replace(limits or make_limits(), draft=draft.limits if draft is not None else None)
        self.loop = loop
        self.clock = ManualClock()
        self.scheduler = Scheduler(self.limits)
        self.end_every = end_every
        make_executor = FakeExecutor if draft is None else partial(DraftingFakeExecutor, draft)
        self.executor = make_executor(
            capacity_tokens=self.limits.kv_capacity_tokens,
            num_sequences=num_sequences(self.limits.max_num_running + self.limits.max_num_paused, self.limits.max_num_cached),
            max_step_tokens=self.limits.max_step_tokens,
            clock=self.clock,
            cost=cost,
            can_trim=self.limits.can_trim,
            vocab_size=VOCAB_SIZE,
            end_every=end_every,
            loop=loop,
        )
        if isinstance(disk, MemoryStore):
            disk.clock = self.clock
        self.carrier = KvCarrier(self.executor, self.clock, disk)
        self.requests: dict[str, Request] = {}
        self.events: list[Event] = []
        self.plans: list[StepPlan] = []
        self.output: dict[str, list[int]] = defaultdict(list)
        self.token_times: dict[str, list[float]] = defaultdict(list)
        self.finished: dict[str, RequestFinished] = {}
        self.scheduled: list[RequestScheduled] = []
        self.num_scheduled: dict[str, int] = defaultdict(int)
        self.num_preempted: dict[str, int] = defaultdict(int)
        self.may_cut_short = False
        self.on_side: Callable[[], None] = lambda: None
        self.on_turn: Callable[[], None] = lambda: None
        self.num_side_chunks = 0
        self._resume_s = 0.0
        self._num_told = 0
        self._is_beside = False
        self.refused: set[str] = set()

    def add(self, *requests: Request) -> None:
        """Begin requests and hand them to the scheduler; one that the engine refuses is in `refused` and nowhere else."""
        for request in requests:
            try:
                self.executor.begin_request(request)
            except InvalidRequestError:
                self.refused.add(request.request_id)
                continue
            self.requests[request.request_id] = request
            self.output[request.request_id] = list(request.output_tokens)
            self._take(self.scheduler.add(request, self.clock()))

    def abort(self, request_id: str) -> None:
        self._take(self.scheduler.abort(request_id, self.clock()))

    def step(self) -> StepPlan:
        """One turn of the loop; checks the invariants after it."""
        self.on_turn()
        plan = self._plan()
        if plan.draft:
            plan = self.scheduler.drafted(plan, self.executor.propose(plan.draft))
        self.plans.append(plan)
        was_waiting = self.scheduler.is_waiting_for_kv
        self._take(self.scheduler.kv_moved(self.carrier.poll(), self.clock()))
        assert plan.num_tokens <= self.limits.max_step_tokens
        assert plan.num_tokens <= self.executor.num_free, "more was planned than there are cells for"
        is_moving = plan.work or plan.kv_ops or self.scheduler._state.has_events
        if not plan.work and was_waiting:
            self.clock.advance(0.005)
        else:
            is_moving = is_moving or plan.side is not None or self.scheduler.is_side_wanted
            assert is_moving or len(self.finished) == len(self.requests), "requests are alive and nothing happens"
        result = self.executor.run(plan)
        self._take(self.scheduler.complete(plan, result, self.clock()))
        self.check()
        self._resume_s = plan.resume_s
        if plan.side is not None:
            self._run_side(plan.side)
        return plan

    def _run_side(self, chunk: SequenceWork) -> None:
        assert not self._is_beside, "a side chunk in the midst of another"
        self._is_beside = True
        self.num_side_chunks += 1
        self.scheduler.side_begun(chunk, self.clock())
        self._num_told = self._num_commands
        result = self.executor.run_side(chunk, self._take_turns)
        self._is_beside = False
        self._take(self.scheduler.side_finished(chunk, result, self.clock()))
        self.check()

    def _take_turns(self) -> bool:
        """What the engine loop does between two operations of a side chunk."""
        self.on_side()
        if self._num_commands == self._num_told and self.clock() < self._resume_s:
            return True
        while self.scheduler.is_side_wanted and self.step().work:
            pass
        self._num_told = self._num_commands
        return self.scheduler.is_side_wanted

    @property
    def _num_commands(self) -> int:
        return len(self.requests) + len(self.finished)

    def run(self, max_steps: int = 5000) -> None:
        """Step until nothing is left to do; fails when the engine turns without an end."""
        for _ in range(max_steps):
            if not self.scheduler.has_work and not self.scheduler.is_waiting_for_kv:
                return
            self.step()
        raise AssertionError(f"still at work after {max_steps} steps: {len(self.requests) - len(self.finished)} unfinished")

    def step_until(self, condition: Callable[[], object], max_steps: int = 1000) -> None:
        """Step until something is so; fails when it never is."""
        for _ in range(max_steps):
            if condition():
                return
            assert self.scheduler.has_work, "all work ended before that"
            self.step()
        raise AssertionError(f"not so after {max_steps} steps")

    def first_token_s(self, request_id: str) -> float:
        return self.token_times[request_id][0]

    def check(self) -> None:
        """The invariants that hold after every step."""
        usage = self.scheduler.kv_usage
        total = usage.num_running_tokens + usage.num_cached_tokens + usage.num_free_tokens
        assert total == self.limits.kv_capacity_tokens, "free + used = total"
        assert min(usage.num_running_tokens, usage.num_cached_tokens, usage.num_free_tokens) >= 0
        if not self.scheduler._state.ledger.has_ops:
            num_held = self.scheduler._state.ledger.num_held
            assert usage.num_free_tokens + num_held == self.executor.num_free, "the ledger and the cells disagree"
        assert self.scheduler.num_running <= self.limits.max_num_running
        alive = len(self.requests) - len(self.finished)
        num_known = self.scheduler.num_running + self.scheduler.num_paused + self.scheduler.num_waiting
        assert num_known == alive, "a request was lost"
        assert self.scheduler.num_paused <= self.limits.max_num_paused
        assert len(self.scheduler._state.ledger.leaves) <= self.limits.max_num_cached
        self._check_levels()

    def _check_levels(self) -> None:
        """What is charged is there and no more; nothing is above its budget; nothing stays pinned without a reason."""
        levels = self.scheduler._state.ledger.levels
        if levels is None or self.scheduler._state.ledger.has_ops:
            return
        held = sum(run.num_bytes for run in levels.holdings.host.runs() if run.host is Place.PRESENT)
        assert self.carrier.arena.used_bytes <= held <= levels.holdings.host.budget.used_bytes <= levels.limits.host_bytes
        assert len(self.carrier.arena) == sum(run.host is Place.PRESENT for run in levels.holdings.host.runs())
        assert levels.holdings.disk.budget.used_bytes <= levels.limits.disk_bytes
        for level, place in ((levels.holdings.host, "host"), (levels.holdings.disk, "disk")):
            here = sum(len(run.tokens) for run in level.runs() if getattr(run, place) is Place.PRESENT)
            assert level.num_tokens == here, f"{place} tells of tokens that are not there"

    def check_output(self, request_id: str) -> None:
        """Exactly the tokens that the request produces alone; a request that was cut short has the first of them."""
        request, finished = self.requests[request_id], self.finished[request_id]
        expected = expected_tokens(request, vocab_size=VOCAB_SIZE, end_every=self.end_every, loop=self.loop)
        got = self.output[request_id]
        assert got == expected[: len(got)], f"{request_id} produced other tokens than alone"
        assert finished.num_output_tokens == len(got)
        if finished.reason is FinishReason.STOP:
            assert got == expected
        if finished.reason is FinishReason.LENGTH:
            assert len(got) == request.params.max_tokens or self._is_full(request, len(got)) or self.may_cut_short

    def _is_full(self, request: Request, num_output: int) -> bool:
        total = request.num_prompt_tokens + num_output
        return total in (self.limits.max_request_tokens, self.limits.kv_capacity_tokens + 1)

    def check_all_finished(self) -> None:
        """The end state after `run`: one terminal event each, right tokens, nothing held but the cache."""
        assert self.finished.keys() == self.requests.keys()
        for request_id in self.requests:
            self.check_output(request_id)
        usage = self.scheduler.kv_usage
        assert usage.num_running_tokens == 0
        levels = self.scheduler._state.ledger.levels
        if levels is not None:
            pinned = [run for run in levels.holdings.index.runs() if run.num_pins and not levels.writes.is_writing(run)]
            assert not [run for run in pinned if run.host is not Place.ARRIVING], "pinned for nobody"
            assert not any(run.is_private for run in levels.holdings.index.runs())
        assert self.executor.num_begun == 0
        assert usage.num_free_tokens == self.executor.num_free

    def _plan(self) -> StepPlan:
        """Plan until the engine has no objection."""
        while True:
            plan = self.scheduler.plan(self.clock())
            self._check_order()
            failed = self.carrier.apply(plan.kv_ops)
            if not failed:
                return plan
            self.scheduler.copies_failed(failed, self.clock())

    def _check_order(self) -> None:
        """Nobody who waits for a first place is due earlier, in the same tier, than one who was started for the first time."""
        state = self.scheduler._state
        for live in state.running:
            head = state.waiting.head_of(live.rank)
            is_first = not live.num_preemptions and live.request_id not in self.num_scheduled
            if is_first and head is not None and head.state is RequestState.WAITING:
                assert (head.deadline_s, head.order) >= (live.deadline_s, live.order), "a later deadline started"

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            if isinstance(event, StepFinished | KvLevelsChanged):
                continue
            assert event.request_id not in self.finished, f"{event} after the terminal event"
            if isinstance(event, TokenProduced):
                assert self.num_scheduled[event.request_id] > 0
                self.output[event.request_id].append(event.token)
                self.token_times[event.request_id].append(self.clock())
            elif isinstance(event, RequestScheduled):
                self.num_scheduled[event.request_id] += 1
                self.scheduled.append(event)
            elif isinstance(event, RequestPreempted):
                self.num_preempted[event.request_id] += 1
            elif isinstance(event, RequestFinished):
                self._finish(event)

    def _finish(self, event: RequestFinished) -> None:
        self.finished[event.request_id] = event
        assert event.num_preemptions == self.num_preempted[event.request_id]
        assert event.first_token_s == next(iter(self.token_times[event.request_id]), None)
        assert self.num_scheduled[event.request_id] <= 1 + event.num_preemptions
        self.executor.end_request(event.request_id)
