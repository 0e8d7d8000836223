"""The engine loop on a thread of its own, with the real scheduler and a model-free executor."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ultrafast.core.clock import Clock, ManualClock
from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.events import DropReason, RequestFinished
from ultrafast.core.request import FinishReason, Request, RequestSlo, SamplingParams
from ultrafast.core.step import SequenceWork, StepPlan, StepResult, StepStatus
from ultrafast.core.tiers import ServiceTier, TierPolicy
from ultrafast.engine.fake import FakeExecutor
from ultrafast.engine.grammars import CompileBounds
from ultrafast.engine.loop import MAX_BETWEEN_STEPS_S, EngineLoop, FatalStepError
from ultrafast.engine.messages import Abort, Shutdown, StepReport, Submit
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

LIMITS = SchedulerLimits(kv_capacity_tokens=2000, max_request_tokens=1000, max_step_tokens=64, step_target_s=0.05)
WAIT_S = 20.0


class SlowGrammarExecutor(FakeExecutor):
    """Compiles grammars only when the test lets it; "bad" never compiles."""

    def __init__(self) -> None:
        super().__init__(capacity_tokens=2000)
        self.gate = threading.Event()
        self.compiled: set[str] = set()
        self.begun: list[str] = []
        self.has_begun = threading.Event()

    def prepare_request(self, request: Request) -> None:
        if request.params.grammar is not None and request.request_id not in self.compiled:
            assert threading.current_thread().name.startswith("grammar"), "grammars are not compiled on the engine thread"
            self.begun.append(request.request_id)
            self.has_begun.set()
            assert self.gate.wait(WAIT_S)
            if request.params.grammar == "bad":
                raise InvalidRequestError("the grammar does not compile", code="invalid_grammar", param="response_format")
            self.compiled.add(request.request_id)
        super().prepare_request(request)


class LongStepExecutor(FakeExecutor):
    """A step with a prefill of at least 100 tokens runs until it is broken off, or until the test lets it end."""

    def __init__(self) -> None:
        super().__init__(capacity_tokens=2000)
        self.is_running = threading.Event()
        self.end = threading.Event()
        self.is_asked = False

    def run(self, plan: StepPlan) -> StepResult:
        if plan.yielding is not None and not self.is_asked:
            self.is_running.set()
            assert self.end.wait(WAIT_S)
            if self.is_asked:
                return StepResult(StepStatus.INTERRUPTED, duration_s=0.1)
        return super().run(plan)

    def interrupt(self) -> None:
        self.is_asked = True
        self.end.set()


class SideExecutor(FakeExecutor):
    """A side chunk runs, asking whether to go on, until the test lets it end."""

    def __init__(self) -> None:
        super().__init__(capacity_tokens=2000)
        self.is_running = threading.Event()
        self.end = threading.Event()
        self.results: list[StepStatus] = []
        self._is_beside = False

    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(0.004)  # a stream lasts
        return super().run(plan)

    def run_side(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        assert not self._is_beside, "a side chunk in the midst of another"
        self._is_beside = True
        try:
            return self._wait(chunk, go_on)
        finally:
            self._is_beside = False

    def _wait(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        while not self.end.is_set():
            if not go_on():
                self.results.append(StepStatus.INTERRUPTED)
                return StepResult(StepStatus.INTERRUPTED)
            self.is_running.set()
            time.sleep(0.001)
        self.results.append(StepStatus.OK)
        return super().run_side(chunk, go_on)


class Running:
    """A loop on its thread, and what it has reported."""

    def __init__(
        self,
        executor: FakeExecutor,
        limits: SchedulerLimits = LIMITS,
        clock: Clock | None = None,
        bounds: CompileBounds | None = None,
    ) -> None:
        self.executor = executor
        scheduler = Scheduler(limits)
        for num_tokens in (16, 64, 128, 256) * 4 if limits.can_interrupt else ():
            scheduler.cost.observe(0, num_tokens, 0.004 * num_tokens)
            scheduler.cost.observe(1, 0, 0.004)
        self.reports: queue.SimpleQueue[StepReport] = queue.SimpleQueue()
        self.loop = EngineLoop(scheduler, executor, clock or ManualClock(), self.reports.put, bounds=bounds)
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.loop.run()
        except FatalStepError as error:
            self.error = error

    def wait_for(self, is_it: Callable[[StepReport], bool]) -> StepReport:
        """Return the next report that fits; those before it are dropped."""
        while True:
            report = self.reports.get(timeout=WAIT_S)
            if is_it(report):
                return report

    def finished(self, request_id: str) -> RequestFinished:
        report = self.wait_for(lambda report: any(event.request_id == request_id for event in report.finished))
        return next(event for event in report.finished if event.request_id == request_id)

    def wait_for_all(self, request_ids: Sequence[str]) -> list[RequestFinished]:
        """Return how each of them ended."""
        ends: list[RequestFinished] = []
        while len(ends) < len(request_ids):
            report = self.reports.get(timeout=WAIT_S)
            ends += [event for event in report.finished if event.request_id in request_ids]
        return ends

    def stop(self) -> None:
        self.loop.post(Shutdown())
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    instance = Running(FakeExecutor(capacity_tokens=2000))
    yield instance
    instance.stop()


def make(
    request_id: str,
    *,
    max_tokens: int = 5,
    grammar: str | None = None,
    prompt: int = 40,
    tier: ServiceTier = ServiceTier.DEFAULT,
) -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, grammar=grammar)
    return Request(request_id, tuple(range(1, prompt + 1)), params, tier)


def test_a_request_runs_to_its_end_and_the_loop_sleeps_again(running: Running) -> None:
    running.loop.post(Submit(make("a")))
    event = running.finished("a")
    assert (event.reason, event.num_output_tokens, event.num_prompt_tokens) == (FinishReason.LENGTH, 5, 40)
    running.loop.post(Submit(make("b")))
    assert running.finished("b").num_cached_tokens == 39, "the second computes only its last prompt token"


def test_after_an_abort_the_gauges_say_that_nothing_runs(running: Running) -> None:
    running.loop.post(Submit(make("a", max_tokens=900)))
    running.wait_for(lambda report: bool(report.tokens))
    running.loop.post(Abort(["a", "unknown"]))
    report = running.wait_for(lambda report: bool(report.finished))
    assert report.finished[0].reason is FinishReason.ABORT
    assert report.stats is not None
    assert (report.stats.num_running, report.stats.num_kv_tokens_running, report.stats.num_waiting) == (0, 0, 0)


def test_one_report_per_step_carries_all_sequences(running: Running) -> None:
    for name in "abc":
        running.loop.post(Submit(make(name, max_tokens=50, prompt=5)))
    report = running.wait_for(lambda report: len(report.tokens) == 3)
    assert {event.request_id for event in report.tokens} == {"a", "b", "c"}


def test_a_slow_grammar_delays_nobody_else() -> None:
    executor = SlowGrammarExecutor()
    running = Running(executor)
    running.loop.post(Submit(make("constrained", grammar="good")))
    running.loop.post(Submit(make("plain")))
    assert running.finished("plain").reason is FinishReason.LENGTH
    executor.gate.set()
    assert running.finished("constrained").reason is FinishReason.LENGTH
    running.stop()


def test_a_bad_grammar_and_an_abort_while_compiling_end_once() -> None:
    executor = SlowGrammarExecutor()
    running = Running(executor)
    running.loop.post(Submit(make("gone", grammar="good")))
    running.loop.post(Submit(make("broken", grammar="bad")))
    running.loop.post(Abort(["gone"]))
    assert running.finished("gone").reason is FinishReason.ABORT
    executor.gate.set()
    event = running.finished("broken")
    assert (event.reason, event.error) == (FinishReason.REJECT, "the grammar does not compile")
    assert (event.error_code, event.error_param) == ("invalid_grammar", "response_format")
    running.loop.post(Submit(make("next")))
    assert running.finished("next").reason is FinishReason.LENGTH
    running.stop()


def test_an_urgent_grammar_does_not_wait_for_less_urgent_ones_that_have_not_begun() -> None:
    executor = SlowGrammarExecutor()
    running = Running(executor)
    running.loop.post(Submit(make("begun", grammar="good", tier=ServiceTier.FLEX)))
    assert executor.has_begun.wait(WAIT_S)
    running.loop.post(Submit(make("flex", grammar="good", tier=ServiceTier.FLEX)))
    running.loop.post(Submit(make("urgent", grammar="good", tier=ServiceTier.ULTRAFAST)))
    running.loop.post(Submit(make("gone", grammar="good", tier=ServiceTier.ULTRAFAST)))
    running.loop.post(Abort(["gone"]))
    assert running.finished("gone").reason is FinishReason.ABORT
    executor.gate.set()
    running.finished("flex")
    assert executor.begun == ["begun", "urgent", "flex"]
    running.stop()


def test_what_has_no_room_or_waited_too_long_is_not_compiled() -> None:
    executor = SlowGrammarExecutor()
    policy = TierPolicy(ttft_s=1.0, tpot_s=0.1, max_num_waiting=1, queue_ttl_s=0.01)
    limits = replace(LIMITS, tiers=(replace(policy, queue_ttl_s=1000.0),) * 4)
    running = Running(executor, limits, time.monotonic, CompileBounds(policies=(policy,) * 4, num_places=1))
    now = time.monotonic()
    placed = replace(make("begun", grammar="good"), had_place=True, arrival_s=now)
    running.loop.post(Submit(placed))
    assert executor.has_begun.wait(WAIT_S)
    running.loop.post(Submit(replace(make("late", grammar="good"), arrival_s=now)))
    event = running.finished("late")  # nothing else happens meanwhile: the loop wakes by itself
    assert (event.reason, event.drop_reason) == (FinishReason.EXPIRE, DropReason.QUEUE_TIMEOUT)
    assert (event.retry_after_s or 0.0) >= 1.0
    running.loop.post(Submit(replace(make("waits", grammar="good"), had_place=True)))
    running.loop.post(Submit(make("many", grammar="good")))
    event = running.finished("many")
    assert (event.reason, event.drop_reason) == (FinishReason.REJECT, DropReason.QUEUE_FULL)
    executor.gate.set()
    running.finished("waits")
    assert executor.begun == ["begun", "waits"]
    running.stop()


def test_what_the_gate_refuses_is_not_compiled() -> None:
    executor = SlowGrammarExecutor()
    running = Running(executor, replace(LIMITS, max_num_running=1, tiers=(TierPolicy(1.0, 0.1, max_num_waiting=0),) * 4))
    running.loop.post(Submit(make("runs", max_tokens=900)))
    running.wait_for(lambda report: bool(report.tokens))
    running.loop.post(Submit(make("refused", grammar="good")))
    event = running.finished("refused")
    assert (event.reason, event.drop_reason) == (FinishReason.REJECT, DropReason.QUEUE_FULL)
    assert not executor.begun
    running.loop.post(Abort(["runs"]))
    running.finished("runs")
    running.stop()


def test_an_unknown_state_ends_the_loop_so_that_the_process_is_replaced() -> None:
    running = Running(FakeExecutor(capacity_tokens=2000))
    running.executor.injections.statuses.append(StepStatus.FATAL)
    running.loop.post(Submit(make("a")))
    running.thread.join(WAIT_S)
    assert isinstance(running.error, FatalStepError)


def start_long_step(**changes: Any) -> tuple[Running, LongStepExecutor]:
    executor = LongStepExecutor()
    running = Running(executor, replace(LIMITS, max_step_tokens=256, can_interrupt=True, **changes))
    running.loop.post(Submit(make("long", prompt=600, tier=ServiceTier.FLEX)))
    assert executor.is_running.wait(WAIT_S)
    return running, executor


@pytest.mark.parametrize("grammar", [None, "good"])
def test_a_more_urgent_request_does_not_wait_for_a_long_step(grammar: str | None) -> None:
    running, executor = start_long_step()
    running.loop.post(Submit(make("urgent", grammar=grammar, tier=ServiceTier.ULTRAFAST)))
    report = running.wait_for(lambda report: report.stats is not None and report.stats.num_lost_tokens > 0)
    assert report.stats is not None
    assert report.stats.num_tokens == 0
    assert running.finished("urgent").reason is FinishReason.LENGTH
    event = running.finished("long")
    assert (event.reason, event.num_output_tokens) == (FinishReason.LENGTH, 5)
    assert executor.is_asked
    running.stop()


def test_a_step_that_nobody_wants_any_more_is_broken_off() -> None:
    running, executor = start_long_step()
    running.loop.post(Abort(["long"]))
    assert running.finished("long").reason is FinishReason.ABORT
    assert executor.is_asked
    running.stop()


def test_others_wait_for_the_end_of_the_step() -> None:
    running, executor = start_long_step()
    running.loop.post(Submit(make("later", prompt=700, tier=ServiceTier.FLEX)))
    running.loop.post(Abort(["unknown"]))
    assert not executor.is_asked
    executor.end.set()
    assert running.finished("long").reason is FinishReason.LENGTH
    assert running.finished("later").reason is FinishReason.LENGTH
    running.stop()


def test_who_asks_is_answered_while_a_step_runs() -> None:
    """A refusal does not wait for the end of a long step, and breaks nothing off."""
    running, executor = start_long_step()
    running.loop.post(Submit(replace(make("asks", tier=ServiceTier.ULTRAFAST), is_inquiry=True)))
    assert running.finished("asks").reason is FinishReason.ABORT, "it would not be refused"
    assert not executor.end.is_set()
    assert not executor.is_asked
    executor.end.set()
    assert running.finished("long").reason is FinishReason.LENGTH
    running.loop.post(Submit(replace(make("later"), is_inquiry=True)))
    assert running.finished("later").reason is FinishReason.ABORT
    running.stop()


def start_side_chunk() -> tuple[Running, SideExecutor]:
    """A stream decodes, and a long prompt is computed beside it."""
    executor = SideExecutor()
    begin_s = time.monotonic()  # the requests came at 0
    limits = replace(LIMITS, can_interrupt=True, max_side_tokens=1000)
    running = Running(executor, limits, lambda: time.monotonic() - begin_s)
    running.loop.post(Submit(make("stream", max_tokens=900, tier=ServiceTier.ULTRAFAST)))
    running.wait_for(lambda report: bool(report.tokens))
    running.loop.post(Submit(make("long", prompt=600)))
    assert executor.is_running.wait(WAIT_S)
    return running, executor


def test_streams_and_newcomers_are_served_while_a_side_chunk_runs() -> None:
    running, executor = start_side_chunk()
    running.wait_for(lambda report: "stream" in [token.request_id for token in report.tokens])
    running.wait_for(lambda report: "stream" in [token.request_id for token in report.tokens])
    running.loop.post(
        Submit(make("new", prompt=50, tier=ServiceTier.ULTRAFAST))
    )  # the prefix of the long one: it waits for nobody
    assert running.finished("new").reason is FinishReason.LENGTH
    running.loop.post(Submit(replace(make("asks"), is_inquiry=True)))
    assert running.finished("asks").reason is FinishReason.ABORT
    assert not executor.results, "the chunk is still under way"
    executor.end.set()
    assert running.finished("long").reason is FinishReason.LENGTH
    running.loop.post(Abort(["stream"]))
    running.stop()
    assert set(executor.results) == {StepStatus.OK}


def test_a_side_chunk_that_nobody_wants_any_more_is_broken_off() -> None:
    running, executor = start_side_chunk()
    running.loop.post(Abort(["long"]))
    assert running.finished("long").reason is FinishReason.ABORT
    running.wait_for(lambda report: "stream" in [token.request_id for token in report.tokens])
    assert executor.results == [StepStatus.INTERRUPTED]
    assert executor.num_side_tokens == 0
    running.loop.post(Abort(["stream"]))
    running.stop()


def test_all_may_leave_while_a_side_chunk_runs() -> None:
    running, executor = start_side_chunk()
    running.loop.post(Abort(["stream", "long"]))
    assert running.finished("long").reason is FinishReason.ABORT
    give_up_s = time.monotonic() + WAIT_S
    while not executor.results and time.monotonic() < give_up_s:  # whether or not anybody comes later
        time.sleep(0.001)
    assert executor.results == [StepStatus.INTERRUPTED]
    running.loop.post(Submit(make("next")))
    assert running.finished("next").reason is FinishReason.LENGTH
    assert executor.results == [StepStatus.INTERRUPTED]
    running.stop()


def test_the_loop_can_be_stopped_while_a_side_chunk_runs() -> None:
    running, executor = start_side_chunk()
    running.stop()
    assert executor.results == [StepStatus.INTERRUPTED]


def test_an_unknown_state_in_the_midst_of_a_side_chunk_ends_the_loop() -> None:
    running, executor = start_side_chunk()
    executor.injections.statuses.append(StepStatus.FATAL)
    running.thread.join(WAIT_S)
    assert isinstance(running.error, FatalStepError)


def test_the_next_long_prompt_waits_until_the_chunk_that_nobody_wants_is_broken_off() -> None:
    running, executor = start_side_chunk()
    other = replace(make("other", prompt=1), prompt_tokens=tuple(range(300, 900)))
    running.loop.post(Submit(other))
    running.loop.post(Abort(["long"]))
    assert running.finished("long").reason is FinishReason.ABORT
    executor.end.set()
    assert running.finished("other").reason is FinishReason.LENGTH
    assert executor.results[0] is StepStatus.INTERRUPTED
    running.loop.post(Abort(["stream"]))
    running.stop()


STRICT = RequestSlo(ttft_s=1.3, is_strict=True)


@pytest.mark.parametrize(
    ("num_places", "num_waiting", "num_accepted", "slo", "reason"),
    [
        (1, 0, 0, RequestSlo(), DropReason.QUEUE_FULL),
        (1, 2, 2, RequestSlo(), DropReason.QUEUE_FULL),
        (3, 2, 4, RequestSlo(), DropReason.QUEUE_FULL),
        (3, 2, 0, STRICT, DropReason.SLO_AT_RISK),
    ],
)
def test_a_refusal_does_not_wait_for_the_end_of_a_long_step(
    num_places: int, num_waiting: int, num_accepted: int, slo: RequestSlo, reason: DropReason
) -> None:
    """Those who came during the same step are ahead; they get their places, or wait, after it."""
    tiers = (TierPolicy(10.0, 1.0, max_num_waiting=num_waiting),) * 4
    running, executor = start_long_step(max_num_running=num_places, tiers=tiers)
    names = [f"r{i}" for i in range(num_accepted)]
    for name in names:
        running.loop.post(Submit(make(name, prompt=300, tier=ServiceTier.FLEX)))
    refused = replace(make("refused", prompt=300, tier=ServiceTier.FLEX), slo=slo)
    running.loop.post(Submit(refused))
    running.loop.post(Submit(replace(refused, request_id="asks", is_inquiry=True)))
    for name in ("refused", "asks"):
        event = running.finished(name)
        assert (event.reason, event.drop_reason) == (FinishReason.REJECT, reason)
        assert event.retry_after_s is not None
    assert not executor.end.is_set(), "the step still runs"
    executor.end.set()
    ends = {event.request_id: event.reason for event in running.wait_for_all(["long", *names])}
    assert set(ends.values()) == {FinishReason.LENGTH}
    assert not executor.is_asked
    running.stop()


def test_who_came_during_one_step_is_not_counted_twice_in_the_next() -> None:
    running, executor = start_long_step(max_num_running=1, tiers=(TierPolicy(10.0, 1.0, max_num_waiting=2),) * 4)
    running.loop.post(Submit(make("waits", prompt=700, tier=ServiceTier.FLEX)))
    executor.end.set()
    running.wait_for(lambda report: report.stats is not None)
    executor.end.clear()
    running.loop.post(Submit(make("waits too", prompt=700, tier=ServiceTier.FLEX)))
    executor.end.set()
    ends = running.wait_for_all(["long", "waits", "waits too"])
    assert {event.reason for event in ends} == {FinishReason.LENGTH}
    running.stop()


def test_who_asks_between_two_steps_is_answered_while_the_next_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would lie in the inbox until that one has ended."""
    running, executor = start_long_step()
    plan = running.loop._scheduler.plan
    asks = Submit(replace(make("asks"), is_inquiry=True))
    posting: list[threading.Thread] = []

    def plan_while_somebody_asks(now: float) -> StepPlan:
        if not posting:
            executor.is_running.clear()
            executor.end.clear()
            posting.append(threading.Thread(target=running.loop.post, args=(asks,)))
            posting[0].start()
            posting[0].join(MAX_BETWEEN_STEPS_S / 4)
        return plan(now)

    monkeypatch.setattr(running.loop._scheduler, "plan", plan_while_somebody_asks)
    executor.end.set()
    assert running.finished("asks").reason is FinishReason.ABORT
    assert not executor.end.is_set(), "the second long step still runs"
    executor.end.set()
    assert running.finished("long").reason is FinishReason.LENGTH
    running.stop()
