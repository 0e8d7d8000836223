"""Small simulations whose figures can be worked out by hand, and the variants."""

from dataclasses import replace

import msgspec
import pytest

from ultrafast.bench.simulate.engine_spec import EngineSpec, StepCost, make_limits
from ultrafast.bench.simulate.load import Mix, SimRequest, parse_class
from ultrafast.bench.simulate.whatif import Setup, Variants, simulate, simulate_all
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import DEFAULT_POLICIES, ServiceTier

COST = StepCost(base_s=0.01, output_s=0.001, token_s=0.0001)
DEFAULT, FLEX, ULTRAFAST = ServiceTier.DEFAULT, ServiceTier.FLEX, ServiceTier.ULTRAFAST


def setup(cost=COST, **limits):
    return Setup(EngineSpec(make_limits(**limits), cost, "given"))


def request(index, due_s, tier=DEFAULT, num_prompt=100, num_output=5, **more):
    return SimRequest(index, due_s, tier, num_prompt, num_output, **more)


def only(outcome):
    (tier,) = outcome.tiers
    return tier


def test_one_request_alone_takes_what_the_cost_says():
    outcome = simulate("one", setup(), [request(0, 1.0)])
    tier = only(outcome)
    assert tier.ttft_s == pytest.approx([0.021] * 3)  # 10 ms + one output + 100 prompt tokens
    assert tier.tpot_s == pytest.approx([0.011] * 3)
    assert tier.e2e_s == pytest.approx([0.021 + 4 * 0.011] * 3)
    assert (tier.num_requests, tier.num_answered, tier.num_good, tier.output_tokens) == (1, 1, 1, 5)
    assert (outcome.num_steps, outcome.window_s) == (5, 1.0)
    assert outcome.drain_s == pytest.approx(0.065)
    assert outcome.utilisation == [pytest.approx(0.0, abs=1e-9)]


def test_a_newcomer_breaks_a_long_step_off_and_the_time_adds_up():
    cost = StepCost(base_s=0.004, output_s=0.007, token_s=0.004)
    load = [request(0, 0.0, FLEX, num_prompt=4000), request(1, 11.4, ULTRAFAST, num_prompt=10)]
    waits, whole = {}, {}
    for can_interrupt in (False, True):
        outcome = simulate("one", setup(cost, can_interrupt=can_interrupt, max_step_tokens=512), load)
        tiers = {tier.tier: tier for tier in outcome.tiers}
        waits[can_interrupt], whole[can_interrupt] = tiers[ULTRAFAST].ttft_s[0], tiers[FLEX].e2e_s[0]
        assert outcome.utilisation[0] <= 1.0
    assert waits[True] < 0.4 * waits[False], "it does not wait for the step under way"
    assert whole[True] < 1.1 * whole[False], "which costs the other less than a tenth"


def test_utilisation_counts_time_inside_the_window_only():
    busy = simulate("busy", setup(), [request(0, 0.0), request(1, 0.0325)])
    assert busy.utilisation == [pytest.approx(1.0)]
    half = simulate("half", setup(), [request(0, 0.0), request(1, 0.13)])
    assert half.utilisation == [pytest.approx(0.5)]


def test_a_shared_beginning_is_computed_once():
    blocks = {"blocks": (0,), "block_tokens": 90}
    tier = only(simulate("shared", setup(), [request(0, 0.0, **blocks), request(1, 1.0, **blocks)]))
    assert tier.cached_share == pytest.approx(90 / 200)
    assert tier.ttft_s[0] == pytest.approx(0.012)  # the second one: 10 tokens of its own


def test_a_request_that_is_too_long_or_finds_the_queue_full_is_counted_with_its_reason():
    tiers = tuple(replace(policy, max_num_waiting=1) for policy in DEFAULT_POLICIES)
    too_long = request(0, 0.0, num_prompt=999)
    crowd = [request(index, 0.001) for index in range(1, 6)]
    tier = only(simulate("full", setup(kv_tokens=500, max_num_running=1, tiers=tiers), [too_long, *crowd]))
    assert tier.refused == {"queue_full": 3, "too_long": 1}
    assert (tier.num_answered, tier.num_requests) == (2, 6)
    assert tier.ttft_adj_s[2] is None


def test_an_answer_that_fills_the_context_is_cut_short():
    tier = only(simulate("cut", setup(max_request_tokens=103), [request(0, 0.0, num_output=50)]))
    assert (tier.num_cut_short, tier.output_tokens) == (1, 3)


def test_attainment_needs_both_objectives_of_the_tier_asked_for():
    tiers = (replace(DEFAULT_POLICIES[0], ttft_s=0.0215, tpot_s=0.0105), *DEFAULT_POLICIES[1:])
    late = only(simulate("tpot", setup(tiers=tiers), [request(0, 0.0, ULTRAFAST)]))
    assert (late.num_good, late.attainment) == (0, 0.0)
    single = only(simulate("one token", setup(tiers=tiers), [request(0, 0.0, ULTRAFAST, num_output=1)]))
    assert (single.num_good, single.tpot_s) == (1, [None] * 3)


def test_without_tiers_an_urgent_request_waits_in_line_and_is_judged_as_urgent():
    flood = [request(index, 0.0, FLEX, num_prompt=1000, num_output=20) for index in range(30)]
    traffic = [*flood, request(30, 0.05, ULTRAFAST, num_output=1)]
    base = setup(max_num_running=4)
    tiered, plain = simulate_all(base, Variants(with_no_tiers=True), lambda: traffic)
    assert (tiered.has_tiers, plain.has_tiers) == (True, False)
    assert tiered.tiers[0].num_good == 1
    assert plain.tiers[0].num_good == 0
    assert plain.tiers[0].ttft_s[0] > 10 * tiered.tiers[0].ttft_s[0]
    assert plain.tiers[0].num_downgraded == 0


def test_more_replicas_serve_an_overload():
    mix = Mix((parse_class("default=1:400/20"),), 400, 20.0)
    one, four = simulate_all(setup(max_num_running=4), Variants(num_replicas=(1, 4)), mix.requests)
    assert one.attainment < 0.5
    assert four.attainment > 0.95
    assert len(four.utilisation) == 4
    assert max(four.utilisation) < 2 * min(four.utilisation)


@pytest.mark.parametrize("routing", ["round-robin", "least-ttft"])
def test_the_same_seed_gives_the_same_figures(routing):
    mix = Mix((parse_class("ultrafast=1:100/10"), parse_class("flex=1:500/20")), 200, 20.0)
    base = replace(setup(replace(COST, noise=0.2)), num_replicas=2, routing=routing, seed=5)
    first, again = (msgspec.json.encode(simulate("x", base, mix.requests())) for _ in range(2))
    assert first == again
    assert first != msgspec.json.encode(simulate("x", replace(base, seed=6), mix.requests()))


def test_an_arrival_goes_where_its_prompt_is_known():
    blocks = {"blocks": (7,), "block_tokens": 90}
    traffic = [request(0, 0.0, **blocks), request(1, 0.5), request(2, 1.0, **blocks), request(3, 2.0, **blocks)]
    tier = only(simulate("affinity", replace(setup(), num_replicas=2), traffic))
    assert tier.cached_share == pytest.approx(180 / 400)


def test_variants_are_all_combinations_with_names():
    base = setup(kv_tokens=1000, max_request_tokens=400)
    names = [name for name, _ in Variants((1, 2), (500, 2000), (0.02,), with_no_tiers=True).of(base)]
    assert len(names) == 8
    assert names[0] == "1 x, kv 500, step 20 ms, tiers"
    assert names[-1] == "2 x, kv 2000, step 20 ms, no tiers"
    assert [name for name, _ in Variants().of(base)] == ["as given"]


def test_a_smaller_pool_bounds_requests_and_cache_and_a_larger_one_does_not_stretch_the_context():
    base = setup(kv_tokens=1000, max_request_tokens=400)
    small, large = (made.engine.limits for _, made in Variants(kv_tokens=(200, 2000)).of(base))
    assert (small.max_request_tokens, small.max_cached_tokens) == (200, 50)
    assert (large.max_request_tokens, large.max_cached_tokens) == (400, 500)


def test_no_replica_serves_nobody():
    with pytest.raises(ConfigError):
        Setup(setup().engine, num_replicas=0)


def test_an_unknown_routing_policy_is_refused():
    with pytest.raises(ConfigError, match="no routing policy 'best'"):
        simulate("x", replace(setup(), routing="best"), [])
