"""KV leaves the device in pieces: no stream stalls while a long sequence is copied, and nothing is computed twice."""

from __future__ import annotations

import itertools

import pytest
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.step import SaveRun
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.fake import FakeCost
from ultrafast.kv.level import LevelLimits

ULTRA, FLEX = ServiceTier.ULTRAFAST, ServiceTier.FLEX
SAVE_TOKEN_S = 0.0002
"""A run takes 26 ms, the whole long sequence 0.8 s."""
STEP_TARGET_S = 0.1


def _simulate(**changes: object) -> Simulation:
    """The engine's time for a copy, and with a byte a token, an overhead that makes the first guess of it too high."""
    levels = LevelLimits(host_bytes=1 << 24, bytes_per_token=12)
    limits = make_limits(
        **{
            "kv_capacity_tokens": 5000,
            "max_request_tokens": 5000,
            "levels": levels,
            "step_target_s": STEP_TARGET_S,
            "max_num_cached": 0,
            "enable_speculation": False,
            **changes,
        }
    )
    simulation = Simulation(limits, cost=FakeCost(save_token_s=SAVE_TOKEN_S, prefill_token_s=0.001))
    simulation.add(make_request("warm", 600, 6))
    simulation.run()
    return simulation


def _with_long_and_stream(simulation: Simulation, tier: ServiceTier = ULTRA) -> None:
    """A long sequence of flex, and a stream that decodes beside it."""
    simulation.add(make_request("long", 4000, 400, tier=FLEX, arrival_s=simulation.clock()))
    simulation.step_until(lambda: simulation.output["long"])
    simulation.add(make_request("stream", 20, 300, tier=tier, arrival_s=simulation.clock()))
    simulation.step_until(lambda: len(simulation.output["stream"]) > 2)


def _longest_gap_s(simulation: Simulation, name: str) -> float:
    return max(after - before for before, after in itertools.pairwise(simulation.token_times[name]))


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_stream_does_not_stall_while_a_long_sequence_leaves(use_cache: bool) -> None:
    simulation = _simulate()
    _with_long_and_stream(simulation)
    simulation.add(make_request("needs", 1200, 5, tier=ULTRA, arrival_s=simulation.clock(), use_cache=use_cache))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["long"] == 1
    saves = [sum(isinstance(op, SaveRun) for op in plan.kv_ops) for plan in simulation.plans]
    assert sum(saves) > 20
    assert max(saves) * 128 * SAVE_TOKEN_S <= STEP_TARGET_S, "a share of the step at a time"
    assert _longest_gap_s(simulation, "stream") < 0.3, "and not the 0.8 s that all of it takes"
    assert simulation.finished["long"].num_computed_tokens == 4000 + 400 - 1


def test_one_without_cache_leaves_in_pieces_too_and_leaves_nothing_behind() -> None:
    simulation = _simulate()
    simulation.add(make_request("long", 4000, 400, tier=FLEX, use_cache=False))
    simulation.step_until(lambda: simulation.output["long"])
    simulation.add(make_request("stream", 20, 100, tier=ULTRA, arrival_s=simulation.clock()))
    simulation.step_until(lambda: len(simulation.output["stream"]) > 2)
    simulation.add(make_request("needs", 1200, 5, tier=ULTRA, arrival_s=simulation.clock()))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["long"] == 1
    assert simulation.finished["long"].num_computed_tokens == 4000 + 400 - 1


def test_when_only_less_urgent_streams_wait_more_is_copied_at_a_time() -> None:
    def num_steps(tier: ServiceTier) -> int:
        simulation = _simulate()
        _with_long_and_stream(simulation, tier)
        begin = len(simulation.plans)
        simulation.add(make_request("needs", 1200, 5, tier=ULTRA, arrival_s=simulation.clock()))
        simulation.step_until(lambda: simulation.num_preempted["long"])
        return len(simulation.plans) - begin

    assert num_steps(ServiceTier.DEFAULT) < 0.6 * num_steps(ULTRA)


def test_what_grows_into_a_full_pool_finds_room_that_was_prepared() -> None:
    """Two streams outgrow the pool: the long one's KV is outside before the last cell is taken."""
    simulation = _simulate(kv_capacity_tokens=4600, max_request_tokens=4600, reserve_tokens=8)
    simulation.add(make_request("long", 3800, 600, tier=FLEX))
    simulation.step_until(lambda: simulation.output["long"])
    simulation.add(make_request("stream", 250, 500, tier=ULTRA, arrival_s=simulation.clock()))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["long"] >= 1
    assert _longest_gap_s(simulation, "stream") < 0.2
    assert simulation.finished["long"].num_computed_tokens == 3800 + 600 - 1


def test_a_victim_that_ends_while_it_is_copied_leaves_nothing_pinned() -> None:
    simulation = _simulate()
    _with_long_and_stream(simulation)
    simulation.add(make_request("needs", 1200, 5, tier=ULTRA, arrival_s=simulation.clock()))
    simulation.step()
    simulation.step()
    simulation.abort("long")
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["long"] == 0


def test_a_full_host_memory_does_not_keep_the_urgent_waiting() -> None:
    """Where nothing more can be copied the victim goes, and computes the rest again."""
    levels = LevelLimits(host_bytes=4 * (128 * 12 + 4096), bytes_per_token=12)
    simulation = _simulate(levels=levels)
    _with_long_and_stream(simulation)
    simulation.add(make_request("needs", 1200, 5, tier=ULTRA, arrival_s=simulation.clock()))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["needs"].first_token_s < simulation.finished["long"].finished_s
    assert simulation.finished["long"].num_computed_tokens > 4400
