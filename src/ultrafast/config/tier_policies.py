"""The tiers of the settings as the scheduler takes them."""

from __future__ import annotations

from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.tiers import ServiceTier, TierPolicy


def tier_order(settings: TiersSettings) -> tuple[ServiceTier, ...]:
    """The tiers, the most urgent first: a tier's place in it is its rank."""
    return tuple(ServiceTier(name) for name in settings.order)


def tier_policies(settings: TiersSettings) -> tuple[TierPolicy, ...]:
    """One policy for each tier, by rank."""
    tiers = [getattr(settings, tier) for tier in tier_order(settings)]
    return tuple(
        TierPolicy(
            ttft_s=tier.ttft_ms / 1000,
            tpot_s=tier.tpot_ms / 1000,
            min_share=tier.min_share,
            max_num_waiting=tier.max_num_waiting,
            max_waiting_tokens=tier.max_waiting_tokens,
            queue_ttl_s=tier.queue_ttl_s,
            execution_ttl_s=tier.execution_ttl_s or None,
            is_downgradable=tier.is_downgradable,
        )
        for tier in tiers
    )
