"""A request as the scheduler and the engine see it: token ids, limits, a tier and a time of arrival.

    prompt_tokens   [0 ............ P)      given by the client, after template and tokeniser
    output_tokens   [P ............ P+O)    already produced and already delivered (a request that continues after a crash)
    still to come   [P+O .......... P+max_tokens)

Text, templates, stop strings and HTTP are the serving layer's business and never come here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ultrafast.core.tiers import ServiceTier


class RequestState(StrEnum):
    """Where a request stands.

    waiting -> running -> finished
       ^        |   ^
       |        v   |
       |        paused    (keeps its KV and its sequence; only its place in the steps is another's for a while)
       |          |
       +-- preempted      (running or paused -> preempted by us; never by the client)
    """

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(StrEnum):
    """Why a sequence ended. `STOP` and `LENGTH` are success; with `REJECT` and `EXPIRE` nothing was computed for it.

    `DEADLINE`: it had its place for as long as it may; what it has produced until then stands.
    """

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    REJECT = "reject"
    EXPIRE = "expire"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen, and when to end. All defaults are neutral: they change nothing.

    Attributes:
        temperature: >= 0; 0 means greedy (the most likely token, no randomness).
        top_k: keep the k most likely tokens; 0 = all.
        top_p: keep the smallest set with at least this probability, in (0, 1].
        min_p: drop tokens less likely than min_p times the most likely, in [0, 1].
        frequency_penalty, presence_penalty: in [-2, 2], over this request's output only (OpenAI's definition).
        repeat_penalty: >= 0.01, 1 = off; over the last `repeat_last_n` tokens of prompt and output (llama.cpp's definition).
        logit_bias: (token id, bias) pairs added to the logits before anything else.
        seed: makes the random draws of this request reproducible. Draw number i depends on (seed, i) only, so
            a request that was moved, preempted or continued after a crash draws the same numbers.
        max_tokens: hard limit on output tokens, >= 1.
        min_tokens: end-of-generation tokens are forbidden before this many output tokens.
        ignore_eos: end-of-generation tokens are output tokens like any other; they have no text.
        stop_token_ids: extra token ids that end the request; the stopping token is not delivered.
        num_logprobs: None = no log-probabilities; k = the chosen token's and the k most likely ones', 0 <= k <= 20.
        grammar: serialised llguidance grammar that the output must match, or None.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class RequestSlo:
    """One request's own objectives. None = those of its tier.

    Attributes:
        ttft_s: time to first token, seconds.
        tpot_s: time per output token after the first, seconds.
        is_strict: refuse rather than serve too late or in another tier.
        queue_ttl_s: longest wait for a place, seconds; can only shorten the tier's.
        execution_ttl_s: longest time from its first place to its end, seconds; can only shorten the tier's.
        is_retry: the client was refused before and comes back.
        is_movable: False = it runs in its own tier or not at all: a call of several sequences is served in one tier.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    is_strict: bool = False
    queue_ttl_s: float | None = None
    execution_ttl_s: float | None = None
    is_retry: bool = False
    is_movable: bool = True


TIER_SLO = RequestSlo()
"""Nothing beyond what the tier promises."""


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate. A call with n > 1 becomes n of these with the same prompt.

    Attributes:
        request_id: unique among all requests alive in one engine.
        prompt_tokens: at least one token id.
        params: see `SamplingParams`.
        arrival_s: monotonic seconds at which the server accepted the call.
        output_tokens: tokens that were already produced and delivered before this submission (continuation).
        cache_salt: only requests with an equal salt may share cached KV (tenant isolation).
        is_pinned: its KV is kept for good: never evicted from host memory, and from the device only when nothing else is left.
        is_internal: the server itself asks for it (a pinned prompt, a next turn begun ahead): it is no traffic.
        use_cache: False = neither read from nor leave anything in the prefix cache.
        is_admitted: it was admitted before (it comes again after a crash) and must not be refused now.
        had_place: it had a place before, and so no longer expires in the queue.
        placed_s: when that was, monotonic seconds; its execution is timed from then on. None = it had none.
        slo: what the client asks of this request beyond its tier.
        is_deterministic: it runs alone: nothing else is in its steps or its pool, nothing is reused, and its prompt is always cut
            alike, so that every float is the same each time.
        may_speculate: False = its tokens are computed one by one, without drafts.
        is_inquiry: it only asks whether such a request would be refused now: it is (REJECT), or ends at once (ABORT). Its prompt
            is one token that means nothing: whatever has no room has none for a longer prompt either.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    params: SamplingParams
    tier: ServiceTier = ServiceTier.DEFAULT
    arrival_s: float = 0.0
    output_tokens: tuple[int, ...] = field(default=())
    cache_salt: str = ""
    use_cache: bool = True
    is_pinned: bool = False
    is_internal: bool = False
    slo: RequestSlo = TIER_SLO
    is_admitted: bool = False
    had_place: bool = False
    placed_s: float | None = None
    may_speculate: bool = True
    is_deterministic: bool = False
    is_inquiry: bool = False

    def queue_deadline_s(self, tier_ttl_s: float) -> float | None:
        """When its wait for a first place ends, monotonic seconds; None = it had one, or nobody waits for it."""
        if self.had_place or self.is_internal:
            return None
        own_s = self.slo.queue_ttl_s
        return self.arrival_s + (tier_ttl_s if own_s is None else min(tier_ttl_s, own_s))

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_tokens)
