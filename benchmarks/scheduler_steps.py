"""What the scheduler itself costs per step while 32 sequences run: `plan` plus `complete`, on a model that answers at once.

Requests come and go all the time, so that most kinds of steps are in the sample: decoding only, prefill beside decoding, shared
prefixes, finishing. Times are of the pure Python calls; no thread, no I/O, no other work. The CPU time beside the wall time shows
what a busy machine adds.
"""

from __future__ import annotations

import gc
import random
import time

from benchmarks.options import Options
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SampledToken, StepPlan, StepResult, StepStatus
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

NUM_RUNNING = 32
GOAL_P99_MS = 1.0


def run(options: Options) -> Report:
    num_steps = 2_000 if options.is_quick else 20_000
    rng = random.Random(options.seed)
    scheduler = Scheduler(
        SchedulerLimits(
            kv_capacity_tokens=65_536,
            max_request_tokens=8192,
            max_step_tokens=512,
            step_target_s=0.05,
            max_num_running=NUM_RUNNING,
        )
    )
    costs: list[tuple[float, float]] = []
    num_added = 0
    gc.collect()
    gc.freeze()  # as the engine process does
    for _ in range(num_steps):
        while scheduler.num_running + scheduler.num_waiting < NUM_RUNNING + 2:
            scheduler.add(_request(rng, num_added), time.monotonic())
            num_added += 1
        cost = _step(scheduler)
        if scheduler.num_running >= NUM_RUNNING - 2:
            costs.append(cost)
    gc.unfreeze()
    report = Report(columns=("milliseconds per step", "steps", "P50", "P90", "P99", "max"))
    for label, values in (("wall time", [wall for wall, _ in costs]), ("CPU time", [cpu for _, cpu in costs])):
        report.rows.append((label, len(costs), *(percentile(values, p) for p in (50, 90, 99, 100))))
    p99_ms = percentile([wall for wall, _ in costs], 99)
    report.add_goal_at_most(f"scheduler, {NUM_RUNNING} sequences, P99 ms per step", p99_ms, GOAL_P99_MS)
    report.data = {"num_requests": num_added}
    return report


def _step(scheduler: Scheduler) -> tuple[float, float]:
    """One step; wall and CPU milliseconds that the scheduler spent on it."""
    begin = _stamp()
    plan = scheduler.plan(time.monotonic())
    planned = _stamp()
    result = _instant(plan)
    resumed = _stamp()
    scheduler.complete(plan, result, time.monotonic())
    done = _stamp()
    wall_ns, cpu_ns = ((b - a) + (d - c) for a, b, c, d in zip(begin, planned, resumed, done, strict=True))
    return wall_ns / 1e6, cpu_ns / 1e6


def _stamp() -> tuple[int, int]:
    return time.perf_counter_ns(), time.thread_time_ns()


def _request(rng: random.Random, number: int) -> Request:
    """Every second one begins like one of eight others."""
    shared = rng.randrange(8) if rng.random() < 0.5 else number + 100
    prompt = (shared,) * rng.randrange(16, 256) + tuple(rng.randrange(1000) for _ in range(rng.randrange(8, 128)))
    params = SamplingParams(max_tokens=rng.randrange(16, 256), ignore_eos=True)
    return Request(f"r{number}", prompt, params, arrival_s=time.monotonic())


def _instant(plan: StepPlan) -> StepResult:
    """A step whose time is a plausible function of its tokens, so that the cost model has something to learn."""
    sampled = tuple(SampledToken(item.request_id, 7) for item in plan.work if item.samples)
    return StepResult(StepStatus.OK, sampled, duration_s=0.004 + 0.0005 * plan.num_tokens)


BENCHMARK = Benchmark(
    "scheduler_steps",
    "time of the scheduler per step at 32 sequences",
    lambda is_quick: 3 if is_quick else 25,
    run,
)
