"""The limits that a scheduler works within; facts of the engine and settings, fixed for its lifetime."""

from __future__ import annotations

from dataclasses import dataclass

from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier, TierPolicy
from ultrafast.kv.level import LevelLimits


@dataclass(frozen=True, slots=True)
class DraftLimits:
    """Facts of the draft model.

    Attributes:
        kv_capacity_tokens: cells of its KV pool. num_sequences: its sequence ids are below this.
        max_request_tokens: longest text that it can read.
        max_pass_tokens: tokens in one of its forward passes.
    """

    kv_capacity_tokens: int
    num_sequences: int
    max_request_tokens: int
    max_pass_tokens: int


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """See `engine.options.EngineOptions` for the settings behind these.

    Attributes:
        kv_capacity_tokens: cells in the KV pool.
        max_request_tokens: prompt + output of one request.
        max_step_tokens: tokens in one step; no plan ever exceeds it. At least `max_num_running`, so that every running
            request can decode in every step.
        step_target_s: how long a step should take while somebody decodes, seconds.
        max_num_running: requests that may be in one step.
        max_num_paused: requests that may keep their sequence beside them while more urgent ones have their places. When all
            these are taken, such a request is preempted instead: it loses its KV.
        max_num_cached: finished sequences kept for reuse.
        max_cached_tokens: cells that only they hold, at most; None = the whole pool.
        can_trim: sequences can be cut at any token (False: recurrent and hybrid models).
        can_interrupt: a step can be broken off while it runs; then a step that nobody waits for may be longer.
        max_side_tokens: longest prompt that the engine can compute beside the steps; 0 = none.
        min_side_tokens: with less left to compute it is in one batch with the streams, which costs them shorter gaps.
        idle_cell_s: what each cell in use adds to each row of a step, seconds, as it was measured; 0 = to be learnt.
        enable_prefix_cache: reuse KV between requests. False: each request is as one with its cache off.
        enable_speculation: let steps carry drafts where that is measured to pay; needs `can_trim`.
        enable_reservation: hold back room for more urgent tiers that are likely to come.
        draft: the draft model that guesses where the text does not repeat itself; None = there is none.
        block_size: tokens per block, a unit of reporting.
        reserve_tokens: output tokens for which a request must find room before it starts; a smaller promise admits more
            requests and preempts more of them.
        levels: host memory and disk for KV; None = there is only the pool.
        fixed_chunk_tokens: cut every prompt into chunks of so many tokens, and compute output that must be computed again one by
            one, as it was the first time; 0 = as time allows. With one running request only.
        first_seq_id: the smallest sequence id.
        order: all tiers, the most urgent first; a tier's place in it is its *rank*.
        tiers: one policy for each tier, by rank.
    """

    kv_capacity_tokens: int
    max_request_tokens: int
    max_step_tokens: int
    step_target_s: float
    max_num_running: int = 32
    max_num_paused: int = 8
    max_num_cached: int = 64
    max_cached_tokens: int | None = None
    can_trim: bool = True
    can_interrupt: bool = False
    max_side_tokens: int = 0
    min_side_tokens: int = 128
    idle_cell_s: float = 0.0
    enable_prefix_cache: bool = True
    enable_speculation: bool = True
    enable_reservation: bool = True
    draft: DraftLimits | None = None
    block_size: int = 32
    reserve_tokens: int = 64
    levels: LevelLimits | None = None
    fixed_chunk_tokens: int = 0
    first_seq_id: int = 0
    order: tuple[ServiceTier, ...] = tuple(ServiceTier)
    tiers: tuple[TierPolicy, ...] = DEFAULT_POLICIES

    def rank_of(self, tier: ServiceTier) -> int:
        """Urgency of a tier; 0 is the most urgent."""
        return self.order.index(tier)

    def policy_of(self, tier: ServiceTier) -> TierPolicy:
        return self.tiers[self.order.index(tier)]

    def why_never(self, num_prompt_tokens: int) -> str | None:
        """Say why a prompt of that length can never run; None = it can."""
        limit = min(self.max_request_tokens - 1, self.kv_capacity_tokens)
        if num_prompt_tokens > limit:
            return f"The prompt has {num_prompt_tokens} tokens; this engine can take at most {limit}."
        return None

    def __post_init__(self) -> None:
        for name in ("kv_capacity_tokens", "max_request_tokens", "max_step_tokens", "max_num_running", "block_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1", param=name)
        if sorted(self.order) != sorted(ServiceTier):
            raise ConfigError("the order of the tiers must name each of them once", param="tiers.order")
        if len(self.tiers) != len(ServiceTier) or sum(tier.min_share for tier in self.tiers) >= 1:
            raise ConfigError("the minimum shares of the tiers must leave something: their sum must be below 1", param="tiers")
        assert not self.fixed_chunk_tokens or self.max_num_running == 1, "fixed chunks are for one request at a time"
        if self.step_target_s <= 0:
            raise ConfigError(f"step_target_s is {self.step_target_s}; it must be positive", param="step_target_s")
        if self.max_step_tokens < self.max_num_running:
            raise ConfigError(
                f"max_step_tokens ({self.max_step_tokens}) is less than max_num_running ({self.max_num_running})",
                param="max_step_tokens",
                hint="Every running request needs one token of each step: raise max_step_tokens or lower max_num_running.",
            )
