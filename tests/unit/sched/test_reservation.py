"""What is held back for tiers that are likely to come: learnt, bounded, forgotten."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ultrafast.core.request import Request, SamplingParams
from ultrafast.core.tiers import ServiceTier
from ultrafast.sched.budget import StepBudget
from ultrafast.sched.cost import CostModel
from ultrafast.sched.limits import SchedulerLimits
from ultrafast.sched.live import LiveRequest
from ultrafast.sched.reservation import ENOUGH, MAX_SHARE, MAX_STEP_SHARE, Reservations, likely

ULTRA, DEFAULT, FLEX = ServiceTier.ULTRAFAST, ServiceTier.DEFAULT, ServiceTier.FLEX
LIMITS = SchedulerLimits(
    kv_capacity_tokens=4000, max_request_tokens=2000, max_step_tokens=256, step_target_s=0.1, max_num_running=8
)


def _cost() -> CostModel:
    """10 ms a decode, 1 ms a prefill token."""
    cost = CostModel()
    for tokens in (16, 32, 64, 128, 256):
        cost.observe(0, tokens, 0.001 * tokens)
        cost.observe(1, 0, 0.01)
        cost.observe(2, 0, 0.02)
    return cost


def _live(tier: ServiceTier, prompt: int = 100, output: int = 20) -> LiveRequest:
    live = LiveRequest(Request("r", tuple(range(prompt)), SamplingParams(max_tokens=output), tier), 1)
    live.tokens += range(output)
    return live


def _arrive(reservations: Reservations, tier: ServiceTier, every_s: float, until_s: float, **size: int) -> None:
    now = 0.0
    while now <= until_s:
        live = _live(tier, **size)
        reservations.arrived(live, now)
        reservations.finished(live)
        now += every_s
    reservations.update(until_s)


@pytest.mark.parametrize("mean", [0.0, 0.05, 0.11, 0.5, 1.0, 3.0, 20.0, 200.0])
def test_the_likely_count_is_the_quantile_of_the_poisson_distribution(mean: float) -> None:
    def below(count: int) -> float:
        terms = (math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) if mean else float(i == 0) for i in range(count + 1))
        return sum(terms)

    count, _ = likely(mean)
    assert below(count) >= ENOUGH - 1e-9
    assert count == 0 or below(count - 1) < ENOUGH


def test_a_mean_beyond_the_range_of_floats_is_its_own_estimate() -> None:
    assert likely(5000.0)[0] == 5000


@pytest.mark.parametrize("mean", [1.0, 3.0, 20.0, 77.7, 200.0, 690.0])
def test_while_the_mean_stays_in_the_interval_the_likely_count_stays_the_same(mean: float) -> None:
    count, (low, high) = likely(mean)
    assert low < mean < high
    assert {likely(low + share * (high - low))[0] for share in (0.0, 0.1, 0.5, 0.9, 1.0)} == {count}


def test_room_is_held_from_less_urgent_tiers_by_rate_and_size() -> None:
    reservations = Reservations(LIMITS, _cost())
    _arrive(reservations, DEFAULT, every_s=5.0, until_s=300.0)
    assert reservations.num_tokens(DEFAULT.rank) == reservations.num_tokens(ULTRA.rank) == 0, "not from itself, not from others"
    held = reservations.num_tokens(FLEX.rank)
    assert held == 2 * (100 + 20), "one in five seconds: two at most, nine times in ten"
    (said,) = reservations.report()
    assert (said.tier, said.num_likely, said.num_kv_tokens) == (DEFAULT, 2, held)
    assert said.step_share == pytest.approx((100 * 0.001 + 20 * 0.01) / 5, rel=0.15)


def test_who_came_long_ago_is_forgotten() -> None:
    reservations = Reservations(LIMITS, _cost())
    _arrive(reservations, ULTRA, every_s=1.0, until_s=60.0)
    assert reservations.num_tokens(FLEX.rank) > 0
    reservations.update(60.0 + 600.0)
    assert reservations.num_tokens(FLEX.rank) == 0
    assert reservations.report() == ()
    assert reservations.step_share(FLEX.rank) == 0


def test_a_single_request_reserves_nothing() -> None:
    reservations = Reservations(LIMITS, _cost())
    reservations.arrived(_live(ULTRA), 0.0)
    reservations.update(0.0)
    assert reservations.report() == ()


def test_a_refused_inquiry_counts_as_one_that_came_and_says_nothing_of_its_size() -> None:
    reservations = Reservations(LIMITS, _cost())
    inquiry = LiveRequest(Request("i", (0,), SamplingParams(max_tokens=16), ULTRA, is_inquiry=True), 1)
    reservations.arrived(_live(ULTRA), 0.0)
    for second in range(1, 60):
        reservations.arrived(inquiry, float(second))
    reservations.update(60.0)
    (said,) = reservations.report()
    assert said.num_likely >= 5
    assert said.num_kv_tokens == said.num_likely * (100 + 20)


def test_the_least_urgent_tier_reserves_nothing() -> None:
    reservations = Reservations(LIMITS, _cost())
    _arrive(reservations, FLEX, every_s=0.5, until_s=60.0)
    assert reservations.report() == ()


def test_what_is_held_back_is_bounded() -> None:
    reservations = Reservations(LIMITS, _cost())
    for tier in (ULTRA, ServiceTier.PRIORITY, DEFAULT):
        _arrive(reservations, tier, every_s=0.1, until_s=60.0, prompt=800)
    assert reservations.num_tokens(FLEX.rank) == LIMITS.kv_capacity_tokens // MAX_SHARE
    assert reservations.num_tokens(DEFAULT.rank) == reservations.num_tokens(ULTRA.rank + 1), "the most urgent has it"
    assert reservations.num_places(FLEX.rank, 0) == 2
    assert reservations.step_share(FLEX.rank) == MAX_STEP_SHARE


def test_a_place_is_held_only_where_nobody_could_be_paused() -> None:
    reservations = Reservations(LIMITS, _cost())
    _arrive(reservations, ULTRA, every_s=5.0, until_s=300.0)
    assert [reservations.num_places(FLEX.rank, pausable) for pausable in (0, 1, 2, 8)] == [2, 1, 0, 0]
    assert reservations.num_places(ULTRA.rank, 0) == 0


def test_what_the_cache_had_is_no_need() -> None:
    reservations = Reservations(LIMITS, _cost())
    live = _live(ULTRA)
    live.num_cached_first = 90
    for second in range(60):
        reservations.arrived(live, float(second))
        reservations.finished(live)
    reservations.update(60.0)
    (said,) = reservations.report()
    assert said.num_kv_tokens == said.num_likely * (10 + 20)


def test_the_switch_holds_nothing_back() -> None:
    reservations = Reservations(replace(LIMITS, enable_reservation=False), _cost())
    _arrive(reservations, ULTRA, every_s=0.5, until_s=60.0)
    assert reservations.report() == ()
    assert reservations.num_tokens(FLEX.rank) == 0


def test_a_held_share_makes_steps_short() -> None:
    def fitting(share: float) -> tuple[int, int]:
        budget = StepBudget(_cost(), LIMITS, 0.0, is_alone=True)
        budget.hold_back(share)
        return budget.num_decodes_fitting(20), budget.num_prefill_tokens_fitting(0)

    assert fitting(0.0)[0] == 20
    assert fitting(0.0)[1] > 200, "as long as it likes"
    decodes, prefill = fitting(0.2)
    assert decodes == 8, "80 of 100 ms"
    assert prefill == pytest.approx(80, abs=2)
    assert fitting(0.5)[0] == 5


def test_one_always_decodes() -> None:
    slow = StepBudget(_cost(), replace(LIMITS, step_target_s=0.001), 0.0)
    slow.hold_back(0.5)
    assert slow.num_decodes_fitting(3) == 1
    assert slow.num_decodes_fitting(0) == 0
