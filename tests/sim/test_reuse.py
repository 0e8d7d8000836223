"""Prefix reuse: between turns, between running requests, and where a model allows only whole sequences."""

from __future__ import annotations

import pytest
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of

from ultrafast.core.step import CopyPrefix
from ultrafast.core.tiers import ServiceTier

SHARED = tokens_of("shared", 600)


def _prompts(count: int) -> list[list[int]]:
    return [SHARED + tokens_of(f"own{i}", 20) for i in range(count)]


def test_simultaneous_requests_compute_their_shared_prefix_once() -> None:
    simulation = Simulation()
    simulation.add(*[make_request(f"r{i}", prompt, 5) for i, prompt in enumerate(_prompts(4))])
    simulation.run()
    simulation.check_all_finished()
    prompt_tokens_computed = simulation.executor.num_run_tokens - 4 * 4
    assert prompt_tokens_computed == 600 + 4 * 20


def test_equal_prompts_share_all_but_the_last_token() -> None:
    simulation = Simulation()
    simulation.add(*[make_request(f"r{i}", SHARED, 5) for i in range(4)])
    simulation.run()
    simulation.check_all_finished()
    cached = sorted(event.num_cached_tokens for event in simulation.finished.values())
    assert cached == [0, 599, 599, 599]


def test_a_follower_goes_on_by_itself_when_its_leader_is_aborted() -> None:
    simulation = Simulation()
    simulation.add(make_request("leader", SHARED, 5), make_request("follower", [*SHARED, 5], 5))
    simulation.step()
    assert simulation.scheduler.num_waiting == 1
    simulation.abort("leader")
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["follower"].num_computed_tokens == 601 + 4


def test_a_follower_starts_when_the_prefix_is_there_not_when_its_leader_ends() -> None:
    simulation = Simulation()
    simulation.add(make_request("leader", SHARED + tokens_of("rest", 300), 50), make_request("follower", [*SHARED, 5], 5))
    simulation.run()
    assert simulation.first_token_s("follower") < simulation.first_token_s("leader")


def test_a_follower_does_not_wait_for_a_part_it_already_has() -> None:
    simulation = Simulation()
    simulation.add(make_request("leader", SHARED, 5))
    for _ in range(8):
        simulation.step()
    simulation.add(make_request("other", SHARED[:100] + tokens_of("own", 30), 5))
    simulation.step()
    assert simulation.scheduler.num_running == 2


def test_the_next_turn_of_a_chat_reuses_every_computed_token() -> None:
    simulation = Simulation()
    turn1 = tokens_of("turn1", 77)
    simulation.add(make_request("turn1", turn1, 13))
    simulation.run()
    turn2 = turn1 + simulation.output["turn1"] + tokens_of("turn2", 10)
    simulation.add(make_request("turn2", turn2, 5))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["turn2"].num_cached_tokens == 77 + 13 - 1, "all but the last output token, which nobody computed"
    assert simulation.finished["turn2"].num_computed_tokens == 1 + 10 + 4


def test_a_finished_sequence_becomes_a_leaf_and_its_own_prefixes_go() -> None:
    simulation = Simulation()
    prompt = tokens_of("chat", 40)
    for turn in range(5):
        simulation.add(make_request(f"turn{turn}", prompt, 5))
        simulation.run()
        prompt = prompt + simulation.output[f"turn{turn}"] + tokens_of(f"user{turn}", 7)
    assert len(simulation.scheduler._state.ledger.leaves) == 1
    assert simulation.scheduler.kv_usage.num_cached_tokens == 40 + 5 * 5 + 4 * 7 - 1
    assert simulation.executor.num_free == 4096 - (40 + 5 * 5 + 4 * 7 - 1)


def test_a_duplicate_of_what_is_cached_is_freed() -> None:
    simulation = Simulation()
    for name in ("a", "b"):
        simulation.add(make_request(name, SHARED, 5))
        simulation.run()
    assert simulation.scheduler.kv_usage.num_cached_tokens == 604
    assert len(simulation.scheduler._state.ledger.leaves) == 1


def test_a_prefix_of_what_is_cached_is_freed() -> None:
    simulation = Simulation()
    simulation.add(make_request("a", SHARED, 5))
    simulation.run()
    simulation.add(make_request("b", SHARED[:300], 1))
    simulation.run()
    assert len(simulation.scheduler._state.ledger.leaves) == 1
    assert simulation.executor.num_free == 4096 - 604


@pytest.mark.parametrize(("salt", "use_cache"), [("tenant", True), ("", False)])
def test_salts_and_opting_out_are_respected(salt: str, use_cache: bool) -> None:
    simulation = Simulation()
    simulation.add(make_request("a", SHARED, 5))
    simulation.run()
    used = simulation.scheduler.kv_usage.num_cached_tokens
    simulation.add(make_request("b", SHARED, 5, salt=salt, use_cache=use_cache))
    simulation.run()
    assert simulation.finished["b"].num_cached_tokens == 0
    assert simulation.scheduler.kv_usage.num_cached_tokens == (2 * used if use_cache else used)
    simulation.check_all_finished()


def test_without_a_cache_nothing_is_kept_or_shared() -> None:
    simulation = Simulation(make_limits(enable_prefix_cache=False))
    simulation.add(make_request("a", SHARED, 5), make_request("b", SHARED, 5))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.executor.num_free == 4096
    assert not any(isinstance(op, CopyPrefix) for plan in simulation.plans for op in plan.kv_ops)


def test_a_sequence_that_cannot_be_cut_is_reused_as_a_whole_only() -> None:
    simulation = Simulation(make_limits(can_trim=False))
    turn1 = tokens_of("turn1", 50)
    simulation.add(make_request("turn1", turn1, 4))
    simulation.run()
    branch = turn1[:30] + tokens_of("branch", 10)
    continued = turn1 + simulation.output["turn1"] + [3, 4]
    simulation.add(make_request("branch", branch, 2), make_request("turn2", continued, 2))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["branch"].num_cached_tokens == 0
    assert simulation.finished["turn2"].num_cached_tokens == 53


def test_a_copy_that_cannot_be_proven_is_computed_instead() -> None:
    simulation = Simulation()
    simulation.add(make_request("a", SHARED, 5))
    simulation.run()
    simulation.executor.injections.uncopyable_ids.add("b")
    simulation.add(make_request("b", SHARED, 5))
    simulation.run()
    simulation.check_all_finished()
    finished = simulation.finished["b"]
    assert (finished.num_cached_tokens, finished.num_computed_tokens) == (0, 604)
    assert [event.num_cached_tokens for event in simulation.scheduled] == [0, 0]


def test_a_request_that_continues_draws_the_tokens_it_would_have_drawn() -> None:
    whole = Simulation()
    whole.add(make_request("r", 60, 20))
    whole.run()
    resumed = Simulation()
    resumed.add(make_request("r", 60, 20, output=tuple(whole.output["r"][:9])))
    resumed.run()
    resumed.check_all_finished()
    assert resumed.output["r"] == whole.output["r"]
    assert resumed.finished["r"].num_output_tokens == 20


def test_evicting_cached_leaves_makes_room_least_recently_used_first() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=300, max_num_cached=4))
    for name in ("old", "kept"):
        simulation.add(make_request(name, 100, 1, arrival_s=simulation.clock()))
        simulation.run()
    simulation.clock.advance(1.0)
    simulation.add(make_request("touch", tokens_of("old", 100), 1))
    simulation.run()
    simulation.add(make_request("big", 150, 2))
    simulation.run()
    simulation.add(make_request("again", tokens_of("old", 100), 1))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["again"].num_cached_tokens == 99


def test_parked_requests_keep_their_slots_from_those_behind_but_not_from_more_urgent_ones() -> None:
    simulation = Simulation(make_limits(max_num_running=3))
    simulation.add(*[make_request(f"r{i}", SHARED, 3, arrival_s=float(i)) for i in range(3)])
    simulation.add(make_request("behind", 20, 3, arrival_s=9.0))
    simulation.step()
    assert (simulation.scheduler.num_running, simulation.scheduler.num_waiting) == (1, 3)
    simulation.add(make_request("urgent", 20, 3, tier=ServiceTier.ULTRAFAST, arrival_s=9.0))
    simulation.step()
    assert [event.request_id for event in simulation.scheduled] == ["r0", "urgent"]
    simulation.run()
    simulation.check_all_finished()
