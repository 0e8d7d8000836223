"""Counters of a server's own page, and what happened between two looks at it."""

import pytest

from ultrafast.bench.server_metrics import counted_between, parse_counters

OURS = """# HELP ultrafast_preemptions_total Sequences that lost their place.
# TYPE ultrafast_preemptions_total counter
ultrafast_preemptions_total{tier="flex"} 2.0
ultrafast_preemptions_total{tier="default"} 1.0
ultrafast_engine_restarts_total 0.0
ultrafast_queue_seconds_bucket{le="0.1",tier="flex"} 9.0
ultrafast_queue_seconds_sum{tier="flex"} 0.5
ultrafast_queue_seconds_count{tier="flex"} 10.0
ultrafast_prefix_cache_hit_tokens_total{level="device"} 30.0
ultrafast_prefix_cache_queried_tokens_total 100.0
"""


def test_labels_are_summed_and_other_lines_are_passed_over():
    assert parse_counters(OURS) == {
        "preemptions": 3.0,
        "restarts": 0.0,
        "queue_sum": 0.5,
        "queue_count": 10.0,
        "cache_hits": 30.0,
        "cache_queries": 100.0,
    }


def test_vllm_has_names_of_its_own():
    assert parse_counters('vllm:num_preemptions_total{model_name="a b} c"} 7 1700000000\n') == {"preemptions": 7.0}


@pytest.mark.parametrize(
    ("after", "told"),
    [
        ({"preemptions": 5.0, "queue_sum": 2.5, "queue_count": 14.0}, {"preemptions": 2.0, "mean_queue_s": 0.5}),
        ({"preemptions": 3.0, "queue_sum": 0.5, "queue_count": 10.0}, {"preemptions": 0.0}),
        ({"preemptions": 0.0}, {}),
        ({}, {}),
        ({"cache_hits": 4.0}, {}),
    ],
    ids=["grown", "nothing happened", "started anew", "no page", "not there before"],
)
def test_between(after, told):
    assert counted_between({"preemptions": 3.0, "queue_sum": 0.5, "queue_count": 10.0}, after) == told
