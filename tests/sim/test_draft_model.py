"""The draft model in the whole scheduler: the same tokens as without it, in fewer steps where its guesses are right and cheap.

The fake draft model continues a text rightly only where it has read all of it, so "every guess was right" also says that its KV
was never out of step with its request.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sim.harness import Simulation, make_limits, make_request

from ultrafast.core.draft import DraftPass
from ultrafast.core.events import StepFinished
from ultrafast.core.step import StepPlan, StepStatus
from ultrafast.engine.fake import FakeCost
from ultrafast.engine.fake_draft import DraftingFakeExecutor, FakeDraftModel
from ultrafast.sched.limits import DraftLimits
from ultrafast.sched.speculation.model_drafts import asked_ids

CHEAP_ROWS = FakeCost(fixed_s=0.01, output_s=0.001, draft_s=0.0005)
LIMITS = DraftLimits(kv_capacity_tokens=2048, num_sequences=3, max_request_tokens=2048, max_pass_tokens=256)


def draft(wrong_percent: int = 0, limits: DraftLimits = LIMITS, **times: float) -> FakeDraftModel:
    return FakeDraftModel(limits, wrong_percent, **times)


def simulate(model: FakeDraftModel | None, *, loop: int = 0, end_every: int = 0, **limits: object) -> Simulation:
    return Simulation(make_limits(**limits), cost=CHEAP_ROWS, draft=model, loop=loop, end_every=end_every)


def run_one(sim: Simulation, prompt: int = 20, **request: object) -> Simulation:
    sim.add(make_request("r", prompt, **{"max_tokens": 200, **request}))  # type: ignore[arg-type]
    sim.run()
    sim.check_all_finished()
    return sim


def counts(sim: Simulation) -> tuple[int, int]:
    """Guesses of the draft model, and right ones."""
    steps = [event for event in sim.events if isinstance(event, StepFinished)]
    return sum(step.num_model_drafted_tokens for step in steps), sum(step.num_model_accepted_tokens for step in steps)


def num_read(plan: StepPlan) -> int:
    return sum(len(item.tokens) for item in plan.draft.items)


def is_drafting(sim: Simulation) -> bool:
    return bool(sim.plans and asked_ids(sim.plans[-1].draft))


def test_right_guesses_take_fewer_steps_and_give_the_same_tokens() -> None:
    plain, sped = run_one(simulate(None)), run_one(simulate(draft()))
    assert sped.output == plain.output
    assert len(sped.plans) < 0.3 * len(plain.plans)
    assert sped.clock() < 0.6 * plain.clock()
    drafted, accepted = counts(sped)
    assert drafted == accepted > 100
    last = [event for event in sped.events if isinstance(event, StepFinished)][-1]
    assert last.draft_model_gain > 1.5
    assert last.speculation_gain == 0


@pytest.mark.parametrize("wrong_percent", [10, 40, 70])
def test_wrong_guesses_change_nothing(wrong_percent: int) -> None:
    sim = run_one(simulate(draft(wrong_percent)))
    drafted, accepted = counts(sim)
    assert 0 < accepted < drafted


def test_a_model_that_is_always_wrong_is_soon_left_alone() -> None:
    plain, sim = run_one(simulate(None), max_tokens=600), run_one(simulate(draft(100)), max_tokens=600)
    assert sim.clock() < 1.06 * plain.clock()
    assert counts(sim)[1] == 0


def test_a_model_that_is_right_but_slow_is_left_alone() -> None:
    plain, sim = run_one(simulate(None), max_tokens=600), run_one(simulate(draft(pass_s=0.012)), max_tokens=600)
    assert sim.clock() < 1.03 * plain.clock()


def test_repeated_text_is_guessed_from_the_text() -> None:
    sim = run_one(simulate(draft(), loop=7))
    from_text = [plan for plan in sim.plans if plan.num_drafts and not asked_ids(plan.draft)]
    from_model = [plan for plan in sim.plans if asked_ids(plan.draft)]
    assert len(from_text) > 5
    assert len(from_model) > 5
    drafted, accepted = counts(sim)
    assert drafted == accepted
    assert sum(plan.num_drafts for plan in from_text) > 0


def test_a_long_prompt_is_read_in_pieces_that_fit_the_step() -> None:
    """Steps take 12 ms, and reading 1 ms a token; 50 ms are allowed."""
    sim = simulate(draft(token_s=0.001, pass_s=0.0), step_target_s=0.05)
    run_one(sim, prompt=900, max_tokens=1000)
    reading = [plan for plan in sim.plans if num_read(plan) and not asked_ids(plan.draft)]
    ends = [0, *(item.start + len(item.tokens) for plan in reading for item in plan.draft.items)]
    assert [plan.draft.items[0].start for plan in reading] == ends[:-1], "one after the other, nothing twice"
    assert ends[-1] > 900
    assert max(map(num_read, reading)) in (38, 39)
    assert all(plan.num_tokens == 1 for plan in reading), "the request goes on meanwhile"
    drafted, accepted = counts(sim)
    assert drafted == accepted > 100


def test_a_prompt_is_not_read_for_a_short_answer() -> None:
    sim = simulate(draft(token_s=0.002))
    sim.scheduler.observe_draft_passes([DraftPass(100, 0.2)])
    run_one(sim, prompt=1500, max_tokens=20)
    assert sum(map(num_read, sim.plans)) == 0


def test_a_request_may_decline() -> None:
    sim = run_one(simulate(draft()), may_speculate=False)
    assert not any(plan.draft for plan in sim.plans)


@pytest.mark.parametrize("limits", [{"enable_speculation": False}, {"can_trim": False}])
def test_no_draft_model_where_the_engine_may_not_guess(limits: dict[str, object]) -> None:
    assert not any(plan.draft for plan in run_one(simulate(draft(), **limits)).plans)


def test_many_decodes_silence_it() -> None:
    sim = simulate(draft())
    sim.add(*[make_request(f"r{i}", 10, 100) for i in range(4)])
    sim.step_until(lambda: all(sim.output[f"r{i}"] for i in range(4)))
    before = len(sim.plans)
    sim.step_until(lambda: sim.finished)
    assert not any(plan.draft.items for plan in sim.plans[before:])
    sim.run()
    sim.check_all_finished()


def test_those_who_wait_silence_it() -> None:
    sim = simulate(draft(), max_num_running=1)
    sim.add(make_request("r", 20, 100), make_request("waits", 20, 100))
    sim.step_until(lambda: "r" in sim.finished)
    assert not any(plan.draft.items for plan in sim.plans)
    sim.run()
    sim.check_all_finished()
    assert any(plan.draft.items for plan in sim.plans)


def test_a_tight_objective_of_one_bounds_the_guesses_for_both() -> None:
    """Plain steps take 12 ms; the next token of the second request is due after 16 ms."""
    sim = simulate(draft())
    sim.add(make_request("r", 20, 300), make_request("tight", 20, 300, tpot_s=0.016))
    sim.step_until(lambda: all(sim.output[name] for name in ("r", "tight")))
    begin = len(sim.plans)
    sim.step_until(lambda: sim.finished, max_steps=5000)
    durations = [e.duration_s for e in sim.events if isinstance(e, StepFinished) and e.num_decode_sequences == 2]
    assert sum(duration > 0.0165 for duration in durations) <= 5, "but for the first tries"
    assert any(plan.draft.items for plan in sim.plans[begin:])


def test_a_newcomer_silences_it_and_it_is_in_step_afterwards() -> None:
    sim = simulate(draft())
    sim.add(make_request("r", 20, 400))
    sim.step_until(lambda: is_drafting(sim))
    sim.add(make_request("long", 1500, 30))
    sim.step_until(lambda: sim.output["long"])
    assert not is_drafting(sim)
    sim.run()
    sim.check_all_finished()
    drafted, accepted = counts(sim)
    assert drafted == accepted


def test_kv_is_released_when_a_request_ends() -> None:
    sim = simulate(draft())
    sim.add(make_request("r", 20, 200))
    sim.step_until(lambda: is_drafting(sim))
    sim.abort("r")
    sim.run()
    assert isinstance(sim.executor, DraftingFakeExecutor)
    assert sim.executor.num_draft_cells == 0
    sim.add(make_request("next", 20, 200))
    sim.run()
    sim.check_all_finished()
    assert sim.executor.num_draft_cells <= 220


def test_a_small_pool_is_shared_and_never_overflows() -> None:
    sim = simulate(draft(limits=DraftLimits(250, 3, 250, 64)))
    sim.add(*[make_request(f"r{i}", 20, 150) for i in range(3)])
    sim.run()
    sim.check_all_finished()
    drafted, accepted = counts(sim)
    assert drafted == accepted > 100


def test_a_text_longer_than_the_model_can_read_goes_on_without_it() -> None:
    sim = run_one(simulate(draft(limits=DraftLimits(128, 3, 128, 64))), max_tokens=300)
    last_asked = max(i for i, plan in enumerate(sim.plans) if asked_ids(plan.draft))
    assert len(sim.plans) - last_asked > 100
    assert counts(sim)[0] == counts(sim)[1] > 50


def test_a_model_that_breaks_is_given_up() -> None:
    sim = simulate(draft())
    sim.add(make_request("r", 20, 300))
    sim.step_until(lambda: is_drafting(sim))
    assert isinstance(sim.executor, DraftingFakeExecutor)
    sim.executor.is_draft_broken = True
    sim.step()
    before = len(sim.plans)
    sim.run()
    sim.check_all_finished()
    assert not any(plan.draft for plan in sim.plans[before:])


@pytest.mark.parametrize("status", [StepStatus.OUT_OF_KV, StepStatus.INVALID])
def test_a_step_that_fails_leaves_the_model_in_step(status: StepStatus) -> None:
    sim = simulate(draft())
    sim.add(make_request("r", 20, 400))
    sim.step_until(lambda: is_drafting(sim))
    sim.executor.injections.statuses.append(status)
    assert sim.step().num_drafts
    assert not sim.step().num_drafts
    sim.run()
    sim.check_all_finished()
    assert not sim.finished["r"].error
    assert is_drafting(sim) or any(asked_ids(plan.draft) for plan in sim.plans[-20:])
    failed_drafts = max(plan.num_drafts for plan in sim.plans)
    drafted, accepted = counts(sim)
    assert drafted == accepted
    assert failed_drafts <= 8


def test_a_preempted_request_reads_again_and_is_in_step() -> None:
    sim = simulate(draft(), kv_capacity_tokens=200, max_request_tokens=200, reserve_tokens=16)
    sim.add(make_request("r", 40, 120), make_request("s", 40, 120))
    sim.run()
    sim.check_all_finished()
    assert sum(sim.num_preempted.values()) > 0
    drafted, accepted = counts(sim)
    assert drafted == accepted > 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    max_tokens=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    wrong_percent=st.sampled_from([0, 20, 60]),
    end_every=st.sampled_from([0, 11, 40]),
    loop=st.sampled_from([0, 5]),
    capacity=st.sampled_from([4096, 150, 90]),
    draft_capacity=st.sampled_from([2048, 100, 40]),
    step_tokens=st.sampled_from([256, 8, 5]),
    aborted=st.integers(0, 8),
    abort_after=st.integers(0, 40),
)
def test_drafted_equals_plain(
    max_tokens: list[int],
    wrong_percent: int,
    end_every: int,
    loop: int,
    capacity: int,
    draft_capacity: int,
    step_tokens: int,
    aborted: int,
    abort_after: int,
) -> None:
    """Whatever ends them, requests get the tokens that they get alone and without drafts, and the draft model is never misled."""
    model = draft(wrong_percent, DraftLimits(draft_capacity, 3, draft_capacity, 64))
    limits = {"kv_capacity_tokens": capacity, "max_step_tokens": step_tokens, "max_num_running": 5, "reserve_tokens": 16}
    sim = simulate(model, loop=loop, end_every=end_every, **limits)
    for i, count in enumerate(max_tokens):
        sim.add(make_request(f"r{i}", 12 + i, count))
    for _ in range(abort_after):
        if sim.scheduler.has_work:
            sim.step()
    if f"r{aborted}" in sim.requests and f"r{aborted}" not in sim.finished:
        sim.abort(f"r{aborted}")
    sim.run()
    sim.check_all_finished()
    drafted, accepted = counts(sim)
    assert drafted == accepted or wrong_percent
