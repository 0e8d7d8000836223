"""Distributions of prompt and output lengths, as written on a command line. Pure.

512                  always 512
uniform:64-256       evenly between both, ends included
lognormal:512,0.5    median 512, sigma 0.5 of the logarithm; optional third value: the largest
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ultrafast.core.errors import ConfigError

Draw = Callable[[np.random.Generator], int]
"""One length in tokens, at least 1."""

_MAX_TOKENS = 10_000_000


def parse_lengths(text: str) -> Draw:
    """Read a distribution.

    Raises:
        ConfigError: it is none of the three forms.
    """
    kind, _, rest = text.partition(":")
    try:
        if not rest:
            return _fixed(int(kind))
        if kind == "uniform":
            low, high = (int(part) for part in rest.split("-"))
            return _uniform(low, high)
        if kind == "lognormal":
            middle, sigma, *most = rest.split(",")
            return _lognormal(float(middle), float(sigma), int(most[0]) if most else _MAX_TOKENS)
    except ValueError as error:
        raise _bad(text) from error
    raise _bad(text)


def _fixed(length: int) -> Draw:
    if not 1 <= length <= _MAX_TOKENS:
        raise ValueError(length)
    return lambda _: length


def _uniform(low: int, high: int) -> Draw:
    if not 1 <= low <= high <= _MAX_TOKENS:
        raise ValueError((low, high))
    return lambda generator: int(generator.integers(low, high + 1))


def _lognormal(middle: float, sigma: float, most: int) -> Draw:
    if not (1 <= middle <= most and 0 <= sigma <= 10):
        raise ValueError((middle, sigma, most))
    return lambda generator: int(min(most, max(1, round(middle * float(np.exp(sigma * generator.standard_normal()))))))


def _bad(text: str) -> ConfigError:
    return ConfigError(f"{text!r} is no length in tokens.", hint="Write 512, uniform:64-256 or lognormal:512,0.5[,MAX].")
