"""A model that does not exist: runs plans on simulated cells and simulated time, and is strict about physical truth.

It stands in for `engine.llama` in tests and simulations. Each sequence is a list of cells; each cell remembers the token it
holds and a digest of everything before it, as a real KV cell does. So a plan that reads cells which were never written fails an
assert, and a plan that shares the wrong cells produces other tokens than `expected_tokens` says:

    seq 3: [c0 c1 c2 c3]          CopyPrefix(src=3, dst=5, 2)
    seq 5: [c0 c1]                c0 and c1 have two users now; they are free when both are gone

Runs on the caller's thread. Deterministic: tokens depend on (all tokens before, seed, output index) only. With `loop` most of
them depend on the output index modulo `loop` alone, so that the text repeats itself and drafts of it are often right.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ultrafast.core.clock import ManualClock
from ultrafast.core.draft import DraftPlan, DraftResult
from ultrafast.core.errors import InvalidRequestError
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import (
    CopyPrefix,
    SampledToken,
    SequenceOp,
    SequenceWork,
    StepPlan,
    StepResult,
    StepStatus,
    TokenLogprobs,
    TrimSequence,
)

END_TOKEN = 0
"""The fake vocabulary's end of generation."""

_SIDE_PIECE_TOKENS = 4
_MASK = (1 << 64) - 1
_CELL = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class FakeCost:
    """How long a simulated step takes, seconds. The defaults resemble a 135M model on two CPU cores.

    `cell_s`: what each row adds for each cell in use (attention over one pool); shared cells count once per sequence here.
    """

    fixed_s: float = 0.002
    output_s: float = 0.007
    prefill_token_s: float = 0.0055
    draft_s: float = 0.001
    save_token_s: float = 0.0
    cell_s: float = 0.0

    def step_s(self, num_outputs: int, num_prefill_tokens: int, num_drafts: int = 0, num_cells: int = 0) -> float:
        computed_s = self.output_s * num_outputs + self.prefill_token_s * num_prefill_tokens + self.draft_s * num_drafts
        return self.fixed_s + computed_s + self.cell_s * num_cells * (num_outputs + num_prefill_tokens + num_drafts)


@dataclass(slots=True)
class Injections:
    """Failures to come; a test fills these in at any time.

    Attributes:
        statuses: taken one per step that has work; OK means "run as usual".
        invalid_ids: a step that names one of these is INVALID.
        failing_ids: end with `failed` in the next step that names them.
        stuck_ids: the same, as a dead end of their own.
        refused_ids: `prepare_request` and `begin_request` raise for these.
        uncopyable_ids: their `CopyPrefix` is reported as not proven.
        unmovable_ids: the KV of their side chunks cannot be moved.
    """

    statuses: deque[StepStatus] = field(default_factory=deque)
    invalid_ids: set[str] = field(default_factory=set)
    failing_ids: set[str] = field(default_factory=set)
    stuck_ids: set[str] = field(default_factory=set)
    refused_ids: set[str] = field(default_factory=set)
    uncopyable_ids: set[str] = field(default_factory=set)
    unmovable_ids: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Cell:
    position: int
    digest: int
    num_users: int = 1


class FakeExecutor:
    """Implements `engine.executor.Executor`.

    Args:
        capacity_tokens: cells in the pool.
        num_sequences: sequence ids are below this.
        max_step_tokens: a larger plan fails an assert (a real engine would abort the process).
        clock: moved forward by the simulated duration of each step, when given.
        can_trim: False = refuses (by assert) to share or keep a part of a sequence, like a recurrent model.
        vocab_size: tokens are in [0, vocab_size).
        end_every: about one draw in this many is the end token; 0 = never.
        loop: the output repeats itself after so many tokens, but for one in eight; 0 = never.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int,
        num_sequences: int = 256,
        max_step_tokens: int = 512,
        clock: ManualClock | None = None,
        cost: FakeCost | None = None,
        can_trim: bool = True,
        vocab_size: int = 1000,
        end_every: int = 0,
        loop: int = 0,
    ) -> None:
        self.injections = Injections()
        self.num_run_tokens = 0
        self.num_side_tokens = 0
        self._capacity_tokens = capacity_tokens
        self._max_step_tokens = max_step_tokens
        self._clock = clock
        self._cost = cost or FakeCost()
        self._can_trim = can_trim
        self._vocab_size = vocab_size
        self._end_every = end_every
        self._loop = loop
        self._sequences: list[list[_Cell]] = [[] for _ in range(num_sequences)]
        self._num_used = 0
        self._begun: dict[str, Request] = {}
        self._is_closed = False

    @property
    def num_free(self) -> int:
        """Cells that no sequence uses."""
        return self._capacity_tokens - self._num_used

    @property
    def num_begun(self) -> int:
        """Requests that were begun and have not ended."""
        return len(self._begun)

    def sequence_length(self, seq_id: int) -> int:
        return len(self._sequences[seq_id])

    def prepare_request(self, request: Request) -> None:
        outside = [token for token in request.prompt_tokens if not 0 <= token < self._vocab_size]
        if outside or request.request_id in self.injections.refused_ids:
            raise InvalidRequestError(f"Request {request.request_id} cannot run on this engine.", param="prompt")

    def begin_request(self, request: Request) -> None:
        assert request.request_id not in self._begun, f"{request.request_id} was begun before"
        self.prepare_request(request)
        self._begun[request.request_id] = request

    def end_request(self, request_id: str) -> None:
        self._begun.pop(request_id, None)  # a refused request ends without having begun

    def apply_kv(self, ops: Sequence[SequenceOp]) -> tuple[str, ...]:
        failed = []
        for op in ops:
            if isinstance(op, TrimSequence):
                self._trim(op)
            elif not self._copy(op):
                failed.append(op.request_id)
        return tuple(failed)

    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        cells = self._sequences[seq_id]
        assert 0 <= begin < end <= len(cells), f"sequence {seq_id} has {len(cells)} cells, cannot save [{begin}, {end})"
        assert self._can_trim or (begin, end) == (0, len(cells)), "this model's sequences are saved as a whole"
        if self._clock is not None:
            self._clock.advance(self._cost.save_token_s * (end - begin))
        return memoryview(b"".join(_CELL.pack(cell.position, cell.digest) for cell in cells[begin:end]))

    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        cells = self._sequences[seq_id]
        assert len(cells) == begin, f"sequence {seq_id} has {len(cells)} cells; the load starts at {begin}"
        loaded = [_Cell(*fields) for fields in _CELL.iter_unpack(data)]
        assert len(loaded) <= self.num_free, "no room for the whole run while it is loaded"
        wanted = [cell for cell in loaded if begin <= cell.position < end]
        if [cell.position for cell in wanted] != list(range(begin, end)):
            self._trim(TrimSequence(seq_id, 0))
            return False
        cells += wanted
        self._num_used += len(wanted)
        return True

    def propose(self, plan: DraftPlan) -> DraftResult:
        raise AssertionError(f"there is no draft model to do {plan}; see fake_draft.py")

    def run(self, plan: StepPlan) -> StepResult:
        assert not self._is_closed, "run after close"
        self._check(plan)
        status = self._status(plan)
        if status is not StepStatus.OK:
            num_half = plan.num_tokens // 2 if status is StepStatus.INTERRUPTED else 0
            return StepResult(status, duration_s=self._spend(0, num_half))
        sampled, failed = [], []
        for item in plan.work:
            self._write(item)
            if item.request_id in self.injections.failing_ids | self.injections.stuck_ids:
                failed.append((item.request_id, "injected failure"))
            elif item.samples:
                sampled += self._verify(item)
        self.num_run_tokens += plan.num_tokens
        num_decodes = sum(item.is_decode for item in plan.work)
        num_outputs = sum(item.samples for item in plan.work)
        num_prefill_tokens = plan.num_tokens - plan.num_drafts - num_decodes
        duration_s = self._spend(num_outputs, num_prefill_tokens, plan.num_drafts)
        dead_ends = tuple(request_id for request_id, _ in failed if request_id in self.injections.stuck_ids)
        return StepResult(status, tuple(sampled), tuple(failed), duration_s, dead_ends)

    def run_side(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        """Piece by piece, with `go_on` before each; nothing of it is there before all of it is."""
        assert not chunk.samples, "a side chunk draws nothing"
        begin = chunk.start
        self._check_work((chunk,))
        duration_s = 0.0
        while begin < chunk.start + len(chunk.tokens):
            if not go_on():
                return StepResult(StepStatus.INTERRUPTED, duration_s=duration_s)
            num_tokens = min(_SIDE_PIECE_TOKENS, chunk.start + len(chunk.tokens) - begin)
            duration_s += self._spend(0, num_tokens)
            begin += num_tokens
        if chunk.request_id in self.injections.unmovable_ids:
            self._trim(TrimSequence(chunk.seq_id, 0))
            return StepResult(StepStatus.INVALID, duration_s=duration_s)
        self._check_work((chunk,))  # what it is appended to may be gone by now, and then it was to be broken off
        assert len(chunk.tokens) <= self.num_free, "no room for the KV of a side chunk"
        self._write(chunk)
        self.num_run_tokens += len(chunk.tokens)
        self.num_side_tokens += len(chunk.tokens)
        return StepResult(StepStatus.OK, duration_s=duration_s)

    def interrupt(self) -> None:
        """A simulated step is over before anybody could ask; `injections.statuses` says which ones are broken off."""

    def close(self) -> None:
        assert not self._is_closed, "closed twice"
        self._is_closed = True

    def _spend(self, num_outputs: int, num_prefill_tokens: int, num_drafts: int = 0) -> float:
        num_cells = sum(map(len, self._sequences)) if self._cost.cell_s else 0
        duration_s = self._cost.step_s(num_outputs, num_prefill_tokens, num_drafts, num_cells)
        if self._clock is not None:
            self._clock.advance(duration_s)
        return duration_s

    def _check(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self._max_step_tokens, f"{plan.num_tokens} tokens in a step of at most {self._max_step_tokens}"
        seq_ids = [item.seq_id for item in plan.work]
        assert len(set(seq_ids)) == len(seq_ids), "a sequence appears twice in one step"
        self._check_work(plan.work)

    def _check_work(self, work: Sequence[SequenceWork]) -> None:
        for item in work:
            assert item.request_id in self._begun, f"{item.request_id} was not begun"
            assert item.tokens, f"{item.request_id} has no tokens in this step"
            assert item.samples or not item.drafts, f"{item.request_id} has drafts and no draw before them"
            assert self._can_trim or not item.drafts, "wrong drafts of this model could not be cut off"
            written = len(self._sequences[item.seq_id])
            assert item.start == written, f"sequence {item.seq_id} has {written} cells; the plan starts at {item.start}"

    def _status(self, plan: StepPlan) -> StepStatus:
        if plan.work and self.injections.statuses:
            status = self.injections.statuses.popleft()
            if status is not StepStatus.OK:
                return status
        if any(item.request_id in self.injections.invalid_ids for item in plan.work):
            return StepStatus.INVALID
        return StepStatus.OUT_OF_KV if plan.num_tokens > self.num_free else StepStatus.OK

    def _trim(self, op: TrimSequence) -> None:
        cells = self._sequences[op.seq_id]
        assert op.num_tokens <= len(cells), f"sequence {op.seq_id} has {len(cells)} cells, cannot keep {op.num_tokens}"
        assert self._can_trim or op.num_tokens in (0, len(cells)), "this model's sequences cannot be cut"
        for cell in cells[op.num_tokens :]:
            cell.num_users -= 1
            self._num_used -= cell.num_users == 0
        del cells[op.num_tokens :]

    def _copy(self, op: CopyPrefix) -> bool:
        source = self._sequences[op.src]
        assert not self._sequences[op.dst], f"sequence {op.dst} is not empty"
        if op.request_id in self.injections.uncopyable_ids or not source:
            return False
        assert op.num_tokens <= len(source), f"sequence {op.src} has {len(source)} cells, cannot share {op.num_tokens}"
        assert self._can_trim or op.num_tokens == len(source), "this model's sequences are shared as a whole"
        shared = source[: op.num_tokens]
        for cell in shared:
            cell.num_users += 1
        self._sequences[op.dst] = shared
        return True

    def _write(self, item: SequenceWork) -> None:
        cells = self._sequences[item.seq_id]
        digest = cells[-1].digest if cells else 0
        for token in (*item.tokens, *item.drafts):
            digest = extend_digest(digest, token)
            cells.append(_Cell(len(cells), digest))
        self._num_used += item.num_positions

    def _verify(self, item: SequenceWork) -> list[SampledToken]:
        """Draw while the drafts are right; cut the others off."""
        draws: list[SampledToken] = []
        position = item.start + len(item.tokens)
        for draft in (*item.drafts, None):
            draws.append(self._draw(item, position - 1, item.output_index + len(draws)))
            if draws[-1].token != draft or draws[-1].is_end:
                break
            position += 1
        self._trim(TrimSequence(item.seq_id, position))
        return draws

    def _draw(self, item: SequenceWork, position: int, output_index: int) -> SampledToken:
        params = self._begun[item.request_id].params
        digest = self._sequences[item.seq_id][position].digest
        token = draw_token(digest, params, output_index, self._vocab_size, self._end_every, self._loop)
        is_end = is_end_of(token, params)
        logprobs = None if params.num_logprobs is None else TokenLogprobs(-0.5, ((token, -0.5),) * min(1, params.num_logprobs))
        return SampledToken(item.request_id, token, is_end=is_end, logprobs=logprobs)


def expected_tokens(request: Request, *, vocab_size: int = 1000, end_every: int = 0, loop: int = 0) -> list[int]:
    """The output that a `FakeExecutor` must give this request however it is scheduled: the end token not included."""
    digest = 0
    for token in request.prompt_tokens:
        digest = extend_digest(digest, token)
    output: list[int] = []
    for index in range(request.params.max_tokens):
        token = draw_token(digest, request.params, index, vocab_size, end_every, loop)
        if is_end_of(token, request.params):
            break
        output.append(token)
        digest = extend_digest(digest, token)
    return output


def is_end_of(token: int, params: SamplingParams) -> bool:
    """Whether this token ends the request."""
    return (token == END_TOKEN and not params.ignore_eos) or token in params.stop_token_ids


def draw_token(digest: int, params: SamplingParams, output_index: int, vocab_size: int, end_every: int, loop: int) -> int:
    """The token that follows a text with this digest."""
    draw = extend_digest(extend_digest(digest, params.seed), output_index)
    can_end = output_index >= params.min_tokens
    if can_end and end_every and (draw >> 32) % end_every == 0:
        return END_TOKEN
    if loop and draw >> 61:
        draw = extend_digest(params.seed, output_index % loop)
    return 1 + draw % (vocab_size - 1)


def extend_digest(state: int, value: int) -> int:
    """The digest of a text and one more token.

    SplitMix64's finaliser over a running state (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    z = (state + 0x9E3779B97F4A7C15 + value * 0xD1B54A32D192ED03) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)
