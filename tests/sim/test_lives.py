"""Seeded random lives of an engine under every kind of trouble at once; the harness checks its invariants at each step.

`test_machine` finds small counterexamples; this one covers ground: long lives, many settings, all pressures together.
"""

from __future__ import annotations

import gc
import random
from dataclasses import replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of

from ultrafast.core.request import FinishReason, Request, RequestSlo
from ultrafast.core.step import CopyPrefix, StepStatus
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.sched.live import LiveRequest

NUM_REQUESTS = 60


def _simulation(rng: random.Random) -> Simulation:
    num_running = rng.choice([1, 2, 4, 8])
    limits = make_limits(
        kv_capacity_tokens=rng.choice([90, 150, 250, 500]),
        max_request_tokens=300,
        max_step_tokens=rng.choice([num_running, 16, 64]),
        max_num_running=num_running,
        max_num_cached=rng.choice([0, 1, 4, 8]),
        can_trim=rng.random() < 0.7,
        enable_prefix_cache=rng.random() < 0.8,
        reserve_tokens=rng.choice([0, 8, 64]),
        max_num_paused=rng.choice([0, 1, 4]),
        tiers=tuple(
            replace(policy, max_num_waiting=rng.choice([3, 1000]), queue_ttl_s=rng.choice([2.0, 300.0]), is_downgradable=True)
            if rng.random() < 0.4
            else policy
            for policy in DEFAULT_POLICIES
        ),
    )
    return Simulation(limits, end_every=rng.choice([0, 15]))


def _request(rng: random.Random, name: str, simulation: Simulation) -> Request:
    finished = [other for other in simulation.finished if rng.random() < 0.2]
    if finished and rng.random() < 0.3:  # the next turn of a chat
        before = simulation.requests[finished[0]]
        prompt = [*before.prompt_tokens, *simulation.output[finished[0]], *tokens_of(name, 5)][:250]
    else:
        prompt = tokens_of(rng.choice("ab"), rng.randint(1, 80)) + tokens_of(rng.choice(["x", "y", name]), rng.randint(0, 30))
    return make_request(
        name,
        prompt,
        rng.choice([1, 8, 30, 80]),
        tier=rng.choice(list(ServiceTier)),
        arrival_s=simulation.clock(),
        salt=rng.choice(["", "", "", "tenant"]),
        use_cache=rng.random() < 0.9,
        slo=RequestSlo(
            ttft_s=rng.choice([None, 0.5, 20.0]),
            is_strict=rng.random() < 0.1,
            execution_ttl_s=rng.uniform(0.01, 1.0) if rng.random() < 0.1 else None,
        ),
    )


def _trouble(rng: random.Random, simulation: Simulation) -> None:
    alive = [name for name in simulation.requests if name not in simulation.finished]
    if not alive:
        return
    injections, victim = simulation.executor.injections, rng.choice(alive)
    kind = rng.choice(["abort", "copy", "copy", "fail", "invalid", "out_of_kv"])
    if kind == "abort":
        simulation.abort(victim)
    elif kind == "out_of_kv":
        injections.statuses.append(StepStatus.OUT_OF_KV)
        simulation.may_cut_short = True
    else:
        {"copy": injections.uncopyable_ids, "fail": injections.failing_ids, "invalid": injections.invalid_ids}[kind].add(victim)


def _live(seed: int) -> Simulation:
    rng = random.Random(seed)
    simulation = _simulation(rng)
    for i in range(NUM_REQUESTS):
        simulation.add(_request(rng, f"r{i}", simulation))
        for _ in range(rng.choice([0, 0, 3, 15])):
            if simulation.scheduler.has_work:
                simulation.step()
        if rng.random() < 0.15:
            _trouble(rng, simulation)
    simulation.run()
    simulation.check_all_finished()
    return simulation


@pytest.mark.parametrize("seed", range(40))
def test_everybody_ends_once_with_the_right_tokens(seed: int) -> None:
    simulation = _live(seed)
    injections = simulation.executor.injections
    sick = injections.failing_ids | injections.invalid_ids
    limit = min(simulation.limits.max_request_tokens - 1, simulation.limits.kv_capacity_tokens)
    for name, finished in simulation.finished.items():
        if finished.reason is FinishReason.ERROR and simulation.requests[name].num_prompt_tokens <= limit:
            assert name in sick or simulation.may_cut_short, f"{name} failed through no fault of its own: {finished.error}"


def test_these_lives_contain_what_they_are_for() -> None:
    """Guards the generator: without preemptions, copies and failures the test above would prove little."""
    lives = [_live(seed) for seed in range(12)]
    copies = sum(isinstance(op, CopyPrefix) for life in lives for plan in life.plans for op in plan.kv_ops)
    assert copies > 100
    assert sum(sum(life.num_preempted.values()) for life in lives) > 20
    assert len({finished.reason for life in lives for finished in life.finished.values()}) == len(FinishReason)


@pytest.mark.parametrize("is_aborted", [False, True], ids=["finished", "aborted"])
def test_nothing_is_kept_of_a_request_that_is_over(is_aborted: bool) -> None:
    tiers = tuple(replace(policy, queue_ttl_s=3600.0, execution_ttl_s=3600.0) for policy in DEFAULT_POLICIES)
    simulation = Simulation(make_limits(max_num_running=2, kv_capacity_tokens=500, tiers=tiers))
    for i in range(20):
        simulation.add(make_request(f"r{i}", 30, 4, arrival_s=simulation.clock()))
        simulation.step()
        if is_aborted:
            simulation.abort(f"r{i}")
    simulation.run()
    gc.collect()
    kept = [one.request_id for one in gc.get_objects() if isinstance(one, LiveRequest)]
    assert not kept, "their deadlines are an hour away"
