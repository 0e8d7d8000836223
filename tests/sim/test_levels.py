"""KV below the device in simulated time: reuse after eviction, swap instead of recomputation, a slow or broken disk."""

from __future__ import annotations

from typing import Any

from tests.sim.harness import Simulation, make_limits, make_request, tokens_of
from tests.sim.memory_store import MemoryStore

from ultrafast.core.clock import ManualClock
from ultrafast.core.events import RequestFinished
from ultrafast.core.tiers import ServiceTier
from ultrafast.engine.fake import FakeCost
from ultrafast.kv.level import LevelLimits
from ultrafast.kv.levels import KvLevels
from ultrafast.kv.run import FoundRun

HISTORY = tokens_of("history", 300)


def simulate(
    *,
    host_bytes: int = 1 << 20,
    disk: MemoryStore | None = None,
    disk_bytes: int = 0,
    cost: FakeCost | None = None,
    **changes: object,
) -> Simulation:
    levels = LevelLimits(host_bytes, disk_bytes, bytes_per_token=12, can_trim=bool(changes.get("can_trim", True)))
    limits = make_limits(levels=levels, **{"kv_capacity_tokens": 512, "max_request_tokens": 512, **changes})
    return Simulation(limits, cost=cost, disk=disk)


def levels_of(sim: Simulation) -> KvLevels:
    levels = sim.scheduler._state.ledger.levels
    assert levels is not None
    return levels


def serve(sim: Simulation, name: str, prompt: list[int], **kind: Any) -> RequestFinished:
    """Run one request to its end, alone; fails when its output is not what it gives on an empty engine."""
    sim.add(make_request(name, prompt, arrival_s=sim.clock(), **kind))
    sim.run()
    sim.check_output(name)
    return sim.finished[name]


def displace(sim: Simulation, name: str = "other") -> None:
    """Fill the device with something else."""
    serve(sim, name, tokens_of(name, 500))
    assert sim.scheduler._state.ledger.match(HISTORY, "") is None


def test_what_was_evicted_comes_back_from_host_memory_to_the_token() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY)
    displace(sim)
    second = serve(sim, "second", [*HISTORY, 7, 8, 9])
    assert second.num_cached_tokens == second.num_host_tokens == 300
    assert second.num_computed_tokens == 3 + 8 - 1
    sim.check_all_finished()


def test_the_next_turn_finds_the_answer_too() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY)
    turn = [*HISTORY, *sim.output["first"]]
    displace(sim)
    assert serve(sim, "second", [*turn, 1, 2]).num_cached_tokens == len(turn) - 1, "the last token was drawn, not computed"


def _hold_beside(cost: FakeCost, **changes: object) -> Simulation:
    """A conversation waits for its next turn while a stream runs, in a pool with room for both."""
    sim = simulate(cost=cost, kv_capacity_tokens=4096, max_request_tokens=4096, **changes)
    for i in range(25):  # prompts of different lengths: what a cell costs is learnt from them
        serve(sim, f"teacher {i}", tokens_of(f"teacher {i}", 40 + 20 * (i % 7)))
    serve(sim, "first", HISTORY)
    sim.add(make_request("stream", 20, 400, arrival_s=sim.clock()))
    sim.step_until(lambda: "stream" in sim.finished, max_steps=2000)
    return sim


def test_what_slows_the_others_more_than_fetching_it_takes_waits_in_host_memory() -> None:
    sim = _hold_beside(FakeCost(cell_s=1e-5))
    match = sim.scheduler._state.ledger.match([*HISTORY, 7], "")
    assert match is None or match.num_tokens < 100, "it stood in the way of four hundred steps"
    again = serve(sim, "again", [*HISTORY, 7])
    assert again.num_cached_tokens == again.num_host_tokens == 300
    sim.check_all_finished()


def test_what_the_warm_up_measured_is_enough_to_know_it() -> None:
    """One stream's steps do not tell what an idle cell costs: all of it looks like the fixed part."""
    ends = {}
    for idle_cell_s in (0.0, 1e-5):
        sim = simulate(kv_capacity_tokens=4096, max_request_tokens=4096, idle_cell_s=idle_cell_s)
        serve(sim, "first", HISTORY)
        serve(sim, "stream", tokens_of("stream", 20), max_tokens=400)
        ends[idle_cell_s] = serve(sim, "again", [*HISTORY, 7]).num_host_tokens
    assert ends == {0.0: 0, 1e-5: 300}


def test_a_prompt_is_not_put_above_idle_cells_that_it_would_have_to_look_at() -> None:
    """What is freed only after its first chunk leaves a hole below that one, and steps look at all up to the highest cell."""
    sim = simulate(kv_capacity_tokens=4096, max_request_tokens=4096, idle_cell_s=1e-5)
    serve(sim, "first", HISTORY)
    assert sim.scheduler._state.ledger.num_evictable >= 300, "nobody else is there: it stays on the device"
    sim.add(make_request("long", 1000, 4, arrival_s=sim.clock()))
    sim.step()
    assert sim.scheduler._state.ledger.num_evictable == 0
    sim.run()
    assert serve(sim, "again", [*HISTORY, 7]).num_host_tokens == 300


def test_a_prompt_that_is_never_computed_does_not_put_off_the_next_look() -> None:
    sim = simulate(kv_capacity_tokens=4096, max_request_tokens=4096, idle_cell_s=1e-5)
    sim.add(make_request("stream", 20, 900, arrival_s=sim.clock()))
    sim.add(make_request("first", HISTORY, 30, arrival_s=sim.clock()))
    sim.step_until(lambda: sim.output["first"])
    sim.add(make_request("leaves", 2000, 4, arrival_s=sim.clock()))
    sim.step()
    sim.abort("leaves")
    sim.step_until(lambda: "first" in sim.finished)
    sim.step_until(lambda: "stream" in sim.finished, max_steps=2000)
    assert serve(sim, "again", [*HISTORY, 7]).num_host_tokens == 300


def test_where_idle_cells_cost_nothing_they_stay_on_the_device() -> None:
    sim = _hold_beside(FakeCost(cell_s=0.0))
    again = serve(sim, "again", [*HISTORY, 7])
    assert (again.num_cached_tokens, again.num_host_tokens) == (300, 0)


def test_without_host_memory_nothing_is_given_up_for_being_idle() -> None:
    sim = _hold_beside(FakeCost(cell_s=1e-5), host_bytes=0)
    assert serve(sim, "again", [*HISTORY, 7]).num_cached_tokens == 300


def test_what_is_used_again_and_again_stays_on_the_device() -> None:
    sim = _hold_beside(FakeCost(cell_s=1e-6))
    sim.add(make_request("beside", 20, 600, arrival_s=sim.clock()))
    serve_beside = [f"turn {i}" for i in range(30)]
    for name in serve_beside:
        sim.add(make_request(name, [*HISTORY, 7], 2, arrival_s=sim.clock()))
        sim.step_until(lambda name=name: name in sim.finished, max_steps=100)  # type: ignore[misc]
    assert [sim.finished[name].num_host_tokens for name in serve_beside[1:]] == [0] * 29
    sim.run()


def test_a_part_of_a_run_is_enough() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY)
    displace(sim)
    assert serve(sim, "second", [*HISTORY[:200], *tokens_of("else", 50)]).num_host_tokens == 200


def test_the_device_goes_first_and_host_memory_continues() -> None:
    sim = simulate(kv_capacity_tokens=1024, max_request_tokens=1024)
    serve(sim, "long", HISTORY)
    sim.scheduler._state.ledger.evict_one()
    serve(sim, "short", [*HISTORY[:100], 5, 5, 5], max_tokens=1)
    while len(sim.scheduler._state.ledger.leaves) > 1:
        sim.scheduler._state.ledger.evict_one()
    levels_of(sim)
    third = serve(sim, "third", [*HISTORY, 6])
    assert third.num_cached_tokens == 300
    assert third.num_host_tokens <= 200 + 3


def test_without_host_memory_it_is_computed_again() -> None:
    sim = simulate(host_bytes=0)
    serve(sim, "first", HISTORY)
    displace(sim)
    assert serve(sim, "second", HISTORY).num_cached_tokens == 0


def test_namespaces_do_not_see_each_other() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY, salt="a")
    displace(sim)
    assert serve(sim, "second", HISTORY, salt="b").num_cached_tokens == 0
    assert serve(sim, "third", HISTORY, salt="a").num_cached_tokens == 299


def test_a_request_without_cache_leaves_nothing() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY, use_cache=False)
    displace(sim)
    assert serve(sim, "second", HISTORY).num_cached_tokens == 0


def test_host_memory_is_bounded_and_keeps_the_start_of_a_chain() -> None:
    sim = simulate(host_bytes=2 * (128 * 12 + 4096))
    serve(sim, "first", HISTORY)
    displace(sim)
    assert levels_of(sim).holdings.host.budget.used_bytes <= 2 * (128 * 12 + 4096)
    sim.check()


def preempting(**changes: object) -> Simulation:
    """Two requests that do not fit together: the second loses its place when the first grows."""
    sim = simulate(**{"kv_capacity_tokens": 300, "max_request_tokens": 300, "reserve_tokens": 8, **changes})  # type: ignore[arg-type]
    sim.add(make_request("a", 120, 100, tier=ServiceTier.ULTRAFAST), make_request("b", 120, 60, tier=ServiceTier.FLEX))
    sim.run()
    return sim


def test_a_preempted_request_comes_back_without_recomputation() -> None:
    sim = preempting()
    assert sim.num_preempted["b"] > 0
    assert sim.finished["b"].num_computed_tokens == 120 + 60 - 1
    sim.check_all_finished()


def test_it_comes_back_so_too_where_fetching_for_reuse_would_not_pay() -> None:
    sim = simulate(kv_capacity_tokens=300, max_request_tokens=300, reserve_tokens=8)
    serve(sim, "learn", tokens_of("learn", 200))  # what a prefill costs
    sim.add(make_request("a", 120, 100, tier=ServiceTier.ULTRAFAST), make_request("b", 120, 60, tier=ServiceTier.FLEX))
    for _ in range(2000):
        levels_of(sim).bandwidths.observe("load", 1000, 10.0, sim.clock())  # type: ignore[arg-type]
        if not sim.scheduler.has_work:
            break
        sim.step()
    assert sim.num_preempted["b"] > 0
    assert (sim.finished["b"].num_computed_tokens, sim.finished["b"].num_recomputed_tokens) == (120 + 60 - 1, 0)
    sim.check_all_finished()


def test_it_comes_back_without_reuse_between_requests_too() -> None:
    sim = preempting(enable_prefix_cache=False)
    assert sim.num_preempted["b"] > 0
    assert sim.finished["b"].num_computed_tokens == 120 + 60 - 1
    assert serve(sim, "again", tokens_of("b", 120)).num_cached_tokens == 0
    assert len(levels_of(sim).holdings.index) == 0, "nothing is left for others"
    sim.check_all_finished()


def test_what_only_the_disk_has_is_read_for_one_that_was_preempted() -> None:
    sim = on_disk(disk_store())
    sim.add(make_request("b", [*HISTORY, 7], 40, tier=ServiceTier.FLEX, arrival_s=sim.clock()))
    while len(sim.output["b"]) < 10:
        sim.step()
    levels_of(sim).holdings.make_host_room(1 << 20, sim.clock())
    assert len(levels_of(sim).holdings.host) == 0
    state = sim.scheduler._state
    state.preempt(state.running[0], sim.clock())
    sim.run()
    assert sim.finished["b"].num_preemptions == 1
    assert sim.finished["b"].num_recomputed_tokens == 0
    sim.check_all_finished()


def test_without_levels_it_is_recomputed_and_counted() -> None:
    sim = preempting(host_bytes=0)
    assert sim.num_preempted["b"] > 0
    finished = sim.finished["b"]
    assert finished.num_recomputed_tokens >= 120
    assert finished.num_computed_tokens == 120 + 60 - 1 + finished.num_recomputed_tokens


def test_what_host_memory_has_no_room_for_is_recomputed_and_counted() -> None:
    sim = preempting(host_bytes=128 * 12 + 4096)  # one run, and the request has more
    finished = sim.finished["b"]
    assert sim.num_preempted["b"] > 0
    assert finished.num_recomputed_tokens > 0
    assert finished.num_computed_tokens == 120 + 60 - 1 + finished.num_recomputed_tokens
    sim.check_all_finished()


def test_even_one_without_cache_comes_back_and_leaves_nothing() -> None:
    sim = simulate(kv_capacity_tokens=300, max_request_tokens=300, reserve_tokens=8)
    sim.add(
        make_request("a", 120, 100, tier=ServiceTier.ULTRAFAST),
        make_request("b", 120, 60, tier=ServiceTier.FLEX, use_cache=False),
    )
    sim.run()
    assert sim.num_preempted["b"] > 0
    assert sim.finished["b"].num_computed_tokens == 120 + 60 - 1
    sim.check_all_finished()


def test_sequences_that_cannot_be_cut_move_as_a_whole() -> None:
    sim = simulate(can_trim=False)
    serve(sim, "first", HISTORY)
    turn = [*HISTORY, *sim.output["first"]]
    displace(sim)
    assert serve(sim, "second", [*turn, 1, 2]).num_host_tokens == len(turn) - 1
    displace(sim, "another")
    assert serve(sim, "third", [*HISTORY[:200], 3]).num_cached_tokens == 0


def test_a_damaged_run_costs_a_recomputation_and_nothing_else() -> None:
    sim = simulate()
    serve(sim, "first", HISTORY)
    displace(sim)
    runs = sim.carrier.arena._runs
    for run_id, data in runs.items():
        runs[run_id] = memoryview(bytes(len(data)))
    second = serve(sim, "second", HISTORY)
    assert second.num_cached_tokens == 0
    sim.check_all_finished()


# -- disk ---------------------------------------------------------------------------------------------------------------------


def on_disk(disk: MemoryStore) -> Simulation:
    """An engine that starts with what an earlier one left on disk."""
    first = simulate(disk=disk, disk_bytes=1 << 20)
    serve(first, "first", HISTORY)
    for _ in range(100):
        first.clock.advance(1.0)
        first.step()
    found = [
        FoundRun(run.parent, run.digest, run.start, run.tokens, run.num_bytes) for run in levels_of(first).holdings.disk.runs()
    ]
    assert len(found) == len(disk.files) == 3
    second = simulate(disk=disk, disk_bytes=1 << 20)
    second.scheduler.adopt(found, second.clock())
    second.clock.advance(1000.0)
    return second


def disk_store() -> MemoryStore:
    return MemoryStore(ManualClock())


def test_a_new_engine_finds_what_the_old_one_left_on_disk() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    second = serve(sim, "second", [*HISTORY, 7])
    assert second.num_disk_tokens == second.num_cached_tokens == 300
    sim.check_all_finished()


def test_others_run_while_one_waits_for_the_disk() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    disk.bytes_per_s = 1e4
    sim.add(make_request("waits", [*HISTORY, 7], 4, arrival_s=sim.clock()), make_request("runs", 20, 4, arrival_s=sim.clock()))
    sim.run()
    assert sim.first_token_s("runs") < sim.first_token_s("waits")
    sim.check_all_finished()


def test_a_slow_disk_is_not_waited_for_and_then_not_used() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    serve(sim, "learn", 100 * [5])  # what a prefill costs
    disk.bytes_per_s = 1e3
    begin_s = sim.clock()
    serve(sim, "second", [*HISTORY, 7])
    alone_s = 301 * sim.executor._cost.prefill_token_s
    assert sim.first_token_s("second") - begin_s < 1.6 * alone_s


def test_a_measured_slow_disk_is_computed_around_at_once() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    serve(sim, "learn", tokens_of("learn", 200))
    levels_of(sim).bandwidths.observe("read", 1000, 10.0, sim.clock())  # type: ignore[arg-type]
    assert serve(sim, "second", [*HISTORY, 7]).num_cached_tokens == 0
    assert disk.num_reads == 0


def test_a_damaged_file_is_a_miss() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    disk.is_damaged = True
    assert serve(sim, "second", [*HISTORY, 7]).num_cached_tokens == 0
    sim.check_all_finished()


def test_a_full_disk_switches_the_level_off_and_requests_go_on() -> None:
    disk = disk_store()
    sim = simulate(disk=disk, disk_bytes=1 << 20)
    disk.is_full = True
    serve(sim, "first", HISTORY)
    for _ in range(5):
        sim.step()
    assert not levels_of(sim).writes.is_on
    assert levels_of(sim).holdings.disk.budget.used_bytes == 0
    displace(sim)
    assert serve(sim, "second", HISTORY).num_host_tokens == 299


def test_an_aborted_wait_leaves_nothing_pinned() -> None:
    disk = disk_store()
    sim = on_disk(disk)
    disk.bytes_per_s = 1e4
    sim.add(make_request("waits", [*HISTORY, 7], 4, arrival_s=sim.clock()))
    sim.step()
    assert sim.scheduler.is_waiting_for_kv
    sim.abort("waits")
    sim.run()
    sim.check_all_finished()
