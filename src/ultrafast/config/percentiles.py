"""Objectives for percentiles, as a tier's settings write them: `ttft:p99<=300ms`, the form that `ultrafast gate` reads too."""

from __future__ import annotations

import re
from collections.abc import Iterable

PERCENTILE_METRICS = ("ttft", "tpot", "e2e", "jitter")
_FORM = re.compile(
    r"(?P<metric>ttft|tpot|e2e|jitter):p(?P<percent>50|90|99)<=(?P<limit>[0-9]{1,9}(?:\.[0-9]{1,6})?)(?P<unit>ms|s)"
)
_FACTORS = {"ms": 1.0, "s": 1000.0}

Percentile = tuple[str, int]
"""A metric of `PERCENTILE_METRICS` and 50, 90 or 99."""


def parse_percentiles(texts: Iterable[str]) -> dict[Percentile, float]:
    """Return the limits in milliseconds.

    Raises:
        ValueError: one that is not understood, is 0, or is given twice.
    """
    limits: dict[Percentile, float] = {}
    for text in texts:
        found = _FORM.fullmatch(text.replace(" ", ""))
        limit_ms = float(found["limit"]) * _FACTORS[found["unit"]] if found else 0.0
        if found is None or not limit_ms:
            raise ValueError(f"{text!r} is no objective for a percentile")
        key = (found["metric"], int(found["percent"]))
        if key in limits:
            raise ValueError(f"{key[0]} p{key[1]} has two objectives")
        limits[key] = limit_ms
    return limits
