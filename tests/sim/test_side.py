"""Long prompts that are computed beside the steps, in whole simulated lives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.sim.harness import Simulation, make_limits, make_request, tokens_of

from ultrafast.core.request import FinishReason
from ultrafast.core.step import StepResult, StepStatus
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier
from ultrafast.engine.fake import FakeCost
from ultrafast.sched.limits import SchedulerLimits

LIMITS = make_limits(
    kv_capacity_tokens=8192, max_request_tokens=4096, step_target_s=0.05, can_interrupt=True, max_side_tokens=4096
)
COST = FakeCost(fixed_s=0.002, output_s=0.005, prefill_token_s=0.004)
OBJECTIVE_S = 0.05
PIECE_S = 0.02
"""A piece of the simulated pass, the longest that a step can be late."""


def stream_and_prompt(
    limits: SchedulerLimits = LIMITS,
    *,
    prompt_tier: ServiceTier = ServiceTier.DEFAULT,
    num_prompt: int = 1500,
    stream_tokens: int = 400,
    num_streams: int = 1,
    stream_tier: ServiceTier = ServiceTier.ULTRAFAST,
) -> Simulation:
    """A stream that decodes, and a long prompt that has just come."""
    simulation = Simulation(limits, cost=COST)
    for num_outputs, num_tokens in ((0, 16), (0, 32), (0, 64), (0, 128), (1, 0), (2, 0), (4, 0), (8, 0)):
        simulation.scheduler.cost.observe(num_outputs, num_tokens, COST.step_s(num_outputs, num_tokens))
    for number in range(num_streams):
        simulation.add(make_request(f"stream{number}", 40, stream_tokens, tier=stream_tier))
    last = f"stream{num_streams - 1}"
    simulation.step_until(lambda: len(simulation.output[last]) > 30)
    simulation.add(make_request("long", num_prompt, 8, tier=prompt_tier, arrival_s=simulation.clock()))
    return simulation


def newcomer_in_second_chunk(simulation: Simulation, num_tokens: int, tier: ServiceTier = ServiceTier.DEFAULT) -> None:
    """Have request "new" come while the second side chunk runs."""

    def come() -> None:
        if "new" not in simulation.requests and simulation.num_side_chunks == 2:
            simulation.add(make_request("new", num_tokens, 4, tier=tier, arrival_s=simulation.clock()))

    simulation.on_side = come


def num_side_tokens_of_next_turn(num_more: int) -> int:
    """Compute a long prompt beside a stream, then the same with some more behind it; returns what of that was beside."""
    simulation = stream_and_prompt(stream_tokens=1500)
    simulation.step_until(lambda: "long" in simulation.finished)
    num_before = simulation.executor.num_side_tokens
    again = [*tokens_of("long", 1500), *tokens_of("rest", num_more)]
    simulation.add(make_request("again", again, 8, arrival_s=simulation.clock()))
    simulation.step_until(lambda: simulation.output["again"])
    num_tokens = simulation.executor.num_side_tokens - num_before
    simulation.run()
    simulation.check_all_finished()
    return num_tokens


def gaps_until_first(simulation: Simulation, stream: str = "stream0") -> list[float]:
    begin, end = simulation.requests["long"].arrival_s, simulation.first_token_s("long")
    times = [at for at in simulation.token_times[stream] if begin <= at <= end]
    return [after - before for before, after in pairwise(times)]


def test_the_stream_keeps_its_pace_and_the_prompt_has_the_rest() -> None:
    simulation = stream_and_prompt()
    simulation.step_until(lambda: simulation.output["long"])
    assert simulation.num_side_chunks == 6, "1,499 tokens, 256 each"
    assert max(gaps_until_first(simulation)) <= OBJECTIVE_S + PIECE_S
    # The stream's decodes take a seventh of each gap; pieces of the simulated pass are short, and cost what short chunks cost.
    took_s = simulation.first_token_s("long") - simulation.requests["long"].arrival_s
    alone_s = 1500 * COST.prefill_token_s + 1500 / 4 * COST.fixed_s
    assert alone_s < took_s < 1.3 * alone_s
    simulation.run()
    simulation.check_all_finished()


def test_the_last_chunk_beside_fills_a_tile() -> None:
    simulation = stream_and_prompt(num_prompt=1297)
    side, lengths = simulation.scheduler._state.side, []
    simulation.on_side = lambda: lengths.append(len(side.chunk.tokens)) if side.chunk else None
    simulation.step_until(lambda: simulation.output["long"])
    assert list(dict.fromkeys(lengths)) == [256, 208, 64], "the last token of all is computed in a step"


@pytest.mark.parametrize(
    ("stream_tier", "prompt_tier"),
    [(stream, prompt) for stream in ServiceTier for prompt in ServiceTier if stream.rank <= prompt.rank],
)
def test_streams_of_every_tier_go_on(stream_tier: ServiceTier, prompt_tier: ServiceTier) -> None:
    """However often it is planned meanwhile, and something booked that is no step: who comes and goes leads to both."""
    simulation = stream_and_prompt(stream_tier=stream_tier, prompt_tier=prompt_tier)

    def make_it_plan() -> None:
        if not simulation.output["long"]:
            plan = simulation.scheduler.plan(simulation.clock())._replace(work=())
            simulation.scheduler.complete(plan, StepResult(StepStatus.OK), simulation.clock())

    simulation.on_side = make_it_plan
    simulation.step_until(lambda: simulation.output["long"])
    assert simulation.num_side_chunks > 4
    longest_s = min(DEFAULT_POLICIES[stream_tier.rank].tpot_s, 3 * LIMITS.step_target_s)
    assert max(gaps_until_first(simulation)) <= longest_s + PIECE_S + COST.step_s(1, 0)


@pytest.mark.parametrize("num_tokens", [40, 300])
def test_a_shorter_newcomer_of_its_tier_overtakes_wherever_the_prompt_is(num_tokens: int) -> None:
    simulation = stream_and_prompt(stream_tier=ServiceTier.DEFAULT, num_prompt=3000)

    newcomer_in_second_chunk(simulation, num_tokens)
    simulation.step_until(lambda: simulation.output["new"])
    ttft_s = simulation.first_token_s("new") - simulation.requests["new"].arrival_s
    assert ttft_s < 2.5 * num_tokens * COST.prefill_token_s + 1.2, "a chunk of the other one, and its own tokens"
    assert not simulation.output["long"]


def test_without_a_second_context_all_is_in_one_batch() -> None:
    simulation = stream_and_prompt(make_limits(kv_capacity_tokens=8192, step_target_s=0.05))
    simulation.run()
    assert simulation.num_side_chunks == 0
    simulation.check_all_finished()


@pytest.mark.parametrize(("tier", "is_late"), [(ServiceTier.ULTRAFAST, False), (ServiceTier.FLEX, True)])
def test_who_is_more_urgent_waits_for_a_piece_and_who_is_less_for_the_prompt(tier: ServiceTier, is_late: bool) -> None:
    simulation = stream_and_prompt()

    newcomer_in_second_chunk(simulation, 200, tier=tier)
    simulation.step_until(lambda: simulation.output["long"] and simulation.output["new"])
    is_after = simulation.first_token_s("new") > simulation.first_token_s("long")
    assert is_after == is_late
    if not is_late:
        ttft_s = simulation.first_token_s("new") - simulation.requests["new"].arrival_s
        assert ttft_s < 200 * COST.prefill_token_s + 0.3, "nothing but its own prompt, and decodes"
    simulation.run()
    simulation.check_all_finished()


def test_a_shorter_prompt_of_the_same_tier_goes_first() -> None:
    simulation = stream_and_prompt()

    newcomer_in_second_chunk(simulation, 64)
    simulation.step_until(lambda: simulation.output["long"])
    assert simulation.first_token_s("new") < simulation.first_token_s("long")


@pytest.mark.parametrize("who", ["long", "stream0"])
def test_an_abort_while_a_side_chunk_runs(who: str) -> None:
    simulation = stream_and_prompt()

    def leave() -> None:
        if simulation.num_side_chunks == 2 and who not in simulation.finished:
            simulation.abort(who)

    simulation.on_side = leave
    simulation.step_until(lambda: who in simulation.finished)
    simulation.on_side = lambda: None
    before_s = simulation.clock()
    assert simulation.finished[who].reason is FinishReason.ABORT
    assert simulation.scheduler._state.ledger.num_held == 0 or who != "long"
    simulation.run()
    assert simulation.scheduler._state.ledger.num_held == 0
    simulation.check_all_finished()
    assert simulation.clock() > before_s


def test_the_prompt_of_an_aborted_request_does_not_come_back_in_a_reused_sequence() -> None:
    simulation = stream_and_prompt(stream_tokens=120)

    def leave() -> None:
        if simulation.num_side_chunks == 3 and "long" not in simulation.finished:
            simulation.abort("long")
            simulation.add(make_request("other", 700, 8, arrival_s=simulation.clock()))

    simulation.on_side = leave
    simulation.run()
    simulation.check_all_finished()


def test_a_prefix_that_is_cached_is_not_computed_beside() -> None:
    assert num_side_tokens_of_next_turn(400) == 399


def test_kv_that_cannot_be_moved_is_computed_in_steps_from_then_on() -> None:
    simulation = stream_and_prompt(stream_tokens=1500)
    simulation.executor.injections.unmovable_ids.add("long")
    simulation.run()
    assert simulation.num_side_chunks == 1
    assert simulation.executor.num_side_tokens == 0
    simulation.check_all_finished()


@pytest.mark.parametrize("status", [StepStatus.OUT_OF_KV, StepStatus.INVALID])
def test_a_step_that_fails_beside_a_side_chunk(status: StepStatus) -> None:
    simulation = stream_and_prompt()

    def fail() -> None:
        if simulation.num_side_chunks == 2 and not simulation.may_cut_short:
            simulation.executor.injections.statuses.append(status)
            simulation.may_cut_short = True

    simulation.on_side = fail
    simulation.run()
    assert simulation.finished["long"].reason is FinishReason.LENGTH
    assert simulation.finished["stream0"].reason in (FinishReason.LENGTH, FinishReason.ERROR)


def test_cells_that_are_set_aside_make_nobody_give_way_who_is_more_urgent() -> None:
    limits = make_limits(
        kv_capacity_tokens=1024, max_request_tokens=1024, step_target_s=0.05, can_interrupt=True, max_side_tokens=1024
    )
    simulation = stream_and_prompt(limits, num_prompt=700, stream_tokens=500)
    simulation.run()
    assert simulation.num_side_chunks > 0
    assert simulation.num_preempted["stream0"] == 0
    simulation.check_all_finished()


def test_a_prompt_of_the_streams_own_tier_gets_its_half() -> None:
    """Eight streams that could take all of the time, were they alone to say."""
    limits = make_limits(
        kv_capacity_tokens=8192,
        max_num_running=16,
        max_request_tokens=4096,
        step_target_s=0.05,
        can_interrupt=True,
        max_side_tokens=4096,
    )
    simulation = stream_and_prompt(limits, prompt_tier=ServiceTier.ULTRAFAST)

    def come() -> None:
        if simulation.num_side_chunks == 1 and len(simulation.requests) < 12:
            number = len(simulation.requests)
            simulation.add(make_request(f"more{number}", 8, 2000, tier=ServiceTier.ULTRAFAST, arrival_s=simulation.clock()))

    simulation.on_side = come
    simulation.step_until(lambda: simulation.output["long"], max_steps=4000)
    took_s = simulation.first_token_s("long") - simulation.requests["long"].arrival_s
    assert took_s < 3 * 1500 * COST.prefill_token_s


@pytest.mark.parametrize(("tier", "may_wait"), [(ServiceTier.ULTRAFAST, False), (ServiceTier.DEFAULT, True)])
def test_who_is_more_urgent_does_not_wait_for_a_prefix_in_a_side_chunk(tier: ServiceTier, may_wait: bool) -> None:
    simulation = stream_and_prompt()

    def come() -> None:
        if "new" not in simulation.requests and simulation.num_side_chunks == 1:
            prompt = [*tokens_of("long", 1500)[:100], 1, 2, 3]
            simulation.add(make_request("new", prompt, 4, tier=tier, arrival_s=simulation.clock()))

    simulation.on_side = come
    simulation.step_until(lambda: simulation.output["new"])
    simulation.run()
    simulation.check_all_finished()
    assert simulation.finished["new"].num_cached_tokens == (100 if may_wait else 0)


def test_a_chunk_ends_where_somebody_waits_for_it() -> None:
    simulation = stream_and_prompt()
    prompt = [*tokens_of("long", 1500)[:100], 1, 2, 3]
    simulation.add(make_request("new", prompt, 4, arrival_s=simulation.clock()))
    simulation.step_until(lambda: simulation.output["new"])
    assert simulation.executor.num_side_tokens <= 100


@pytest.mark.parametrize("num_other", [100, 300])
def test_a_flood_of_shorter_prompts_of_its_tier_leaves_a_long_one_its_part(num_other: int) -> None:
    """Two of them wait at any time; those of 100 tokens are computed in steps, those of 300 beside them."""
    simulation = stream_and_prompt(stream_tokens=3000)

    def come() -> None:
        waiting = [name for name in simulation.requests if name.startswith("other") and not simulation.output[name]]
        if len(waiting) < 2 and not simulation.output["long"]:
            number = len(simulation.requests)
            simulation.add(make_request(f"other{number}", num_other, 1, arrival_s=simulation.clock()))

    simulation.on_turn = simulation.on_side = come
    simulation.step_until(lambda: simulation.output["long"], max_steps=4000)
    took_s = simulation.first_token_s("long") - simulation.requests["long"].arrival_s
    assert sum(name.startswith("other") for name in simulation.requests) > 10
    assert took_s < 6 * 1500 * COST.prefill_token_s, "a quarter of the time, without what the stream takes"


def test_a_prefix_much_longer_than_the_rest_stays_where_it_is() -> None:
    assert num_side_tokens_of_next_turn(150) == 0


def test_who_leaves_together_leaves_nothing_of_a_side_chunk() -> None:
    """The turn that ends its request has no step, and nothing is due after it: the chunk is broken off all the same."""
    simulation = stream_and_prompt()

    def leave() -> None:
        if simulation.num_side_chunks == 2:
            simulation.abort("stream0")
            simulation.abort("long")

    simulation.on_turn = leave
    simulation.run()
    simulation.check_all_finished()
    assert simulation.executor.num_side_tokens == 256, "only the first chunk was of use"
