"""Two executors behind one: the shared pool, and the one in which deterministic requests run alone.

sequence ids   [0 ........ first_alone_id)   [first_alone_id ...)
                shared                        alone, from 0
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ultrafast.core.draft import DraftPlan, DraftResult
from ultrafast.core.request import Request
from ultrafast.core.step import CopyPrefix, SequenceOp, SequenceWork, StepPlan, StepResult
from ultrafast.engine.executor import Executor


class PairedExecutor:
    """Implements `Executor`. A plan's work belongs to one of the two; KV is saved and loaded in the shared pool only."""

    def __init__(self, shared: Executor, alone: Executor, first_alone_id: int) -> None:
        self._shared = shared
        self._alone = alone
        self._first = first_alone_id

    def prepare_request(self, request: Request) -> None:
        self._of(request).prepare_request(request)

    def begin_request(self, request: Request) -> None:
        self._of(request).begin_request(request)

    def end_request(self, request_id: str) -> None:
        self._shared.end_request(request_id)
        self._alone.end_request(request_id)

    def apply_kv(self, ops: Sequence[SequenceOp]) -> tuple[str, ...]:
        failed: list[str] = []
        for op in ops:
            if isinstance(op, CopyPrefix) or op.seq_id < self._first:
                failed += self._shared.apply_kv((op,))
            else:
                self._alone.apply_kv((replace(op, seq_id=op.seq_id - self._first),))
        return tuple(failed)

    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        return self._shared.save_kv(seq_id, begin, end)

    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        return self._shared.load_kv(seq_id, begin, end, data)

    def propose(self, plan: DraftPlan) -> DraftResult:
        return self._shared.propose(plan)

    def run(self, plan: StepPlan) -> StepResult:
        if not plan.work or plan.work[0].seq_id < self._first:
            return self._shared.run(plan)
        work = tuple(item._replace(seq_id=item.seq_id - self._first) for item in plan.work)
        return self._alone.run(plan._replace(work=work))

    def run_side(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        return self._shared.run_side(chunk, go_on)

    def interrupt(self) -> None:
        # Only the shared pool's steps are long enough, and only they are announced as such.
        self._shared.interrupt()

    def close(self) -> None:
        # The lone context uses the weights of the shared one.
        self._alone.close()
        self._shared.close()

    def _of(self, request: Request) -> Executor:
        return self._alone if request.is_deterministic else self._shared
