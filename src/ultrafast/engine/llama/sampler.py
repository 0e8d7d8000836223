"""Choosing the next token of one sequence from its logits.

Order, as in llama.cpp (temperature last), so that the truncating samplers see the model's own distribution:

    logit bias -> [log-probabilities are read here] -> end tokens forbidden until min_tokens -> grammar -> penalties
    -> greedy (temperature 0), or top-k -> top-p -> min-p -> temperature -> draw

Penalties and masks are vector operations here; the truncating samplers and the draw are libllama's.
The random number of output token i depends on (seed, i) alone: a sequence that is preempted, moved or continued after a crash
goes on as if nothing had happened.
"""

from __future__ import annotations

from collections import Counter, deque
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import TokenLogprobs
from ultrafast.engine.llama import abi
from ultrafast.engine.llama.grammar import GrammarMatcher

Logits = npt.NDArray[np.float32]

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_MASK64 = (1 << 64) - 1


class SamplingError(Exception):
    """No token can be drawn for one request; the request fails, the engine goes on."""


class DeadEndError(SamplingError):
    """The request's own rules admit no further token."""

    def __init__(self) -> None:
        super().__init__("the output cannot go on: its grammar, together with min_tokens, admits no further token")


class CandidateArray:
    """The scratch array that libllama's samplers work on; one per engine, reused for every draw.

    dtype: (id int32, logit float32, p float32), length: vocabulary size.
    """

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size, dtype=np.int32)
        self._data = np.empty(vocab_size, dtype=_CANDIDATE)
        self._handle = abi.ffi.new("llama_token_data_array *")
        self._pointer = abi.ffi.cast("llama_token_data *", self._data.ctypes.data)

    def draw(self, c: Any, chain: Any, logits: Logits, seed: int) -> int:
        """Apply `chain` to the logits and draw one token id with a generator seeded by `seed`."""
        self._data["id"] = self._ids
        self._data["logit"] = logits
        self._handle.data, self._handle.size = self._pointer, len(self._ids)
        self._handle.selected, self._handle.sorted = -1, False
        c.llama_sampler_apply(chain, self._handle)
        dist = c.llama_sampler_init_dist(seed)
        c.llama_sampler_apply(dist, self._handle)
        c.llama_sampler_free(dist)
        return int(self._handle.data[self._handle.selected].id)


class SequenceSampler:
    """Sampling state of one request. The engine thread's, except for construction."""

    def __init__(
        self, c: Any, request: Request, end_tokens: frozenset[int], candidates: CandidateArray, matcher: GrammarMatcher | None
    ) -> None:
        self._c = c
        self._params = request.params
        self._candidates = candidates
        stop_tokens = set(request.params.stop_token_ids)
        self._end_tokens = end_tokens if not request.params.ignore_eos else frozenset[int]()
        self._end_tokens |= stop_tokens
        self._not_yet_tokens = np.fromiter(end_tokens | stop_tokens, dtype=np.int64)
        self._matcher = matcher
        self._bias_ids, self._bias_values = _bias_arrays(request.params)
        self._counts: Counter[int] = Counter()
        self._recent: deque[int] = deque(
            request.prompt_tokens[-request.params.repeat_last_n :], maxlen=request.params.repeat_last_n
        )
        self._chain = _build_chain(c, request.params)
        p = request.params
        self.has_penalties = p.frequency_penalty != 0 or p.presence_penalty != 0 or p.repeat_penalty != 1
        # The row is drawn from as it is. What is not asked costs nothing: this is done between two steps, out of cold caches.
        self._is_plain = matcher is None and not (self.has_penalties or p.logit_bias or p.num_logprobs is not None)
        for token in request.output_tokens:
            self._accept(token)

    @property
    def is_grammar_complete(self) -> bool:
        return self._matcher is not None and self._matcher.is_complete

    def draw(self, logits: Logits, output_index: int) -> tuple[int, TokenLogprobs | None]:
        """Choose the token that follows and remember it.

        Args:
            logits: the output row, shape [vocab_size]; changed in place.
            output_index: how many output tokens came before.

        Raises:
            SamplingError: nothing can be drawn.
            GrammarError: the grammar hit a limit.
        """
        params = self._params
        if self._is_plain and output_index >= params.min_tokens:
            return self._choose(logits, output_index), None
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias_values
        plain = logits.copy() if params.num_logprobs is not None else None
        if output_index < params.min_tokens:
            logits[self._not_yet_tokens] = -np.inf
        if self._matcher is not None:
            logits[self._matcher.forbidden()] = -np.inf
        if self.has_penalties:
            self._penalise(logits)
        token = self._choose(logits, output_index)
        self._accept(token)
        return token, None if plain is None else log_probabilities(plain, token, params.num_logprobs or 0)

    def is_end(self, token: int) -> bool:
        """Whether this token ends the request instead of being delivered."""
        return token in self._end_tokens

    def close(self) -> None:
        """Free the C samplers. No draw may follow."""
        self._c.llama_sampler_free(self._chain)

    def _choose(self, logits: Logits, output_index: int) -> int:
        if self._params.temperature == 0:
            token = int(logits.argmax())
        else:
            token = self._candidates.draw(self._c, self._chain, logits, mix_seed(self._params.seed, output_index))
        if not isfinite(logits.item(token)):
            raise DeadEndError() if logits.max() == -np.inf else SamplingError("the model produced NaN")
        return token

    def _accept(self, token: int) -> None:
        if self._matcher is not None and not self._matcher.is_complete:
            self._matcher.accept(token)
        if self.has_penalties:
            self._counts[token] += 1
            self._recent.append(token)

    def _penalise(self, logits: Logits) -> None:
        """OpenAI's frequency and presence penalties over the output, llama.cpp's repeat penalty over the last tokens."""
        params = self._params
        if params.repeat_penalty != 1 and self._recent:
            ids = np.fromiter(set(self._recent), dtype=np.int64)
            values = logits[ids]
            logits[ids] = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
        if self._counts and (params.frequency_penalty or params.presence_penalty):
            ids = np.fromiter(self._counts.keys(), dtype=np.int64)
            counts = np.fromiter(self._counts.values(), dtype=np.float32)
            logits[ids] -= counts * params.frequency_penalty + params.presence_penalty


def mix_seed(seed: int, index: int) -> int:
    """A 32-bit seed for output token `index`: splitmix64 of (seed, index), Steele et al. 2014. Never libllama's "random"."""
    z = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
    z ^= z >> 31
    return min(z & 0xFFFFFFFF, 0xFFFFFFFE)


def log_probabilities(logits: Logits, token: int, num_top: int) -> TokenLogprobs:
    """Log-softmax of the row at `token` and at the `num_top` most likely tokens, most likely first."""
    peak = float(logits.max())
    log_total = peak + float(np.log(np.exp(logits - peak, dtype=np.float64).sum()))
    if num_top == 0:
        return TokenLogprobs(float(logits[token]) - log_total)
    best = np.argpartition(logits, -num_top)[-num_top:]
    best = best[np.argsort(-logits[best], kind="stable")]
    return TokenLogprobs(float(logits[token]) - log_total, tuple((int(i), float(logits[i]) - log_total) for i in best))


def _bias_arrays(params: SamplingParams) -> tuple[npt.NDArray[np.int64], Logits]:
    ids = np.array([token for token, _ in params.logit_bias], dtype=np.int64)
    return ids, np.array([bias for _, bias in params.logit_bias], dtype=np.float32)


def _build_chain(c: Any, params: SamplingParams) -> Any:
    chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
    if params.temperature == 0:
        return chain
    if params.top_k > 0:
        c.llama_sampler_chain_add(chain, c.llama_sampler_init_top_k(params.top_k))
    if params.top_p < 1:
        c.llama_sampler_chain_add(chain, c.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p > 0:
        c.llama_sampler_chain_add(chain, c.llama_sampler_init_min_p(params.min_p, 1))
    if params.temperature != 1:
        c.llama_sampler_chain_add(chain, c.llama_sampler_init_temp(params.temperature))
    return chain
