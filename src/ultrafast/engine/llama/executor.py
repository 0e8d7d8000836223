"""Runs step plans on libllama: KV operations, one forward pass, one draw per output row.

Everything is checked before it reaches C: libllama aborts the process on a batch that is too large, a sequence id out of range
or a position that does not follow. What C cannot prove (a shared prefix in a sliding-window cache) is verified after the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ultrafast.core.draft import DraftPass, DraftPlan, DraftResult
from ultrafast.core.errors import ConfigError, InvalidRequestError, UltrafastError
from ultrafast.core.request import Request
from ultrafast.core.step import CopyPrefix, SampledToken, SequenceOp, SequenceWork, StepPlan, StepResult, StepStatus, TrimSequence
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.batch import Batch
from ultrafast.engine.llama.draft_model import DraftModel
from ultrafast.engine.llama.facts import probe, read_facts
from ultrafast.engine.llama.grammar import GrammarCompiler, GrammarError
from ultrafast.engine.llama.kv_state import KvState
from ultrafast.engine.llama.model import BROKEN_OFF, Model
from ultrafast.engine.llama.sampler import CandidateArray, DeadEndError, SamplingError, SequenceSampler
from ultrafast.engine.llama.second_context import LoneContext
from ultrafast.engine.llama.side_pass import SidePass, open_side_pass
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.llama.warmup import StepSample, warm_up
from ultrafast.engine.options import EngineOptions
from ultrafast.engine.warmup_plan import WarmupPlan

_FAILURES = {1: StepStatus.OUT_OF_KV, -1: StepStatus.INVALID}
"""Of llama_decode's codes, those after which nothing has changed; 0 is success."""


class LlamaExecutor:
    """`engine.executor.Executor` on libllama. One engine thread calls everything but `prepare_request`.

    Attributes:
        facts: what libllama really gave us.
        model, vocab: the loaded model, for warm-up and benchmarks.
    """

    def __init__(self, model: Model, options: EngineOptions, load_s: float, *, is_lone: bool = False) -> None:
        """`is_lone`: for one sequence at a time, each of which begins in the first cell of the pool."""
        self.model = model
        self._is_lone = is_lone
        self._c = model.c
        self.vocab = Vocab.of_model(model.library, model.handle)
        self.batch = Batch(model.sizes.step_tokens)
        self.lengths = [0] * model.sizes.num_sequences
        self._candidates = CandidateArray(self.vocab.size)
        self._row_pointer: Any = abi.ffi.NULL  # `_row` is the array that begins there
        self._row = np.empty(0, dtype=np.float32)
        self._grammars = GrammarCompiler(model.library, self.vocab)
        self._prepared: dict[str, SequenceSampler] = {}
        self._samplers: dict[str, SequenceSampler] = {}
        # Without the whole window kept, a prefix of a longer sequence is no longer complete: reuse whole sequences only.
        self._keeps_whole_window = options.swa_full or model.sliding_window == 0
        probed = probe(model, self.batch)
        self.can_trim = probed.can_trim and self._keeps_whole_window
        self._kv_state = KvState(self._c, model.context, model.sizes.num_sequences, can_trim=self.can_trim)
        self.draft: DraftModel | None = None
        self.side: SidePass | None = None
        self.facts = read_facts(model, options, replace(probed, can_trim=self.can_trim), self.vocab.size, load_s)

    @classmethod
    def load(cls, options: EngineOptions, on_progress: Callable[[str, float], None]) -> LlamaExecutor:
        """Load the model and create its context. `on_progress(stage, fraction)` is called from this thread.

        Raises:
            ModelFileError, ConfigError: see `Model` and, where there is to be a draft model, `DraftModel`.
        """
        begin_s = time.monotonic()
        model = Model(abi.load(options.libllama_path), options, on_progress)
        executor = cls(model, options, load_s=time.monotonic() - begin_s)
        if options.draft_model_path is not None and options.may_speculate:
            try:
                executor.load_draft(options, on_progress)
            except UltrafastError:
                executor.close()
                raise
        if options.enable_side_context and executor.can_trim and not model.has_gpu:
            executor.open_side(options)
        return executor

    def open_side(self, options: EngineOptions) -> None:
        """Make the context for prompts that are computed beside the steps, if there is memory for it."""
        self.side = open_side_pass(self, options)
        self.facts = replace(self.facts, max_side_tokens=self.side.max_tokens if self.side is not None else 0)

    def load_draft(self, options: EngineOptions, on_progress: Callable[[str, float], None]) -> None:
        """Load the draft model beside the model. Raises ModelFileError, ConfigError: see `DraftModel`."""
        if not self.can_trim:
            raise ConfigError(
                f"{options.model_path} cannot check guesses (recurrent state or sliding window), so a draft model is of no use.",
                code="draft_model_unfit",
                param="engine.draft_model_path",
                hint="Leave engine.draft_model_path out for this model.",
            )
        self.draft = DraftModel(options, self.model, self.vocab, self._candidates, self.facts.max_request_tokens, on_progress)
        self.facts = replace(self.facts, draft=self.draft.facts)

    def warm_up(self, on_progress: Callable[[str, float], None], plan: WarmupPlan | None = None) -> list[StepSample]:
        """Run every shape so that the first request is as fast as the fifth; leaves the KV cache empty. Returns step times.

        With a plan: the shapes that it names instead.
        """
        begin_s = time.monotonic()
        warmed = warm_up(self, on_progress, plan)
        if self.side is not None:
            self.side.warm_up()
        self._grammars.matcher('{"grammars": [{"json_schema": {"type": "object"}}]}').forbidden()
        self.facts = replace(self.facts, warmup_s=time.monotonic() - begin_s, idle_cell_s=warmed.idle_cell_s)
        return warmed.samples

    def lone(self, options: EngineOptions, step_tokens: int) -> LlamaExecutor:
        """Create an executor on the same weights that runs one request at a time; close it before this one.

        Raises:
            ConfigError: its context does not fit in memory.
        """
        model = LoneContext(self.model, options, num_tokens=self.facts.max_request_tokens, step_tokens=step_tokens)
        return LlamaExecutor(model, options, load_s=0.0, is_lone=True)

    def warm_up_draft(self) -> list[DraftPass]:
        """The same for the draft model, if there is one."""
        return self.draft.warm_up() if self.draft is not None else []

    def prepare_request(self, request: Request) -> None:
        """The slow part of `begin_request` (compiling a grammar). Any thread; at most once per request, before it is begun."""
        self._check(request)
        grammar = request.params.grammar
        matcher = self._grammars.matcher(grammar) if grammar is not None else None
        try:
            sampler = SequenceSampler(self._c, request, self.vocab.end_tokens, self._candidates, matcher)
        except GrammarError as error:  # a continued output that no longer fits its grammar
            raise InvalidRequestError(str(error), code="invalid_json_schema") from error
        self._prepared[request.request_id] = sampler

    def begin_request(self, request: Request) -> None:
        if request.request_id not in self._prepared:
            self.prepare_request(request)
        self._samplers[request.request_id] = self._prepared.pop(request.request_id)
        if self.draft is not None:
            self.draft.begin_request(request)

    def end_request(self, request_id: str) -> None:
        if self.side is not None:
            self.side.forget(request_id)
        if self.draft is not None:
            self.draft.end_request(request_id)
        sampler = self._samplers.pop(request_id, None) or self._prepared.pop(request_id, None)
        if sampler is not None:
            sampler.close()

    def apply_kv(self, ops: Sequence[SequenceOp]) -> tuple[str, ...]:
        failed = []
        for op in ops:
            if isinstance(op, TrimSequence):
                self._trim(op.seq_id, op.num_tokens)
            elif not self._copy(op):
                failed.append(op.request_id)
        return tuple(failed)

    def save_kv(self, seq_id: int, begin: int, end: int) -> memoryview | None:
        assert 0 <= begin < end <= self.lengths[seq_id], (
            f"sequence {seq_id} holds {self.lengths[seq_id]} tokens, not [{begin}, {end})"
        )
        return self._kv_state.save(seq_id, begin, end)

    def load_kv(self, seq_id: int, begin: int, end: int, data: memoryview) -> bool:
        assert self.lengths[seq_id] == begin, f"sequence {seq_id} holds {self.lengths[seq_id]} tokens; the load starts at {begin}"
        if not self._kv_state.load(seq_id, begin, end, data):
            self._trim(seq_id, 0)
            return False
        self.lengths[seq_id] = end
        return True

    def propose(self, plan: DraftPlan) -> DraftResult:
        assert self.draft is not None, "there is no draft model"
        return self.draft.propose(plan)

    def run_side(self, chunk: SequenceWork, go_on: Callable[[], bool]) -> StepResult:
        assert self.side is not None, "there is no side context"
        return self.side.run(chunk, go_on)

    def interrupt(self) -> None:
        self.model.library.is_error_expected = True
        self.model.interrupt_flag.set()

    def run(self, plan: StepPlan) -> StepResult:
        begin_s = time.monotonic()
        if self.model.interrupt_flag.is_set:  # it came too late for an earlier step
            self._clear_interrupt()
        for item in plan.work:
            assert self.lengths[item.seq_id] == item.start, (
                f"sequence {item.seq_id} holds {self.lengths[item.seq_id]} tokens, the plan starts at {item.start}"
            )
        rows = self.batch.fill(plan.work)
        code = self._c.llama_decode(self.model.context, self.batch.handle)
        if code != 0:
            status = _FAILURES.get(code, StepStatus.FATAL) if code != BROKEN_OFF else self._broken_off(plan)
            return StepResult(status, duration_s=time.monotonic() - begin_s)
        sampled: list[SampledToken] = []
        failed: list[tuple[str, str]] = []
        dead_ends: list[str] = []
        for item, row in zip(plan.work, rows, strict=True):
            self.lengths[item.seq_id] += item.num_positions
            if item.samples:
                error = self._sample(item, row, sampled)
                if error is not None:
                    failed.append((item.request_id, str(error)))
                if isinstance(error, DeadEndError | GrammarError):
                    dead_ends.append(item.request_id)
        return StepResult(StepStatus.OK, tuple(sampled), tuple(failed), time.monotonic() - begin_s, tuple(dead_ends))

    def close(self) -> None:
        for sampler in (*self._samplers.values(), *self._prepared.values()):
            sampler.close()
        self._samplers.clear()
        self._prepared.clear()
        if self.draft is not None:  # before the model, whose threads it shares
            self.draft.close()
        if self.side is not None:
            self.side.close()
        self.model.close()

    def _broken_off(self, plan: StepPlan) -> StepStatus:
        """The cells of the batch are removed already; prove it before anything is computed again."""
        self._clear_interrupt()
        c, memory = self._c, self.model.memory
        are_whole = all(c.llama_memory_seq_pos_max(memory, item.seq_id) == self.lengths[item.seq_id] - 1 for item in plan.work)
        return StepStatus.INTERRUPTED if are_whole else StepStatus.FATAL

    def _clear_interrupt(self) -> None:
        self.model.interrupt_flag.clear()
        self.model.library.is_error_expected = False

    def _sample(self, item: SequenceWork, row: int, sampled: list[SampledToken]) -> SamplingError | GrammarError | None:
        """Draw row by row for as long as the draft behind the row is what was drawn; then forget the other drafts.

        Returns:
            why no token could be drawn.
        """
        num_right = 0
        failure: SamplingError | GrammarError | None = None
        try:
            if not item.drafts:
                sampled.append(self._draw(item.request_id, row, item.output_index))
                return None
            for draft in (*item.drafts, None):
                drawn = self._draw(item.request_id, row + num_right, item.output_index + num_right)
                sampled.append(drawn)
                if drawn.token != draft or drawn.is_end or drawn.is_complete:
                    break
                num_right += 1
        except (SamplingError, GrammarError) as error:
            failure = error
        if num_right < len(item.drafts):
            self._trim(item.seq_id, item.start + len(item.tokens) + num_right)
        return failure

    def _draw(self, request_id: str, row: int, output_index: int) -> SampledToken:
        sampler = self._samplers[request_id]
        pointer = self._c.llama_get_logits_ith(self.model.context, row)
        if pointer != self._row_pointer:  # a lone stream's row lies where its last one was
            assert pointer != abi.ffi.NULL, f"row {row} has no logits"
            self._row_pointer = pointer
            self._row = np.frombuffer(abi.ffi.buffer(pointer, 4 * self.vocab.size), dtype=np.float32)
        token, logprobs = sampler.draw(self._row, output_index)
        is_end = sampler.is_end(token)
        return SampledToken(request_id, token, is_end, not is_end and sampler.is_grammar_complete, logprobs)

    def _check(self, request: Request) -> None:
        for token in request.prompt_tokens + request.output_tokens:
            if not 0 <= token < self.vocab.size:
                raise InvalidRequestError(
                    f"token id {token} is outside the vocabulary of {self.vocab.size}", code="invalid_token_id", param="prompt"
                )
        for token, _ in request.params.logit_bias:
            if not 0 <= token < self.vocab.size:
                raise InvalidRequestError(
                    f"token id {token} is outside the vocabulary of {self.vocab.size}",
                    code="invalid_token_id",
                    param="logit_bias",
                )

    def _trim(self, seq_id: int, num_tokens: int) -> None:
        begin = -1 if num_tokens == 0 else num_tokens
        done = self._c.llama_memory_seq_rm(self.model.memory, seq_id, begin, -1)
        assert done, f"cannot trim sequence {seq_id} to {num_tokens} tokens"
        self.lengths[seq_id] = num_tokens
        if self._is_lone and not any(self.lengths):
            self._c.llama_memory_clear(self.model.memory, False)  # the search for free cells starts at the first one again

    def _copy(self, op: CopyPrefix) -> bool:
        """Share a prefix, then ask the memory whether the destination really holds it; never trust a silent success."""
        assert self.lengths[op.dst] == 0, f"sequence {op.dst} is not empty"
        memory = self.model.memory
        # A model that cannot trim can only be copied whole.
        begin, end = (0, op.num_tokens) if self.can_trim else (-1, -1)
        self._c.llama_memory_seq_cp(memory, op.src, op.dst, begin, end)
        if self._holds_prefix(op.dst, op.num_tokens):
            self.lengths[op.dst] = op.num_tokens
            return True
        self._c.llama_memory_seq_rm(memory, op.dst, -1, -1)
        return False

    def _holds_prefix(self, seq_id: int, num_tokens: int) -> bool:
        if self._c.llama_memory_seq_pos_max(self.model.memory, seq_id) != num_tokens - 1:
            return False
        if self.model.is_recurrent:
            return True
        first = self._c.llama_memory_seq_pos_min(self.model.memory, seq_id)
        # Sliding-window layers need every position that the next token attends to: [num_tokens - window, num_tokens).
        return bool(first == 0 or (not self._keeps_whole_window and 0 < first < num_tokens - self.model.sliding_window))
