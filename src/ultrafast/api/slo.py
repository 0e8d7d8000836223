"""`GET /v1/slo`: what each tier promises, under which conditions, and how well that was kept; and the counting of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ultrafast.api.context import EdgeContext
from ultrafast.api.exchange import Exchange
from ultrafast.api.generation import Generation
from ultrafast.config.percentiles import parse_percentiles
from ultrafast.config.tier_settings import TierTargets
from ultrafast.core.request import RequestSlo
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome
from ultrafast.observe.slo import PERCENTS, WINDOWS_S, Attainment, CallFigures, MissReason, Objectives

_MISSES = {Outcome.EXPIRED: MissReason.QUEUE, Outcome.FAILED: MissReason.FAILED}


@dataclass(frozen=True, slots=True)
class Promise:
    """What a call was promised when it came.

    Attributes:
        tier: the tier that it asked for; the one that serves stands in the call itself.
        slo: the call's own objectives.
        is_too_many: more calls came than the objectives' condition allows.
    """

    tier: ServiceTier
    slo: RequestSlo
    is_too_many: bool


class SloAccount:
    """Shows and counts attainment."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def show(self, exchange: Exchange) -> None:
        """Answer `GET /v1/slo`."""
        now = exchange.clock()
        tiers = [ServiceTier(name) for name in self._context.tiers.order]
        body = {"object": "list", "data": [self._describe(tier, rank, now) for rank, tier in enumerate(tiers)]}
        await exchange.respond(200, [], msgspec.json.encode(body))

    def begin(self, tier: ServiceTier, slo: RequestSlo, now: float) -> Promise:
        """Count an arrival."""
        rate, limit = self._context.recorder.slo.arrived(tier, now), self._settings(tier).max_arrivals_per_s
        return Promise(tier, slo, is_too_many=0 < limit < rate)

    def count(self, generation: Generation, promise: Promise, outcome: Outcome, now: float) -> None:
        """Count one call that ended at `now`, for the tier that it asked for. Aborted and invalid ones count for nobody."""
        tracker = self._context.recorder.slo
        tier, started = promise.tier, generation.started
        if started is not None and started.tier is not tier and outcome is not Outcome.ABORTED:
            tracker.downgraded(tier, now)
        if outcome is Outcome.REJECTED:
            tracker.refused(tier, now)
        elif promise.is_too_many and outcome in (Outcome.EXPIRED, Outcome.COMPLETED):
            tracker.outside(tier, now)
        elif outcome in _MISSES:
            tracker.missed(tier, _MISSES[outcome], now)
            self._context.recorder.on_objectives(tier, _MISSES[outcome])
        elif outcome is Outcome.COMPLETED:
            self._count_completed(generation, tier, promise.slo, now)

    def _count_completed(self, generation: Generation, tier: ServiceTier, slo: RequestSlo, now: float) -> None:
        tracker, settings = self._context.recorder.slo, self._settings(tier)
        if _is_too_long(generation, settings):
            tracker.outside(tier, now)
        else:
            objectives = _objectives(settings, slo)
            if generation.completed is not None and generation.completed.is_timed_out:
                objectives = replace(objectives, e2e_s=0.0)  # not the whole answer: a miss, by where its time went
            missed_by = tracker.completed(tier, _figures(generation, now), objectives, now)
            self._context.recorder.on_objectives(tier, missed_by)

    def _settings(self, tier: ServiceTier) -> TierTargets:
        settings: TierTargets = getattr(self._context.tiers, tier)
        return settings

    def _describe(self, tier: ServiceTier, rank: int, now: float) -> dict[str, Any]:
        settings, tracker = self._settings(tier), self._context.recorder.slo
        return {
            "id": tier.value,
            "object": "service_tier",
            "order": rank,
            "objectives": {
                "ttft_ms": settings.ttft_ms,
                "tpot_ms": settings.tpot_ms,
                "e2e_ms": settings.e2e_ms or None,
                "jitter_ms": settings.jitter_ms or None,
            },
            "percentiles_ms": _percentiles(settings, tracker.percentiles_s(tier, now)),
            "conditions": {
                "max_prompt_tokens": settings.max_prompt_tokens or None,
                "max_output_tokens": settings.max_output_tokens or None,
                "max_arrivals_per_s": settings.max_arrivals_per_s or None,
            },
            "price": {
                "currency": self._context.tiers.currency,
                "input_per_million": settings.price_input,
                "cached_input_per_million": settings.price_cached_input,
                "output_per_million": settings.price_output,
            },
            "min_share": settings.min_share,
            "is_downgradable": settings.is_downgradable,
            "queue": {
                "max_requests": settings.max_num_waiting,
                "max_tokens": settings.max_waiting_tokens or None,
                "ttl_s": settings.queue_ttl_s,
            },
            "execution_ttl_s": settings.execution_ttl_s or None,
            "attainment": {name: _window(tracker.attainment(tier, window_s, now)) for name, window_s in WINDOWS_S.items()},
            "arrivals_per_s": round(tracker.arrivals_per_s(tier, now), 3),
        }


def _is_too_long(generation: Generation, settings: TierTargets) -> bool:
    """Whether the lengths of a completed call are beyond what the objectives are for."""
    assert generation.started is not None, "a completed call was started"
    assert generation.completed is not None, "a completed call has figures"
    is_prompt_too_long = 0 < settings.max_prompt_tokens < generation.started.num_prompt_tokens
    return is_prompt_too_long or 0 < settings.max_output_tokens < generation.completed.usage.num_output_tokens


def _figures(generation: Generation, now: float) -> CallFigures:
    assert generation.completed is not None, "a completed call has figures"
    recorder, timings = generation.recorder, generation.completed.timings
    arrival_s, first_s, slowest = generation.exchange.arrival_s, recorder.first_delta_s, recorder.slowest_choice
    return CallFigures(
        ttft_s=None if first_s is None else first_s - arrival_s,
        tpot_s=None if slowest is None else slowest.tpot_s,
        queue_s=timings.queue_s,
        prefill_s=timings.prefill_s,
        compute_tpot_s=None if slowest is None else timings.decode_s[slowest.choice] / max(1, slowest.num_tokens - 1),
        e2e_s=now - arrival_s,
        decode_s=timings.compute_s - timings.prefill_s,
        jitter_s=recorder.worst_jitter_s,
    )


def _percentiles(settings: TierTargets, measured_s: Mapping[str, Mapping[str, float] | None]) -> dict[str, dict[str, Any]]:
    """Each percentile beside its objective. What a tier promises each request is its objective for P99 unless it says so."""
    each_ms = {"ttft": settings.ttft_ms, "tpot": settings.tpot_ms, "e2e": settings.e2e_ms, "jitter": settings.jitter_ms}
    limits_ms = {(name, 99): limit_ms for name, limit_ms in each_ms.items() if limit_ms} | parse_percentiles(settings.percentiles)
    return {
        name: {
            f"p{percent}": _beside(limits_ms.get((name, percent)), None if values_s is None else values_s[f"p{percent}"])
            for percent in PERCENTS
        }
        for name, values_s in measured_s.items()
    }


def _beside(objective_ms: float | None, measured_s: float | None) -> dict[str, Any]:
    measured_ms = None if measured_s is None else measured_s * 1000
    is_met = None if objective_ms is None or measured_ms is None else measured_ms <= objective_ms
    return {
        "objective": objective_ms,
        "measured": None if measured_ms is None else round(measured_ms, 3),
        "is_met": is_met,
    }


def _objectives(settings: TierTargets, slo: RequestSlo) -> Objectives:
    return Objectives(
        settings.ttft_ms / 1000 if slo.ttft_s is None else slo.ttft_s,
        settings.tpot_ms / 1000 if slo.tpot_s is None else slo.tpot_s,
        settings.e2e_ms / 1000 or math.inf,
        settings.jitter_ms / 1000 or math.inf,
    )


def _window(attainment: Attainment) -> dict[str, Any]:
    return {
        "share": attainment.share,
        "num_met": attainment.num_met,
        "num_missed": attainment.num_missed,
        "num_refused": attainment.num_refused,
        "num_downgraded": attainment.num_downgraded,
        "num_outside_conditions": attainment.num_outside,
        "missed_by": attainment.missed_by,
    }
