"""How long the scheduler itself takes per step: `plan` + `complete`, with an engine that costs nothing.

    python benchmarks/scheduler_step.py [--json]

Cases: 32 running; 256 running with 10,000 waiting; 32 chats that share a long prefix and finish and return all the time.
Target (design): P99 <= 1 ms at 32 running.
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


def measure(num_running: int, num_waiting: int, max_tokens: int, num_steps: int) -> list[float]:
    """Seconds of each step, in a steady state: whoever finishes is replaced."""
    rng = random.Random(1)
    prefix = tuple(rng.choices(range(50_000), k=1000))
    scheduler = Scheduler(_limits(num_running))
    names = itertools.count()
    target = num_running + num_waiting
    times: list[float] = []
    for step in range(num_steps + 300):
        while scheduler.num_running + scheduler.num_waiting < target:
            scheduler.add(_request(f"r{next(names)}", prefix, rng, rng.randint(max_tokens // 2, max_tokens)), float(step))
        started = time.perf_counter()
        plan = scheduler.plan(float(step))
        planned = time.perf_counter()
        result = _result(plan)
        again = time.perf_counter()
        scheduler.complete(plan, result, float(step))
        if step >= 300:
            times.append(planned - started + time.perf_counter() - again)
    return times


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
        times = sorted(measure(*case, options.steps))
        report[name] = {f"p{p}_ms": 1000 * times[min(len(times) - 1, len(times) * p // 100)] for p in (50, 99)}
        if not options.json:
            print(f"{name:28} P50 {report[name]['p50_ms']:.3f} ms   P99 {report[name]['p99_ms']:.3f} ms")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
