"""Sliding percentiles and sums: right within a bucket, forgetful, and exact about objectives."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.dashboard.window import NUM_SLICES, SLICE_S, WINDOW_S, LatencyWindow, SumWindow


def nearest_rank(values: list[float], q: float) -> float:
    return sorted(values)[math.ceil(q * len(values)) - 1]


@given(st.lists(st.floats(2e-4, 900), min_size=1, max_size=200), st.floats(0, 1e6))
def test_percentiles_are_right_within_a_bucket(values: list[float], now: float) -> None:
    window = LatencyWindow(0.2)
    for value in values:
        window.observe(value, now)
    view = window.read(now)
    assert view.num == len(values)
    assert view.num_within == sum(value <= 0.2 for value in values)
    assert view.p50_s == pytest.approx(nearest_rank(values, 0.5), rel=0.021)
    assert view.p90_s == pytest.approx(nearest_rank(values, 0.9), rel=0.021)
    assert view.p99_s == pytest.approx(nearest_rank(values, 0.99), rel=0.021)


def test_several_samples_at_once_count_as_many() -> None:
    window = LatencyWindow(0.01)
    window.observe(0.005, 1.0, count=9)
    window.observe(0.5, 1.0)
    view = window.read(1.0)
    assert (view.num, view.num_within) == (10, 9)
    assert view.p90_s == pytest.approx(0.005, rel=0.021)
    assert view.p99_s == pytest.approx(0.5, rel=0.021)


def test_extremes_stay_in_range() -> None:
    window = LatencyWindow(1.0)
    window.observe(0.0, 1.0)
    window.observe(1e9, 1.0)
    view = window.read(1.0)
    assert view.p50_s == pytest.approx(1e-4)
    assert view.p99_s == pytest.approx(1000, rel=0.1)


@given(st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 30)), min_size=1, max_size=60))
def test_what_is_older_than_the_window_is_forgotten(samples: list[tuple[float, float]]) -> None:
    window = LatencyWindow(0.2)
    sums = SumWindow(1)
    now = 1000.0
    for value, pause in samples:
        now += pause
        window.observe(value, now)
        sums.add((value,), now)
    at = 1000.0
    stamped = []
    for value, pause in samples:
        at += pause
        stamped.append((value, at))
    first_slice = int(now / SLICE_S) - NUM_SLICES + 1
    kept = [value for value, at in stamped if int(at / SLICE_S) >= first_slice]
    view = window.read(now)
    assert view.num == len(kept)
    assert view.p50_s == pytest.approx(nearest_rank(kept, 0.5), rel=0.021)
    assert sums.read(now)[0] == pytest.approx(sum(kept), abs=1e-6)
    later = window.read(now + WINDOW_S)
    assert later == (None, None, None, 0, 0)
    assert sums.read(now + WINDOW_S)[0] == pytest.approx(0, abs=1e-6)


def test_a_long_silence_costs_no_memory() -> None:
    window = LatencyWindow(0.2)
    window.observe(0.1, 0.0)
    window.observe(0.1, 1e9)
    assert window.read(1e9).num == 1
