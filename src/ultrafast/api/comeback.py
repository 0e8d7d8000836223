"""When clients come back that found no capacity at all: not before there may be some, and not all at once."""

from __future__ import annotations

import itertools

from ultrafast.api.errors import MAX_RETRY_AFTER_S
from ultrafast.core.errors import UnavailableError
from ultrafast.sched.drain import evenly_spread

MIN_WAIT_S = 1.0
_MIN_SPREAD_S = 2.0
_SPREAD = 0.5
"""Clients come back over this share of their wait, or over `_MIN_SPREAD_S`; the header `retry-after` knows only whole seconds."""
_numbers = itertools.count()


def comeback_s(estimate_s: float) -> float:
    """Return a wait of at least `estimate_s`, spread, within what clients obey: who waited for less than needed asks again."""
    wait_s = min(max(estimate_s, MIN_WAIT_S), MAX_RETRY_AFTER_S / (1 + _SPREAD))
    return wait_s + evenly_spread(next(_numbers)) * max(_MIN_SPREAD_S, _SPREAD * wait_s)


def spread(error: Exception) -> None:
    """Give an answer without capacity its own wait; other errors stay. Once for each answer."""
    if isinstance(error, UnavailableError):
        error.retry_after_s = comeback_s(error.retry_after_s)
