"""Attainment: what counts as met, why something was missed, and what a window holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ultrafast.core.tiers import ServiceTier
from ultrafast.observe.slo import CallFigures, MissReason, Objectives, SloTracker, miss_reason

OBJECTIVES = Objectives(ttft_s=0.2, tpot_s=0.025, e2e_s=1.0, jitter_s=0.01)
TIER = ServiceTier.ULTRAFAST


def _figures(
    ttft_s: float | None = 0.1,
    tpot_s: float | None = 0.02,
    queue_s: float = 0.01,
    prefill_s: float = 0.05,
    compute_tpot_s: float | None = 0.02,
) -> CallFigures:
    return CallFigures(ttft_s, tpot_s, queue_s, prefill_s, compute_tpot_s)


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        (_figures(), None),
        (_figures(ttft_s=0.2, tpot_s=0.025), None),
        (_figures(ttft_s=0.3, queue_s=0.2, prefill_s=0.09), MissReason.QUEUE),
        (_figures(ttft_s=0.3, queue_s=0.09, prefill_s=0.2), MissReason.PREFILL),
        (_figures(ttft_s=0.3, queue_s=0.01, prefill_s=0.05), MissReason.OUTPUT),
        (_figures(tpot_s=0.03, compute_tpot_s=0.029), MissReason.STEP),
        (_figures(tpot_s=0.03, compute_tpot_s=0.02), MissReason.OUTPUT),
        (_figures(ttft_s=None, tpot_s=None, compute_tpot_s=None), None),
        (replace(_figures(), e2e_s=1.0, decode_s=0.6, jitter_s=0.01), None),
        (replace(_figures(), e2e_s=1.1, decode_s=0.6), MissReason.STEP),
        (replace(_figures(queue_s=0.9), e2e_s=1.1, decode_s=0.1), MissReason.QUEUE),
        (replace(_figures(), e2e_s=1.1, decode_s=0.1), MissReason.OUTPUT),
        (replace(_figures(), e2e_s=0.5, jitter_s=0.02), MissReason.STEP),
    ],
)
def test_why_a_request_missed(figures: CallFigures, reason: MissReason | None) -> None:
    assert miss_reason(figures, OBJECTIVES) is reason


def test_windows_hold_what_ended_in_them() -> None:
    tracker = SloTracker()
    tracker.completed(TIER, _figures(), OBJECTIVES, 5.0)
    tracker.completed(TIER, _figures(ttft_s=9.0, queue_s=8.0), OBJECTIVES, 3000.0)
    tracker.missed(TIER, MissReason.FAILED, 3001.0)
    tracker.refused(TIER, 3001.0)
    tracker.outside(TIER, 3001.0)
    hour, minute = tracker.attainment(TIER, 3600.0, 3050.0), tracker.attainment(TIER, 60.0, 3050.0)
    assert (hour.num_met, hour.num_missed, hour.num_refused, hour.num_outside) == (1, 2, 1, 1)
    assert hour.share == pytest.approx(1 / 3)
    assert {reason: count for reason, count in hour.missed_by.items() if count} == {"queue": 1, "failed": 1}
    assert (minute.num_met, minute.num_missed) == (0, 2)
    assert tracker.attainment(TIER, 3600.0, 3700.0).num_met == 0
    assert tracker.attainment(ServiceTier.FLEX, 3600.0, 3050.0).share is None


def test_arrivals_are_those_of_the_last_minute() -> None:
    tracker = SloTracker()
    for second in range(0, 120, 2):
        rate = tracker.arrived(TIER, float(second))
    assert rate == pytest.approx(0.5, abs=0.1)
    assert tracker.arrivals_per_s(TIER, 400.0) == 0
    assert tracker.arrivals_per_s(ServiceTier.FLEX, 118.0) == 0


def test_slices_do_not_pile_up() -> None:
    tracker = SloTracker()
    for second in range(0, 100_000, 10):
        tracker.completed(TIER, _figures(), OBJECTIVES, float(second))
    assert len(tracker._slices[TIER]) <= 361
    assert tracker.attainment(TIER, 3600.0, 99_999.0).num_met == 360


def test_percentiles_are_figures_that_were_measured() -> None:
    tracker = SloTracker()
    for i in range(1, 101):
        tracker.completed(TIER, _figures(ttft_s=i / 100, tpot_s=None), OBJECTIVES, 0.0)
    found = tracker.percentiles_s(TIER, 10.0)
    assert found["ttft"] == {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    assert found["tpot"] is None
    assert tracker.percentiles_s(TIER, 4000.0)["ttft"] is None
