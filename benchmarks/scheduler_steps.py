"""What the scheduler itself costs per step: `plan` plus `complete`, on a model that answers at once.

Steady states in which requests of all tiers come and go, so that every kind of step is in the sample: decoding only, prefill
beside decoding, shared prefixes, finishing. Times are of the pure Python calls; no thread, no I/O, no other work. The CPU time
beside the wall time shows what a busy machine adds.
"""

from __future__ import annotations

import gc
import itertools
import random
import time
from dataclasses import dataclass, replace

from benchmarks.options import Options
from benchmarks.report import Benchmark, Report
from benchmarks.stats import percentile
from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SampledToken, StepPlan, StepResult, StepStatus
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.engine.settle import GC_THRESHOLD
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

GOAL_P99_MS = 1.0
PREFIX_TOKENS = 1000
NUM_SETTLING_STEPS = 300
ENDLESS = {"max_num_waiting": 1_000_000, "max_waiting_tokens": 10**9, "queue_ttl_s": 1e6}
"""Nobody is refused and nobody gives up: the queue keeps its length."""


@dataclass(frozen=True, slots=True)
class Case:
    """A steady state: whoever finishes is replaced."""

    label: str
    num_running: int
    num_waiting: int
    max_tokens: int


CASES = (
    Case("32 running", 32, 0, 4000),
    Case("32 running, short answers", 32, 0, 60),
    Case("256 running, 10,000 waiting", 256, 10_000, 400),
)


def run(options: Options) -> Report:
    num_steps = 1_000 if options.is_quick else 10_000
    report = Report(columns=("milliseconds per step", "steps", "P50", "P90", "P99", "max", "CPU P50", "CPU P99"))
    gc.collect()
    gc.freeze()  # this and the threshold as in the engine process
    threshold = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    for case in CASES:
        costs = _measure(case, num_steps, random.Random(options.seed))
        wall, cpu = [wall for wall, _ in costs], [cpu for _, cpu in costs]
        walls = [percentile(wall, p) for p in (50, 90, 99, 100)]
        report.rows.append((case.label, num_steps, *walls, percentile(cpu, 50), percentile(cpu, 99)))
        report.add_goal_at_most(f"scheduler, {case.label}, P99 ms per step", percentile(wall, 99), GOAL_P99_MS)
    gc.unfreeze()
    gc.set_threshold(*threshold)
    report.notes.append(f"half of the requests share a prefix of {PREFIX_TOKENS} tokens; all tiers")
    return report


def _measure(case: Case, num_steps: int, rng: random.Random) -> list[tuple[float, float]]:
    """Wall and CPU milliseconds of each step."""
    scheduler = Scheduler(
        SchedulerLimits(
            kv_capacity_tokens=2_000_000,
            max_request_tokens=32_768,
            max_step_tokens=2048,
            step_target_s=0.05,
            max_num_running=case.num_running,
            max_num_cached=64,
            can_interrupt=True,
            max_side_tokens=32_768,
            tiers=tuple(replace(policy, **ENDLESS) for policy in DEFAULT_POLICIES),
        )
    )
    prefix = tuple(rng.choices(range(50_000), k=PREFIX_TOKENS))
    numbers = itertools.count()
    costs = []
    for step in range(NUM_SETTLING_STEPS + num_steps):
        while scheduler.num_running + scheduler.num_waiting < case.num_running + case.num_waiting:
            scheduler.add(_request(rng, next(numbers), prefix, case.max_tokens), time.monotonic())
        cost = _step(scheduler)
        if step >= NUM_SETTLING_STEPS:
            costs.append(cost)
    return costs


def _step(scheduler: Scheduler) -> tuple[float, float]:
    """One step; wall and CPU milliseconds that the scheduler spent on it."""
    begin = _stamp()
    plan = scheduler.plan(time.monotonic())
    planned = _stamp()
    result = _instant(plan)
    resumed = _stamp()
    scheduler.complete(plan, result, time.monotonic())
    if plan.side is not None:
        scheduler.side_begun(plan.side, time.monotonic())
        scheduler.side_finished(plan.side, StepResult(StepStatus.OK), time.monotonic())
    done = _stamp()
    wall_ns, cpu_ns = ((b - a) + (d - c) for a, b, c, d in zip(begin, planned, resumed, done, strict=True))
    return wall_ns / 1e6, cpu_ns / 1e6


def _stamp() -> tuple[int, int]:
    return time.perf_counter_ns(), time.thread_time_ns()


def _request(rng: random.Random, number: int, prefix: tuple[int, ...], max_tokens: int) -> Request:
    own = tuple(rng.choices(range(50_000), k=rng.randint(20, 400)))
    params = SamplingParams(max_tokens=rng.randint(max_tokens // 2, max_tokens), ignore_eos=True)
    shared = prefix if rng.random() < 0.5 else ()
    return Request(f"r{number}", shared + own, params, rng.choice(list(ServiceTier)), arrival_s=time.monotonic())


def _instant(plan: StepPlan) -> StepResult:
    """A step whose time is a plausible function of its tokens, so that the cost model has something to learn."""
    sampled = tuple(SampledToken(item.request_id, 7) for item in plan.work if item.samples)
    return StepResult(StepStatus.OK, sampled, duration_s=0.004 + 0.0005 * plan.num_tokens)


BENCHMARK = Benchmark(
    "scheduler_steps",
    "time of the scheduler per step, up to 256 running and 10,000 waiting",
    lambda is_quick: 5 if is_quick else 30,
    run,
)
