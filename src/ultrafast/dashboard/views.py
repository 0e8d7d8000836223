"""What the feed says, as JSON: one `Frame` several times a second. Times are seconds, sizes tokens or blocks of KV.

The page is the only reader; `docs/dashboard.md` says what it shows of them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec

from ultrafast.core.tiers import ServiceTier


class LaneState(StrEnum):
    """What a request did in the last step. paused: it has a place but no part in that step."""

    DECODE = "decode"
    PREFILL = "prefill"
    PAUSED = "paused"
    WAITING = "waiting"
    PREEMPTED = "preempted"


class Lane(msgspec.Struct, frozen=True):
    """A live request. `id` is six characters of the call's id, a colon and a number.

    `chunk` is (start, tokens) of the prompt that the last step computed.
    """

    id: str
    tier: ServiceTier
    state: LaneState
    num_prompt_tokens: int
    num_cached_tokens: int
    num_computed_tokens: int
    chunk: tuple[int, int] | None
    num_output_tokens: int
    max_tokens: int
    age_s: float


class LatencyView(msgspec.Struct, frozen=True):
    """Percentiles over the window (null without samples), samples, those within the objective, and the objective."""

    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    num: int
    num_within: int
    objective_s: float


class TierView(msgspec.Struct, frozen=True):
    """A tier. `outcomes` in the window, `outcomes_total` since the start: completed, rejected, invalid, expired, aborted, failed.

    `parts_s`: mean network, queue, compute and output of completed calls in the window; null without any.
    """

    tier: ServiceTier
    ttft: LatencyView
    gap: LatencyView
    outcomes: list[int]
    outcomes_total: list[int]
    parts_s: list[float] | None


class EngineView(msgspec.Struct, frozen=True):
    """The engine's health. `last_restart_reason` is one sentence about the child's end."""

    state: str
    has_work: bool
    is_stalled: bool
    is_draining: bool
    num_restarts: int
    last_step_age_s: float | None
    last_restart_age_s: float | None
    last_restart_reason: str | None


class Queues(msgspec.Struct, frozen=True):
    """Live requests in all, and per tier in the order of urgency."""

    num_running: int
    num_waiting: int
    running_by_tier: list[int]
    waiting_by_tier: list[int]


class KvView(msgspec.Struct, frozen=True):
    """Blocks of `block_tokens`; the three sum to the capacity."""

    num_running: int
    num_cached: int
    num_free: int
    block_tokens: int


class StepRow(NamedTuple):
    """A step of the strip chart. `number` counts the steps seen here: the engine's own count starts again with each child."""

    number: int
    duration_s: float
    num_decodes: int
    num_prefill_tokens: int
    num_waiting: int


class StepView(msgspec.Struct, frozen=True):
    """The newest step."""

    step: int
    duration_s: float
    schedule_s: float
    num_decodes: int
    num_prefills: int
    num_prefill_tokens: int


class Frame(msgspec.Struct, frozen=True):
    """Everything the page shows.

    Attributes:
        seconds: (output tokens, prefill tokens) of each of the last whole seconds, oldest first.
        steps: those since the frame before.
        output_rate, prefill_rate: tokens per second, mean of the last 5 whole seconds.
        num_cache_queried, num_cache_hit: prompt tokens of the window.
        num_hidden: live requests beyond those in `lanes`.
    """

    version: str
    model: str
    uptime_s: float
    window_s: float
    engine: EngineView
    queues: Queues
    kv: KvView | None
    tiers: list[TierView]
    step: StepView | None
    steps: list[StepRow]
    seconds: list[tuple[int, int]]
    output_rate: float
    prefill_rate: float
    num_cache_queried: int
    num_cache_hit: int
    lanes: list[Lane]
    num_hidden: int
