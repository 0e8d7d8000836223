"""What happened: the one stream that the client, the metrics, the dashboard and the replay all read.

For each request: RequestScheduled (once per time it starts or restarts), TokenProduced (once per delivered token), at most
some RequestPreempted, and exactly one RequestFinished. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.core.request import FinishReason
from ultrafast.core.step import TokenLogprobs
from ultrafast.core.tiers import ServiceTier


@dataclass(frozen=True, slots=True)
class RequestScheduled:
    """The request got a sequence. `num_cached_tokens` of its tokens were found in the KV cache and are not computed."""

    request_id: str
    at_s: float
    num_cached_tokens: int


@dataclass(frozen=True, slots=True)
class TokenProduced:
    """One output token, to be delivered."""

    request_id: str
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class RequestPreempted:
    """The request lost its place (KV ran out) and waits again; what it has delivered stays delivered."""

    request_id: str
    at_s: float
    tier: ServiceTier


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The terminal event.

    Attributes:
        error: message when `reason` is ERROR.
        num_cached_tokens: prompt tokens that were truly skipped at the *first* scheduling.
        num_computed_tokens: tokens that went through a forward pass for this request, recomputation included.
        scheduled_s, first_token_s: None when it never got that far.
    """

    request_id: str
    reason: FinishReason
    tier: ServiceTier
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    num_output_tokens: int
    arrival_s: float
    scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    num_preemptions: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One step as numbers, and how full everything is after it. `*_tokens` of KV are cells: one cell holds one token.

    `num_tokens` includes `num_drafted_tokens`, of which `num_accepted_tokens` were right. `speculation_gain` is measured over
    the steps with drafts lately: their tokens per second over those of steps without; 0 = not measured yet.
    """

    step: int
    at_s: float
    duration_s: float
    schedule_s: float
    num_tokens: int
    num_prefill_tokens: int
    num_decode_sequences: int
    num_prefill_sequences: int
    num_running: int
    num_waiting: int
    num_kv_tokens_running: int
    num_kv_tokens_cached: int
    num_kv_tokens_free: int
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    speculation_gain: float = 0.0


Event = RequestScheduled | TokenProduced | RequestPreempted | RequestFinished | StepFinished
