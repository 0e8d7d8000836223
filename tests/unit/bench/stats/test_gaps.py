"""Jitter within requests, stalls, and resampling of whole requests."""

import math

import numpy as np
import pytest

from ultrafast.bench.stats.gaps import (
    cluster_bootstrap,
    pooled_jitter,
    pooled_jitter_interval,
    request_jitter,
    stall_limit_s,
    stall_share,
)
from ultrafast.bench.stats.percentiles import nearest_rank


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
    hits = sum(pooled_jitter_interval(_draw(rng, 100)).holds(truth) for _ in range(400))
    assert hits >= 0.91 * 400
    assert pooled_jitter_interval(_draw(rng, 9)) is None
    assert pooled_jitter_interval([[1.0] * 4] * 12).high == 0


def test_bootstrap_by_request_is_wider_than_by_gap_and_covers():
    rng = np.random.default_rng(5)

    def p90(requests):
        return nearest_rank(np.concatenate(requests), 0.9)

    speeds = rng.lognormal(0, 0.4, size=40_000)
    truth = float(np.sort(speeds)[36_000])
    hits, widths = 0, []
    for seed in range(40):
        requests = [[speed] * 20 for speed in rng.lognormal(0, 0.4, size=60)]  # gaps of a request are all alike
        interval = cluster_bootstrap(requests, p90, seed=seed, num_resamples=200)
        hits += interval.holds(truth)
        widths.append(interval.high - interval.low)
    assert hits >= 34
    flat = [[gap] for request in requests for gap in request]
    by_gap = cluster_bootstrap(flat, p90, seed=0, num_resamples=200)
    assert by_gap.high - by_gap.low < np.mean(widths) / 2


def test_bootstrap_is_seeded_and_needs_ten_requests():
    requests = [[float(number), 1.0] for number in range(12)]
    run = [cluster_bootstrap(requests, lambda drawn: float(np.concatenate(drawn).mean()), seed=1) for _ in range(2)]
    assert run[0] == run[1]
    assert cluster_bootstrap(requests[:9], lambda drawn: 1.0, seed=1) is None
    assert cluster_bootstrap(requests, lambda drawn: None, seed=1) is None
