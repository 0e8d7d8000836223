"""Speculation in the whole scheduler: the same tokens and ends as without it, in fewer steps where text repeats itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.events import StepFinished
from ultrafast.core.request import FinishReason
from ultrafast.core.step import StepPlan, StepStatus
from ultrafast.engine.fake import FakeCost

LOOP = 7
CHEAP_ROWS = FakeCost(fixed_s=0.01, output_s=0.001, draft_s=0.0005)
DEAR_ROWS = FakeCost(fixed_s=0.001, output_s=0.01, draft_s=0.01)


def simulate(*, speculation: bool = True, cost: FakeCost = CHEAP_ROWS, loop: int = LOOP, **limits: object) -> Simulation:
    return Simulation(make_limits(enable_speculation=speculation, **limits), cost=cost, loop=loop)


def num_drafts(sim: Simulation) -> int:
    return sum(plan.num_drafts for plan in sim.plans)


def run_one(sim: Simulation, **request: object) -> Simulation:
    sim.add(make_request("r", 20, **{"max_tokens": 200, **request}))  # type: ignore[arg-type]
    sim.run()
    sim.check_all_finished()
    return sim


def test_repeating_text_takes_fewer_steps_and_gives_the_same_tokens() -> None:
    plain, sped = run_one(simulate(speculation=False)), run_one(simulate())
    assert sped.output == plain.output
    assert len(sped.plans) < 0.7 * len(plain.plans)
    assert sped.clock() < 0.8 * plain.clock()


def test_text_without_repetition_gets_no_drafts() -> None:
    assert num_drafts(run_one(simulate(loop=0))) == 0


def test_no_drafts_where_rows_cost_as_much_as_steps() -> None:
    plain, sped = run_one(simulate(speculation=False, cost=DEAR_ROWS)), run_one(simulate(cost=DEAR_ROWS))
    assert sped.output == plain.output
    assert sped.clock() < 1.05 * plain.clock()


def test_a_request_may_decline() -> None:
    assert num_drafts(run_one(simulate(), may_speculate=False)) == 0


def test_no_drafts_for_a_model_that_cannot_trim() -> None:
    assert num_drafts(run_one(simulate(can_trim=False))) == 0


def test_many_decodes_silence_speculation() -> None:
    sim = simulate()
    sim.add(*[make_request(f"r{i}", 10, 100) for i in range(4)])
    sim.step_until(lambda: all(sim.output[f"r{i}"] for i in range(4)))
    before = len(sim.plans)
    sim.step_until(lambda: sim.finished)
    assert not any(plan.num_drafts for plan in sim.plans[before:])
    sim.run()
    sim.check_all_finished()


@pytest.mark.parametrize(("num_requests", "max_rows"), [(1, 7), (2, 3)])
def test_a_step_with_drafts_stays_within_its_time(num_requests: int, max_rows: int) -> None:
    """Steps take 30 ms and 10 ms per draft; 90 ms are allowed to a single decode, 45 ms to several."""
    sim = simulate(cost=FakeCost(fixed_s=0.03, output_s=0.0, draft_s=0.01), step_target_s=0.01)
    for num_rows in range(1, 12):
        sim.scheduler.step_times.observe(num_rows, 0.03 + 0.01 * max(0, num_rows - num_requests))
    sim.add(*[make_request(f"r{i}", 20, 200) for i in range(num_requests)])
    sim.run()
    sim.check_all_finished()
    rows = [plan.num_tokens for plan in sim.plans if plan.num_drafts and len(plan.work) == num_requests]
    assert max(rows) == max_rows


def test_drafts_never_ride_with_a_prefill() -> None:
    sim = simulate()
    sim.add(make_request("r", 20, 200))
    sim.step_until(lambda: num_drafts(sim) > 0)
    sim.add(make_request("long", 1500, 2))
    sim.run()
    sim.check_all_finished()
    assert not any(plan.num_drafts and has_prefill(plan) for plan in sim.plans)


def has_prefill(plan: StepPlan) -> bool:
    return any(len(item.tokens) > 1 or not item.samples for item in plan.work)


@pytest.mark.parametrize("max_tokens", range(1, 60))
def test_the_limit_of_tokens_is_exact(max_tokens: int) -> None:
    sim = run_one(simulate(), max_tokens=max_tokens)
    assert sim.finished["r"].reason is FinishReason.LENGTH
    assert sim.finished["r"].num_output_tokens == max_tokens


@pytest.mark.parametrize("limits", [{"max_request_tokens": 77}, {"kv_capacity_tokens": 77}])
def test_the_limits_of_context_and_pool_are_exact(limits: dict[str, object]) -> None:
    plain, sped = run_one(simulate(speculation=False, **limits)), run_one(simulate(**limits))
    assert sped.output == plain.output
    assert sped.finished["r"].reason is plain.finished["r"].reason is FinishReason.LENGTH
    assert sped.finished["r"].num_computed_tokens == plain.finished["r"].num_computed_tokens


def test_a_stop_token_inside_an_accepted_run_ends_there() -> None:
    free = run_one(simulate()).output["r"]
    stop = next(token for i, token in enumerate(free) if i > 40 and token not in free[:i])
    sim = run_one(simulate(), stop_token_ids=(stop,))
    assert sim.output["r"] == free[: free.index(stop)]
    assert sim.finished["r"].reason is FinishReason.STOP


def test_an_abort_between_steps_frees_everything() -> None:
    sim = simulate()
    sim.add(make_request("r", 20, 200))
    sim.step_until(lambda: num_drafts(sim) > 0)
    sim.abort("r")
    sim.run()
    sim.check_all_finished()


@pytest.mark.parametrize("status", [StepStatus.OUT_OF_KV, StepStatus.INVALID])
def test_a_step_with_drafts_that_fails_is_repeated_without_them_and_harms_nobody(status: StepStatus) -> None:
    sim = simulate()
    sim.add(make_request("r", 20, 200), make_request("other", 20, 200))
    sim.step_until(lambda: num_drafts(sim) > 0)
    while True:  # the failure must hit a step with drafts
        sim.executor.injections.statuses.append(status)
        if sim.step().num_drafts:
            break
        sim.may_cut_short = True
    assert sim.step().num_drafts == 0
    sim.run()
    sim.check_all_finished()
    assert not sim.finished["r"].error
    assert not sim.finished["other"].error


def test_a_failing_request_fails_alone() -> None:
    sim = simulate()
    sim.add(make_request("r", 20, 200), make_request("other", 20, 200))
    sim.step_until(lambda: num_drafts(sim) > 0)
    sim.executor.injections.failing_ids.add("r")
    sim.run()
    sim.check_all_finished()
    assert sim.finished["r"].reason is FinishReason.ERROR
    assert sim.finished["other"].reason is FinishReason.LENGTH


def test_the_counts_tell_what_was_drafted_and_accepted() -> None:
    sim = run_one(simulate())
    steps = [event for event in sim.events if isinstance(event, StepFinished)]
    assert sum(step.num_drafted_tokens for step in steps) == num_drafts(sim) > 0
    num_draws = sum(any(item.samples for item in plan.work) for plan in sim.plans)
    assert sum(step.num_accepted_tokens for step in steps) == 200 - num_draws
    assert steps[0].speculation_gain == 0
    assert steps[-1].speculation_gain > 1.05


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    max_tokens=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    end_every=st.sampled_from([0, 11, 40]),
    loop=st.sampled_from([1, 2, 5, 13]),
    capacity=st.sampled_from([4096, 150, 90]),
    step_tokens=st.sampled_from([256, 8, 5]),
    aborted=st.integers(0, 8),
    abort_after=st.integers(0, 40),
)
def test_speculated_equals_plain(
    max_tokens: list[int],
    end_every: int,
    loop: int,
    capacity: int,
    step_tokens: int,
    aborted: int,
    abort_after: int,
) -> None:
    """Whatever ends them (stop, limits, aborts, a full pool), requests get the tokens that they get alone and without drafts."""
    limits = make_limits(kv_capacity_tokens=capacity, max_step_tokens=step_tokens, max_num_running=5, reserve_tokens=16)
    sim = Simulation(limits, cost=CHEAP_ROWS, loop=loop, end_every=end_every)
    for i, count in enumerate(max_tokens):
        sim.add(make_request(f"r{i}", 12 + i, count))
    for _ in range(abort_after):
        if sim.scheduler.has_work:
            sim.step()
    if f"r{aborted}" in sim.requests and f"r{aborted}" not in sim.finished:
        sim.abort(f"r{aborted}")
    sim.run()
    sim.check_all_finished()
