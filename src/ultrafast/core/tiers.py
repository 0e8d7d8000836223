"""Service tiers: the latency classes that a request can name.

The wire values and aliases are those of OpenAI's `service_tier` field, so that an unmodified client can ask for any of them.
"""

from __future__ import annotations

from enum import StrEnum


class ServiceTier(StrEnum):
    """A latency class. Members stand in order of urgency: the first is served first."""

    ULTRAFAST = "ultrafast"
    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"

    @property
    def rank(self) -> int:
        """Position in the order of urgency; 0 is the most urgent."""
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
