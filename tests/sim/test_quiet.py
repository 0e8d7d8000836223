"""Streams that have the machine to themselves: what is not looked at between their steps, and that nothing waits for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.request import FinishReason, RequestSlo
from ultrafast.core.tiers import ServiceTier


def _lone_stream(max_tokens: int = 400, **fields: object) -> Simulation:
    simulation = Simulation(make_limits())
    simulation.add(make_request("stream", 20, max_tokens, **fields))
    simulation.step_until(lambda: len(simulation.output["stream"]) > 50)
    return simulation


def _streams(*tiers: ServiceTier, max_tokens: int = 400) -> Simulation:
    """One stream of each of these tiers; all of them decode."""
    simulation = Simulation(make_limits())
    simulation.add(*[make_request(f"stream-{i}", 20 + i, max_tokens, tier=tier) for i, tier in enumerate(tiers)])
    simulation.step_until(lambda: all(len(simulation.output[f"stream-{i}"]) > 20 for i in range(len(tiers))))
    return simulation


def _num_whole_plans(simulation: Simulation, num_steps: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of so many steps were planned from the ground up."""
    planner, num_built = simulation.scheduler._planner, 0
    build: Callable[[float], object] = planner.build

    def counted(now: float) -> object:
        nonlocal num_built
        num_built += 1
        return build(now)

    with monkeypatch.context() as patch:
        patch.setattr(planner, "build", counted)
        for _ in range(num_steps):
            simulation.step()
    return num_built


@pytest.mark.parametrize("num_streams", [1, 2, 5])
def test_most_steps_of_streams_of_a_tier_are_not_planned_from_the_ground_up(
    num_streams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulation = _streams(*[ServiceTier.DEFAULT] * num_streams)
    before_s = simulation.clock()
    num_built = _num_whole_plans(simulation, 100, monkeypatch)
    elapsed_s = simulation.clock() - before_s
    assert 0 < num_built <= 1 + elapsed_s / 0.1 < 50
    simulation.run()
    simulation.check_all_finished()


def test_nor_is_anything_of_them_lost_in_the_books() -> None:
    simulation = _lone_stream()
    simulation.run()
    simulation.check_output("stream")
    assert simulation.finished["stream"].num_computed_tokens == 20 + 400 - 1


@pytest.mark.parametrize("num_steps", range(10))
def test_whoever_comes_is_in_the_next_step(num_steps: int) -> None:
    simulation = _lone_stream()
    for _ in range(num_steps):
        simulation.step()
    simulation.add(make_request("new", 10, 4, arrival_s=simulation.clock()))
    assert {item.request_id for item in simulation.step().work} == {"stream", "new"}
    simulation.run()
    simulation.check_all_finished()


def test_an_abort_frees_its_cells_in_the_next_plan() -> None:
    simulation = _lone_stream()
    simulation.abort("stream")
    simulation.run()
    assert simulation.finished["stream"].reason is FinishReason.ABORT
    assert simulation.scheduler.kv_usage.num_running_tokens == 0


def test_a_deadline_is_not_overslept() -> None:
    simulation = _lone_stream(slo=RequestSlo(execution_ttl_s=0.731))
    simulation.run()
    end = simulation.finished["stream"]
    assert end.reason is FinishReason.DEADLINE
    assert end.scheduled_s is not None
    step_s = simulation.token_times["stream"][1] - simulation.token_times["stream"][0]
    assert 0.731 <= end.finished_s - end.scheduled_s <= 0.731 + 2 * step_s


def test_streams_of_several_tiers_are_looked_at_in_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tier's share is booked."""
    simulation = _streams(ServiceTier.ULTRAFAST, ServiceTier.FLEX)
    assert _num_whole_plans(simulation, 20, monkeypatch) == 20


@pytest.mark.parametrize("num_steps", range(6))
def test_one_that_comes_in_the_place_of_one_that_leaves_is_in_the_next_step(num_steps: int) -> None:
    simulation = _streams(*[ServiceTier.DEFAULT] * 3)
    for _ in range(num_steps):
        simulation.step()
    simulation.abort("stream-1")
    simulation.add(make_request("new", 10, 4, arrival_s=simulation.clock()))
    assert {item.request_id for item in simulation.step().work} == {"stream-0", "stream-2", "new"}
    simulation.run()
    simulation.check_all_finished()


@pytest.mark.parametrize("capacity", range(200, 210))
def test_a_pool_that_is_full_is_noticed(capacity: int) -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=capacity, max_request_tokens=200))
    simulation.add(*[make_request(f"stream-{i}", 20, 120) for i in range(2)])
    simulation.run()
    simulation.check_all_finished()
    assert sum(simulation.num_preempted.values()) > 0
