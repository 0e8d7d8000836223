"""Who waits for whom, on simulated time: long prefills beside decodes and beside short prompts, tiers, overload."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of

from ultrafast.core.request import RequestSlo
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.fake import FakeCost

GPU_LIKE = FakeCost(fixed_s=0.010, output_s=0.0001, prefill_token_s=0.00002)


def _gaps(simulation: Simulation, request_id: str) -> list[float]:
    times = simulation.token_times[request_id]
    return [after - before for before, after in itertools.pairwise(times)]


def _warm(simulation: Simulation) -> None:
    """Let the cost model see prefills of growing size."""
    simulation.add(make_request("warm", 600, 4))
    simulation.run()


@pytest.mark.parametrize("num_long", [1, 2])
def test_long_prefills_do_not_stall_a_decode(num_long: int) -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192, max_step_tokens=2048))
    _warm(simulation)
    simulation.add(make_request("stream", 50, 400))
    for _ in range(20):
        simulation.step()
    simulation.add(*[make_request(f"long{i}", 4000, 2, arrival_s=simulation.clock()) for i in range(num_long)])
    simulation.run()
    simulation.check_all_finished()
    assert max(_gaps(simulation, "stream")) <= 1.2 * simulation.limits.step_target_s


def test_a_step_is_bounded_before_anything_is_known_about_its_cost() -> None:
    simulation = Simulation(make_limits(max_step_tokens=2048))
    simulation.add(make_request("first", 3000, 2))
    assert simulation.step().num_tokens <= 32


def test_chunks_grow_where_prefill_tokens_are_cheap() -> None:
    simulation = Simulation(
        make_limits(kv_capacity_tokens=40_000, max_request_tokens=32_000, max_step_tokens=2048), cost=GPU_LIKE
    )
    simulation.add(make_request("long", 20_000, 2))
    simulation.run()
    assert max(plan.num_tokens for plan in simulation.plans) == 2048
    assert len(simulation.plans) < 25


def test_a_short_prompt_overtakes_a_long_prefill() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192))
    _warm(simulation)
    start_s = simulation.clock()
    simulation.add(make_request("long", 4000, 2, arrival_s=start_s))
    simulation.step()
    arrival_s = simulation.clock()
    simulation.add(make_request("short", 50, 2, arrival_s=arrival_s))
    simulation.run()
    assert simulation.first_token_s("short") - arrival_s < 1.0
    assert simulation.first_token_s("long") - start_s < 1.1 * 4000 * 0.0055 + 1.0


def test_a_stream_of_short_prompts_does_not_starve_a_long_prefill() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192))
    _warm(simulation)
    simulation.add(make_request("long", 2000, 2))
    for i in range(400):
        simulation.add(make_request(f"short{i}", 120, 1, arrival_s=simulation.clock()))
        simulation.step()
    assert simulation.finished["long"].first_token_s is not None
    simulation.run()
    simulation.check_all_finished()


def test_more_urgent_tiers_start_first_and_arrival_decides_inside_a_tier() -> None:
    simulation = Simulation(make_limits(max_num_running=1))
    simulation.add(make_request("running", 20, 5))
    simulation.step()
    order = [
        ("flex0", "flex"),
        ("default1", "default"),
        ("default0", "default"),
        ("ultra", "ultrafast"),
        ("priority", "priority"),
    ]
    for i, (name, tier) in enumerate(order):
        arrival_s = 5.0 if name == "default1" else float(i)
        simulation.add(make_request(name, 20, 3, tier=ServiceTier(tier), arrival_s=arrival_s))
    simulation.run()
    assert [event.request_id for event in simulation.scheduled][1:] == ["ultra", "priority", "default0", "default1", "flex0"]


def test_an_urgent_prefill_goes_before_a_less_urgent_one() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192))
    _warm(simulation)
    simulation.add(make_request("flex", 300, 2, tier=ServiceTier.FLEX))
    simulation.step()
    simulation.add(make_request("ultra", 600, 2, tier=ServiceTier.ULTRAFAST, arrival_s=simulation.clock()))
    simulation.run()
    assert simulation.first_token_s("ultra") < simulation.first_token_s("flex")


def test_an_urgent_follower_lends_its_urgency_to_the_leader() -> None:
    shared = tokens_of("shared", 600)
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192))
    _warm(simulation)
    simulation.add(make_request("leader", shared, 2, tier=ServiceTier.FLEX))
    simulation.step()
    simulation.add(make_request("other", 500, 2, tier=ServiceTier.PRIORITY, arrival_s=simulation.clock()))
    simulation.add(make_request("follower", shared, 2, tier=ServiceTier.ULTRAFAST, arrival_s=simulation.clock()))
    simulation.run()
    assert simulation.first_token_s("follower") < simulation.first_token_s("other")


def test_the_wait_is_bounded_under_bounded_load() -> None:
    """Arrivals at about 60 % of what the engine can do: nobody waits long for a start."""
    rng = random.Random(3)
    simulation = Simulation(make_limits(kv_capacity_tokens=8000))
    _warm(simulation)
    next_s, added = simulation.clock(), 0
    while added < 150 or simulation.scheduler.has_work:
        while added < 150 and next_s <= simulation.clock():
            simulation.add(make_request(f"r{added}", rng.randint(20, 200), rng.randint(5, 30), arrival_s=next_s))
            added += 1
            next_s += rng.expovariate(1 / 1.2)
        if simulation.scheduler.has_work:
            simulation.step()
        else:
            simulation.clock.advance(max(0.0, next_s - simulation.clock()))
    simulation.check_all_finished()
    waits = [event.at_s - simulation.requests[event.request_id].arrival_s for event in simulation.scheduled]
    assert max(waits) < 5.0


def test_the_same_seed_gives_the_same_trace() -> None:
    def trace() -> list[object]:
        rng = random.Random(11)
        simulation = Simulation(make_limits(kv_capacity_tokens=700, max_request_tokens=600))
        for i in range(40):
            prompt = tokens_of(rng.choice("abc"), rng.randint(1, 150)) + tokens_of(str(i), rng.randint(0, 40))
            tier = rng.choice(list(ServiceTier))
            simulation.add(make_request(f"r{i}", prompt, rng.randint(1, 60), tier=tier, arrival_s=simulation.clock()))
            for _ in range(rng.randint(0, 6)):
                if simulation.scheduler.has_work:
                    simulation.step()
        simulation.run()
        simulation.check_all_finished()
        return [*simulation.plans, *simulation.events]

    assert trace() == trace()


def test_the_queue_of_a_tier_is_in_the_order_of_deadlines() -> None:
    """The later one asks for its first token soon, the earlier one is in no hurry."""
    simulation = Simulation(make_limits(max_num_running=1))
    _warm(simulation)
    now = simulation.clock()
    simulation.add(make_request("running", 20, 10, arrival_s=now))
    simulation.step()
    simulation.add(make_request("patient", 400, 4, arrival_s=now, slo=RequestSlo(ttft_s=60.0)))
    simulation.add(make_request("hurried", 20, 4, arrival_s=now + 0.001, slo=RequestSlo(ttft_s=1.5)))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.first_token_s("hurried") - now < 1.5
    assert simulation.first_token_s("hurried") < simulation.first_token_s("patient")


@pytest.mark.parametrize("ttft_s", [2.6, 60.0, 0.5])
def test_short_prompts_pass_a_long_one_only_while_it_has_the_time(ttft_s: float) -> None:
    """They never end. The long one alone takes some two seconds; with a quarter of each step it takes four times as long."""
    simulation = Simulation(make_limits(kv_capacity_tokens=16_000, max_request_tokens=8192, max_num_running=4))
    _warm(simulation)
    begin_s = simulation.clock()
    simulation.add(make_request("long", 350, 2, arrival_s=begin_s, slo=RequestSlo(ttft_s=ttft_s)))
    count = 0
    while not simulation.output["long"]:
        while len(simulation.scheduler._state.live) < 4:
            slo = RequestSlo(ttft_s=60.0)
            simulation.add(make_request(f"short{count}", 60, 1, arrival_s=simulation.clock(), slo=slo))
            count += 1
        simulation.step()
    took_s = simulation.first_token_s("long") - begin_s
    if ttft_s == 2.6:
        assert took_s <= ttft_s
    else:
        assert took_s > 4.0, "it has the time, or has no hope: the short ones go first, and it has its quarter"
