"""When requests are due: seeded, absolute offsets from the start of the window. Pure.

Gaps are truly random, not rescaled to fit the rate exactly: rescaling removes the bursts that make a queue.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from ultrafast.core.errors import ConfigError


def poisson(rate_per_s: float, seed: int) -> Iterator[float]:
    """Independent users: exponential gaps. Endless; the first arrival comes after a gap."""
    return gamma(rate_per_s, 1.0, seed)


def gamma(rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """Gamma gaps of mean 1 / rate. `burstiness` is their shape: 1 is Poisson, below 1 burstier, above 1 more even."""
    _check(rate_per_s, burstiness)
    generator = np.random.default_rng(seed)
    due_s = 0.0
    while True:
        due_s += float(generator.gamma(burstiness, 1.0 / (rate_per_s * burstiness)))
        yield due_s


def constant(rate_per_s: float) -> Iterator[float]:
    """Every 1 / rate seconds, counted and not summed, so that it does not drift."""
    _check(rate_per_s, 1.0)
    return (number / rate_per_s for number in itertools.count(1))


def open_loop(kind: str, rate_per_s: float, burstiness: float, seed: int) -> Iterator[float]:
    """The arrivals that a command line names: `poisson`, `gamma` or `constant`."""
    makers: dict[str, Callable[[], Iterator[float]]] = {
        "poisson": lambda: poisson(rate_per_s, seed),
        "gamma": lambda: gamma(rate_per_s, burstiness, seed),
        "constant": lambda: constant(rate_per_s),
    }
    return makers[kind]()


def _check(rate_per_s: float, burstiness: float) -> None:
    if not rate_per_s > 0 or rate_per_s == float("inf"):
        raise ConfigError(f"A request rate of {rate_per_s} per second makes no schedule.", hint="Give one above 0.")
    if not burstiness > 0:
        raise ConfigError(f"Burstiness must be above 0, not {burstiness}.", hint="1 is Poisson, below 1 is burstier.")
