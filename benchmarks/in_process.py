"""The engine loop on a thread of this process: scheduler, executor and nothing else; no IPC, no text."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ultrafast.core.request import Request
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.loop import EngineLoop
from ultrafast.engine.messages import Shutdown, StepReport, Submit
from ultrafast.engine.options import EngineOptions
from ultrafast.sched.scheduler import Scheduler

_TIMEOUT_S = 300
_REST_S = 0.05  # the loop frees sequences in a turn of its own, then sleeps


@dataclass(slots=True)
class Output:
    """Tokens of one request and when each arrived, nanoseconds."""

    tokens: list[int] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)


class InProcessEngine:
    """Idle between two calls of `generate`, so that the context is free for others.

    Attributes:
        num_drafted, num_accepted: tokens guessed, and guessed right, so far.
    """

    def __init__(self, loop: EngineLoop, scheduler: Scheduler, reports: queue.SimpleQueue[tuple[int, StepReport]]) -> None:
        self.scheduler = scheduler
        self.num_drafted = 0
        self.num_accepted = 0
        self._loop = loop
        self._reports = reports

    def generate(self, requests: Sequence[Request]) -> list[Output]:
        """Run requests together; one output each, in their order. All must produce all of their tokens."""
        outputs = {request.request_id: Output() for request in requests}
        for request in requests:
            self._loop.post(Submit(request))
        num_finished = 0
        while num_finished < len(requests):
            stamp, report = self._reports.get(timeout=_TIMEOUT_S)
            for event in report.tokens:
                outputs[event.request_id].tokens.append(event.token)
                outputs[event.request_id].stamps_ns.append(stamp)
            num_finished += len(report.finished)
            if report.stats is not None:
                self.num_drafted += report.stats.num_drafted_tokens
                self.num_accepted += report.stats.num_accepted_tokens
        for request in requests:
            num_tokens = len(outputs[request.request_id].tokens)
            assert num_tokens == request.params.max_tokens, f"{num_tokens} tokens instead of {request.params.max_tokens}"
        time.sleep(_REST_S)
        return [outputs[request.request_id] for request in requests]


@contextmanager
def engine_on_thread(executor: LlamaExecutor, options: EngineOptions) -> Iterator[InProcessEngine]:
    """Serve with this executor inside the `with` block."""
    reports: queue.SimpleQueue[tuple[int, StepReport]] = queue.SimpleQueue()
    scheduler = make_scheduler(executor.facts, options)
    loop = EngineLoop(scheduler, executor, time.monotonic, lambda report: reports.put((time.perf_counter_ns(), report)))
    thread = threading.Thread(target=loop.run, name="engine")
    thread.start()
    try:
        yield InProcessEngine(loop, scheduler, reports)
    finally:
        loop.post(Shutdown())
        thread.join()
