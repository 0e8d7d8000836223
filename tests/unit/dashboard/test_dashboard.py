"""One frame: everything at once, as numbers."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.unit.dashboard.events import end, live, report, request_id, stats

from ultrafast.core.clock import ManualClock
from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.calls import Objectives
from ultrafast.dashboard.dashboard import Dashboard, Sources
from ultrafast.dashboard.steps import MAX_STEPS, NUM_SECONDS, RATE_SECONDS
from ultrafast.engine.health import EngineHealth, EngineRestarted, EngineState
from ultrafast.engine.messages import StepReport
from ultrafast.observe.call import LatencyParts
from ultrafast.observe.metrics import Metrics, Outcome
from ultrafast.observe.recorder import Recorder

HEALTH = EngineHealth(EngineState.READY, 0.5, has_work=True, is_stalled=False, num_restarts=0, pid=1)


def make(clock: ManualClock) -> Dashboard:
    return Dashboard({tier: Objectives(0.2, 0.025) for tier in ServiceTier}, version="1.2", model="m", clock=clock)


def sources(*requests: object) -> Sources:
    return Sources(lambda: HEALTH, lambda: list(requests), lambda: False)  # type: ignore[arg-type, return-value]


def test_before_the_first_step() -> None:
    frame = make(ManualClock(100.0)).frame(sources())
    assert (frame.step, frame.kv, frame.steps, frame.lanes) == (None, None, [], [])
    assert frame.tiers[0].ttft.p50_s is None
    assert frame.tiers[0].parts_s is None
    msgspec.json.encode(frame)


def test_calls_are_those_of_the_metrics() -> None:
    clock = ManualClock(100.0)
    dashboard = make(clock)
    metrics = Metrics()
    recorder = Recorder(metrics, dashboard.calls)
    call = recorder.begin_call(99.0, ServiceTier.DEFAULT)
    call.serve_as(ServiceTier.ULTRAFAST)
    call.on_delta(0, 1, 99.1)
    call.on_delta(0, 1, 99.15)
    call.on_delta(0, 4, 99.19)
    call.finish(Outcome.COMPLETED, 99.2, LatencyParts(0.01, 0.02, 0.03, 0.14))
    recorder.begin_call(99.0, ServiceTier.FLEX).finish(Outcome.REJECTED, 99.1)
    by_tier = {view.tier: view for view in dashboard.frame(sources()).tiers}
    fast = by_tier[ServiceTier.ULTRAFAST]
    assert fast.ttft.p50_s == pytest.approx(0.1, rel=0.021)
    assert (fast.ttft.num, fast.ttft.num_within, fast.ttft.objective_s) == (1, 1, 0.2)
    assert (fast.gap.num, fast.gap.num_within) == (5, 4)
    assert fast.outcomes == fast.outcomes_total == [1, 0, 0, 0, 0, 0]
    assert fast.parts_s == pytest.approx([0.01, 0.02, 0.03, 0.14])
    assert by_tier[ServiceTier.FLEX].outcomes == [0, 1, 0, 0, 0, 0]
    value = metrics.registry.get_sample_value
    assert value("ultrafast_itl_seconds_count", {"tier": "ultrafast"}) == fast.gap.num
    clock.advance(70)
    later = dashboard.frame(sources()).tiers[0]
    assert (later.outcomes, later.outcomes_total) == ([0] * 6, [1, 0, 0, 0, 0, 0])


def test_steps_since_the_last_frame() -> None:
    dashboard = make(ManualClock(100.0))
    for number in range(3):
        dashboard.on_report(report(step=stats(("aaaaaa", 0, 8), step=number, num_waiting=number)))
    assert [row[0] for row in dashboard.frame(sources(), since_step=1).steps] == [2, 3]
    assert dashboard.frame(sources(), since_step=3).steps == []
    assert dashboard.frame(sources()).steps[-1] == (3, 0.02, 0, 8, 2)
    for _ in range(MAX_STEPS + 5):
        dashboard.on_report(report(step=stats(("aaaaaa", 0, 8))))
    assert len(dashboard.frame(sources()).steps) == MAX_STEPS


def test_that_somebody_only_came_or_went_is_no_step() -> None:
    dashboard = make(ManualClock(100.0))
    dashboard.on_report(report(step=stats(("aaaaaa", 0, 8), step=7)))
    dashboard.on_report(report(step=stats(step=8, duration_s=0.0, num_kv_tokens_cached=63)))
    frame = dashboard.frame(sources())
    assert frame.step is not None
    assert (frame.step.step, frame.step.duration_s, len(frame.steps)) == (7, 0.02, 1)
    assert frame.kv is not None, "but what KV holds is of now"


def test_rates_are_of_whole_seconds() -> None:
    clock = ManualClock(100.0)
    dashboard = make(clock)
    for _ in range(RATE_SECONDS):
        dashboard.on_report(report(tokens=("aaaaaa", "bbbbbb"), step=stats(("cccccc", 0, 10))))
        clock.advance(1)
    frame = dashboard.frame(sources())
    assert (frame.output_rate, frame.prefill_rate) == (2, 10)
    assert len(frame.seconds) == NUM_SECONDS - 1
    assert frame.seconds[-RATE_SECONDS - 1 :] == [(0, 0), *[(2, 10)] * RATE_SECONDS]
    clock.advance(10 * NUM_SECONDS)
    assert set(dashboard.frame(sources()).seconds) == {(0, 0)}


def test_kv_blocks_are_those_of_the_metrics() -> None:
    dashboard = make(ManualClock(100.0))
    metrics = Metrics()
    step = report(step=stats())
    Recorder(metrics).on_report(step)
    dashboard.on_report(step)
    kv = dashboard.frame(sources()).kv
    assert kv is not None
    shown = {"running": kv.num_running, "cached": kv.num_cached, "free": kv.num_free}
    for state, num in shown.items():
        labels = {"level": "device", "state": state}
        assert metrics.registry.get_sample_value("ultrafast_kv_blocks", labels) == num


def test_cache_hits_count_requests_that_ran() -> None:
    dashboard = make(ManualClock(100.0))
    dashboard.on_report(StepReport(finished=[end("aaaaaa"), end("bbbbbb", num_cached=0), end("cccccc", scheduled_s=None)]))
    frame = dashboard.frame(sources())
    assert (frame.num_cache_queried, frame.num_cache_hit) == (200, 60)


def test_the_engine_and_its_last_restart() -> None:
    clock = ManualClock(100.0)
    dashboard = make(clock)
    dashboard.on_report(report(scheduled=("aaaaaa",)))
    dashboard.on_restart(EngineRestarted(101.0, "killed by signal 9", 1))
    clock.advance(3)
    looks = replace(sources(live("aaaaaa")), is_draining=lambda: True)
    frame = dashboard.frame(looks)
    assert frame.engine.last_restart_reason == "killed by signal 9"
    assert frame.engine.last_restart_age_s == 2
    assert frame.engine.is_draining
    assert (frame.queues.num_running, frame.queues.num_waiting) == (0, 1)


def test_no_whole_id_and_no_token_is_shown() -> None:
    dashboard = make(ManualClock(100.0))
    dashboard.on_report(report(scheduled=("aaaaaa",), step=stats(("aaaaaa", 0, 100))))
    text = msgspec.json.encode(dashboard.frame(sources(live("aaaaaa")))).decode()
    assert '"aaaaaa:0"' in text
    assert request_id("aaaaaa").partition(":")[0] not in text
    assert "[7,7" not in text
