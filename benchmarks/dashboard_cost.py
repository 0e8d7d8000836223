"""What the dashboard costs the API process: taking up a step, and making a frame for those who watch.

32 streams that decode, in all tiers, no server and no model: the pure Python calls, a gap per stream and step included. Taking up
happens for every step, a frame at most five times a second and only while somebody watches.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import msgspec

from benchmarks.options import Options
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile
from ultrafast.core.events import StepFinished, TokenProduced
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.dashboard.calls import Objectives
from ultrafast.dashboard.dashboard import Dashboard, Sources
from ultrafast.engine.health import EngineHealth, EngineState
from ultrafast.engine.live import LiveRequest
from ultrafast.engine.messages import StepReport
from ultrafast.engine.settle import GC_THRESHOLD
from ultrafast.engine.stream import EngineStream

NUM_RUNNING = 32
STEP_S = 0.02
STEPS_PER_FRAME = 10
GOAL_FRAME_MS = 0.5


def run(options: Options) -> Report:
    num_frames = 100 if options.is_quick else 1_000
    live = [_live(number) for number in range(NUM_RUNNING)]
    objectives = {
        tier: Objectives(policy.ttft_s, policy.tpot_s) for tier, policy in zip(ServiceTier, DEFAULT_POLICIES, strict=True)
    }
    dashboard = Dashboard(objectives, version="bench", model="bench", clock=time.monotonic)
    sources = Sources(lambda: EngineHealth(EngineState.READY, 0.0, True, False, 0, None), lambda: live, lambda: False)
    encode = msgspec.json.Encoder().encode
    steps_us: list[float] = []
    gaps_us: list[float] = []
    frames_ms: list[float] = []
    gc.collect()
    gc.freeze()  # this and the threshold as in the server's processes
    threshold = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    for number in range(num_frames):
        for step in range(STEPS_PER_FRAME):
            report = _report(live, number * STEPS_PER_FRAME + step)
            steps_us.append(_timed(lambda report=report: dashboard.on_report(report)) * 1e6)
            gaps_us.append(_timed(lambda: _gaps(dashboard, live)) * 1e6 / NUM_RUNNING)
        since = dashboard.num_steps - STEPS_PER_FRAME
        frames_ms.append(_timed(lambda since=since: encode(dashboard.frame(sources, since))) * 1e3)
    gc.unfreeze()
    gc.set_threshold(*threshold)
    report = Report(columns=("cost", "times", "P50", "P99"))
    for label, values in (
        ("a step is taken up, us", steps_us),
        ("a gap is taken up, us", gaps_us),
        ("a frame as JSON, ms", frames_ms),
    ):
        report.rows.append((label, len(values), percentile(values, 50), percentile(values, 99)))
    report.add_goal_at_most("a frame, P50 ms", percentile(frames_ms, 50), GOAL_FRAME_MS)
    report.notes.append(f"{NUM_RUNNING} streams decode; at most five frames a second, for all watchers together")
    return report


def _timed(call: Callable[[], object]) -> float:
    begin_s = time.perf_counter()
    call()
    return time.perf_counter() - begin_s


def _gaps(dashboard: Dashboard, live: list[LiveRequest]) -> None:
    now = time.monotonic()
    for each in live:
        dashboard.calls.on_gap(each.request.tier, STEP_S, 1, now)


def _live(number: int) -> LiveRequest:
    tier = list(ServiceTier)[number % len(ServiceTier)]
    name = f"chatcmpl-{number:024}:0"
    request = Request(name, (7,) * 200, SamplingParams(max_tokens=500), tier, arrival_s=time.monotonic())
    return LiveRequest(request, EngineStream(name, lambda _: None), [1] * 100)


def _report(live: list[LiveRequest], step: int) -> StepReport:
    stats = StepFinished(
        step=step,
        at_s=time.monotonic(),
        duration_s=STEP_S,
        schedule_s=0.0002,
        num_tokens=len(live),
        num_prefill_tokens=0,
        num_decode_sequences=len(live),
        num_prefill_sequences=0,
        num_running=len(live),
        num_waiting=0,
        num_kv_tokens_running=300 * len(live),
        num_kv_tokens_cached=1000,
        num_kv_tokens_free=5000,
        prefills=(),
    )
    return StepReport([TokenProduced(each.request.request_id, 5) for each in live], stats=stats)


BENCHMARK = Benchmark(
    "dashboard_cost",
    "what the dashboard costs the API process per step and per frame",
    lambda is_quick: 2 if is_quick else 5,
    run,
)
