"""Intervals for percentiles of values that come in requests."""

import numpy as np
import pytest

from ultrafast.bench.stats.clustered import clustered_quantile_interval
from ultrafast.bench.stats.percentiles import quantile_interval


def draw(rng, num_requests, num_values=40):
    """Each request has a speed of its own, so its values are alike."""
    speeds = rng.lognormal(0.0, 0.5, num_requests)
    return [speed * rng.lognormal(0.0, 0.3, num_values) for speed in speeds]


@pytest.mark.parametrize(("quantile", "num_requests"), [(0.5, 60), (0.9, 100), (0.99, 400)])
def test_the_truth_lies_in_it_about_as_often_as_said(quantile, num_requests):
    rng = np.random.default_rng(5)
    truth = float(np.quantile(np.concatenate(draw(rng, 50_000)), quantile))
    intervals = [clustered_quantile_interval(draw(rng, num_requests), quantile) for _ in range(300)]
    known = [interval for interval in intervals if interval is not None]
    assert len(known) >= 290
    assert 0.91 <= sum(interval.holds(truth) for interval in known) / len(known) <= 0.99


def test_values_taken_as_independent_would_say_too_much():
    requests = draw(np.random.default_rng(1), 100)
    clustered, naive = clustered_quantile_interval(requests, 0.9), quantile_interval(np.concatenate(requests), 0.9)
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)


@pytest.mark.parametrize(
    "requests",
    [
        [],
        [[0.01] * 40] * 29,
        [[0.01] * 40] * 60,
        [[0.01] * 40] * 95 + [[0.01] * 20 + [5.0] * 20] * 5,
    ],
    ids=["none", "few requests", "no tail", "a tail from five requests"],
)
def test_too_little_gives_none(requests):
    assert clustered_quantile_interval(requests, 0.97) is None
