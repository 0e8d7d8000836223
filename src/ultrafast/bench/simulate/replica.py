"""One simulated engine, turn by turn as `engine.loop` does it: book the step that ended, take what came, plan the next one.

submit --> inbox      (taken at the next step border, as in the real engine, or at once while a side chunk has the machine)
turn(now) --> when the next turn is due: the end of the step that now begins, or when a side chunk is done or suspended;
              None = idle, until something is submitted
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ultrafast.bench.simulate.engine_spec import EngineSpec
from ultrafast.bench.simulate.load import SimRequest
from ultrafast.bench.simulate.passes import Passes, SimulatedPasses
from ultrafast.core.events import Event, RequestFinished
from ultrafast.core.request import Request, RequestSlo, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.ledger import num_sequences
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

_MAX_EMPTY_TURNS = 8
_NUM_PROBES = 4
_PROBE_TOKENS = 32
_ROUNDING_S = 1e-9


def num_ids(limits: SchedulerLimits) -> int:
    """How many sequence ids the passes of an engine with these limits must provide."""
    return num_sequences(limits.max_num_running + limits.max_num_paused, limits.max_num_cached)


@dataclass(slots=True)
class _SideChunk:
    """A side chunk under way: `left_s` is what it still takes, from `since_s` on unless a step runs."""

    chunk: SequenceWork
    left_s: float
    since_s: float


class Replica:
    """One engine.

    Args:
        number: among the replicas; also part of the seed.
        on_events: gets the events of each turn, with their time.
        serve_as: the tier in which the scheduler sees every request; None = each in its own.
        passes: stands in for the forward pass; a stricter one in tests.

    Attributes:
        busy_s: time spent in steps and side chunks. num_steps: of them.
        step_end_s: when the next turn is due, unless it is idle.
        num_ahead_tokens: prompt tokens of requests that have no first token yet, by rank of their tier.
        known_blocks: shared pieces of prompts that were sent here.
    """

    def __init__(
        self,
        number: int,
        spec: EngineSpec,
        on_events: Callable[[list[Event], float], None],
        *,
        seed: int = 0,
        serve_as: ServiceTier | None = None,
        passes: Passes | None = None,
    ) -> None:
        self.spec = spec
        self.number = number
        limits = spec.limits
        self.scheduler = Scheduler(limits)
        self.passes: Passes = passes or SimulatedPasses(spec.cost, num_ids(limits), seed * 1009 + number)
        self.busy_s = 0.0
        self.num_steps = 0
        self.step_end_s = 0.0
        self.num_ahead_tokens = [0] * len(limits.tiers)
        self.known_blocks: set[int] = set()
        self._on_events = on_events
        self._serve_as = serve_as
        self._inbox: list[Request | str] = []
        self._step: tuple[StepPlan, StepResult] | None = None
        self._step_begin_s = 0.0
        self._side: _SideChunk | None = None
        self._waiting_first: dict[str, tuple[int, int]] = {}
        self._teach_cost()

    @property
    def is_idle(self) -> bool:
        return self._step is None and self._side is None

    @property
    def is_listening(self) -> bool:
        """No step runs: who comes or goes is heard at once."""
        return self._step is None

    def busy_until_s(self, now: float) -> float:
        """Seconds spent computing until now."""
        if self._step is not None:
            return self.busy_s - (self.step_end_s - now)
        return self.busy_s + (now - self._side.since_s if self._side is not None else 0.0)

    @property
    def current_plan(self) -> StepPlan | None:
        """The step under way."""
        return self._step[0] if self._step else None

    def submit(self, request: SimRequest) -> bool:
        """Send it here; True: it is seen now, `turn` is due. Else at the next step border."""
        tier = self._serve_as or request.tier
        prompt = request.prompt_tokens()
        # Nobody knows how much a model will say: the request asks for as much as there can be.
        params = SamplingParams(max_tokens=max(1, self.spec.limits.max_request_tokens - len(prompt)))
        made = Request(
            str(request.index), prompt, params, tier, request.due_s, slo=RequestSlo(ttft_s=request.ttft_s), may_speculate=False
        )
        self.passes.begin_request(made, request.num_output_tokens)
        self.known_blocks.update(request.blocks)
        rank = self.spec.limits.rank_of(tier)
        self.num_ahead_tokens[rank] += len(prompt)
        self._waiting_first[made.request_id] = (rank, len(prompt))
        self._inbox.append(made)
        return self._step is None or self._break_off(made)

    def _break_off(self, newcomer: Request) -> bool:
        """Whether the step under way gives way; it then ends now, with nothing done."""
        assert self._step is not None, "a step runs"
        plan, now = self._step[0], newcomer.arrival_s
        elapsed_s = now - self._step_begin_s
        if plan.yielding is None or not self.scheduler.gives_way(plan.yielding, newcomer, elapsed_s):
            return False
        self.passes.undo(plan)
        self.busy_s -= self.step_end_s - now
        self.step_end_s = now
        self._step = (plan, StepResult(StepStatus.INTERRUPTED, duration_s=elapsed_s))
        return True

    def cancel(self, request_id: str) -> None:
        """The client left; the scheduler learns of it at the next step border."""
        self._inbox.append(request_id)

    def turn(self, now: float) -> float | None:
        """Book the step that ends now, if there is one, and begin the next."""
        events: list[Event] = []
        if self._step is not None:
            plan, result = self._step
            self._step = None
            events += self.scheduler.complete(plan, result, now)
            for drawn in result.sampled:
                if drawn.request_id in self._waiting_first:
                    self._pass_first(drawn.request_id)
        elif self._side is not None:
            events += self._continue_side(self._side, now)
        for command in self._inbox:
            events += self._obey(command, now)
        self._inbox.clear()
        for _ in range(_MAX_EMPTY_TURNS):
            if self._side is not None and not self.scheduler.is_side_wanted:
                events += self._end_side(self._side, StepStatus.INTERRUPTED, now)
            if not self.scheduler.has_work:
                break
            plan = self.scheduler.plan(now)
            self.passes.apply_kv(plan.kv_ops)
            if plan.work:
                self._begin(plan, now)
                break
            events += self.scheduler.complete(plan, StepResult(StepStatus.OK), now)
            if plan.side is not None:
                self.scheduler.side_begun(plan.side, now)
                self._side = _SideChunk(plan.side, self.passes.side_s(plan.side), now)
            if self._side is not None and self.scheduler.is_side_wanted:
                self._side.since_s = now
                self.step_end_s = min(now + self._side.left_s, max(now, plan.resume_s))
                break
        assert not self.is_idle or not self.scheduler.has_work, "requests are alive and nothing happens"
        self._tell(events, now)
        return None if self.is_idle else self.step_end_s

    def _continue_side(self, side: _SideChunk, now: float) -> list[Event]:
        """It has had the machine until now."""
        self.busy_s += now - side.since_s
        side.left_s -= now - side.since_s
        side.since_s = now
        return self._end_side(side, StepStatus.OK, now) if side.left_s <= _ROUNDING_S else []

    def _end_side(self, side: _SideChunk, status: StepStatus, now: float) -> list[Event]:
        self._side = None
        self.num_steps += 1
        if status is StepStatus.OK:
            self.passes.run_side(side.chunk)
        return self.scheduler.side_finished(side.chunk, StepResult(status), now)

    def _begin(self, plan: StepPlan, now: float) -> None:
        result = self.passes.run(plan)
        self._step = (plan, result)
        self._step_begin_s = now
        self.step_end_s = now + result.duration_s
        self.busy_s += result.duration_s
        self.num_steps += 1

    def _obey(self, command: Request | str, now: float) -> list[Event]:
        if isinstance(command, Request):
            return self.scheduler.add(command, now)
        return self.scheduler.abort(command, now)

    def _tell(self, events: list[Event], now: float) -> None:
        for event in events:
            if isinstance(event, RequestFinished):
                self.passes.end_request(event.request_id)
                self._pass_first(event.request_id)
        if events:
            self._on_events(events, now)

    def _pass_first(self, request_id: str) -> None:
        rank, num_tokens = self._waiting_first.pop(request_id, (0, 0))
        self.num_ahead_tokens[rank] -= num_tokens

    def _teach_cost(self) -> None:
        """What the warm-up of a real engine teaches its scheduler before the first request."""
        cost = self.spec.cost
        for size in range(1, _NUM_PROBES + 1):
            self.scheduler.cost.observe(size, 0, cost.step_s(size, 0))
            self.scheduler.cost.observe(1, size * _PROBE_TOKENS, cost.step_s(1, size * _PROBE_TOKENS))
