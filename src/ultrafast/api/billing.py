"""What calls cost and which tier served them: booked once per call, by the tier that served, never by the one asked for."""

from __future__ import annotations

from ultrafast.api.answers import cost_of
from ultrafast.api.context import EdgeContext
from ultrafast.api.generation import Generation
from ultrafast.config.tier_settings import TiersSettings
from ultrafast.core.price import TierPrice
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome
from ultrafast.serving.contract import Usage

KEPT_TIER = frozenset({"requested", "default"})
"""Reasons for a tier that is the one asked for."""
_PAID = frozenset({Outcome.COMPLETED, Outcome.ABORTED})
"""A client that leaves pays for what it was given until then; what failed through our fault costs nothing."""


def price_of(tiers: TiersSettings, tier: ServiceTier) -> TierPrice:
    """Return the prices of a tier."""
    settings = getattr(tiers, tier)
    return TierPrice(settings.price_input, settings.price_cached_input, settings.price_output, tiers.currency)


class Bills:
    """Counts costs and downgrades."""

    def __init__(self, context: EdgeContext) -> None:
        self._recorder = context.recorder
        self._prices = {tier: price_of(context.tiers, tier) for tier in ServiceTier}

    def count(self, generation: Generation, requested: ServiceTier, outcome: Outcome) -> None:
        """Count one call that ended; one that was never started cost nothing and was served by nobody."""
        started = generation.started
        if started is None:
            return
        if started.tier_reason not in KEPT_TIER:
            self._recorder.on_downgrade(requested, started.tier, started.tier_reason)
        if outcome in _PAID:
            self._recorder.on_cost(started.tier, cost_of(_usage(generation), self._prices[started.tier]))


def _usage(generation: Generation) -> Usage:
    if generation.completed is not None:
        return generation.completed.usage
    assert generation.started is not None, "only a started call is billed"
    return Usage(generation.started.num_prompt_tokens, generation.recorder.num_tokens, generation.started.num_cached_tokens)
