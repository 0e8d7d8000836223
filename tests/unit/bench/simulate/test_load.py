"""Made-up prompts share exactly what the traffic says; classes and traces are read or refused with a reason."""

import itertools
from collections import Counter

import pytest

from ultrafast.bench.simulate.load import Mix, SimRequest, TrafficClass, from_trace, parse_class
from ultrafast.bench.traces import TraceEntry
from ultrafast.core.errors import ConfigError
from ultrafast.core.tiers import ServiceTier
from ultrafast.kv.prefix import common_prefix

DEFAULT, FLEX, ULTRAFAST = ServiceTier.DEFAULT, ServiceTier.FLEX, ServiceTier.ULTRAFAST


def request(index, num_prompt, blocks=(), block_tokens=4):
    return SimRequest(index, 0.0, DEFAULT, num_prompt, 1, blocks, block_tokens)


def num_shared(a, b):
    left, right = list(a.prompt_tokens()), list(b.prompt_tokens())
    return common_prefix(left, 0, right, 0, min(len(left), len(right)))


def test_prompts_have_the_wanted_length_and_share_leading_blocks_only():
    a, b, c = request(0, 10, (5, 6)), request(1, 11, (5, 7)), request(2, 10, (6, 6))
    assert [len(one.prompt_tokens()) for one in (a, b, c)] == [10, 11, 10]
    assert (num_shared(a, b), num_shared(a, c), num_shared(b, c)) == (4, 0, 0)
    assert num_shared(a, request(3, 20, (5, 6))) == 8


def test_a_last_block_that_is_cut_is_shared_as_far_as_it_goes():
    assert len(request(0, 6, (5, 6)).prompt_tokens()) == 6
    assert num_shared(request(0, 6, (5, 6)), request(1, 9, (5, 6))) == 6


def test_prompts_without_blocks_share_nothing_not_even_with_a_block_of_the_same_number():
    prompts = [request(0, 5), request(1, 5), request(2, 5, (0,)), request(3, 5, (1,))]
    assert all(num_shared(a, b) == 0 for a, b in itertools.combinations(prompts, 2))


def test_a_class_is_read():
    assert parse_class("fast=0.25:lognormal:512,0.5,4096/uniform:16-64") == TrafficClass(
        ServiceTier.PRIORITY, 0.25, "lognormal:512,0.5,4096", "uniform:16-64"
    )


@pytest.mark.parametrize("text", ["", "gold=1:5/5", "flex:5/5", "flex=0:5/5", "flex=x:5/5", "flex=1:5", "flex=1:5/none"])
def test_a_bad_class_is_refused_with_the_form(text):
    with pytest.raises(ConfigError) as refused:
        parse_class(text)
    assert "TIER=SHARE:PROMPT/OUTPUT" in refused.value.hint


def test_a_mix_is_the_same_each_time_and_has_the_shares_asked_for():
    mix = Mix((parse_class("ultrafast=3:100/10"), parse_class("flex=1:1000/20")), 2000, 5.0, seed=3)
    requests = list(mix.requests())
    assert requests == list(mix.requests())
    assert requests != list(Mix(mix.classes, 2000, 5.0, seed=4).requests())
    counts = Counter(one.tier for one in requests)
    assert 0.71 < counts[ULTRAFAST] / 2000 < 0.79
    assert {(one.tier, one.num_prompt_tokens, one.num_output_tokens) for one in requests} == {
        (ULTRAFAST, 100, 10),
        (FLEX, 1000, 20),
    }
    assert 380 < requests[-1].due_s < 420
    assert [one.due_s for one in requests] == sorted(one.due_s for one in requests)


def test_a_shared_beginning_comes_before_the_own_tokens():
    mix = Mix((parse_class("default=1:10/1"),), 100, 1.0, num_shared_tokens=50, shared_share=0.5)
    lengths = Counter(one.num_prompt_tokens for one in mix.requests())
    assert set(lengths) == {10, 60}
    a, b = (one for one in itertools.islice((one for one in mix.requests() if one.blocks), 2))
    assert num_shared(a, b) == 50


def test_a_trace_keeps_lengths_and_blocks_and_tiers_that_are_given_win():
    entries = [TraceEntry(0.0, 600, 5, "fast", (77, 99)), TraceEntry(1.5, 20, 7, None, (99,), 16)]
    first, second = from_trace(entries, [None, "flex"])
    assert (first.tier, second.tier) == (ServiceTier.PRIORITY, FLEX)
    assert (first.blocks, first.block_tokens, second.blocks, second.block_tokens) == ((0, 1), 512, (1,), 16)
    assert (second.due_s, second.num_prompt_tokens, second.num_output_tokens) == (1.5, 20, 7)


def test_a_tier_of_another_server_needs_a_mix():
    with pytest.raises(ConfigError, match="'gold'") as refused:
        from_trace([TraceEntry(0.0, 1, 1, "gold")], [None])
    assert "--tier-mix" in refused.value.hint
