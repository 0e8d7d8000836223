"""Against printed tables and against each other."""

import math

import pytest

from ultrafast.bench.stats.distributions import (
    binomial_cdf,
    chi_square_quantile,
    normal_quantile,
    regularised_beta,
    student_t_cdf,
    student_t_quantile,
)


@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [(0.975, 1, 12.7062), (0.975, 4, 2.7764), (0.975, 8, 2.3060), (0.95, 10, 1.8125), (0.995, 30, 2.7500), (0.975, 1e6, 1.95996)],
)
def test_student_t_against_the_table(probability, freedom, value):
    assert student_t_quantile(probability, freedom) == pytest.approx(value, abs=6e-5)
    assert student_t_quantile(1 - probability, freedom) == pytest.approx(-value, abs=6e-5)
    assert student_t_cdf(student_t_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-10)


@pytest.mark.parametrize("probability", [0.01, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("trials", [1, 7, 40])
def test_binomial_against_the_sum(trials, probability):
    total = 0.0
    for hits in range(trials):
        total += math.comb(trials, hits) * probability**hits * (1 - probability) ** (trials - hits)
        assert binomial_cdf(hits, trials, probability) == pytest.approx(total, abs=1e-12)
    assert binomial_cdf(-1, trials, probability) == 0
    assert binomial_cdf(trials, trials, probability) == 1


def test_binomial_of_many_trials():
    assert binomial_cdf(99_000, 100_000, 0.99) == pytest.approx(0.5045, abs=1e-3)
    assert binomial_cdf(0, 299, 0.01) == pytest.approx(0.99**299, rel=1e-9)


def test_beta_is_symmetric_and_bounded():
    assert regularised_beta(0.3, 2.5, 7.0) == pytest.approx(1 - regularised_beta(0.7, 7.0, 2.5), abs=1e-13)
    assert regularised_beta(0.25, 1.0, 1.0) == pytest.approx(0.25)
    assert (regularised_beta(-1, 2, 2), regularised_beta(2, 2, 2)) == (0, 1)


def test_chi_square_and_normal_against_the_table():
    assert chi_square_quantile(0.99, 9) == pytest.approx(21.666, rel=0.01)
    assert chi_square_quantile(0.95, 20) == pytest.approx(31.410, rel=0.01)
    assert normal_quantile(0.975) == pytest.approx(1.959964, abs=1e-6)
