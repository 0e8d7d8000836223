"""Puts the strict fake engine under a simulated replica: every cell accounted for, every token checked."""

from __future__ import annotations

from dataclasses import replace

from ultrafast.bench.simulate.engine_spec import StepCost
from ultrafast.bench.simulate.replica import num_ids
from ultrafast.core.request import Request
from ultrafast.core.step import KvOp, SequenceWork, StepPlan, StepResult, StepStatus, TrimSequence
from ultrafast.engine.fake import FakeCost, FakeExecutor, expected_tokens
from ultrafast.sched.limits import SchedulerLimits

VOCAB_SIZE = 1 << 40


class _Cost(FakeCost):
    """The same sum in the same order: a last bit that differs would lead to other steps after a while."""

    def __init__(self, cost: StepCost) -> None:
        super().__init__(cost.base_s, cost.output_s, cost.token_s)

    def step_s(self, num_outputs: int, num_prefill_tokens: int, num_drafts: int = 0, num_cells: int = 0) -> float:
        assert not num_drafts, "speculation is off"
        assert not num_cells, "cells cost nothing"
        return StepCost(self.fixed_s, self.output_s, self.prefill_token_s).step_s(num_outputs, num_prefill_tokens)


class StrictPasses:
    """See `bench.simulate.passes.Passes`."""

    def __init__(self, limits: SchedulerLimits, cost: StepCost) -> None:
        self._cost = cost
        self.executor = FakeExecutor(
            capacity_tokens=limits.kv_capacity_tokens,
            num_sequences=num_ids(limits),
            max_step_tokens=limits.max_step_tokens,
            cost=_Cost(cost),
            can_trim=limits.can_trim,
            vocab_size=VOCAB_SIZE,
        )
        self._requests: dict[str, tuple[Request, int]] = {}
        self._said: dict[str, list[int]] = {}
        self.num_checked = 0

    def begin_request(self, request: Request, num_output_tokens: int) -> None:
        self.executor.begin_request(request)
        self._requests[request.request_id] = (request, num_output_tokens)
        self._said[request.request_id] = []

    def end_request(self, request_id: str) -> None:
        self.executor.end_request(request_id)
        request, num_output_tokens = self._requests.pop(request_id)
        said = self._said.pop(request_id)
        params = replace(request.params, max_tokens=num_output_tokens)
        assert said == expected_tokens(replace(request, params=params), vocab_size=VOCAB_SIZE)[: len(said)]
        self.num_checked += len(said)

    def length(self, seq_id: int) -> int:
        return self.executor.sequence_length(seq_id)

    def apply_kv(self, ops: tuple[KvOp, ...]) -> None:
        assert not self.executor.apply_kv(ops)  # type: ignore[arg-type]

    def side_s(self, chunk: SequenceWork) -> float:
        return self._cost.step_s(0, len(chunk.tokens))

    def run_side(self, chunk: SequenceWork) -> None:
        assert self.executor.run_side(chunk, lambda: True).status is StepStatus.OK

    def undo(self, plan: StepPlan) -> None:
        for item in plan.work:
            assert not self.executor.apply_kv((TrimSequence(item.seq_id, item.start),))
            if item.samples:
                self._said[item.request_id].pop()

    def run(self, plan: StepPlan) -> StepResult:
        result = self.executor.run(plan)
        drawn = []
        for one in result.sampled:
            said = self._said[one.request_id]
            said.append(one.token)
            drawn.append(one._replace(is_complete=len(said) >= self._requests[one.request_id][1]))
        return result._replace(sampled=tuple(drawn))
