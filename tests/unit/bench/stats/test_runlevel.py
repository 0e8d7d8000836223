"""Welch, pairs, permutation, Holm against worked examples."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.stats.runlevel import holm, paired, permutation_p, sign_flip_p, welch

# Worked example: A = 27.5 21.0 19.0 23.6 17.0 17.9, B = 27.1 22.0 20.8 23.4 23.4 23.5
A = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9]
B = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5]


def test_welch_by_hand():
    found = welch(A, B)
    assert found.estimate == pytest.approx(2.3667, abs=1e-4)
    first, second = np.var(A, ddof=1) / 6, np.var(B, ddof=1) / 6
    assert found.error == pytest.approx(np.sqrt(first + second))
    assert found.freedom == pytest.approx((first + second) ** 2 / (first**2 / 5 + second**2 / 5))
    low, high = found.bounds()
    assert low < 0 < high
    assert low + high == pytest.approx(2 * found.estimate)


def test_one_sided_p_values_agree_with_the_interval():
    found = welch(A, B)
    low, high = found.bounds(0.90)
    assert found.p_above(low) == pytest.approx(0.05, abs=1e-9)
    assert found.p_below(high) == pytest.approx(0.05, abs=1e-9)
    assert found.p_above(0) + found.p_below(0) == pytest.approx(1)


def test_pairs_cancel_drift():
    drift = np.array([0.0, 1.0, 2.0, 3.0, 4.0])
    a, b = drift, drift + np.array([0.1, 0.12, 0.09, 0.11, 0.1])
    assert paired(a, b).bounds()[0] > 0.08
    assert welch(a, b).bounds()[0] < 0


def test_figures_without_spread():
    same = welch([1.0, 1.0], [1.0, 1.0])
    assert same.bounds() == (0, 0)
    assert (same.p_above(0), same.p_above(-0.1), same.p_below(0.1)) == (1, 0, 0)


def test_permutation_is_exact_for_few_runs():
    assert permutation_p([1, 2, 3, 4, 5], [11, 12, 13, 14, 15], seed=0) == pytest.approx(2 / 252)
    assert permutation_p([1, 2, 3], [1, 2, 3], seed=0) == 1
    many = permutation_p(list(range(30)), [value + 100 for value in range(30)], seed=0, num_draws=500)
    assert many == pytest.approx(1 / 501)
    assert sign_flip_p([0.1, 0.2, 0.1, 0.3, 0.2]) == pytest.approx(2 / 32)


def test_welch_keeps_its_error_rate():
    rng = np.random.default_rng(9)
    wrong = sum(
        not low <= 0 <= high for low, high in (welch(rng.normal(0, 1, 5), rng.normal(0, 3, 5)).bounds() for _ in range(400))
    )
    assert wrong <= 0.08 * 400


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9]) == [0.9]


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=20))
def test_holm_only_raises_and_keeps_the_order(p_values):
    adjusted = holm(p_values)
    assert all(before <= after <= 1 for before, after in zip(p_values, adjusted, strict=True))
    ranked = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert all(adjusted[one] <= adjusted[two] for one, two in itertools.pairwise(ranked))
