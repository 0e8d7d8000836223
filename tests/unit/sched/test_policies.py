"""The small policies on their own: order, victims, chunks, admission, leaders, faults, limits."""

from __future__ import annotations

import gc
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.core.errors import ConfigError
from ultrafast.core.request import Request, RequestSlo, RequestState, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.sched import admission
from ultrafast.sched.budget import StepBudget
from ultrafast.sched.chunks import FALLBACK_CHUNK_TOKENS, MAX_PREFILLS_PER_STEP, TILE_TOKENS, Prefills, divide, next_length
from ultrafast.sched.cost import CostModel
from ultrafast.sched.faults import Faults
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_next_turn, choose_victim
from ultrafast.sched.sharing import find_leader
from ultrafast.sched.waiting import WaitingQueue

LIMITS = SchedulerLimits(kv_capacity_tokens=1000, max_request_tokens=500, max_step_tokens=256, step_target_s=0.1)


def _live(order: int, prompt: int | list[int] = 10, tier: str = "default", arrival_s: float = 0.0, **fields: Any) -> LiveRequest:
    tokens = tuple(prompt) if isinstance(prompt, list) else tuple(range(prompt))
    params = SamplingParams(max_tokens=fields.pop("max_tokens", 16))
    return LiveRequest(Request(f"r{order}", tokens, params, ServiceTier(tier), arrival_s, **fields), order)


def test_inside_a_tier_the_queue_is_in_the_order_of_deadlines_not_of_arrivals() -> None:
    queue = WaitingQueue()
    for order, arrival_s, ttft_s in ((1, 0.0, 60.0), (2, 1.0, 1.5), (3, 2.0, 0.5)):
        queue.push(_live(order, arrival_s=arrival_s, slo=RequestSlo(ttft_s=ttft_s)))
    served = []
    while (head := queue.head()) is not None:
        queue.pop(head)
        served.append(head.order)
    assert served == [2, 3, 1], "equal deadlines: as they came"


def test_the_queue_serves_by_tier_then_preempted_then_arrival() -> None:
    queue = WaitingQueue()
    late, early = _live(1, arrival_s=2.0), _live(2, arrival_s=1.0)
    preempted, urgent = _live(3, arrival_s=3.0), _live(4, tier="ultrafast", arrival_s=9.0)
    preempted.state = RequestState.PREEMPTED
    for live in (late, early, preempted, urgent):
        queue.push(live)
    served = []
    while (head := queue.head()) is not None:
        queue.pop(head)
        served.append(head.order)
    assert served == [4, 3, 2, 1]


def test_the_queue_forgets_what_was_discarded_and_sweeps_its_garbage() -> None:
    queue = WaitingQueue()
    lives = [_live(i) for i in range(1000)]
    for live in lives:
        queue.push(live)
    for live in lives[:990]:
        queue.discard(live)
    assert len(queue) == 10
    assert len(queue._lanes[ServiceTier.DEFAULT.rank].heap) < 150
    head = queue.head()
    assert head is not None
    assert head.order == 990


def test_a_request_that_waits_keeps_no_list_of_its_tokens_and_makes_it_when_asked() -> None:
    live = _live(1, [5, 6, 7], output_tokens=(8,))
    queue = WaitingQueue()
    live.fold()
    queue.push(live)
    assert queue.num_tokens_of(live.rank) == 4
    queue.discard(live)
    assert not any(isinstance(held, list) for held in gc.get_referents(live)), "no list for the garbage collector to walk"
    assert live.tokens == [5, 6, 7, 8]
    live.state = RequestState.PREEMPTED
    live.tokens.append(9)
    live.fold()
    assert live.tokens == [5, 6, 7, 8, 9], "its output is nowhere else"


def test_the_next_turn_is_of_whoever_was_in_a_step_least_recently_then_by_arrival() -> None:
    lives = [_live(1, arrival_s=3.0), _live(2, arrival_s=2.0), _live(3, arrival_s=1.0)]
    for live, last_run_s in zip(lives, (5.0, 5.0, 6.0), strict=True):
        live.last_run_s = last_run_s
    assert choose_next_turn(lives) is lives[1]
    assert choose_next_turn([]) is None


def test_the_victim_is_the_youngest_of_the_least_urgent_tier() -> None:
    lives = [
        _live(1, tier="flex", arrival_s=1.0),
        _live(2, tier="flex", arrival_s=2.0),
        _live(3, tier="ultrafast", arrival_s=3.0),
    ]
    victim = choose_victim(lives)
    assert victim is not None
    assert victim.order == 2
    assert choose_victim([]) is None


@given(
    budget=st.integers(0, 300),
    sizes=st.lists(st.tuples(st.integers(2, 400), st.floats(0, 9)), min_size=1, max_size=8),
)
@settings(deadline=None, derandomize=True)
def test_chunks_never_exceed_the_budget_and_the_first_due_always_gets_its_share(
    budget: int, sizes: list[tuple[int, float]]
) -> None:
    lives = [_live(i, size, arrival_s=arrival_s) for i, (size, arrival_s) in enumerate(sizes)]
    chunks = divide(budget, Prefills(lives))
    num_possible = sum(chunk.live.num_remaining for chunk in chunks)
    num_taken = next_length(num_possible, budget) if len(lives) == 1 else min(budget, num_possible)
    assert sum(chunk.num_tokens for chunk in chunks) == num_taken
    assert len(chunks) <= MAX_PREFILLS_PER_STEP
    assert all(0 < chunk.num_tokens <= chunk.live.num_remaining for chunk in chunks)
    if budget:
        first_due = min(lives, key=lambda live: (live.deadline_s, live.order))
        share = {chunk.live: chunk.num_tokens for chunk in chunks}[first_due]
        assert share >= min(first_due.num_remaining, max(1, budget // 4))


def test_a_short_prefill_gets_what_it_needs_beside_a_long_one() -> None:
    long, short = _live(1, 400, arrival_s=0.0), _live(2, 20, arrival_s=1.0)
    assert [(chunk.live.order, chunk.num_tokens) for chunk in divide(32, Prefills([long, short]))] == [(2, 20), (1, 12)]


def test_a_pressed_prefill_goes_first_and_the_first_due_keeps_its_share() -> None:
    late, pressed, short = _live(1, 400, arrival_s=0.0), _live(2, 300, arrival_s=1.0), _live(3, 20, arrival_s=2.0)
    assert [(chunk.live.order, chunk.num_tokens) for chunk in divide(100, Prefills([late, short]), late)] == [(1, 100)]
    chunks = divide(100, Prefills([late, pressed, short]), pressed)
    assert [(chunk.live.order, chunk.num_tokens) for chunk in chunks] == [(2, 75), (1, 25)]


@given(st.integers(1, 3000), st.integers(0, 600))
def test_a_prompt_of_several_long_chunks_ends_with_a_whole_tile(num_tokens: int, budget: int) -> None:
    lengths = []
    while (length := next_length(num_tokens - sum(lengths), budget)) > 0:
        lengths.append(length)
    assert max(lengths, default=0) <= budget
    assert sum(lengths) == num_tokens or budget == 0
    if budget >= 2 * TILE_TOKENS and len(lengths) > 1:
        assert lengths[-1] >= TILE_TOKENS
        assert len(lengths) == -(-num_tokens // budget), "no chunk more than without"


def test_the_last_chunk_of_a_prompt_fills_a_tile() -> None:
    chunks = divide(256, Prefills([_live(1, 300)]))
    assert [chunk.num_tokens for chunk in chunks] == [300 - TILE_TOKENS]


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (0.0, None),  # 400 tokens take 0.4 s: there is time
        (7.3, None),
        (7.5, 1),  # a quarter of this step would not do
        (7.55, 1),
        (7.65, None),  # it cannot be in time any more, and the other has the time
        (8.75, None),
        (8.9, 2),
        (9.0, None),  # nobody can
    ],
)
def test_who_would_be_late_otherwise_and_need_not_be_is_pressed(now: float, expected: int | None) -> None:
    slo = RequestSlo(ttft_s=8.0)
    lives = [_live(1, 400, arrival_s=0.0, slo=slo), _live(2, 90, arrival_s=1.0, slo=slo)]
    pressed = StepBudget(_fitted_cost(), LIMITS, now).pressed(100, Prefills(lives))
    assert (pressed.order if pressed is not None else None) == expected


def _fitted_cost() -> CostModel:
    """10 ms a decode, 1 ms a prefill token."""
    cost = CostModel()
    for tokens in (16, 32, 64, 128, 256):
        cost.observe(0, tokens, 0.001 * tokens)
        cost.observe(1, 0, 0.01)
        cost.observe(2, 0, 0.02)
    return cost


def _chunk_beside(num_decodes: int, cost: CostModel, *, is_alone: bool = False) -> int:
    budget = StepBudget(cost, LIMITS, 0.0, is_alone=is_alone)
    budget.add_decodes(num_decodes)
    return budget.num_prefill_tokens_fitting(0)


def test_the_chunk_before_and_after_there_is_data() -> None:
    assert _chunk_beside(0, CostModel()) == FALLBACK_CHUNK_TOKENS
    assert _chunk_beside(2, _fitted_cost()) == pytest.approx(80, abs=2)
    assert _chunk_beside(0, _fitted_cost()) == pytest.approx(200, abs=3)
    assert _chunk_beside(0, _fitted_cost(), is_alone=True) > _chunk_beside(0, _fitted_cost())
    assert _chunk_beside(250, _fitted_cost()) == 6, "never more than the step has room for"
    assert _chunk_beside(100, _fitted_cost()) == 16, "a small chunk even when decodes take the target"


def test_less_urgent_work_fits_into_the_slack_of_a_stream() -> None:
    budget = StepBudget(_fitted_cost(), LIMITS, now=1.0)
    assert budget.num_decodes_fitting(9) == 9, "nobody is more urgent yet"
    stream = _live(1, tier="ultrafast")
    stream.last_token_s, stream.tpot_s = 0.995, 0.045
    budget.add_decodes(1)
    budget.close_rank(stream.token_due_s, [])
    assert budget.num_decodes_fitting(9) == 3, "40 ms are left, 10 of them its own"
    budget.add_decodes(2)
    assert budget.num_prefill_tokens_fitting(0) == pytest.approx(10, abs=1), "no floor beside a more urgent stream"
    stream.last_token_s = 0.9
    budget.close_rank(stream.token_due_s, [])
    assert budget.num_decodes_fitting(9) == 0
    assert budget.num_prefill_tokens_fitting(0) == 0


def test_less_urgent_work_stretches_a_prefill_by_a_quarter_at_most_and_by_nothing_when_that_would_break_it() -> None:
    cost = _fitted_cost()
    prompt = _live(1, 100, tier="ultrafast")

    def fitting(ttft_s: float) -> int:
        prompt.ttft_s = ttft_s
        budget = StepBudget(cost, LIMITS, 0.0)
        budget.add_prefill(100)
        budget.close_rank(inf, [prompt])
        return budget.num_decodes_fitting(9)

    assert fitting(10.0) == 2, "25 of 100 ms"
    assert fitting(0.11) == 0, "100 ms of work, 110 ms until it is due"
    assert fitting(0.05) == 2, "it is late whatever the others do"


def test_admission_counts_uncached_tokens_and_a_bounded_reserve() -> None:
    assert admission.num_needed(_live(1, 100, max_tokens=8), 30, LIMITS) == 70 + 8
    assert admission.num_needed(_live(1, 100, max_tokens=5000), 0, LIMITS) == 100 + 64
    assert admission.num_needed(_live(1, 490, max_tokens=5000), 0, LIMITS) == 490 + 10
    running = _live(2, 50, max_tokens=5000)
    running.num_computed = 20
    assert admission.num_promised([running], LIMITS) == 30 + 64


def test_a_leader_must_be_prefilling_more_of_the_same_in_the_same_namespace() -> None:
    prompt = list(range(100))
    follower = _live(1, [*prompt, 777])
    leader, shorter, other_tenant = _live(2, prompt), _live(3, prompt[:50]), _live(4, prompt, cache_salt="x")
    assert find_leader(follower, 0, [shorter, leader, other_tenant]) == (leader, 100)
    assert find_leader(follower, 0, [leader, shorter]) == (leader, 100)
    assert find_leader(follower, 0, [other_tenant]) is None
    assert find_leader(follower, 95, [leader]) is None, "not worth a wait"
    leader.num_computed = 99
    assert find_leader(follower, 0, [leader]) is None, "it decodes; what it has is in the tree"
    assert find_leader(_live(5, [5, *prompt]), 0, [_live(2, prompt)]) is None


def test_equal_prompts_follow_up_to_the_last_token() -> None:
    prompt = list(range(100))
    leader = _live(2, prompt)
    assert find_leader(_live(1, prompt), 0, [leader]) == (leader, 99)


def test_isolation_finds_the_one_at_fault() -> None:
    lives = [_live(i) for i in range(7)]
    faults, tried = Faults(), 0
    culprit = faults.invalid(lives)
    while culprit is None and tried < 20:
        group = faults.suspects(lives)
        tried += 1
        if lives[5] in group:
            culprit = faults.invalid(group)
        else:
            faults.step_succeeded(group)
    assert culprit is lives[5]
    assert tried <= 5
    rest = [live for live in lives if live is not culprit]
    assert faults.suspects(rest) == [lives[6]]
    faults.step_succeeded([lives[6]])
    assert not faults.is_isolating


def test_suspects_that_ended_are_skipped() -> None:
    lives = [_live(i) for i in range(4)]
    faults = Faults()
    faults.invalid(lives)
    assert faults.suspects(lives[2:]) == lives[2:]
    assert faults.suspects([]) == []
    assert not faults.is_isolating


def test_slack_halves_the_room_and_fades() -> None:
    faults = Faults()
    faults.out_of_kv(num_free=100, num_tokens=40)
    assert faults.slack == 80
    for _ in range(200):
        faults.step_succeeded([])
    assert faults.slack == 0


@pytest.mark.parametrize(
    "field", ["kv_capacity_tokens", "max_request_tokens", "max_step_tokens", "max_num_running", "step_target_s"]
)
def test_limits_refuse_nonsense(field: str) -> None:
    values = {"kv_capacity_tokens": 10, "max_request_tokens": 10, "max_step_tokens": 32, "step_target_s": 0.1, field: 0}
    with pytest.raises(ConfigError) as caught:
        SchedulerLimits(**values)  # type: ignore[arg-type]
    assert caught.value.param == field


def test_a_step_must_have_room_for_every_running_request() -> None:
    with pytest.raises(ConfigError, match="max_step_tokens"):
        SchedulerLimits(kv_capacity_tokens=10, max_request_tokens=10, max_step_tokens=16, step_target_s=0.1, max_num_running=32)
