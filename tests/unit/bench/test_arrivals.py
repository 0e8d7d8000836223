from itertools import islice

import numpy as np
import pytest

from ultrafast.bench.arrivals import constant, gamma, open_loop, poisson
from ultrafast.core.errors import ConfigError


def gaps(arrivals, count: int = 20_000) -> np.ndarray:
    return np.diff([0.0, *islice(arrivals, count)])


def test_poisson_has_the_rate_and_spread_of_an_exponential():
    found = gaps(poisson(50.0, seed=1))
    assert found.mean() == pytest.approx(0.02, rel=0.03)
    assert found.std() / found.mean() == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("burstiness", [0.25, 4.0])
def test_burstiness_is_the_shape_of_the_gaps(burstiness: float):
    found = gaps(gamma(50.0, burstiness, seed=1))
    assert found.mean() == pytest.approx(0.02, rel=0.05)
    assert found.std() / found.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_a_sample_of_poisson_arrivals_is_not_rescaled_to_its_rate():
    ends = {list(islice(poisson(10.0, seed), 100))[-1] for seed in range(5)}
    assert len(ends) == 5
    assert all(end != pytest.approx(10.0, abs=1e-6) for end in ends)


def test_constant_does_not_drift():
    assert list(islice(constant(3.0), 30))[-1] == 10.0


def test_same_seed_same_arrivals():
    assert list(islice(poisson(5.0, 7), 10)) == list(islice(poisson(5.0, 7), 10))
    assert list(islice(poisson(5.0, 7), 10)) != list(islice(poisson(5.0, 8), 10))


@pytest.mark.parametrize(("kind", "rate", "burstiness"), [("poisson", 0.0, 1.0), ("constant", -1.0, 1.0), ("gamma", 1.0, 0.0)])
def test_impossible_loads_are_refused(kind: str, rate: float, burstiness: float):
    with pytest.raises(ConfigError) as caught:
        next(open_loop(kind, rate, burstiness, 0))
    assert caught.value.hint
