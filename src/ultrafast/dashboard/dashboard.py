"""Brings the parts together: takes events at any time, makes a frame when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ultrafast.core.clock import Clock
from ultrafast.core.events import StepFinished
from ultrafast.core.tiers import ServiceTier
from ultrafast.dashboard.calls import Calls, Objectives, TierCalls
from ultrafast.dashboard.lanes import Lanes
from ultrafast.dashboard.steps import RATE_SECONDS, Steps
from ultrafast.dashboard.views import EngineView, Frame, KvView, LatencyView, StepView, TierView
from ultrafast.dashboard.window import WINDOW_S, LatencyWindow
from ultrafast.engine.health import EngineHealth, EngineRestarted
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.messages import StepReport
from ultrafast.observe.metrics import KV_BLOCK_TOKENS

FOLD_REPORTS = 64


@dataclass(frozen=True, slots=True)
class Sources:
    """Where a frame looks. Each is a glance that never waits.

    Attributes:
        live_requests: what the engine's client holds, oldest first.
        is_draining: the server is shutting down.
    """

    engine_health: Callable[[], EngineHealth]
    live_requests: Callable[[], Collection[LiveRequest]]
    is_draining: Callable[[], bool]


class Dashboard:
    """See the module. Used on one event loop.

    Attributes:
        calls: the listener for `observe.recorder.Recorder`.
    """

    def __init__(self, objectives: Mapping[ServiceTier, Objectives], *, version: str, model: str, clock: Clock) -> None:
        self.calls = Calls(objectives)
        self.clock = clock
        self._version = version
        self._model = model
        self._started_s = clock()
        self._steps = Steps()
        self._lanes = Lanes()
        self._last_restart: EngineRestarted | None = None
        self._reports: list[tuple[StepReport, float]] = []

    def on_report(self, report: StepReport) -> None:
        """A listener of the engine's client: notes the report; it is looked at with the next frame, or when many have come."""
        self._reports.append((report, self.clock()))
        if len(self._reports) >= FOLD_REPORTS:
            self._fold()

    def _fold(self) -> None:
        reports, self._reports = self._reports, []
        for report, now in reports:
            self._steps.on_report(report, now)
            self._lanes.on_report(report)

    def on_restart(self, event: EngineRestarted) -> None:
        self._fold()
        self._last_restart = event
        self._lanes.on_restart()

    @property
    def num_steps(self) -> int:
        """Steps seen so far; what `frame` takes as `since_step`."""
        self._fold()
        return self._steps.num_seen

    def frame(self, sources: Sources, since_step: int = 0) -> Frame:
        """Look at everything now; the strip chart's rows are those after step number `since_step`."""
        self._fold()
        now = self.clock()
        live = sources.live_requests()
        last = self._steps.last
        stats = last.stats if last is not None else None
        seconds = self._steps.seconds(now)
        queried, hit = self._steps.cache_tokens(now)
        lanes = self._lanes.read(live, last, now)
        return Frame(
            version=self._version,
            model=self._model,
            uptime_s=now - self._started_s,
            window_s=WINDOW_S,
            engine=self._engine(sources, now),
            queues=self._lanes.queues(live),
            kv=_kv(stats) if stats else None,
            tiers=[_tier(tier, calls, now) for tier, calls in self.calls.tiers.items()],
            step=_step(self._steps.last_run) if self._steps.last_run else None,
            steps=self._steps.since(since_step),
            seconds=seconds,
            output_rate=_rate([output for output, _ in seconds]),
            prefill_rate=_rate([prefill for _, prefill in seconds]),
            num_cache_queried=queried,
            num_cache_hit=hit,
            lanes=lanes,
            num_hidden=len(live) - len(lanes),
        )

    def _engine(self, sources: Sources, now: float) -> EngineView:
        health = sources.engine_health()
        lost = self._last_restart
        return EngineView(
            state=health.state,
            has_work=health.has_work,
            is_stalled=health.is_stalled,
            is_draining=sources.is_draining(),
            num_restarts=health.num_restarts,
            last_step_age_s=health.last_step_age_s,
            last_restart_age_s=max(0.0, now - lost.at_s) if lost else None,
            last_restart_reason=lost.reason if lost else None,
        )


def _tier(tier: ServiceTier, calls: TierCalls, now: float) -> TierView:
    return TierView(
        tier,
        _latency(calls.ttft, now),
        _latency(calls.gap, now),
        calls.recent_outcomes(now),
        list(calls.num_by_outcome),
        calls.mean_parts_s(now),
    )


def _latency(window: LatencyWindow, now: float) -> LatencyView:
    return LatencyView(*window.read(now), window.objective_s)


def _rate(counts: list[int]) -> float:
    return sum(counts[-RATE_SECONDS:]) / RATE_SECONDS


def _step(stats: StepFinished) -> StepView:
    return StepView(
        stats.step,
        stats.duration_s,
        stats.schedule_s,
        stats.num_decode_sequences,
        stats.num_prefill_sequences,
        stats.num_prefill_tokens,
    )


def _kv(stats: StepFinished) -> KvView:
    """Whole blocks as in the metrics: used ones are rounded up, and the three sum to the capacity."""
    total = stats.num_kv_tokens_running + stats.num_kv_tokens_cached + stats.num_kv_tokens_free
    capacity = total // KV_BLOCK_TOKENS
    running = min(capacity, -(-stats.num_kv_tokens_running // KV_BLOCK_TOKENS))
    cached = min(capacity - running, -(-stats.num_kv_tokens_cached // KV_BLOCK_TOKENS))
    return KvView(running, cached, capacity - running - cached, KV_BLOCK_TOKENS)
