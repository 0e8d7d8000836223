"""KV full, faults of the engine, aborts: exactly one pays, the others finish unchanged."""

from __future__ import annotations

import random

import pytest
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of

from ultrafast.core.events import DEAD_END
from ultrafast.core.request import FinishReason
from ultrafast.core.step import StepStatus
from ultrafast.core.tiers import ServiceTier


def _reasons(simulation: Simulation) -> dict[str, str]:
    return {name: event.reason.value for name, event in simulation.finished.items()}


def test_two_requests_that_do_not_fit_together_both_finish_in_full() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=1024, max_request_tokens=1024))
    simulation.add(make_request("a", 300, 400), make_request("b", 300, 400, arrival_s=0.001))
    simulation.run()
    simulation.check_all_finished()
    assert _reasons(simulation) == {"a": "length", "b": "length"}
    assert {name: len(tokens) for name, tokens in simulation.output.items()} == {"a": 400, "b": 400}
    assert dict(simulation.num_preempted) == {"a": 0, "b": 1}, "exactly one gave way, once"
    assert simulation.finished["b"].scheduled_s == 0.0, "the first time it was scheduled counts"


def test_admission_counts_cells_not_slots() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=1000, max_request_tokens=1000))
    simulation.add(*[make_request(f"r{i}", 400, 50, arrival_s=float(i)) for i in range(3)])
    simulation.step()
    assert simulation.scheduler.num_running == 2
    simulation.run()
    simulation.check_all_finished()
    assert sum(simulation.num_preempted.values()) == 0


def test_a_preempted_request_reports_what_its_first_scheduling_skipped() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=500, max_request_tokens=500))
    prompt = tokens_of("b", 150)
    simulation.add(make_request("b", prompt, 200, arrival_s=1.0))
    simulation.step_until(lambda: simulation.output["b"])
    simulation.add(make_request("older", prompt[:100] + tokens_of("older", 10), 300, arrival_s=0.5))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["b"] == 1
    assert [event.num_cached_tokens for event in simulation.scheduled if event.request_id == "b"] == [0, 100]
    assert simulation.finished["b"].num_cached_tokens == 0


def test_a_blocked_request_starts_as_soon_as_cells_are_free() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=500, max_num_cached=0))
    simulation.add(*[make_request(name, 150, n, arrival_s=i) for i, (name, n) in enumerate([("a", 100), ("b", 20), ("c", 100)])])
    simulation.step_until(lambda: "b" in simulation.finished)
    assert simulation.scheduler.num_waiting == 1
    simulation.step()
    assert simulation.scheduler.num_waiting == 0


def test_the_youngest_of_the_least_urgent_tier_gives_way_and_resumes_first() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=700, max_request_tokens=500, max_num_running=3))
    for i, tier in enumerate(("flex", "ultrafast", "flex")):
        simulation.add(make_request(f"{tier}{i}", 80, 200, tier=ServiceTier(tier), arrival_s=float(i), tpot_s=1.0))
    simulation.add(make_request("flex3", 80, 5, tier=ServiceTier.FLEX, arrival_s=3.0))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.num_preempted["ultrafast1"] == 0
    assert simulation.num_preempted["flex0"] == 0
    assert simulation.num_preempted["flex2"] >= 1
    restarts = [event.request_id for event in simulation.scheduled]
    assert restarts.index("flex3") > len(restarts) - 1 - restarts[::-1].index("flex2")


def test_a_lone_request_ends_with_length_when_the_pool_is_full() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=100, max_request_tokens=1000))
    simulation.add(make_request("r", 60, 500))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["r"].reason is FinishReason.LENGTH
    assert simulation.finished["r"].num_output_tokens == 41


@pytest.mark.parametrize(("num_prompt", "limit"), [(100, 100), (99, 100)])
def test_the_context_limit(num_prompt: int, limit: int) -> None:
    simulation = Simulation(make_limits(max_request_tokens=limit))
    simulation.add(make_request("r", num_prompt, 50))
    simulation.run()
    finished = simulation.finished["r"]
    if num_prompt >= limit:
        assert finished.reason is FinishReason.ERROR
        assert "99" in (finished.error or "")
    else:
        assert (finished.reason, finished.num_output_tokens) == (FinishReason.LENGTH, 1)


def test_a_prompt_as_large_as_the_pool_runs_even_though_others_cached_much() -> None:
    simulation = Simulation(make_limits(kv_capacity_tokens=200, max_request_tokens=1000))
    simulation.add(make_request("before", 90, 5))
    simulation.run()
    simulation.add(make_request("whole", 200, 5))
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["whole"].num_output_tokens == 1


def test_out_of_kv_without_an_end_fails_requests_one_by_one_and_stops() -> None:
    simulation = Simulation()
    simulation.may_cut_short = True
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(6)])
    simulation.step()
    simulation.executor.injections.statuses.extend([StepStatus.OUT_OF_KV] * 2000)
    simulation.run(max_steps=1000)
    simulation.check_all_finished()


def test_one_out_of_kv_costs_nobody_anything_but_time() -> None:
    simulation = Simulation()
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(6)])
    for _ in range(10):
        simulation.step()
    simulation.executor.injections.statuses.append(StepStatus.OUT_OF_KV)
    simulation.run()
    simulation.check_all_finished()
    assert set(_reasons(simulation).values()) == {"length"}
    assert all(len(tokens) == 20 for tokens in simulation.output.values())
    assert sum(simulation.num_preempted.values()) == 1


def test_out_of_kv_evicts_before_it_preempts() -> None:
    simulation = Simulation()
    simulation.add(make_request("cached", 50, 2))
    simulation.run()
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(3)])
    simulation.step()
    simulation.executor.injections.statuses.append(StepStatus.OUT_OF_KV)
    simulation.run()
    simulation.check_all_finished()
    assert sum(simulation.num_preempted.values()) == 0


def test_out_of_kv_too_often_in_a_row_ends_one_request_instead_of_moving_it_again() -> None:
    simulation = Simulation()
    simulation.may_cut_short = True
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(4)])
    simulation.step()
    simulation.scheduler._state.faults._num_out_of_kv = 64
    simulation.executor.injections.statuses.append(StepStatus.OUT_OF_KV)
    simulation.step()
    assert len(simulation.finished) == 1
    assert sum(simulation.num_preempted.values()) == 0
    simulation.run()
    simulation.check_all_finished()


def test_an_invalid_request_is_found_and_fails_alone() -> None:
    simulation = Simulation()
    simulation.executor.injections.invalid_ids.add("r3")
    simulation.add(*[make_request(f"r{i}", 50 + i, 20) for i in range(7)])
    simulation.run()
    simulation.check_all_finished()
    assert [name for name, reason in _reasons(simulation).items() if reason == "error"] == ["r3"]
    assert len(simulation.plans) < 120


def test_once_the_one_at_fault_is_known_all_others_run_together_again() -> None:
    simulation = Simulation(make_limits())
    simulation.executor.injections.invalid_ids.add("r3")
    others = {f"r{number}" for number in range(4)} - {"r3"}
    simulation.add(*[make_request(f"r{number}", 10, 60) for number in range(4)])
    simulation.step_until(lambda: "r3" in simulation.finished)
    for _ in range(4):  # what is left of the halves is tried
        simulation.step()
    assert {item.request_id for item in simulation.step().work} == others


def test_a_failing_and_a_refused_request_leave_the_others_alone() -> None:
    simulation = Simulation()
    simulation.executor.injections.failing_ids.add("r1")
    simulation.executor.injections.refused_ids.add("r2")
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(4)])
    simulation.run()
    simulation.check_all_finished()
    assert _reasons(simulation) == {"r0": "length", "r1": "error", "r3": "length"}
    assert simulation.refused == {"r2"}
    assert simulation.finished["r1"].error == "injected failure"


def test_an_output_that_is_stuck_ends_alone_and_says_so() -> None:
    simulation = Simulation()
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(4)])
    simulation.step_until(lambda: len(simulation.output["r1"]) == 5)
    simulation.executor.injections.stuck_ids.add("r1")
    simulation.run()
    simulation.check_all_finished()
    assert _reasons(simulation) == {"r0": "length", "r1": "error", "r2": "length", "r3": "length"}
    codes = {name: event.error_code for name, event in simulation.finished.items() if event.error_code}
    assert codes == {"r1": DEAD_END}
    assert simulation.finished["r1"].num_output_tokens == 5


def test_a_stopped_request_delivers_everything_before_the_end_token() -> None:
    simulation = Simulation(end_every=10)
    simulation.add(*[make_request(f"r{i}", 30, 200) for i in range(6)])
    simulation.run()
    simulation.check_all_finished()
    assert "stop" in _reasons(simulation).values()


@pytest.mark.parametrize("when", ["waiting", "parked", "prefill", "decode", "preempted"])
def test_an_abort_frees_everything_with_the_next_plan(when: str) -> None:
    limits = make_limits(kv_capacity_tokens=340, max_num_running=2, max_num_cached=0)
    simulation = Simulation(limits)
    victim = make_request("victim", 100, 150, arrival_s=1.0)
    if when == "waiting":
        simulation.add(make_request("a", 20, 60), make_request("b", 20, 60), victim)
        simulation.step()
    elif when == "parked":
        simulation.add(make_request("a", tokens_of("victim", 99), 60), victim)
        simulation.step()
    elif when == "prefill":
        simulation.add(victim)
        simulation.step()
    elif when == "decode":
        simulation.add(victim)
        simulation.step_until(lambda: simulation.output["victim"])
    else:
        simulation.add(make_request("a", 100, 150), victim)
        simulation.step_until(lambda: simulation.num_preempted["victim"])
    simulation.abort("victim")
    assert simulation.finished["victim"].reason is FinishReason.ABORT
    for other in [name for name in simulation.requests if name != "victim"]:
        simulation.abort(other)
    simulation.step()
    assert simulation.executor.num_free == 340
    assert not simulation.scheduler.has_work
    assert simulation.scheduler.num_waiting == simulation.scheduler.num_running == 0


def test_a_storm_of_aborts_leaves_nothing_behind() -> None:
    rng = random.Random(5)
    simulation = Simulation(make_limits(kv_capacity_tokens=1500, max_request_tokens=1000))
    for i in range(500):
        name = f"r{i}"
        prompt = tokens_of(rng.choice("abcd"), rng.randint(1, 200)) + tokens_of(name, rng.randint(0, 50))
        simulation.add(
            make_request(name, prompt, rng.randint(1, 30), tier=rng.choice(list(ServiceTier)), arrival_s=simulation.clock())
        )
        for _ in range(rng.randint(0, 4)):
            if simulation.scheduler.has_work:
                simulation.step()
        if rng.random() < 0.3:
            simulation.abort(rng.choice([other for other in simulation.requests if other not in simulation.finished] or ["none"]))
    simulation.run()
    simulation.check_all_finished()
    assert sum(event.reason is FinishReason.ABORT for event in simulation.finished.values()) > 30


def test_fail_all_ends_everything_once() -> None:
    simulation = Simulation(make_limits(max_num_running=2))
    simulation.add(*[make_request(f"r{i}", 50, 20) for i in range(5)])
    simulation.step()
    simulation._take(simulation.scheduler.fail_all("the engine is gone", simulation.clock()))
    simulation.run()
    assert set(_reasons(simulation).values()) == {"error"}
    assert simulation.executor.num_free == 4096


def test_ten_thousand_waiting_requests_are_not_lost() -> None:
    simulation = Simulation(make_limits(max_num_running=32, max_step_tokens=512, max_num_cached=0))
    simulation.add(*[make_request(f"r{i}", 2, 1) for i in range(10_000)])
    for i in range(0, 10_000, 2):
        simulation.abort(f"r{i}")
    simulation.run()
    simulation.check_all_finished()
