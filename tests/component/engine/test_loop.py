"""The engine loop on a thread of its own, with the real scheduler and a model-free executor."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from ultrafast.core.clock import ManualClock
from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.events import RequestFinished
from ultrafast.core.request import FinishReason, Request, SamplingParams
from ultrafast.core.step import StepStatus
from ultrafast.engine.fake import FakeExecutor
from ultrafast.engine.loop import EngineLoop, FatalStepError
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

    def prepare_request(self, request: Request) -> None:
        if request.params.grammar is not None and request.request_id not in self.compiled:
            assert threading.current_thread().name.startswith("grammar"), "grammars are not compiled on the engine thread"
            assert self.gate.wait(WAIT_S)
            if request.params.grammar == "bad":
                raise InvalidRequestError("the grammar does not compile", code="invalid_grammar", param="response_format")
            self.compiled.add(request.request_id)
        super().prepare_request(request)


class Running:
    """A loop on its thread, and what it has reported."""

    def __init__(self, executor: FakeExecutor) -> None:
        self.executor = executor
        self.reports: queue.SimpleQueue[StepReport] = queue.SimpleQueue()
        self.loop = EngineLoop(Scheduler(LIMITS), executor, ManualClock(), self.reports.put)
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

    def stop(self) -> None:
        self.loop.post(Shutdown())
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    instance = Running(FakeExecutor(capacity_tokens=2000))
    yield instance
    instance.stop()


def make(request_id: str, *, max_tokens: int = 5, grammar: str | None = None, prompt: int = 40) -> Request:
    return Request(
        request_id, tuple(range(1, prompt + 1)), SamplingParams(max_tokens=max_tokens, ignore_eos=True, grammar=grammar)
    )


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


def test_an_unknown_state_ends_the_loop_so_that_the_process_is_replaced() -> None:
    running = Running(FakeExecutor(capacity_tokens=2000))
    running.executor.injections.statuses.append(StepStatus.FATAL)
    running.loop.post(Submit(make("a")))
    running.thread.join(WAIT_S)
    assert isinstance(running.error, FatalStepError)
