"""The engine loop on the caller's thread: scheduler, executor and nothing else; no IPC, no text.

One thread for everything that runs a step in this process: OpenMP counts the compute threads of every thread that ever ran one,
and stops spinning at barriers when they outnumber the cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ultrafast.core.request import Request
from ultrafast.engine.assembly import make_scheduler
from ultrafast.engine.llama.executor import LlamaExecutor
from ultrafast.engine.loop import EngineLoop
from ultrafast.engine.messages import Shutdown, StepReport, Submit
from ultrafast.engine.options import EngineOptions


@dataclass(slots=True)
class Output:
    """Tokens of one request and when each arrived, nanoseconds."""

    tokens: list[int] = field(default_factory=list)
    stamps_ns: list[int] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        """From the first token to the last."""
        return (len(self.tokens) - 1) / ((self.stamps_ns[-1] - self.stamps_ns[0]) / 1e9)


class InProcessEngine:
    """Idle between two calls of `generate`, so that the context is free for others.

    Attributes:
        num_drafted, num_accepted: tokens guessed, and guessed right, so far.
    """

    def __init__(self, executor: LlamaExecutor, options: EngineOptions) -> None:
        self.scheduler = make_scheduler(executor.facts, options)
        self.num_drafted = 0
        self.num_accepted = 0
        self._executor = executor

    def generate(self, requests: Sequence[Request]) -> list[Output]:
        """Run requests together; one output each, in their order. All must produce all of their tokens."""
        outputs = {request.request_id: Output() for request in requests}
        num_left = len(requests)

        def take(report: StepReport) -> None:
            nonlocal num_left
            stamp_ns = time.perf_counter_ns()
            for event in report.tokens:
                outputs[event.request_id].tokens.append(event.token)
                outputs[event.request_id].stamps_ns.append(stamp_ns)
            if report.stats is not None:
                self.num_drafted += report.stats.num_drafted_tokens
                self.num_accepted += report.stats.num_accepted_tokens
            num_left -= len(report.finished)
            if report.finished and not num_left:
                loop.post(Shutdown())

        loop = EngineLoop(self.scheduler, self._executor, time.monotonic, take)
        for request in requests:
            loop.post(Submit(request))
        loop.run()
        for request in requests:
            num_tokens = len(outputs[request.request_id].tokens)
            assert num_tokens == request.params.max_tokens, f"{num_tokens} tokens instead of {request.params.max_tokens}"
        return [outputs[request.request_id] for request in requests]
