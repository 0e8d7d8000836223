"""Long steps that are broken off, in whole simulated lives: nothing is lost but time, and not much of that."""

from dataclasses import replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.step import StepStatus
from ultrafast.core.tiers import ServiceTier

LIMITS = make_limits(
    kv_capacity_tokens=8192, max_request_tokens=4096, max_step_tokens=256, step_target_s=0.05, can_interrupt=True
)


def lone_prompt(simulation: Simulation, num_tokens: int = 3000) -> None:
    simulation.add(make_request("long", num_tokens, max_tokens=4, tier=ServiceTier.FLEX, arrival_s=simulation.clock()))
    while len(simulation.step().work[0].tokens) < 100:
        pass  # the cost model grows its trust step by step


def break_off(simulation: Simulation) -> None:
    simulation.executor.injections.statuses.append(StepStatus.INTERRUPTED)
    simulation.step()


def test_a_step_that_was_broken_off_never_happened() -> None:
    simulation = Simulation(LIMITS)
    lone_prompt(simulation)
    before = simulation.scheduler.kv_usage
    break_off(simulation)
    assert simulation.scheduler.kv_usage == before
    assert simulation.plans[-1].yielding is not None
    simulation.add(make_request("urgent", 20, max_tokens=4, tier=ServiceTier.ULTRAFAST, arrival_s=simulation.clock()))
    assert {item.request_id for item in simulation.step().work} >= {"urgent"}
    simulation.run()
    simulation.check_output("long")
    simulation.check_output("urgent")


def test_newcomers_that_break_off_again_and_again_cost_a_quarter_at_most() -> None:
    undisturbed, disturbed = Simulation(LIMITS), Simulation(LIMITS)
    lone_prompt(undisturbed)
    undisturbed.run()
    lone_prompt(disturbed)
    num_lost = 0
    while "long" not in disturbed.finished:
        if disturbed.scheduler.plan(disturbed.clock()).yielding is not None:
            break_off(disturbed)
            num_lost += 1
        else:
            disturbed.step()
    whole_s, lone_s = disturbed.finished["long"].finished_s, undisturbed.finished["long"].finished_s
    assert num_lost > 2
    assert lone_s < whole_s <= 1.3 * lone_s + 1.0, "a quarter, one step, and shorter steps meanwhile"
    disturbed.check_output("long")


def test_who_comes_breaks_off_the_step_of_the_less_urgent() -> None:
    simulation = Simulation(LIMITS)
    lone_prompt(simulation)
    step = simulation.scheduler.plan(simulation.clock()).yielding
    assert step is not None
    urgent, other = (
        make_request(name, 20, max_tokens=4, tier=tier) for name, tier in (("u", ServiceTier.ULTRAFAST), ("f", ServiceTier.FLEX))
    )
    longer = replace(other, prompt_tokens=tuple(range(1, 300)))
    assert simulation.scheduler.gives_way(step, urgent, 0.1)
    assert simulation.scheduler.gives_way(step, other, 0.1)
    assert not simulation.scheduler.gives_way(step, longer, 0.1)


@pytest.mark.parametrize(
    ("tier", "can_interrupt", "expected_tokens"),
    [(ServiceTier.DEFAULT, True, (20, 26)), (ServiceTier.DEFAULT, False, (16, 16)), (ServiceTier.ULTRAFAST, True, (1, 8))],
)
def test_beside_a_stream_a_step_gets_as_long_as_its_objective_leaves(
    tier: ServiceTier, can_interrupt: bool, expected_tokens: tuple[int, int]
) -> None:
    """150 ms a token in the default tier, nine tenths of them used; where a step cannot be broken off, it keeps to its target."""
    simulation = Simulation(replace(LIMITS, can_interrupt=can_interrupt))
    simulation.add(make_request("stream", 20, max_tokens=400, tier=tier, arrival_s=simulation.clock()))
    for _ in range(20):
        simulation.step()
    simulation.add(make_request("long", 800, max_tokens=2, tier=ServiceTier.DEFAULT, arrival_s=simulation.clock()))
    simulation.step()
    chunks = []
    while "long" not in simulation.finished:
        for item in simulation.step().work:
            if item.request_id == "long" and len(item.tokens) > 1:
                chunks.append(len(item.tokens))
    low, high = expected_tokens
    assert low <= sorted(chunks)[len(chunks) // 2] <= high
