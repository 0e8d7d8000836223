"""`GET /v1/slo`: what each tier promises, under which conditions, and how well that was kept; and the counting of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from ultrafast.api.context import EdgeContext
from ultrafast.api.exchange import Exchange
from ultrafast.api.generation import Generation
from ultrafast.config.tier_settings import TierTargets
from ultrafast.core.request import RequestSlo
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome
from ultrafast.observe.slo import WINDOWS_S, Attainment, CallFigures, MissReason, Objectives

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
        """Count one call that ended at `now`. Aborted ones count for nobody."""
        tracker = self._context.recorder.slo
        tier = generation.started.tier if generation.started else promise.tier
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
            missed_by = tracker.completed(tier, _figures(generation, now), _objectives(settings, slo), now)
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
            "attainment": {name: _window(tracker.attainment(tier, window_s, now)) for name, window_s in WINDOWS_S.items()},
            "arrivals_per_s": round(tracker.arrivals_per_s(tier, now), 3),
            "measured_ms": {
                name: None if values is None else {key: round(value * 1000, 3) for key, value in values.items()}
                for name, values in tracker.percentiles_s(tier, now).items()
            },
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
    arrival_s, first_s, tpot_s = generation.exchange.arrival_s, recorder.first_delta_s, recorder.worst_tpot_s
    decode_s = timings.compute_s - timings.prefill_s
    num_later = max(1, generation.completed.usage.num_output_tokens - 1)
    return CallFigures(
        ttft_s=None if first_s is None else first_s - arrival_s,
        tpot_s=tpot_s,
        queue_s=timings.queue_s,
        prefill_s=timings.prefill_s,
        compute_tpot_s=None if tpot_s is None else decode_s / num_later,
        e2e_s=now - arrival_s,
        decode_s=decode_s,
        jitter_s=recorder.worst_jitter_s,
    )


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
        "num_outside_conditions": attainment.num_outside,
        "missed_by": attainment.missed_by,
    }
