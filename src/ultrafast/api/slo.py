"""`GET /v1/slo`: what each tier promises, under which conditions, and how well that was kept; and the counting of it."""

from __future__ import annotations

from typing import Any

import msgspec

from ultrafast.api.context import EdgeContext
from ultrafast.api.exchange import Exchange
from ultrafast.api.generation import Generation
from ultrafast.core.request import RequestSlo
from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.metrics import Outcome
from ultrafast.observe.slo import WINDOWS_S, Attainment, CallFigures, MissReason, Objectives

_MISSES = {Outcome.EXPIRED: MissReason.QUEUE, Outcome.FAILED: MissReason.FAILED}


class SloAccount:
    """Shows and counts attainment."""

    def __init__(self, context: EdgeContext) -> None:
        self._context = context

    async def show(self, exchange: Exchange) -> None:
        """Answer `GET /v1/slo`."""
        now = exchange.clock()
        body = {"object": "list", "data": [self._describe(tier, now) for tier in ServiceTier]}
        await exchange.respond(200, [], msgspec.json.encode(body))

    def count(self, generation: Generation, tier: ServiceTier, slo: RequestSlo, outcome: Outcome, now: float) -> None:
        """Count one call that ended. Aborted ones count for nobody.

        Args:
            generation: the call.
            tier: what the client asked for; the tier that served stands in the call itself.
            slo: the call's own objectives.
            outcome: how it ended.
            now: seconds.
        """
        tracker = self._context.recorder.slo
        tier = generation.started.tier if generation.started else tier
        if outcome is Outcome.REJECTED:
            tracker.refused(tier, now)
        elif outcome in _MISSES:
            tracker.missed(tier, _MISSES[outcome], now)
        elif outcome is Outcome.COMPLETED:
            self._count_completed(generation, tier, slo, now)

    def _count_completed(self, generation: Generation, tier: ServiceTier, slo: RequestSlo, now: float) -> None:
        started, completed = generation.started, generation.completed
        assert started is not None, "a completed call was started"
        assert completed is not None, "a completed call has figures"
        settings = getattr(self._context.tiers, tier)
        if 0 < settings.max_prompt_tokens < started.num_prompt_tokens:
            self._context.recorder.slo.outside(tier, now)
            return
        recorder, timings, usage = generation.recorder, completed.timings, completed.usage
        first_s = recorder.first_delta_s
        tpot_s = recorder.worst_tpot_s
        decode_s = timings.compute_s - timings.prefill_s
        figures = CallFigures(
            ttft_s=None if first_s is None else first_s - generation.exchange.arrival_s,
            tpot_s=tpot_s,
            queue_s=timings.queue_s,
            prefill_s=timings.prefill_s,
            compute_tpot_s=None if tpot_s is None else decode_s / max(1, usage.num_output_tokens - 1),
        )
        objectives = Objectives(
            settings.ttft_ms / 1000 if slo.ttft_s is None else slo.ttft_s,
            settings.tpot_ms / 1000 if slo.tpot_s is None else slo.tpot_s,
        )
        self._context.recorder.slo.completed(tier, figures, objectives, now)

    def _describe(self, tier: ServiceTier, now: float) -> dict[str, Any]:
        settings, tracker = getattr(self._context.tiers, tier), self._context.recorder.slo
        return {
            "id": tier.value,
            "object": "service_tier",
            "objectives": {"ttft_ms": settings.ttft_ms, "tpot_ms": settings.tpot_ms},
            "conditions": {"max_prompt_tokens": settings.max_prompt_tokens or None},
            "min_share": settings.min_share,
            "is_downgradable": settings.is_downgradable,
            "queue": {
                "max_requests": settings.max_num_waiting,
                "max_tokens": settings.max_waiting_tokens or None,
                "ttl_s": settings.queue_ttl_s,
            },
            "attainment": {name: _window(tracker.attainment(tier, window_s, now)) for name, window_s in WINDOWS_S.items()},
            "measured_ms": {
                name: None if values is None else {key: round(value * 1000, 3) for key, value in values.items()}
                for name, values in tracker.percentiles_s(tier, now).items()
            },
        }


def _window(attainment: Attainment) -> dict[str, Any]:
    return {
        "share": attainment.share,
        "num_met": attainment.num_met,
        "num_missed": attainment.num_missed,
        "num_refused": attainment.num_refused,
        "num_outside_conditions": attainment.num_outside,
        "missed_by": attainment.missed_by,
    }
