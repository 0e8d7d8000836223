"""Jitter within requests, and stalls."""

import math

import numpy as np
import pytest

from ultrafast.bench.stats.gaps import (
    pooled_jitter,
    pooled_jitter_interval,
    request_jitter,
    stall_limit_s,
    stall_share,
)


def test_jitter_of_alternating_gaps():
    assert request_jitter([0.01, 0.03] * 10) == pytest.approx(0.01)
    assert request_jitter([0.01, 0.03]) is None
    assert request_jitter([0.01, 0.01, 0.01]) == 0


def test_speed_differences_between_requests_are_not_jitter():
    steady = [[0.01] * 20, [0.05] * 20]
    assert pooled_jitter(steady) == pytest.approx(0, abs=1e-12)
    assert np.std(np.concatenate(steady)) == pytest.approx(0.02)


def test_pooling_weighs_by_gaps_and_leaves_short_requests_out():
    requests = [[0.01, 0.03] * 30, [0.02] * 20, [9.0, 0.0]]
    assert pooled_jitter(requests) == pytest.approx(math.sqrt(60 * 0.01**2 / 80))
    assert pooled_jitter([[1.0, 2.0], []]) is None


def test_one_pause_in_a_thousand_gaps_is_a_stall():
    gaps = [0.02] * 999 + [2.0]
    assert stall_limit_s(gaps) == 0.25
    assert stall_limit_s([0.1] * 5) == pytest.approx(0.5)
    assert stall_share([gaps]) == pytest.approx(0.001)
    assert stall_share([[0.24] * 3]) == 0
    assert stall_share([[], []]) is None


def _draw(rng, num_requests):
    """Gaps whose deviation varies between requests: 10 ms for most, 30 ms for some."""
    scales = rng.choice([0.01, 0.03], size=num_requests, p=[0.8, 0.2])
    return [rng.normal(0.05, scale, size=40) for scale in scales]


def test_jitter_interval_covers_the_truth():
    rng = np.random.default_rng(11)
    truth = math.sqrt((0.8 * 0.01**2 + 0.2 * 0.03**2) * 39 / 40)
    hits = sum(pooled_jitter_interval(_draw(rng, 100)).holds(truth) for _ in range(250))
    assert hits >= 0.91 * 250
    assert pooled_jitter_interval(_draw(rng, 9)) is None
    assert pooled_jitter_interval([[1.0] * 4] * 12).high == 0
