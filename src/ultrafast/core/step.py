"""One step: what the scheduler asks of the engine (`StepPlan`) and what came of it (`StepResult`).

A step is one forward pass over a batch of tokens from several sequences. The engine first applies `kv_ops` in order, then
runs the batch:

    work[0]            work[1]      work[2]
    |seq 3: pos 17|    |seq 5: 40|  |seq 9: pos 0 ... 31|     <- one token per decode, a chunk per prefill
          |                 |                     |
        output            output        output only when the chunk ends the prompt

A decode may carry drafts, guesses of the tokens that follow; each has an output row too, which tells whether the next is right:

    |seq 3: pos 17 | draft 18 | draft 19 |      rows are drawn from in order; the first draw that differs from the draft behind
         |             |          |             its row is the last one, and the positions of the wrong drafts are forgotten
       draw 0 =?       draw 1 =?  draw 2

A *side chunk*, a piece of a long prompt, is no step: it is computed in a context of its own and suspended whenever a step is due.

    |seq 7: pos 256 ... 511 ~~~~~|step|~~~~~~~~~~~~|step|~~~~~~~~~|
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ultrafast.core.draft import NO_DRAFTING, DraftPlan


@dataclass(frozen=True, slots=True)
class CopyPrefix:
    """Let sequence `dst` share tokens [0, num_tokens) of sequence `src` (no bytes move). `dst` is empty before.

    `request_id` owns `dst`; the engine reports it in `StepResult.failed_copies` when the share cannot be proven right.
    """

    request_id: str
    src: int
    dst: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TrimSequence:
    """Forget tokens [num_tokens, end) of a sequence; num_tokens = 0 frees it."""

    seq_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SaveRun:
    """Copy the KV of tokens [begin, end) of a sequence into host memory, under the name `run_id`."""

    run_id: int
    seq_id: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Append tokens [begin, end) from a run in host memory to sequence `seq_id`, which holds exactly `begin` tokens.

    `num_run_tokens` is the length of the whole run. `request_id` owns the sequence; when the load cannot be proven right it is
    reported like a `CopyPrefix` that failed, and the sequence is empty.
    """

    request_id: str
    run_id: int
    seq_id: int
    begin: int
    end: int
    num_run_tokens: int


@dataclass(frozen=True, slots=True)
class DropRun:
    """Free the host memory of a run."""

    run_id: int


@dataclass(frozen=True, slots=True)
class WriteRun:
    """Write a run from host memory to disk, in the background. The file says what it holds: see `engine.kvstore.run_file`."""

    run_id: int
    parent: bytes
    digest: bytes
    start: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Read a run from disk into host memory, in the background."""

    run_id: int
    parent: bytes
    digest: bytes
    start: int
    tokens: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete a run's file, in the background."""

    run_id: int
    digest: bytes


SequenceOp = CopyPrefix | TrimSequence
KvOp = SequenceOp | SaveRun | LoadRun | DropRun | WriteRun | ReadRun | DeleteRun


@dataclass(frozen=True, slots=True)
class KvMoved:
    """What came of a transfer: of `SaveRun` and `LoadRun` at once, of `WriteRun` and `ReadRun` later.

    Attributes:
        way: "save", "load", "write" or "read"; "delete" where a `DeleteRun` broke the level, which else says nothing.
        num_bytes: that were moved; 0 when it failed.
        is_broken: the level itself cannot be used any more (a full or vanished disk), not only this run.
    """

    run_id: int
    way: str
    is_ok: bool
    num_bytes: int = 0
    duration_s: float = 0.0
    is_broken: bool = False


class SequenceWork(NamedTuple):
    """The tokens of one sequence in a step: positions [start, start + len(tokens)).

    `samples` is True when the last of them needs an output row, from which the request's next token is drawn;
    `output_index` then is the number of output tokens the request had before that draw.
    `drafts` are guesses of the tokens after `tokens`, only where `samples`.

    One is made per sequence and step: a named tuple takes a third of the time of a frozen dataclass.
    """

    request_id: str
    seq_id: int
    start: int
    tokens: tuple[int, ...]
    samples: bool
    output_index: int = 0
    drafts: tuple[int, ...] = ()

    @property
    def is_decode(self) -> bool:
        """It computes exactly one token and draws the next."""
        return self.samples and len(self.tokens) == 1

    @property
    def num_positions(self) -> int:
        """Positions that the forward pass computes; a cell each."""
        return len(self.tokens) + len(self.drafts)


@dataclass(frozen=True, slots=True)
class Yielding:
    """A long step, which may be broken off for something better to do.

    Attributes:
        urgency: of its most urgent request; 0 is the most urgent there is.
        num_tokens: prompt tokens in it when nobody decodes, else 0.
        predicted_s: how long it will take.
    """

    urgency: int
    num_tokens: int
    predicted_s: float


class StepPlan(NamedTuple):
    """What to do next. `work` may be empty while `kv_ops` is not (an aborted request's cells are freed at once).

    `draft` comes before `work`: the guesses that it asks for become drafts of the work (`Scheduler.drafted`).
    `yielding` is there when the step may be interrupted.
    `side`, only without `work`: a chunk of a prompt to be computed beside the steps that follow, see `Executor.run_side`.
    `resume_s`: when there is something to do again if nobody comes before; only while a side chunk is under way.
    """

    step: int
    kv_ops: tuple[KvOp, ...] = ()
    work: tuple[SequenceWork, ...] = ()
    draft: DraftPlan = NO_DRAFTING
    yielding: Yielding | None = None
    side: SequenceWork | None = None
    resume_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Positions of the forward pass, drafts included: the size of the batch."""
        return sum([len(item.tokens) + len(item.drafts) for item in self.work])

    @property
    def num_drafts(self) -> int:
        return sum([len(item.drafts) for item in self.work])


class StepStatus(StrEnum):
    """How the forward pass ended.

    `OUT_OF_KV`: no room for the batch; nothing was changed. `INVALID`: the batch was refused; nothing was changed.
    `INTERRUPTED`: it was broken off on request; nothing was changed. `FATAL`: the engine's state is unknown and it must be
    restarted.
    """

    OK = "ok"
    OUT_OF_KV = "out_of_kv"
    INVALID = "invalid"
    INTERRUPTED = "interrupted"
    FATAL = "fatal"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities of one drawn token and of the most likely ones, after logit bias and before temperature.

    `top` is sorted, most likely first: (token id, logprob).
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SampledToken(NamedTuple):
    """One drawn token.

    Attributes:
        token: token id.
        is_end: the token ends the request (end of generation or a stop token) and is not delivered.
        is_complete: a grammar is satisfied and admits nothing more: the token is delivered and ends the request.
        logprobs: present when the request asked for them.
    """

    request_id: str
    token: int
    is_end: bool = False
    is_complete: bool = False
    logprobs: TokenLogprobs | None = None


class StepResult(NamedTuple):
    """What came of a plan.

    Attributes:
        sampled: the draws of each work item with `samples`, in order. n draws mean that the first n - 1 drafts were right:
            the sequence now holds the item's tokens and those drafts, and nothing of the others. There is at least one draw
            unless the request failed, and none after one that `is_end` or `is_complete`.
        failed: (request_id, message) for requests that must end in this step through no fault of the others; what was drawn
            before the failure is in `sampled`.
        duration_s: wall time of the step: KV operations, forward pass and sampling.
        dead_ends: of the failed, those whose own rules (grammar, least length) admit no further token: nothing is broken.
    """

    status: StepStatus
    sampled: tuple[SampledToken, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    duration_s: float = 0.0
    dead_ends: tuple[str, ...] = ()
