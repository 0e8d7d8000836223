"""Resampling of whole requests."""

import numpy as np
import pytest

from ultrafast.bench.stats.bootstrap import central, cluster_bootstrap, jitter_draws, quantile_draws
from ultrafast.bench.stats.gaps import pooled_jitter
from ultrafast.bench.stats.percentiles import nearest_rank


def test_by_request_is_wider_than_by_gap_and_covers():
    rng = np.random.default_rng(5)
    speeds = rng.lognormal(0, 0.4, size=40_000)
    truth = float(np.sort(speeds)[36_000])
    hits, widths = 0, []
    for seed in range(100):
        requests = [[speed] * 20 for speed in rng.lognormal(0, 0.4, size=80)]  # gaps of a request are all alike
        interval = central(quantile_draws(requests, 0.9, seed=seed, num_resamples=300))
        hits += interval.holds(truth)
        widths.append(interval.high - interval.low)
    assert hits >= 86
    flat = [[gap] for request in requests for gap in request]
    by_gap = central(quantile_draws(flat, 0.9, seed=0, num_resamples=300))
    assert by_gap.high - by_gap.low < np.mean(widths) / 2


def test_the_fast_ways_agree_with_the_general_one():
    rng = np.random.default_rng(6)
    requests = [rng.exponential(size=size) for size in rng.integers(3, 30, 60)]

    def p90(drawn):
        return nearest_rank(np.concatenate(drawn), 0.9)

    for fast, statistic in (
        (quantile_draws(requests, 0.9, seed=1, num_resamples=2000), p90),
        (jitter_draws(requests, seed=1, num_resamples=2000), pooled_jitter),
    ):
        general = cluster_bootstrap(requests, statistic, seed=2, num_resamples=500)
        assert central(fast).low == pytest.approx(general.low, rel=0.05)
        assert central(fast).high == pytest.approx(general.high, rel=0.05)


def test_seeded_and_needs_ten_requests():
    requests = [[float(number), 1.0, 2.0] for number in range(12)]
    run = [cluster_bootstrap(requests, lambda drawn: float(np.concatenate(drawn).mean()), seed=1) for _ in range(2)]
    assert run[0] == run[1]
    assert (
        quantile_draws(requests, 0.5, seed=3, num_resamples=9) == quantile_draws(requests, 0.5, seed=3, num_resamples=9)
    ).all()
    assert cluster_bootstrap(requests[:9], lambda drawn: 1.0, seed=1) is None
    assert cluster_bootstrap(requests, lambda drawn: None, seed=1) is None
    assert len(quantile_draws(requests[:9], 0.5, seed=1, num_resamples=9)) == 0
    assert len(jitter_draws(requests[:9], seed=1, num_resamples=9)) == 0


def test_infinite_values_are_safe():
    requests = [[1.0]] * 50 + [[np.inf]] * 5
    assert central(quantile_draws(requests, 0.99, seed=1, num_resamples=100)).high == np.inf
