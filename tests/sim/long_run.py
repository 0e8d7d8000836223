"""A million requests under mixed load, with the invariants checked at every step: `make sim`.

    python -m tests.sim.long_run [--requests 1000000] [--seed 0] [--world NAME]

The requests are spread over worlds, engines with different bottlenecks. In the world `strict` every cell and every token is
checked too. Exits with 1 at the first broken invariant and says which seed shows it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import dataclass, replace

from tests.sim.invariants import Invariants, check_books
from tests.sim.mixed_load import mixed_load
from tests.sim.strict_passes import StrictPasses

from ultrafast.bench.simulate.engine_spec import EngineSpec, StepCost, make_limits
from ultrafast.bench.simulate.fleet import Fleet
from ultrafast.bench.simulate.replica import Replica
from ultrafast.bench.simulate.routing import make_router
from ultrafast.bench.simulate.tally import Tally
from ultrafast.core.tiers import DEFAULT_POLICIES
from ultrafast.sched.limits import SchedulerLimits

COST = StepCost(base_s=0.004, output_s=0.0004, token_s=0.00004, noise=0.1)
CPU_COST = StepCost(base_s=0.002, output_s=0.005, token_s=0.0025, noise=0.1)
"""Here a long prompt beside a stream is computed in a pass of its own."""
DEEP_EVERY = 500
_PROGRESS_S = 10.0
_TIERS = tuple(
    replace(policy, max_num_waiting=most, queue_ttl_s=ttl_s, is_downgradable=is_downgradable)
    for policy, most, ttl_s, is_downgradable in zip(
        DEFAULT_POLICIES, (50, 100, 300, 500), (2.0, 5.0, 20.0, 60.0), (True, False, True, False), strict=True
    )
)


@dataclass(frozen=True)
class World:
    """An engine, how many of it, and the rate that fills them about once. `share` of all requests go here."""

    limits: SchedulerLimits
    rate_per_s: float
    share: float
    num_replicas: int = 1
    routing: str = "least-ttft"
    is_strict: bool = False
    cost: StepCost = COST


WORLDS = {
    "places": World(make_limits(kv_tokens=65_536, max_num_running=32, tiers=_TIERS), 80, 0.3),
    "kv": World(make_limits(kv_tokens=6_000, max_num_running=32, tiers=_TIERS), 70, 0.2),
    "few places": World(
        make_limits(kv_tokens=16_384, max_num_running=4, max_num_paused=2, can_interrupt=True, tiers=_TIERS), 30, 0.1
    ),
    "beside": World(
        make_limits(kv_tokens=8_000, max_num_running=16, can_interrupt=True, max_side_tokens=None, tiers=_TIERS),
        2,
        0.1,
        cost=CPU_COST,
    ),
    "fleet": World(make_limits(kv_tokens=16_384, max_num_running=16, tiers=_TIERS), 200, 0.2, num_replicas=4),
    "whole sequences": World(
        replace(make_limits(kv_tokens=16_384, max_num_running=16, tiers=_TIERS), can_trim=False), 60, 0.09, routing="round-robin"
    ),
    "strict": World(
        make_limits(kv_tokens=6_000, max_num_running=16, can_interrupt=True, tiers=_TIERS), 60, 0.005, is_strict=True
    ),
    "strict beside": World(
        make_limits(kv_tokens=6_000, max_num_running=16, can_interrupt=True, max_side_tokens=None, tiers=_TIERS),
        1,
        0.005,
        is_strict=True,
        cost=CPU_COST,
    ),
}


def run_world(world: World, num_requests: int, seed: int, *, deep_every: int = DEEP_EVERY, is_shown: bool = False) -> Tally:
    """Serve so many requests; an AssertionError names what was broken."""
    tally = Tally(world.limits)
    invariants = Invariants(deep_every)
    replicas = [_replica(number, world, seed, tally) for number in range(world.num_replicas)]
    progress = _Progress(tally, num_requests) if is_shown else None

    def watch(replica: Replica, now: float) -> None:
        invariants.watch(replica, now)
        if progress is not None:
            progress.tick(now)

    fleet = Fleet(replicas, make_router(world.routing), lambda request, _: tally.routed(request), watch)
    fleet.run(mixed_load(num_requests, world.rate_per_s, seed, too_long=world.limits.kv_capacity_tokens + 1))
    assert tally.num_open == 0, f"{tally.num_open} requests have no end"
    assert sum(tier.num_requests for tier in tally.tiers.values()) == num_requests
    for replica in replicas:
        assert not replica.scheduler._state.live
        assert replica.scheduler.kv_usage.num_running_tokens == 0, "cells held by nobody"
        assert sum(replica.num_ahead_tokens) == 0, "prompts ahead of nobody"
        check_books(replica)
    return tally


def _replica(number: int, world: World, seed: int, tally: Tally) -> Replica:
    cost = replace(world.cost, noise=0.0) if world.is_strict else world.cost
    passes = StrictPasses(world.limits, cost) if world.is_strict else None

    return Replica(number, EngineSpec(world.limits, cost, "long run"), tally.add, seed=seed, passes=passes)


class _Progress:
    def __init__(self, tally: Tally, num_requests: int) -> None:
        self._tally = tally
        self._num_requests = num_requests
        self._started_s = self._said_s = time.monotonic()

    def tick(self, now: float) -> None:
        wall_s = time.monotonic()
        if wall_s - self._said_s < _PROGRESS_S:
            return
        self._said_s = wall_s
        num_done = sum(tier.num_requests for tier in self._tally.tiers.values()) - self._tally.num_open
        per_s = num_done / (wall_s - self._started_s)
        print(f"  {num_done:>9,} of {self._num_requests:,}  {per_s:,.0f} requests/s  simulated {now:,.0f} s", flush=True)


def _line(tally: Tally) -> str:
    tiers = tally.tiers.values()
    counts = {
        "answered": sum(tier.num_answered for tier in tiers),
        "refused": sum(sum(tier.refused.values()) for tier in tiers),
        "cancelled": sum(tier.num_cancelled for tier in tiers),
        "downgraded": sum(tier.num_downgraded for tier in tiers),
        "pauses": sum(tier.num_pauses for tier in tiers),
        "preemptions": sum(tier.num_preemptions for tier in tiers),
        "steps": tally.num_steps,
    }
    return ", ".join(f"{count:,} {what}" for what, count in counts.items())


def _speed(num_requests: int, since_s: float, since_cpu_s: float) -> str:
    """Of a machine that others use too, CPU time is the truer figure."""
    wall_s, cpu_s = time.monotonic() - since_s, time.process_time() - since_cpu_s
    return f"{wall_s:.0f} s, {cpu_s:.0f} s of CPU, {num_requests / cpu_s:,.0f} requests per CPU second"


def main() -> int:
    """Run all worlds, or one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--world", choices=list(WORLDS))
    options = parser.parse_args()
    gc.freeze()
    started_s, started_cpu_s, num_done = time.monotonic(), time.process_time(), 0
    for name, world in WORLDS.items():
        if options.world not in (None, name):
            continue
        num_requests = options.requests if options.world else round(options.requests * world.share)
        print(f"{name}: {num_requests:,} requests", flush=True)
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        try:
            tally = run_world(world, num_requests, options.seed, is_shown=True)
        except AssertionError as broken:
            command = f'python -m tests.sim.long_run --requests {num_requests} --seed {options.seed} --world "{name}"'
            print(f"BROKEN in {name}: {broken}\n  {command}", file=sys.stderr)
            raise
        num_done += num_requests
        print(f"  all invariants held; {_line(tally)}; {_speed(num_requests, began_s, began_cpu_s)}", flush=True)
    print(f"{num_done:,} requests, all invariants held; {_speed(num_done, started_s, started_cpu_s)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
