"""How many requests a gate plans at most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ultrafast.bench.gate.targets import Metric, Target, canonical_tier
from ultrafast.bench.stats.percentiles import smallest_sample_size

SIZE_FACTOR = 5
"""Times the smallest sample that has an interval at all: enough to tell a fifth of headroom or of excess in most cases."""

MIN_PLANNED = 200


def planned_requests(targets: Sequence[Target], tier_mix: Mapping[str, float]) -> int:
    """Requests to plan; the run stops earlier as soon as every verdict is certain.

    Args:
        targets: of the gate.
        tier_mix: share of each tier in the load. A target of a tier only sees that tier's requests.
    """
    return max([MIN_PLANNED, *(round(_needed(target) / _share(target, tier_mix)) for target in targets)])


def _needed(target: Target) -> int:
    if target.quantile is not None:
        return SIZE_FACTOR * smallest_sample_size(target.quantile)
    if target.metric is Metric.ERRORS and target.limit > 0.0:
        return SIZE_FACTOR * smallest_sample_size(1.0 - target.limit)
    return MIN_PLANNED


def _share(target: Target, tier_mix: Mapping[str, float]) -> float:
    if target.tier is None or not tier_mix:
        return 1.0
    total = sum(tier_mix.values())
    mine = sum(share for tier, share in tier_mix.items() if canonical_tier(tier) == target.tier)
    return max(mine / total, 1e-3) if total else 1.0
