"""Nearest rank, exact intervals, and the sample sizes below which there is none."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.stats.percentiles import (
    interval_ranks,
    nearest_rank,
    nearest_ranks,
    quantile_interval,
    smallest_sample_size,
)

SAMPLES = st.lists(st.floats(min_value=0, max_value=1e6) | st.just(math.inf), min_size=1, max_size=200)
QUANTILES = st.floats(min_value=0, max_value=1)


@given(SAMPLES, QUANTILES)
def test_it_is_a_sample_and_the_smallest_that_holds(samples, quantile):
    value = nearest_rank(samples, quantile)
    assert value in samples
    num_needed = quantile * len(samples) - 1e-6
    assert sum(sample <= value for sample in samples) >= num_needed
    assert sum(sample < value for sample in samples) < max(quantile * len(samples), 1e-9) + 1e-6


@given(SAMPLES, QUANTILES, QUANTILES)
def test_it_rises_with_the_quantile(samples, one, other):
    low, high = nearest_ranks(samples, sorted((one, other)))
    assert low <= high


@given(SAMPLES, QUANTILES, st.randoms())
def test_order_does_not_matter(samples, quantile, random):
    shuffled = list(samples)
    random.shuffle(shuffled)
    assert nearest_rank(samples, quantile) == nearest_rank(shuffled, quantile)


def test_known_values():
    hundred = list(range(1, 101))
    assert nearest_ranks(hundred, [0, 0.5, 0.9, 0.99, 1]) == [1, 50, 90, 99, 100]
    assert nearest_rank(hundred, 0.55) == 55  # 0.55 * 100 is a little more than 55 in binary
    assert nearest_rank([], 0.99) is None
    assert nearest_ranks([], [0.5, 0.9]) == [None, None]
    assert nearest_rank([1.0, 2.0, math.inf], 0.5) == 2
    assert nearest_rank([1.0, 2.0, math.inf], 0.99) == math.inf


def test_nan_is_a_broken_caller():
    with pytest.raises(AssertionError, match="left out"):
        nearest_rank([1.0, math.nan], 0.5)


@pytest.mark.parametrize(("quantile", "size"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_smallest_sample_sizes(quantile, size):
    assert smallest_sample_size(quantile) == size
    samples = np.arange(size, dtype=float)
    assert quantile_interval(samples[:-1], quantile) is None
    interval = quantile_interval(samples, quantile)
    assert interval is not None
    assert interval.high == size - 1
    assert interval.holds(nearest_rank(samples, quantile))


def test_ranks_against_the_table():
    # 95 % for the median: the classical table gives ranks 18 and 33 of 50, 40 and 61 of 100
    assert interval_ranks(50, 0.5) == (18, 33)
    assert interval_ranks(100, 0.5) == (40, 61)
    assert interval_ranks(1000, 0.99) == (983, 997)


@pytest.mark.parametrize(("quantile", "size"), [(0.5, 40), (0.9, 100), (0.95, 200), (0.99, 500)])
def test_intervals_cover_the_truth(quantile, size):
    rng = np.random.default_rng(7)
    truth = -math.log(1 - quantile)
    intervals = [quantile_interval(rng.exponential(size=size), quantile) for _ in range(1000)]
    hits = sum(interval is not None and interval.holds(truth) for interval in intervals)
    assert hits >= 940  # 950 expected at least; three standard errors are 20


def test_failed_requests_widen_upwards():
    interval = quantile_interval([1.0] * 395 + [math.inf] * 5, 0.99)
    assert interval is not None
    assert (interval.low, interval.high) == (1.0, math.inf)
