"""A second, smaller model in the same process that guesses what the first one will say.

It has a context and KV of its own and shares the first one's compute threads: they take turns on the one engine thread, and
threads of a second pool would spin against those of the first. Its guesses are drawn by the request's own sampler settings and
the random number of the position, so that with a temperature too a model that thinks alike guesses alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ultrafast.core.draft import DraftItem, DraftPass, DraftPlan, DraftResult
from ultrafast.core.errors import ConfigError, ModelFileError
from ultrafast.core.request import Request
from ultrafast.core.step import SequenceWork
from ultrafast.engine.kvstore.setup import say
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.batch import Batch
from ultrafast.engine.llama.draft_vocab import check_draft_vocabulary, no_draft_model
from ultrafast.engine.llama.machine import available_memory_bytes
from ultrafast.engine.llama.model import ContextSizes, Model, estimated_bytes_per_token
from ultrafast.engine.llama.sampler import CandidateArray, SamplingError, SequenceSampler
from ultrafast.engine.llama.vocab import Vocab
from ultrafast.engine.options import DraftFacts, EngineOptions
from ultrafast.sched.speculation.drafting import MAX_DECODES

MAX_PASS_TOKENS = 256
"""Tokens in one pass: a piece of a text that is being read. Larger ones would only stretch a step."""
_MEMORY_SHARE = 8
"""The KV pool takes at most 1/8 of the memory that is free once the first model is loaded."""
_PAGE_TOKENS = 256
_WARM_UP_READS = (32, 128)


class DraftModel:
    """Reads and guesses; the engine thread's.

    Args:
        target: the model that it guesses for, loaded. vocab: that one's vocabulary.
        candidates: scratch memory for draws, of the same vocabulary.

    Attributes:
        facts: what libllama really gave us.
    """

    def __init__(
        self,
        options: EngineOptions,
        target: Model,
        vocab: Vocab,
        candidates: CandidateArray,
        max_request_tokens: int,
        on_progress: Callable[[str, float], None],
    ) -> None:
        """Load the model that `options.draft_model_path` names.

        Raises:
            ConfigError: libllama cannot load it, another vocabulary, no room for its KV, or its sequences cannot be cut.
        """
        assert options.draft_model_path is not None, "there is no draft model to load"
        self._end_tokens = vocab.end_tokens
        self._candidates = candidates
        self._c = target.c
        own_options = replace(options, model_path=options.draft_model_path)
        try:
            self.model = Model(
                target.library,
                own_options,
                on_progress,
                lambda model, _: _choose_sizes(model, own_options, target.sizes, max_request_tokens),
                shared_threadpool=target.threadpool,
            )
        except ModelFileError as error:
            raise no_draft_model(error) from error
        try:
            check_draft_vocabulary(vocab, Vocab.of_model(target.library, self.model.handle), options.draft_model_path)
            self.batch = Batch(self.model.sizes.step_tokens)
            self.lengths = [0] * self.model.sizes.num_sequences
            self._check_can_trim(options)
        except ConfigError:
            self.model.close()
            raise
        self._requests: dict[str, Request] = {}
        self._samplers: dict[str, SequenceSampler] = {}
        self.facts = self._read_facts()

    def begin_request(self, request: Request) -> None:
        self._requests[request.request_id] = request

    def end_request(self, request_id: str) -> None:
        self._requests.pop(request_id, None)
        sampler = self._samplers.pop(request_id, None)
        if sampler is not None:
            sampler.close()

    def propose(self, plan: DraftPlan) -> DraftResult:
        """See `engine.executor.Executor.propose`."""
        begin_s = time.monotonic()
        for seq_id in plan.freed:
            self._trim(seq_id, 0)
        passes: list[DraftPass] = []
        drafts: dict[str, tuple[int, ...]] = {}
        try:
            for item in plan.items:
                self._trim(item.seq_id, item.start)
                if not item.max_drafts:
                    self._run([_read(item)], passes)
            drafts = self._guess([item for item in plan.items if item.max_drafts], passes)
        except DraftPassError as error:
            say(f"the draft model is off: {error}")
            return DraftResult(is_broken=True, duration_s=time.monotonic() - begin_s)
        return DraftResult(tuple(drafts.items()), tuple(passes), time.monotonic() - begin_s)

    def warm_up(self) -> list[DraftPass]:
        """Run every shape once; leaves the KV empty. Returns what passes took when they ran warm."""
        passes: list[DraftPass] = []
        work = [SequenceWork("warm-up", i, 0, (0,), samples=True) for i in range(len(self.lengths))]
        for count in range(1, len(work) + 1):
            self._run_alone(work[:count], passes if count == 1 else [])  # the first of a shape builds its graph
            self._run_alone(work[:count], passes)
        for num_tokens in _WARM_UP_READS:
            if num_tokens <= self.batch.capacity:
                self._run_alone([SequenceWork("warm-up", 0, 0, (0,) * num_tokens, samples=False)], passes)
        return passes

    def close(self) -> None:
        for sampler in self._samplers.values():
            sampler.close()
        self._samplers.clear()
        self.model.close()

    def _guess(self, items: list[DraftItem], passes: list[DraftPass]) -> dict[str, tuple[int, ...]]:
        """Guess for all items together, a pass per guess; one drops out where its text would end."""
        drafts: dict[str, list[int]] = {item.request_id: [] for item in items}
        work = [(item, _read(item)) for item in items]
        while work:
            begin_s = time.monotonic()
            rows = self._run([one for _, one in work], None)
            going_on = []
            for (item, _), row in zip(work, rows, strict=True):
                guesses = drafts[item.request_id]
                token = self._draw(item, row, len(guesses))
                if token is None:
                    continue
                guesses.append(token)
                if len(guesses) < item.max_drafts:
                    position = item.start + len(item.tokens) + len(guesses) - 1
                    going_on.append((item, SequenceWork(item.request_id, item.seq_id, position, (token,), samples=True)))
            passes.append(DraftPass(sum(len(one.tokens) for _, one in work), time.monotonic() - begin_s))
            work = going_on
        return {request_id: tuple(guesses) for request_id, guesses in drafts.items()}

    def _draw(self, item: DraftItem, row: int, num_guesses: int) -> int | None:
        """The next guess; None where the text would end, or where nothing can be drawn."""
        pointer = self._c.llama_get_logits_ith(self.model.context, row)
        assert pointer != abi.ffi.NULL, f"row {row} has no logits"
        logits = np.frombuffer(abi.ffi.buffer(pointer, 4 * self.facts.vocab_size), dtype=np.float32)
        sampler = self._sampler(item.request_id)
        try:
            token, _ = sampler.draw(logits, item.output_index + num_guesses)
        except SamplingError:
            return None
        return None if sampler.is_end(token) else token

    def _sampler(self, request_id: str) -> SequenceSampler:
        """The request's sampler as far as it has no memory: penalties and grammar would have to forget wrong guesses."""
        if request_id not in self._samplers:
            request = self._requests[request_id]
            params = replace(
                request.params, grammar=None, num_logprobs=None, repeat_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0
            )
            request = replace(request, params=params)
            self._samplers[request_id] = SequenceSampler(self._c, request, self._end_tokens, self._candidates, None)
        return self._samplers[request_id]

    def _run(self, work: list[SequenceWork], passes: list[DraftPass] | None) -> list[int]:
        begin_s = time.monotonic()
        rows = self.batch.fill(tuple(work))
        code = self._c.llama_decode(self.model.context, self.batch.handle)
        if code != 0:
            raise DraftPassError(f"a pass of the draft model failed with {code}")
        for item in work:
            self.lengths[item.seq_id] += item.num_positions
        if passes is not None:
            passes.append(DraftPass(sum(item.num_positions for item in work), time.monotonic() - begin_s))
        return rows

    def _run_alone(self, work: list[SequenceWork], passes: list[DraftPass]) -> None:
        self._run(work, passes)
        for item in work:
            self._trim(item.seq_id, 0)

    def _trim(self, seq_id: int, num_tokens: int) -> None:
        held = self.lengths[seq_id]
        assert num_tokens <= held, f"draft sequence {seq_id} holds {held} tokens, cannot keep {num_tokens}"
        if num_tokens == held:
            return
        done = self._c.llama_memory_seq_rm(self.model.memory, seq_id, num_tokens, -1)
        assert done, f"cannot trim draft sequence {seq_id} to {num_tokens} tokens"
        self.lengths[seq_id] = num_tokens

    def _check_can_trim(self, options: EngineOptions) -> None:
        can_trim = not self.model.is_recurrent and (options.swa_full or self.model.sliding_window == 0)
        if can_trim:
            self._run([SequenceWork("probe", 0, 0, (0, 0), samples=True)], None)
            self._trim(0, 1)
            can_trim = self._c.llama_memory_seq_pos_max(self.model.memory, 0) == 0
            self._trim(0, 0)
        if not can_trim:
            raise ConfigError(
                f"The draft model {options.draft_model_path} cannot forget a wrong guess (recurrent state or sliding window).",
                code="draft_model_unfit",
                param="engine.draft_model_path",
                hint="Use a draft model with plain attention, or leave engine.swa_full on.",
            )

    def _read_facts(self) -> DraftFacts:
        capacity = int(self._c.llama_n_ctx(self.model.context))
        return DraftFacts(
            model_description=self.model.description,
            num_parameters=int(self._c.llama_model_n_params(self.model.handle)),
            model_bytes=int(self._c.llama_model_size(self.model.handle)),
            vocab_size=int(self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self.model.handle))),
            kv_capacity_tokens=capacity,
            kv_bytes=capacity * estimated_bytes_per_token(self.model, self.model.options),
            max_request_tokens=min(capacity, self.model.context_train_tokens or capacity),
            max_pass_tokens=self.batch.capacity,
            num_sequences=self.model.sizes.num_sequences,
        )


class DraftPassError(Exception):
    """A pass of the draft model failed; what its KV holds is unknown."""


def _read(item: DraftItem) -> SequenceWork:
    return SequenceWork(item.request_id, item.seq_id, item.start, item.tokens, samples=item.max_drafts > 0)


def _choose_sizes(model: Model, options: EngineOptions, target: ContextSizes, max_request_tokens: int) -> ContextSizes:
    """Room for one text per sequence, as long as the model may read; less where memory is short or the first pool is smaller.

    Raises:
        ConfigError: not even the smallest pool fits.
    """
    longest = min(max_request_tokens, model.context_train_tokens or max_request_tokens)
    per_token = max(1, estimated_bytes_per_token(model, options))
    affordable = available_memory_bytes() // _MEMORY_SHARE // per_token
    has_gpu = bool(model.c.llama_supports_gpu_offload()) and options.num_gpu_layers != 0
    wanted = min(target.kv_capacity_tokens, MAX_DECODES * longest)
    capacity = wanted if has_gpu else min(wanted, affordable)
    if capacity < min(_PAGE_TOKENS, wanted):
        raise ConfigError(
            f"The KV of the draft model {options.model_path} has no room: {per_token} bytes per token.",
            code="draft_model_memory",
            param="engine.draft_model_path",
            hint="Free memory, lower engine.kv_capacity_tokens (--context), or leave engine.draft_model_path out.",
        )
    capacity = max(_PAGE_TOKENS, capacity // _PAGE_TOKENS * _PAGE_TOKENS)
    return ContextSizes(capacity, min(MAX_PASS_TOKENS, capacity), MAX_DECODES, 0, 0, target.num_threads)
