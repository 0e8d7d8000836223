"""The execution deadline: from the first place to the end, whatever happens between, and never for who only waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.request import FinishReason, RequestSlo
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier

STEP_S = 0.2
"""More than a step takes."""


def _simulation(execution_ttl_s: float | None = None, **limits: object) -> Simulation:
    tiers = tuple(replace(policy, execution_ttl_s=execution_ttl_s) for policy in DEFAULT_POLICIES)
    return Simulation(make_limits(tiers=tiers, **limits))


def _own(execution_ttl_s: float) -> RequestSlo:
    return RequestSlo(execution_ttl_s=execution_ttl_s)


@pytest.mark.parametrize(("tier_s", "own_s", "limit_s"), [(1.0, None, 1.0), (None, 1.0, 1.0), (2.0, 1.0, 1.0), (1.0, 50.0, 1.0)])
def test_the_shorter_of_both_limits_ends_a_request_with_what_it_has(
    tier_s: float | None, own_s: float | None, limit_s: float
) -> None:
    simulation = _simulation(tier_s)
    simulation.add(make_request("a", 20, 4000, slo=None if own_s is None else _own(own_s)), make_request("short", 20, 3))
    simulation.run()
    end = simulation.finished["a"]
    assert end.reason is FinishReason.DEADLINE
    assert end.scheduled_s is not None
    assert limit_s <= end.finished_s - end.scheduled_s < limit_s + STEP_S
    assert end.num_output_tokens == len(simulation.output["a"]) > 0
    assert simulation.finished["short"].reason is FinishReason.LENGTH
    assert not simulation.scheduler.has_work


def test_without_a_limit_it_runs_to_its_end() -> None:
    simulation = _simulation()
    simulation.add(make_request("a", 20, 300))
    simulation.run()
    assert simulation.finished["a"].reason is FinishReason.LENGTH


def test_the_wait_for_a_place_does_not_count() -> None:
    simulation = _simulation(max_num_running=1)
    simulation.add(make_request("first", 20, 200), make_request("second", 20, 5, slo=_own(1.0)))
    simulation.run()
    end = simulation.finished["second"]
    assert end.scheduled_s is not None
    assert end.scheduled_s > 1.0
    assert end.reason is FinishReason.LENGTH


def test_a_prompt_that_takes_too_long_ends_without_output() -> None:
    simulation = _simulation(max_step_tokens=32)
    simulation.add(make_request("a", 4000, 5, slo=_own(0.5)))
    simulation.run()
    assert (simulation.finished["a"].reason, simulation.output["a"]) == (FinishReason.DEADLINE, [])


def test_pauses_and_preemptions_count() -> None:
    simulation = _simulation(max_num_running=1, max_num_paused=1)
    simulation.add(make_request("lesser", 20, 50, tier=ServiceTier.FLEX, slo=_own(2.0)))
    simulation.step_until(lambda: simulation.output["lesser"])
    simulation.add(make_request("urgent", 20, 1000, tier=ServiceTier.ULTRAFAST, arrival_s=simulation.clock()))
    simulation.step_until(lambda: simulation.scheduler.num_paused)
    simulation.run()
    assert simulation.finished["lesser"].reason is FinishReason.DEADLINE
    assert simulation.finished["urgent"].reason is FinishReason.LENGTH


def test_a_life_after_a_crash_is_timed_from_the_first() -> None:
    simulation = _simulation(1.0)
    simulation.clock.advance(10.0)
    again = replace(make_request("a", 20, 4000, arrival_s=9.0), placed_s=9.2, had_place=True, is_admitted=True)
    simulation.add(again)
    simulation.run()
    end = simulation.finished["a"]
    assert end.reason is FinishReason.DEADLINE
    assert 10.2 <= end.finished_s < 10.2 + STEP_S
