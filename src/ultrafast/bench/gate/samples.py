"""Picks the values of a metric out of request records, in the order of planned arrival.

A request that failed has TTFT and E2E of `inf`: whoever waits for an answer that never comes waits for ever. It has no gaps.

Requests that are still open are slower than those that have finished; taking only what has finished would flatter the
server. So the sample ends before the first request of which it is not yet known on which side of the limit it falls. A
request that the bench gave up on (outcome `cancelled`) counts as a violation if it had already waited longer than
the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ultrafast.bench.figures import RequestFigures, figures_of
from ultrafast.bench.gate.targets import Metric, Target, canonical_tier
from ultrafast.bench.records import Outcome, RequestRecord
from ultrafast.bench.stats.gaps import MIN_GAPS

Values = NDArray[np.float64]

_WAITED_FOR = frozenset({Metric.TTFT, Metric.TTFT_SERVICE, Metric.E2E})


@dataclass(slots=True)
class Sampled:
    """Values of one metric.

    Attributes:
        values: per settled request, one value, or its gaps; never empty inside.
        num_not_applicable: settled requests without this figure.
        num_open: requests from the first undecided one on.
    """

    values: list[Values] = field(default_factory=list)
    num_not_applicable: int = 0
    num_open: int = 0


def sample(requests: Iterable[RequestRecord], target: Target) -> Sampled:
    """The values that a target speaks of: its metric, its tier, the settled requests."""
    mine = sorted((request for request in requests if is_of_tier(request, target.tier)), key=lambda request: request.scheduled_ns)
    found = Sampled()
    for position, request in enumerate(mine):
        values = values_of(request, target)
        if values is None:
            found.num_open = len(mine) - position
            break
        if len(values):
            found.values.append(values)
        else:
            found.num_not_applicable += 1
    return found


def is_of_tier(request: RequestRecord, tier: str | None) -> bool:
    """Whether a request asked for the tier; no tier at all means all requests."""
    return tier is None or tier_of(request) == tier


def tier_of(request: RequestRecord) -> str:
    """The tier that a request asked for; one that named none asked for `default`."""
    return canonical_tier(request.tier_requested or "default")


def values_of(request: RequestRecord, target: Target) -> Values | None:
    """The values of one request: none if it has no such figure, None if that is not known yet."""
    metric, is_given_up = target.metric, request.outcome is Outcome.CANCELLED
    if metric is Metric.ERRORS:
        return None if is_given_up else _values(float(not request.is_ok))
    figures = figures_of(request)
    if metric in _WAITED_FOR:
        return _waited(request, figures, target)
    if is_given_up:
        return None
    if not request.is_ok:
        return _values()
    if metric is Metric.ITL:
        return _values(*(value for value, num_tokens in figures.itl for _ in range(num_tokens)))
    if metric is Metric.GAP:
        return _values(*figures.gaps_s)
    if metric is Metric.JITTER and target.quantile is None:
        return _values(*figures.gaps_s) if len(figures.gaps_s) >= MIN_GAPS else _values()
    return _figure(figures, metric)


def _waited(request: RequestRecord, figures: RequestFigures, target: Target) -> Values | None:
    """TTFT and E2E: infinite if it failed; if given up, known only once it has waited longer than the limit."""
    if request.outcome is not Outcome.CANCELLED:
        return _figure(figures, target.metric) if request.is_ok else _values(math.inf)
    if target.metric is not Metric.E2E and request.chunks:
        return _figure(figures, target.metric)
    start_ns = request.sent_ns if target.metric is Metric.TTFT_SERVICE else request.scheduled_ns
    if request.end_ns is None or start_ns is None:
        return None
    return _values(math.inf) if (request.end_ns - start_ns) / 1e9 > target.limit else None


def _figure(figures: RequestFigures, metric: Metric) -> Values:
    value: float | None = getattr(figures, f"{metric}_s")
    return _values() if value is None else _values(value)


def _values(*values: float) -> Values:
    return np.array(values, dtype=np.float64)
