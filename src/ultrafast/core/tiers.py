"""Service tiers: the latency classes that a request can name.

The wire values and aliases are those of OpenAI's `service_tier` field, so that an unmodified client can ask for any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ServiceTier(StrEnum):
    """A latency class. Members stand in the default order of urgency: the first is served first."""

    ULTRAFAST = "ultrafast"
    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"

    @property
    def rank(self) -> int:
        """Position in the default order of urgency; 0 is the most urgent. A server may have another order."""
        return _RANKS[self]


_RANKS = {tier: rank for rank, tier in enumerate(ServiceTier)}

TIER_ALIASES: dict[str, ServiceTier] = {
    "ultrafast": ServiceTier.ULTRAFAST,
    "priority": ServiceTier.PRIORITY,
    "fast": ServiceTier.PRIORITY,
    "default": ServiceTier.DEFAULT,
    "standard": ServiceTier.DEFAULT,
    "auto": ServiceTier.DEFAULT,
    "flex": ServiceTier.FLEX,
    "batch": ServiceTier.FLEX,
}
"""Every accepted wire value, canonical names included."""


def parse_tier(value: str) -> ServiceTier | None:
    """Return the tier that a wire value names, or None when no tier has that name."""
    return TIER_ALIASES.get(value)


NEWCOMER_SHARE = 4
"""Those who come for the first time find at least one in so many places of a queue, however many are to come back."""


@dataclass(frozen=True, slots=True)
class TierPolicy:
    """What one tier promises and how it is treated; configuration, the same for every request of the tier.

    Attributes:
        ttft_s: objective for the time to first token, seconds.
        tpot_s: objective for the time per output token after the first, seconds.
        min_share: part of the step time that the tier gets at least while it has work, in [0, 1): more urgent tiers cannot
            take everything.
        max_num_waiting: requests that may wait for a place.
        max_waiting_tokens: prompt tokens that these may have together; 0 = no bound.
        queue_ttl_s: longest wait for a place, seconds.
        execution_ttl_s: longest time from the first place to the end, seconds; None = no limit.
        is_downgradable: a request that cannot be in time is served in a less urgent tier that can.
    """

    ttft_s: float
    tpot_s: float
    min_share: float = 0.0
    max_num_waiting: int = 1000
    max_waiting_tokens: int = 0
    queue_ttl_s: float = 300.0
    execution_ttl_s: float | None = None
    is_downgradable: bool = False


DEFAULT_POLICIES: tuple[TierPolicy, ...] = (
    TierPolicy(ttft_s=0.2, tpot_s=0.05),
    TierPolicy(ttft_s=0.5, tpot_s=0.075, min_share=0.1),
    TierPolicy(ttft_s=2.0, tpot_s=0.15, min_share=0.1),
    TierPolicy(ttft_s=30.0, tpot_s=0.5, min_share=0.05),
)
"""By rank: one for each `ServiceTier`, the most urgent first."""
