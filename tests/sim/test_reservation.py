"""Predictive reservation on simulated time: who is expected finds room, and the others lose little for it."""

from __future__ import annotations

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import StepFinished
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.fake import FakeCost
from ultrafast.kv.level import LevelLimits

ULTRA, FLEX = ServiceTier.ULTRAFAST, ServiceTier.FLEX


def _simulate(*, is_on: bool, cost: FakeCost | None = None, **changes: object) -> Simulation:
    values: dict[str, object] = {
        "kv_capacity_tokens": 2400,
        "max_request_tokens": 2000,
        "max_num_running": 16,
        "max_num_paused": 16,
        "max_num_cached": 0,
        "enable_speculation": False,
    }
    return Simulation(make_limits(**{**values, **changes}, enable_reservation=is_on), cost=cost)


def _expect_ultra(simulation: Simulation, count: int = 20) -> None:
    """Teach it that a request of 200 tokens comes every four seconds."""
    for i in range(count):
        simulation.add(make_request(f"earlier{i}", 190, 10, tier=ULTRA, arrival_s=simulation.clock()))
        simulation.run()
        simulation.clock.advance(4.0)


def _flood(simulation: Simulation, count: int = 8) -> None:
    """More flex work than the pool can hold."""
    simulation.add(*[make_request(f"flex{i}", 330, 60, tier=FLEX, arrival_s=simulation.clock()) for i in range(count)])
    simulation.step_until(lambda: any(len(tokens) >= 58 for name, tokens in simulation.output.items() if name.startswith("flex")))


def test_an_expected_request_finds_room_and_nobody_is_preempted_for_it() -> None:
    preempted = {}
    for is_on in (True, False):
        simulation = _simulate(is_on=is_on, cost=FakeCost(prefill_token_s=0.0002))
        _expect_ultra(simulation)
        _flood(simulation)
        simulation.add(make_request("ultra", 190, 10, tier=ULTRA, arrival_s=simulation.clock()))
        simulation.run()
        simulation.check_all_finished()
        preempted[is_on] = sum(simulation.num_preempted.values())
    assert preempted[True] == 0
    assert preempted[False] > 0, "else this scenario shows nothing"


def test_an_expected_request_does_not_wait_for_a_long_step() -> None:
    ttft_s = {}
    for is_on in (True, False):
        simulation = _simulate(is_on=is_on, kv_capacity_tokens=8000)
        _expect_ultra(simulation)
        simulation.add(make_request("long", 1900, 2, tier=FLEX, arrival_s=simulation.clock()))
        longest_s = 0.0
        while not simulation.output["long"]:
            before_s = simulation.clock()
            simulation.step()
            longest_s = max(longest_s, simulation.clock() - before_s)
        ttft_s[is_on] = longest_s
    assert ttft_s[True] <= 0.11, "the target step time"
    assert ttft_s[False] > 0.5, "alone it takes long steps"


def test_the_gauge_says_what_is_held_and_nothing_when_nobody_is_expected() -> None:
    simulation = _simulate(is_on=True)
    _expect_ultra(simulation)
    (held,) = [event for event in simulation.events if isinstance(event, StepFinished)][-1].reserved
    assert (held.tier, held.num_likely) == (ULTRA, 2)
    assert held.num_kv_tokens == 400
    simulation.clock.advance(600.0)
    simulation.add(make_request("flex", 20, 5, tier=FLEX, arrival_s=simulation.clock()))
    simulation.run()
    assert [event for event in simulation.events if isinstance(event, StepFinished)][-1].reserved == ()


def test_a_tier_that_is_owed_a_step_may_use_what_is_held_back() -> None:
    """Expected and present: `priority` fills the pool but for what is held for `ultrafast`; flex still gets its share."""
    simulation = _simulate(is_on=True)
    _expect_ultra(simulation)
    names = [f"priority{i}" for i in range(30)]
    now = simulation.clock()
    simulation.add(*[make_request(name, 300, 40, tier=ServiceTier.PRIORITY, arrival_s=now) for name in names])
    simulation.add(make_request("flex", 100, 10, tier=FLEX, arrival_s=now))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.first_token_s("flex") < simulation.first_token_s(names[-1])


def test_a_lone_request_may_have_everything() -> None:
    simulation = _simulate(is_on=True)
    _expect_ultra(simulation)
    simulation.add(make_request("flex", 1990, 5, tier=FLEX, arrival_s=simulation.clock()))
    simulation.step()
    assert simulation.scheduled[-1].request_id == "flex"
    simulation.run()
    simulation.check_all_finished()


@pytest.mark.parametrize("is_on", [True, False])
def test_held_places(is_on: bool) -> None:
    """Where nobody can be paused, places are left for those who are expected."""
    simulation = _simulate(is_on=is_on, max_num_running=8, max_num_paused=0, kv_capacity_tokens=8000)
    _expect_ultra(simulation)
    simulation.add(*[make_request(f"flex{i}", 20, 30, tier=FLEX, arrival_s=simulation.clock()) for i in range(10)])
    simulation.step()
    assert simulation.scheduler.num_running == (6 if is_on else 8)
    simulation.run()
    simulation.check_all_finished()


def test_a_waiting_request_has_leaves_copied_and_evicted_before_it_starts() -> None:
    """Shadow demand: what waits for a place will take cells; they are free when it gets one."""
    levels = LevelLimits(host_bytes=1 << 22, bytes_per_token=12)
    simulation = _simulate(is_on=True, max_num_cached=8, max_num_running=1, levels=levels, max_num_paused=0)
    for i in range(4):
        simulation.add(make_request(f"cached{i}", 500, 4, arrival_s=simulation.clock()))
        simulation.run()
    ledger = simulation.scheduler._state.ledger
    simulation.add(make_request("runs", 20, 100, arrival_s=simulation.clock()))
    simulation.step()
    assert ledger.num_free < 1000
    simulation.add(make_request("waits", 1200, 5, arrival_s=simulation.clock()))
    for _ in range(80):
        simulation.step()
    assert "waits" not in simulation.num_scheduled
    assert ledger.num_free >= 1200, "evicted in the background"
    levels_now = ledger.levels
    assert levels_now is not None
    assert levels_now.holdings.host.num_tokens >= 2000, "and nothing is lost"
    simulation.run()
    simulation.check_all_finished()
