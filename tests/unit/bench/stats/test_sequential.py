"""The test that may be looked at after every request keeps its error rate, and still decides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.bench.stats.sequential import dispersion, tail_dispersion, weigh, weigh_fixed

ALPHA = 0.05


def looks(violations, sizes, quantile, step=50):
    """The first verdict of somebody who looks every `step` requests, and when."""
    for count in range(step, len(violations) + 1, step):
        evidence = weigh(violations[:count], sizes[:count], quantile)
        if evidence.is_pass(ALPHA):
            return "pass", count
        if evidence.is_fail(ALPHA):
            return "fail", count
    return "open", len(violations)


def verdicts(share, *, quantile=0.99, num_repeats=200, num_requests=1500, seed=0):
    rng = np.random.default_rng(seed)
    ones = np.ones(num_requests, dtype=np.int64)
    return [looks((rng.random(num_requests) < share).astype(np.int64), ones, quantile) for _ in range(num_repeats)]


def count(found, verdict):
    return sum(kind == verdict for kind, _ in found)


def test_wrong_verdicts_are_rare_right_at_the_target():
    assert count(verdicts(0.0101, num_requests=1000), "pass") <= 0.05 * 200
    assert count(verdicts(0.01, num_requests=1000, seed=1), "fail") <= 0.05 * 200


def test_clear_cases_are_decided_early():
    good = verdicts(0.001, num_repeats=60)
    assert count(good, "pass") == 60
    assert np.median([size for _, size in good]) <= 400
    bad = verdicts(0.04, num_repeats=60)
    assert count(bad, "fail") == 60
    assert np.median([size for _, size in bad]) <= 250


def test_other_quantiles():
    assert count(verdicts(0.501, quantile=0.5, num_repeats=100, num_requests=600), "pass") <= 5
    assert count(verdicts(0.3, quantile=0.5, num_repeats=50, num_requests=600), "pass") == 50
    assert count(verdicts(0.2, quantile=0.9, num_repeats=50, num_requests=600), "fail") == 50


def test_gaps_of_one_request_count_as_one_witness():
    """1 % of the requests are bad in every gap: gap by gap the share is met exactly, and 100 gaps are not 100 witnesses."""
    rng = np.random.default_rng(2)
    sizes = np.full(400, 100, dtype=np.int64)
    found = [looks((rng.random(400) < 0.01).astype(np.int64) * 100, sizes, 0.99) for _ in range(200)]
    assert count(found, "fail") <= 10
    clean = weigh(np.zeros(368, dtype=np.int64), sizes[:368], 0.99)
    assert clean.is_pass(ALPHA)
    assert not weigh(np.zeros(300, dtype=np.int64), sizes[:300], 0.99).is_pass(ALPHA)


def _bursty(rng, num_requests, num_bursts):
    violations = np.zeros(num_requests, dtype=np.int64)
    for start in rng.integers(0, num_requests - 10, num_bursts):
        violations[start : start + 10] = 1
    return violations


def test_bursts_are_discounted():
    rng = np.random.default_rng(4)
    ones = np.ones(1000, dtype=np.int64)
    bursty = [_bursty(rng, 1000, 1) for _ in range(100)]  # exactly 1 %, in one burst
    assert count([looks(violations, ones, 0.99) for violations in bursty], "fail") <= 5
    assert dispersion(bursty[0] - 0.01) > 5
    independent = (rng.random(1000) < 0.01) - 0.01
    assert dispersion(independent) < 2


def test_bursts_are_seen_before_the_first_violation():
    """Stretches of slow requests, none of them beyond the limit yet."""
    rng = np.random.default_rng(10)

    def bursty():
        values = rng.lognormal(0, 0.2, 400)
        for start in np.flatnonzero(rng.random(400) < 1 / 40):
            values[start : start + 8] *= 1.5
        return values

    assert np.mean([tail_dispersion(bursty(), 0.99) > 1.5 for _ in range(100)]) > 0.9
    assert np.mean([tail_dispersion(rng.lognormal(size=400), 0.99) > 1 for _ in range(200)]) < 0.05
    assert tail_dispersion(np.ones(400), 0.99) == 1
    assert tail_dispersion(bursty()[:20], 0.99) == 1
    clean, ones = np.zeros(400, dtype=np.int64), np.ones(400, dtype=np.int64)
    assert weigh(clean, ones, 0.99).is_pass(ALPHA)
    assert not weigh(clean, ones, 0.99, min_spread=2).is_pass(ALPHA)


@given(st.lists(st.booleans(), min_size=1, max_size=300), st.sampled_from([0.5, 0.9, 0.99]))
def test_never_both_verdicts_and_one_more_violation_never_helps(violations, quantile):
    array = np.array(violations, dtype=np.int64)
    ones = np.ones_like(array)
    evidence = weigh(array, ones, quantile)
    assert not (evidence.is_pass(ALPHA) and evidence.is_fail(ALPHA))
    assert 1 - 1e-9 <= evidence.dispersion <= len(array)


def test_a_total_failure_is_a_fail_at_once_and_nothing_is_nothing():
    assert weigh(np.ones(20, dtype=np.int64), np.ones(20, dtype=np.int64), 0.99).is_fail(ALPHA)
    empty = weigh(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 0.99)
    assert not empty.is_pass(ALPHA)
    assert not empty.is_fail(ALPHA)


@pytest.mark.parametrize(("size", "is_proved"), [(298, False), (299, True)])
def test_fixed_sample_without_violation(size, is_proved):
    few, many = weigh_fixed(0, size, 0.99)
    assert (few <= ALPHA) is is_proved
    assert many == 1


def test_fixed_sample_with_violations():
    few, many = weigh_fixed(25, 1000, 0.99)
    assert many < 0.001 < 0.99 < few
    assert weigh_fixed(25, 1000, 0.99, spread=10)[1] > 0.05
    assert weigh_fixed(20, 3000, 0.99, spread=10) == pytest.approx(weigh_fixed(2, 300, 0.99))
