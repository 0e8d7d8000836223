"""A forward pass that computes nothing: it takes time, and checks what can be checked at the cost of a few comparisons.

It knows the length of each sequence and nothing of its content. `engine.fake.FakeExecutor` is the strict one: it accounts for
single cells and shows wrong content as wrong tokens; the two are compared in a test.
"""

from __future__ import annotations

import random
from typing import Protocol

from ultrafast.bench.simulate.engine_spec import StepCost
from ultrafast.core.request import Request
from ultrafast.core.step import CopyPrefix, KvOp, SampledToken, SequenceWork, StepPlan, StepResult, StepStatus, TrimSequence

OUTPUT_TOKEN = 0
"""What every draw is; no made-up prompt holds it."""


class Passes(Protocol):
    """What a replica asks of whatever stands in for the forward pass; the contract is that of `engine.executor.Executor`."""

    def begin_request(self, request: Request, num_output_tokens: int) -> None:
        """A request will say so many tokens."""
        ...

    def end_request(self, request_id: str) -> None: ...
    def apply_kv(self, ops: tuple[KvOp, ...]) -> None: ...
    def run(self, plan: StepPlan) -> StepResult: ...
    def side_s(self, chunk: SequenceWork) -> float:
        """How long a side chunk takes, without the steps in its midst."""
        ...

    def run_side(self, chunk: SequenceWork) -> None:
        """A side chunk is done."""
        ...

    def undo(self, plan: StepPlan) -> None:
        """The last `run` was broken off: nothing of it happened. Only for plans that draw nothing but first tokens."""
        ...


class SimulatedPasses:
    """The engine below one scheduler.

    Args:
        num_sequences: sequence ids are below this.
        seed: of the noise on step times.

    Attributes:
        num_computed_tokens: of all passes, outputs included.
    """

    def __init__(self, cost: StepCost, num_sequences: int, seed: int = 0) -> None:
        self._cost = cost
        self._lengths = [0] * num_sequences
        self._ends: dict[str, int] = {}
        self._random = random.Random(seed)
        self.num_computed_tokens = 0

    def begin_request(self, request: Request, num_output_tokens: int) -> None:
        self._ends[request.request_id] = num_output_tokens

    def end_request(self, request_id: str) -> None:
        self._ends.pop(request_id, None)

    @property
    def num_begun(self) -> int:
        return len(self._ends)

    def length(self, seq_id: int) -> int:
        return self._lengths[seq_id]

    def apply_kv(self, ops: tuple[KvOp, ...]) -> None:
        """Keep the lengths; there are no levels below the device here."""
        lengths = self._lengths
        for op in ops:
            if isinstance(op, TrimSequence):
                assert op.num_tokens <= lengths[op.seq_id], f"sequence {op.seq_id} is shorter than what is to be kept of it"
                lengths[op.seq_id] = op.num_tokens
            else:
                assert isinstance(op, CopyPrefix), f"{op} needs host memory, which is not simulated"
                assert lengths[op.dst] == 0, f"sequence {op.dst} is not empty"
                assert 0 < op.num_tokens <= lengths[op.src], f"sequence {op.src} is shorter than what is to be shared of it"
                lengths[op.dst] = op.num_tokens

    def run(self, plan: StepPlan) -> StepResult:
        """Write the plan's tokens, draw for those that are complete, and say how long it took."""
        lengths, ends = self._lengths, self._ends
        sampled = []
        num_outputs = num_prefill_tokens = 0
        for item in plan.work:
            num_tokens = len(item.tokens)
            assert item.start == lengths[item.seq_id], f"{item.request_id} starts at {item.start} of {lengths[item.seq_id]}"
            lengths[item.seq_id] += num_tokens
            if num_tokens > 1 or not item.samples:
                num_prefill_tokens += num_tokens
            if item.samples:
                num_outputs += 1
                is_last = item.output_index + 1 >= ends[item.request_id]
                sampled.append(SampledToken(item.request_id, OUTPUT_TOKEN, is_complete=is_last))
        self.num_computed_tokens += num_outputs + num_prefill_tokens
        return StepResult(StepStatus.OK, tuple(sampled), duration_s=self._duration_s(num_outputs, num_prefill_tokens))

    def side_s(self, chunk: SequenceWork) -> float:
        return self._duration_s(0, len(chunk.tokens))

    def run_side(self, chunk: SequenceWork) -> None:
        """Its tokens are in the sequence from now on."""
        assert chunk.start == self._lengths[chunk.seq_id], f"{chunk.request_id} starts at {chunk.start}"
        self._lengths[chunk.seq_id] += len(chunk.tokens)
        self.num_computed_tokens += len(chunk.tokens)

    def undo(self, plan: StepPlan) -> None:
        for item in plan.work:
            self._lengths[item.seq_id] = item.start
            self.num_computed_tokens -= len(item.tokens)

    def _duration_s(self, num_outputs: int, num_prefill_tokens: int) -> float:
        duration_s = self._cost.step_s(num_outputs, num_prefill_tokens)
        sigma = self._cost.noise
        return duration_s * self._random.lognormvariate(-sigma * sigma / 2, sigma) if sigma else duration_s
