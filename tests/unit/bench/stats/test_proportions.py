"""Shares of requests."""

import numpy as np
import pytest

from ultrafast.bench.stats.proportions import wilson_interval, zero_violation_size


def test_known_intervals():
    interval = wilson_interval(7, 50)
    assert (interval.low, interval.high) == pytest.approx((0.069508, 0.261862), abs=1e-6)
    assert wilson_interval(0, 0) is None
    assert wilson_interval(0, 10).low == 0
    assert wilson_interval(10, 10).high == 1


def test_it_covers_the_truth():
    rng = np.random.default_rng(3)
    hits = rng.binomial(200, 0.97, size=1000)
    assert np.mean([wilson_interval(int(hit), 200).holds(0.97) for hit in hits]) > 0.925


@pytest.mark.parametrize(
    ("quantile", "confidence", "size"), [(0.99, 0.95, 299), (0.99, 0.99, 459), (0.9, 0.95, 29), (0.95, 0.95, 59), (0.5, 0.95, 5)]
)
def test_clean_requests_that_prove_a_percentile(quantile, confidence, size):
    assert zero_violation_size(quantile, confidence) == size
    assert quantile**size <= 1 - confidence + 1e-12 < quantile ** (size - 1)
