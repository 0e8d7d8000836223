"""Shapes and prefixes found in records of requests."""

import msgspec
import pytest

from ultrafast.engine.warmup_plan import WarmPrefix, read_warmup_plan
from ultrafast.observe.request_log.record import LogRecord
from ultrafast.plan.warmup.make import NoTrafficError, make_plan
from ultrafast.plan.warmup.prefixes import Choice, shared_prefixes
from ultrafast.plan.warmup.shapes import cluster_lengths, concurrency_levels


def test_two_kinds_of_prompts_give_two_sizes_that_hold_most_of_them():
    lengths = [*range(90, 111), *range(1900, 2101)]
    small, large = cluster_lengths(lengths, 2)
    assert 105 <= small <= 110
    assert 2050 <= large <= 2100


def test_few_lengths_stand_for_themselves_and_none_for_none():
    assert cluster_lengths([40, 40, 7, 0, -3]) == [7, 40]
    assert cluster_lengths([5] * 100) == [5]
    assert cluster_lengths([]) == []


def test_clusters_do_not_depend_on_the_order_and_are_few():
    lengths = [1 + (i * 7919) % 5000 for i in range(1000)]
    found = cluster_lengths(lengths)
    assert found == cluster_lengths(sorted(lengths))
    assert len(found) <= 8
    assert found == sorted(set(found))


def test_concurrency_is_weighted_by_time():
    spans = [(0.0, 100.0), (10.0, 12.0), (10.5, 11.0)]
    assert concurrency_levels(spans) == [1, 2, 3]
    assert concurrency_levels([(0, 1), (5, 6)]) == [1]
    assert concurrency_levels([(0, 2), (0, 2)]) == [2]
    assert concurrency_levels([(1, 1)]) == []


def prefixes(chains, **choice):
    return shared_prefixes(chains, 128, Choice(**({"min_uses": 2} | choice)))


def test_the_longest_beginnings_with_enough_uses_are_chosen_the_most_valuable_first():
    chains = [("", ["a", "b", "c", "d"]), ("", ["a", "b", "c"]), ("", ["a", "b", "x"]), ("", ["p"]), ("", ["p"])]
    assert prefixes(chains) == [
        WarmPrefix(name="c", num_tokens=384, num_uses=2),
        WarmPrefix(name="p", num_tokens=128, num_uses=2),
    ]
    assert prefixes(chains, min_uses=3) == [WarmPrefix(name="b", num_tokens=256, num_uses=3)]


def test_equal_prompts_of_different_spaces_share_nothing():
    assert prefixes([("alice", ["a"]), ("bob", ["a"])]) == []
    assert prefixes([("alice", ["a"]), ("bob", ["a"]), ("bob", ["a"])])[0].num_uses == 2


def test_what_is_too_much_is_left_out_and_shared_parts_count_once():
    chains = [("", ["a", "b"])] * 3 + [("", ["a", "c"])] * 2 + [("", ["p", "q", "r"])] * 2
    assert [one.name for one in prefixes(chains, max_tokens=3 * 128)] == ["b", "c"]
    assert prefixes(chains, max_tokens=0) == []


def record(arrival, prompt=300, cached=0, ttft=0.5, prefix=()):
    return LogRecord(
        arrival=arrival,
        tier="default",
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=5,
        outcome="stop" if ttft is not None else "reject",
        ttft_s=ttft,
        e2e_s=2.0,
        prefix=list(prefix),
    )


def test_a_plan_is_of_what_was_computed():
    records = [record(0.0, prefix=["a", "b"]), record(1.0, cached=256, prefix=["a", "b"]), record(60.0, ttft=None, prefix=["a"])]
    plan = make_plan(records, 128, "/key", Choice(2))
    assert plan.chunks == [44, 300]
    assert plan.decodes == [1, 2]
    assert plan.prefixes == [WarmPrefix(name="b", num_tokens=256, num_uses=2)]
    assert (plan.num_requests, plan.period_s) == (3, 60.0)


def test_without_a_key_there_are_no_prefixes_and_without_traffic_no_plan():
    assert make_plan([record(0.0, prefix=["a"])] * 3, 128, None).prefixes == []
    with pytest.raises(NoTrafficError):
        make_plan([record(0.0, ttft=None)], 128, None)


def test_a_plan_file_is_read_again(tmp_path):
    plan = make_plan([record(0.0, prefix=["a"])] * 3, 128, "/key")
    file = tmp_path / "plan.json"
    file.write_bytes(msgspec.json.encode(plan))
    assert read_warmup_plan(file) == plan
