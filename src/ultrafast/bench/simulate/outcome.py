"""The figures of one simulation. Pure; times in seconds, definitions as in `ultrafast bench`.

Attainment counts every request that came: a refused one is not good. Percentiles are of answered requests; beside them stand
those in which a refused request is infinitely late (`*_adj`), so that refusing does not look like speed.
"""

from __future__ import annotations

import math

import msgspec

from ultrafast.bench.simulate.tally import TierTally
from ultrafast.bench.stats.percentiles import nearest_ranks
from ultrafast.bench.stats.proportions import wilson_interval
from ultrafast.core.tiers import TierPolicy

QUANTILES = (0.5, 0.95, 0.99)


class TierOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """One tier. Lists of seconds stand for P50, P95 and P99; None: no samples, or infinite."""

    tier: str
    ttft_objective_s: float
    tpot_objective_s: float
    num_requests: int
    num_answered: int
    num_good: int
    num_downgraded: int
    num_cut_short: int
    num_cancelled: int
    refused: dict[str, int]
    attainment: float
    attainment_low: float
    attainment_high: float
    goodput_per_s: float
    ttft_s: list[float | None]
    ttft_adj_s: list[float | None]
    tpot_s: list[float | None]
    e2e_s: list[float | None]
    queue_s: list[float | None]
    output_tokens: int
    cached_share: float
    num_preemptions: int
    num_pauses: int


class Outcome(msgspec.Struct, kw_only=True, frozen=True):
    """One simulation.

    Attributes:
        name: the variant in words.
        window_s: from the start to the last arrival; rates and utilisation are over it. drain_s: from there to the last answer.
        utilisation: share of the window that the replicas spent in steps, by replica.
        max_kv_share: the fullest that a replica's KV pool got, cached prefixes aside.
    """

    name: str
    num_replicas: int
    routing: str
    kv_tokens: int
    step_target_s: float
    has_tiers: bool
    window_s: float
    drain_s: float
    utilisation: list[float]
    num_steps: int
    tokens_per_step: float
    output_tokens_per_s: float
    max_kv_share: float
    max_num_waiting: int
    tiers: list[TierOutcome]

    @property
    def num_requests(self) -> int:
        return sum(tier.num_requests for tier in self.tiers)

    @property
    def attainment(self) -> float:
        """Over all tiers."""
        return sum(tier.num_good for tier in self.tiers) / max(1, self.num_requests)

    @property
    def num_refused(self) -> int:
        return sum(sum(tier.refused.values()) for tier in self.tiers)


def tier_outcome(tally: TierTally, tier: str, objective: TierPolicy, window_s: float) -> TierOutcome:
    """The figures of one tier, which had at least one request."""
    share = wilson_interval(tally.num_good, tally.num_requests)
    assert share is not None, "a tier without requests has no figures"
    num_lost = sum(tally.refused.values())
    return TierOutcome(
        tier=tier,
        ttft_objective_s=objective.ttft_s,
        tpot_objective_s=objective.tpot_s,
        num_requests=tally.num_requests,
        num_answered=tally.num_answered,
        num_good=tally.num_good,
        num_downgraded=tally.num_downgraded,
        num_cut_short=tally.num_cut_short,
        num_cancelled=tally.num_cancelled,
        refused=dict(sorted(tally.refused.items())),
        attainment=tally.num_good / tally.num_requests,
        attainment_low=share.low,
        attainment_high=share.high,
        goodput_per_s=tally.num_good / window_s,
        ttft_s=_ranks(list(tally.ttft_s)),
        ttft_adj_s=_ranks([*tally.ttft_s, *[math.inf] * num_lost]),
        tpot_s=_ranks(list(tally.tpot_s)),
        e2e_s=_ranks(list(tally.e2e_s)),
        queue_s=_ranks(list(tally.queue_s)),
        output_tokens=tally.num_output_tokens,
        cached_share=tally.num_cached_tokens / max(1, tally.num_prompt_tokens),
        num_preemptions=tally.num_preemptions,
        num_pauses=tally.num_pauses,
    )


def _ranks(samples: list[float]) -> list[float | None]:
    return [value if value is None or math.isfinite(value) else None for value in nearest_ranks(samples, QUANTILES)]
