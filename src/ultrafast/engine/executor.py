"""The seam between decisions and a model: what the engine loop asks of whatever runs the forward pass.

All calls but `prepare_request` and `interrupt` come from the one engine thread. Implementations:
`engine.llama.executor.LlamaExecutor`, `engine.fake.FakeExecutor`; both pass the suite in `tests/contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ultrafast.core.draft import DraftPlan, DraftResult
from ultrafast.core.request import Request
from ultrafast.core.step import SequenceOp, SequenceWork, StepPlan, StepResult


class Executor(Protocol):
    """Runs plans. Sequence ids are in [0, max_num_sequences); a sequence that was never written is empty."""

    def prepare_request(self, request: Request) -> None:
        """The slow part of `begin_request`, ahead of it: compiles the request's grammar. May be called from one other thread.

        Raises:
            InvalidRequestError: as `begin_request`.
        """
        ...

    def begin_request(self, request: Request) -> None:
        """Set up sampling state. Called once, before the scheduler sees the request; not again after a preemption.

        Output tokens that the request brings along have been drawn before: penalties and grammar take them into account.

        Raises:
            InvalidRequestError: the request can never run here (a grammar that does not compile, a token id out of range).
        """
        ...

    def end_request(self, request_id: str) -> None:
        """Free sampling state, if there is any. Called when the request has finished; a plan trims its sequence."""
        ...

    def apply_kv(self, ops: Sequence[SequenceOp]) -> tuple[str, ...]:
        """Apply KV operations in order.

        Returns:
            ids of requests whose `CopyPrefix` could not be proven right (sliding window, recurrent state). Their destination
            sequence is empty again, and the caller must plan without that reuse: never wrong text.
        """
        ...

    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        """Copy the KV of tokens [begin, end) of a sequence out of the engine. None: it cannot be.

        The bytes mean something to an engine with the same model, build and KV settings only. Where sequences cannot be cut,
        [begin, end) is the whole sequence.
        """
        ...

    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        """Append tokens [begin, end) to a sequence that holds exactly `begin` tokens, from bytes of `save_kv`.

        The bytes may hold more tokens on both sides; all of them need room in the pool for a moment.

        Returns:
            False when it cannot be proven that the sequence now holds [0, end); it is empty then.
        """
        ...

    def propose(self, plan: DraftPlan) -> DraftResult:
        """Let the draft model read and guess. Only for an engine that has one.

        An item's tokens follow what its sequence holds in [0, start). A guess is what the request's sampler would draw from the
        draft model's logits with the random number of that position, penalties and grammar aside. It may be wrong: `run` tells.
        """
        ...

    def run(self, plan: StepPlan) -> StepResult:
        """One forward pass over `plan.work`, then one draw for each item with `samples`. `plan.kv_ops` are already applied.

        Behind drafts that turn out right further draws follow, see `StepResult.sampled`; every token is drawn as it would be
        without drafts. On `OUT_OF_KV`, `INVALID` and `INTERRUPTED` nothing has changed. A request that fails by itself is listed
        in `failed`; the others' draws are valid.
        """
        ...

    def run_side(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        """Compute a chunk of a prompt, which draws nothing, beside the steps; at its end its KV is appended to the sequence.

        `go_on` is asked between any two operations of the forward pass. Before it answers it may have other plans run and KV
        operations applied, as long as the sequence stays what it is. False breaks the chunk off; what it raises comes out here.
        Only for an engine that says so (`EngineFacts.max_side_tokens`).

        Returns:
            OK, INTERRUPTED with nothing changed, INVALID with the sequence emptied (its KV could not be moved), or FATAL.
            `duration_s` is without the time that `go_on` took.
        """
        ...

    def interrupt(self) -> None:
        """Ask the `run` under way to break off. Any thread; between two runs it does nothing.

        That run returns INTERRUPTED, with nothing changed, or its result, when it was done or cannot be broken off.
        """
        ...

    def close(self) -> None:
        """Free everything. No call may follow."""
        ...
