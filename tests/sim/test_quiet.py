"""A lone stream: what is not looked at between its steps, and that nothing waits for that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.request import FinishReason, RequestSlo


def _lone_stream(max_tokens: int = 400, **fields: object) -> Simulation:
    simulation = Simulation(make_limits())
    simulation.add(make_request("stream", 20, max_tokens, **fields))
    simulation.step_until(lambda: len(simulation.output["stream"]) > 50)
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


def test_most_steps_of_a_lone_stream_are_not_planned_from_the_ground_up(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = _lone_stream()
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
