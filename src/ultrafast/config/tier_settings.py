"""The settings of the service tiers: a part of the list in `settings`."""

from __future__ import annotations

from pydantic import Field

from ultrafast.config.section import Section
from ultrafast.core.tiers import ServiceTier

_E2E = "Objective for the time from the arrival to the last byte; 0: none."
_JITTER = "Objective for the standard deviation of the gaps between deltas; 0: none."
_PERCENTILES = (
    "Objectives for P50, P90 or P99 of `ttft`, `tpot`, `e2e`, `jitter`, shown with what was measured: `ttft:p99<=300ms`."
)
_MAX_PROMPT = "Condition of the objectives: requests with longer prompts are counted apart; 0: no condition."
_MAX_OUTPUT = "Condition of the objectives: requests with longer outputs are counted apart; 0: no condition."
_MAX_ARRIVALS = "Condition of the objectives: calls that come while more than so many came per second are counted apart; 0: none."
_PRICE_INPUT = "Price of a million prompt tokens that are computed."
_PRICE_CACHED = "Price of a million prompt tokens that the prefix cache has."
_PRICE_OUTPUT = "Price of a million output tokens."
_MAX_WAITING = "Requests that may wait for a place; further ones are refused."
_MAX_WAITING_TOKENS = "Prompt tokens that they may have together; 0: no bound."
_QUEUE_TTL = "Longest wait for a place, seconds; then the request is refused. A client can only shorten it."
_EXECUTION_TTL = (
    "Longest time from the first place to the end, seconds, after which an answer is cut; 0: none. A client can only shorten it."
)
_DOWNGRADE = "Serve in the next tier that can be in time, and say so, when this one cannot."


class TierTargets(Section):
    """One service tier. The objectives become edges of the latency histograms, so that attainment is exact."""

    ttft_ms: float = Field(gt=0, description="Time to first token.")
    tpot_ms: float = Field(gt=0, description="Time per output token after the first.")
    e2e_ms: float = Field(default=0, ge=0, description=_E2E)
    jitter_ms: float = Field(default=0, ge=0, description=_JITTER)
    percentiles: tuple[str, ...] = Field(default=(), description=_PERCENTILES)
    max_prompt_tokens: int = Field(default=0, ge=0, description=_MAX_PROMPT)
    max_output_tokens: int = Field(default=0, ge=0, description=_MAX_OUTPUT)
    max_arrivals_per_s: float = Field(default=0, ge=0, description=_MAX_ARRIVALS)
    min_share: float = Field(default=0.0, ge=0, le=0.5, description="Part of the step time that is this tier's at least.")
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    max_waiting_tokens: int = Field(default=0, ge=0, description=_MAX_WAITING_TOKENS)
    queue_ttl_s: float = Field(default=300, gt=0, description=_QUEUE_TTL)
    execution_ttl_s: float = Field(default=0, ge=0, description=_EXECUTION_TTL)
    is_downgradable: bool = Field(default=False, description=_DOWNGRADE)
    price_input: float = Field(default=0, ge=0, description=_PRICE_INPUT)
    price_cached_input: float = Field(default=0, ge=0, description=_PRICE_CACHED)
    price_output: float = Field(default=0, ge=0, description=_PRICE_OUTPUT)


class UltrafastTargets(TierTargets):
    """Tier `ultrafast`."""

    ttft_ms: float = Field(default=200, gt=0, description="Objective for the time to first token of tier `ultrafast`.")
    tpot_ms: float = Field(default=50, gt=0, description="Objective for the time per output token of tier `ultrafast`.")
    min_share: float = Field(
        default=0.0, ge=0, le=0.5, description="Part of the step time that tier `ultrafast` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=30, gt=0, description=_QUEUE_TTL)


class PriorityTargets(TierTargets):
    """Tier `priority`."""

    ttft_ms: float = Field(default=500, gt=0, description="Objective for the time to first token of tier `priority`.")
    tpot_ms: float = Field(default=75, gt=0, description="Objective for the time per output token of tier `priority`.")
    min_share: float = Field(
        default=0.1, ge=0, le=0.5, description="Part of the step time that tier `priority` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=60, gt=0, description=_QUEUE_TTL)


class DefaultTargets(TierTargets):
    """Tier `default`."""

    ttft_ms: float = Field(default=2000, gt=0, description="Objective for the time to first token of tier `default`.")
    tpot_ms: float = Field(default=150, gt=0, description="Objective for the time per output token of tier `default`.")
    min_share: float = Field(
        default=0.1, ge=0, le=0.5, description="Part of the step time that tier `default` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=1000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=300, gt=0, description=_QUEUE_TTL)


class FlexTargets(TierTargets):
    """Tier `flex`."""

    ttft_ms: float = Field(default=30000, gt=0, description="Objective for the time to first token of tier `flex`.")
    tpot_ms: float = Field(default=500, gt=0, description="Objective for the time per output token of tier `flex`.")
    min_share: float = Field(
        default=0.05, ge=0, le=0.5, description="Part of the step time that tier `flex` gets at least while it has work."
    )
    max_num_waiting: int = Field(default=10000, ge=0, description=_MAX_WAITING)
    queue_ttl_s: float = Field(default=3600, gt=0, description=_QUEUE_TTL)


class TiersSettings(Section):
    """What each service tier promises, costs and may take."""

    order: tuple[str, ...] = Field(
        default=tuple(tier.value for tier in ServiceTier), description="All tiers, the most urgent first."
    )
    currency: str = Field(default="USD", min_length=1, max_length=8, description="Currency of the prices, a name only.")
    ultrafast: UltrafastTargets = Field(default_factory=UltrafastTargets)
    priority: PriorityTargets = Field(default_factory=PriorityTargets)
    default: DefaultTargets = Field(default_factory=DefaultTargets)
    flex: FlexTargets = Field(default_factory=FlexTargets)
