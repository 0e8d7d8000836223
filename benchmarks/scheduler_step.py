"""How long the scheduler itself takes per step: `plan` + `complete`, with an engine that costs nothing.

    python benchmarks/scheduler_step.py [--json]

Cases: 32 running; 256 running with 10,000 waiting; 32 chats that share a long prefix and finish and return all the time.
Target (design): P99 <= 1 ms at 32 running. Both wall time and the thread's own CPU time are shown: on a busy machine the wall
time's tail is that of the neighbours.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import random
import time

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.step import SampledToken, StepPlan, StepResult, StepStatus
from ultrafast.core.tiers import ServiceTier
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.scheduler import Scheduler

NUM_WARMUP_STEPS = 300


def _limits(max_num_running: int) -> SchedulerLimits:
    return SchedulerLimits(
        kv_capacity_tokens=2_000_000,
        max_request_tokens=32_768,
        max_step_tokens=2048,
        step_target_s=0.05,
        max_num_running=max_num_running,
        max_num_cached=64,
    )


def _request(name: str, prefix: tuple[int, ...], rng: random.Random, max_tokens: int) -> Request:
    own = tuple(rng.choices(range(50_000), k=rng.randint(20, 400)))
    tier = rng.choice(list(ServiceTier))
    return Request(name, prefix + own, SamplingParams(max_tokens=max_tokens), tier, arrival_s=rng.random())


def _result(plan: StepPlan) -> StepResult:
    sampled = tuple(SampledToken(item.request_id, 7) for item in plan.work if item.samples)
    num_decodes = sum(len(item.tokens) == 1 for item in plan.work)
    return StepResult(StepStatus.OK, sampled, (), 0.002 + 0.0005 * num_decodes + 0.0001 * (plan.num_tokens - num_decodes))


def measure(num_running: int, num_waiting: int, max_tokens: int, num_steps: int) -> list[tuple[float, float]]:
    """(wall, CPU) seconds of each step, in a steady state: whoever finishes is replaced."""
    rng = random.Random(1)
    prefix = tuple(rng.choices(range(50_000), k=1000))
    scheduler = Scheduler(_limits(num_running))
    names = itertools.count()
    target = num_running + num_waiting
    times: list[tuple[float, float]] = []
    for step in range(num_steps + NUM_WARMUP_STEPS):
        while scheduler.num_running + scheduler.num_waiting < target:
            scheduler.add(_request(f"r{next(names)}", prefix, rng, rng.randint(max_tokens // 2, max_tokens)), float(step))
        wall, cpu = time.perf_counter(), time.thread_time()
        plan = scheduler.plan(float(step))
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        result = _result(plan)
        wall, cpu = wall - time.perf_counter(), cpu - time.thread_time()
        scheduler.complete(plan, result, float(step))
        if step >= NUM_WARMUP_STEPS:
            times.append((wall + time.perf_counter(), cpu + time.thread_time()))
    return times


def _percentile_ms(times: list[float], percent: int) -> float:
    return 1000 * sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def main() -> None:
    """Print one line per case, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    gc.freeze()
    report = {}
    for name, case in {
        "32 running": (32, 0, 4000),
        "32 running, short answers": (32, 0, 60),
        "256 running, 10000 waiting": (256, 10_000, 400),
    }.items():
        times = measure(*case, options.steps)
        wall, cpu = [t[0] for t in times], [t[1] for t in times]
        report[name] = {f"{kind}_p{p}_ms": _percentile_ms(of, p) for kind, of in (("wall", wall), ("cpu", cpu)) for p in (50, 99)}
        if not options.json:
            print(f"{name:28}", *[f"{key[:-3].replace('_', ' ')} {value:.3f} ms  " for key, value in report[name].items()])
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
