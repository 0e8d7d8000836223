"""The few distribution functions that intervals need, exact to about 1e-12, on the standard library and numpy.

Pure. Student's t and the binomial both reduce to the regularised incomplete beta function, evaluated by its continued
fraction (Abramowitz and Stegun, *Handbook of Mathematical Functions*, 26.5.8; modified Lentz evaluation). A statistics
library would bring more than 100 MB onto the machine of everybody who runs a benchmark; these three functions do not.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_TINY = 1e-300
_PRECISION = 1e-15
_MAX_TERMS = 20_000
_NORMAL = NormalDist()


def regularised_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), the distribution function of Beta(a, b) at `x` in [0, 1]; `a`, `b` > 0 and need not be whole."""
    assert min(a, b) > 0, f"shape parameters must be positive, not {a} and {b}"
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast only below the mean
        return 1.0 - regularised_beta(1.0 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    result = d
    for term in range(1, _MAX_TERMS):
        even = term * (b - term) * x / ((a + 2 * term - 1.0) * (a + 2 * term))
        odd = -(a + term) * (a + b + term) * x / ((a + 2 * term) * (a + 2 * term + 1.0))
        change = 1.0
        for coefficient in (even, odd):
            d = 1.0 / _away_from_zero(1.0 + coefficient * d)
            c = _away_from_zero(1.0 + coefficient / c)
            change *= d * c
        result *= change
        if abs(change - 1.0) < _PRECISION * 10:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def binomial_cdf(successes: float, trials: float, probability: float) -> float:
    """P(at most `successes` of `trials`), each with `probability`.

    Both counts may be fractional: an effective sample size is. Below 0 the answer is 0, from `trials` on it is 1.
    """
    if successes < 0:
        return 0.0
    if successes >= trials:
        return 1.0
    return regularised_beta(1.0 - probability, trials - successes, successes + 1.0)


def normal_quantile(probability: float) -> float:
    """Quantile of the standard normal distribution; `probability` in (0, 1)."""
    return _NORMAL.inv_cdf(probability)


def student_t_cdf(value: float, freedom: float) -> float:
    """P(T <= value) of Student's t; `freedom` > 0 need not be whole (Welch)."""
    tail = 0.5 * regularised_beta(freedom / (freedom + value * value), freedom / 2.0, 0.5)
    return 1.0 - tail if value > 0 else tail


def student_t_quantile(probability: float, freedom: float) -> float:
    """Quantile of Student's t by bisection; `probability` in (0, 1)."""
    assert 0.0 < probability < 1.0, f"a probability lies between 0 and 1, not {probability}"
    if probability < 0.5:
        return -student_t_quantile(1.0 - probability, freedom)
    low, high = 0.0, 1.0
    while student_t_cdf(high, freedom) < probability:
        high *= 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if student_t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
        if high - low <= 1e-13 * high:
            break
    return (low + high) / 2.0


def chi_square_quantile(probability: float, freedom: float) -> float:
    """Quantile of chi-square, to about 1 % for `freedom` >= 3 (Wilson and Hilferty, 1931): enough for a warning limit."""
    ninth = 2.0 / (9.0 * freedom)
    root = 1.0 - ninth + normal_quantile(probability) * math.sqrt(ninth)
    return float(freedom * max(root, 0.0) ** 3)
