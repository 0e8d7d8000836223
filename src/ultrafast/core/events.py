"""What happened: the one stream that the client, the metrics, the dashboard and the replay all read.

For each request: RequestScheduled (once per time it starts or restarts), TokenProduced (once per delivered token), at most
some RequestPreempted, and exactly one RequestFinished. Times are monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ultrafast.core.request import FinishReason
from ultrafast.core.step import TokenLogprobs
from ultrafast.core.tiers import ServiceTier

EXECUTION_TIMEOUT = "execution_timeout"
"""What a client reads of an answer that was cut at its execution deadline."""
DEAD_END = "output_stuck"
"""Error code of a request whose own rules (grammar, least length) admit no further token in the middle of its output."""


class DropReason(StrEnum):
    """Why a request was refused (or moved to a less urgent tier) before it got a place: a closed vocabulary, shown to clients.

    queue_full, queue_tokens_full: its tier's queue has no room. queue_timeout: it waited as long as it may. slo_at_risk: it would
    be too late now, and in time when less is going on. slo_unreachable: not even at this machine's best.
    """

    QUEUE_FULL = "queue_full"
    QUEUE_TOKENS_FULL = "queue_tokens_full"
    QUEUE_TIMEOUT = "queue_timeout"
    SLO_AT_RISK = "slo_at_risk"
    SLO_UNREACHABLE = "slo_unreachable"


@dataclass(frozen=True, slots=True)
class RequestScheduled:
    """The request got a sequence. `num_cached_tokens` of its tokens were found in the KV cache and are not computed.

    `tier` and `downgrade_reason` are there when it is served in another tier than it asked for.
    """

    request_id: str
    at_s: float
    num_cached_tokens: int
    tier: ServiceTier | None = None
    downgrade_reason: DropReason | None = None


class TokenProduced(NamedTuple):
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
        error: message when `reason` is ERROR, and when it is REJECT because the request can never run here; `error_code` and
            `error_param` say what of the request is at fault: always in the second case, and in the first for `DEAD_END`.
        num_cached_tokens: prompt tokens that were truly skipped at the *first* scheduling.
        num_host_tokens, num_disk_tokens: of the cached tokens, those that came from host memory and from disk.
        num_output_tokens: produced; for observers, as many as the client got (none behind a stop string), as in its usage.
        num_computed_tokens: tokens that went through a forward pass for this request, recomputation included.
        scheduled_s, first_token_s: None when it never got that far.
        drop_reason: after EXPIRE, and after REJECT for want of room or time.
        retry_after_s: with a drop_reason: when to come back, seconds; None = it would not help.
        num_pauses: how often it stood aside for more urgent requests, its KV kept.
        is_internal: see `Request`: observers of traffic pass over it.
        num_recomputed_tokens: tokens computed again after a preemption, because their KV could not be kept anywhere.
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
    num_host_tokens: int = 0
    num_disk_tokens: int = 0
    num_pauses: int = 0
    drop_reason: DropReason | None = None
    retry_after_s: float | None = None
    error_code: str | None = None
    error_param: str | None = None
    is_internal: bool = False
    num_recomputed_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """What a step computed of one prompt: tokens [start, start + num_tokens) of the request's sequence."""

    request_id: str
    start: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """What is held back for a tier whose requests are likely to come: places, cells, and a share of the target step time."""

    tier: ServiceTier
    num_likely: int
    num_kv_tokens: int
    step_share: float


class StepFinished(NamedTuple):
    """One step as numbers, and how full everything is after it. `*_tokens` of KV are cells: one cell holds one token.

    `prefills` names the chunks; who decoded is seen by the tokens that came of the step.

    `num_tokens` includes `num_drafted_tokens`, of which `num_accepted_tokens` were right; the `num_model_*` of each are guesses
    of the draft model, the others repeat the text. The gains are measured over the steps with such drafts lately: their tokens
    per second over those of steps without; 0 = not measured yet.

    `cost_s`: what the scheduler believes that a step costs, seconds: fixed, per output, per prefill token; zeros before it knows.
    `reserved` names the tiers for which something is held back. `num_lost_tokens` were in a step that was broken off for
    something more urgent; they are computed again. `is_side`: no step but a side chunk, computed beside the steps since the one
    before (see `core.step`); its duration is without theirs.
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
    prefills: tuple[PrefillChunk, ...] = ()
    num_paused: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    speculation_gain: float = 0.0
    cost_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    reserved: tuple[Reserved, ...] = ()
    num_model_drafted_tokens: int = 0
    num_model_accepted_tokens: int = 0
    draft_model_gain: float = 0.0
    num_lost_tokens: int = 0
    is_side: bool = False


@dataclass(frozen=True, slots=True)
class KvLevelsChanged:
    """KV outside the device: how much is where, and how often a run was moved since the engine started.

    Attributes:
        num_host_tokens, num_disk_tokens: of runs that are there as a whole. Bytes are charged before a run arrives.
        num_saved, num_loaded: device -> host memory, and back. num_written, num_read: host memory -> disk, and back.
        num_evicted_host, num_evicted_disk: runs that left a level for want of room.
        is_disk_on: False when the disk level is off, by configuration or after a failure.
    """

    host_bytes: int
    host_capacity_bytes: int
    num_host_tokens: int
    disk_bytes: int
    disk_capacity_bytes: int
    num_disk_tokens: int
    is_disk_on: bool
    num_saved: int
    num_loaded: int
    num_written: int
    num_read: int
    num_evicted_host: int
    num_evicted_disk: int


Event = RequestScheduled | TokenProduced | RequestPreempted | RequestFinished | StepFinished | KvLevelsChanged
