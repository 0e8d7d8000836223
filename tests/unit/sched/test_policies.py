"""The small policies on their own: order, victims, chunks, admission, leaders, faults, limits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ultrafast.core.errors import ConfigError
from ultrafast.core.request import Request, RequestState, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.sched import admission
from ultrafast.sched.chunks import FALLBACK_CHUNK_TOKENS, MAX_PREFILLS_PER_STEP, chunk_budget, divide
from ultrafast.sched.cost import CostModel
from ultrafast.sched.faults import Faults
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.ordering import choose_victim, order_key
from ultrafast.sched.sharing import find_leader
from ultrafast.sched.waiting import WaitingQueue

LIMITS = SchedulerLimits(kv_capacity_tokens=1000, max_request_tokens=500, max_step_tokens=256, step_target_s=0.1)


def _live(order: int, prompt: int | list[int] = 10, tier: str = "default", arrival_s: float = 0.0, **fields: Any) -> LiveRequest:
    tokens = tuple(prompt) if isinstance(prompt, list) else tuple(range(prompt))
    params = SamplingParams(max_tokens=fields.pop("max_tokens", 16))
    return LiveRequest(Request(f"r{order}", tokens, params, ServiceTier(tier), arrival_s, **fields), order)


def test_the_queue_serves_by_tier_then_preempted_then_arrival() -> None:
    queue = WaitingQueue()
    late, early = _live(1, arrival_s=2.0), _live(2, arrival_s=1.0)
    preempted, urgent = _live(3, arrival_s=3.0), _live(4, tier="ultrafast", arrival_s=9.0)
    preempted.state = RequestState.PREEMPTED
    for live in (late, early, preempted, urgent):
        queue.push(live)
    assert [queue.pop().order for _ in range(4)] == [4, 3, 2, 1]


def test_the_queue_forgets_what_was_discarded_and_sweeps_its_garbage() -> None:
    queue = WaitingQueue()
    lives = [_live(i) for i in range(1000)]
    for live in lives:
        queue.push(live)
    for live in lives[:990]:
        queue.discard(live)
    assert len(queue) == 10
    assert len(queue._heap) < 150
    head = queue.head()
    assert head is not None
    assert head.order == 990


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
    assert order_key(lives[2]) < order_key(lives[0])


@given(
    budget=st.integers(0, 300),
    sizes=st.lists(st.tuples(st.integers(2, 400), st.sampled_from(list(ServiceTier)), st.floats(0, 9)), max_size=8),
)
@settings(deadline=None, derandomize=True)
def test_chunks_never_exceed_the_budget_and_the_oldest_always_gets_its_share(
    budget: int, sizes: list[tuple[int, ServiceTier, float]]
) -> None:
    lives = [_live(i, size, tier.value, arrival_s) for i, (size, tier, arrival_s) in enumerate(sizes)]
    chunks = divide(budget, lives)
    assert sum(chunk.num_tokens for chunk in chunks) == min(budget, sum(chunk.live.num_remaining for chunk in chunks))
    assert len(chunks) <= MAX_PREFILLS_PER_STEP
    assert all(0 < chunk.num_tokens <= chunk.live.num_remaining for chunk in chunks)
    if budget and lives:
        oldest = min(lives, key=lambda live: (live.rank, live.request.arrival_s, live.order))
        share = {chunk.live: chunk.num_tokens for chunk in chunks}[oldest]
        assert share >= min(oldest.num_remaining, max(1, budget // 4))


def test_a_short_prefill_gets_what_it_needs_beside_a_long_one() -> None:
    long, short = _live(1, 400, arrival_s=0.0), _live(2, 20, arrival_s=1.0)
    assert [(chunk.live.order, chunk.num_tokens) for chunk in divide(32, [long, short])] == [(2, 20), (1, 12)]


def test_the_budget_before_and_after_there_is_data() -> None:
    cost = CostModel()
    assert chunk_budget(cost, LIMITS, 0, is_alone=False) == FALLBACK_CHUNK_TOKENS
    for tokens in (16, 32, 64, 128, 256):
        cost.observe(0, tokens, 0.001 * tokens)
        cost.observe(1, 0, 0.01)
    assert chunk_budget(cost, LIMITS, 2, is_alone=False) == pytest.approx(80, abs=2)
    assert chunk_budget(cost, LIMITS, 0, is_alone=False) == pytest.approx(200, abs=3)
    assert chunk_budget(cost, LIMITS, 0, is_alone=True) > chunk_budget(cost, LIMITS, 0, is_alone=False)
    assert chunk_budget(cost, LIMITS, 250, is_alone=False) == 6, "never more than the step has room for"
    assert chunk_budget(cost, LIMITS, 100, is_alone=False) == 16, "a small chunk even when decodes take the target"


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
