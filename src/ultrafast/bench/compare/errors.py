"""Compares the share of failed requests, over all runs of each side. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from ultrafast.bench.compare.judge import Outcome
from ultrafast.bench.records import Outcome as RequestOutcome
from ultrafast.bench.records import Run
from ultrafast.bench.stats.proportions import wilson_interval

ERROR_MARGIN = 0.01
"""More failures than this must be ruled out for "same"."""


class ErrorsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """Failed requests on both sides. `low`, `high`: 95 % interval of share B - share A (Newcombe, 1998, method 10)."""

    outcome: Outcome
    num_failed_a: int
    num_a: int
    num_failed_b: int
    num_b: int
    low: float
    high: float


def compare_errors(a: Sequence[Run], b: Sequence[Run]) -> ErrorsCompared:
    """Failures are compared over all runs of a side.

    B is worse when it is proved to fail more often at all; the same when more than one percentage point is ruled out, or when
    nothing failed on either side.
    """
    (failed_a, num_a), (failed_b, num_b) = _count(a), _count(b)
    first, second = wilson_interval(failed_a, num_a), wilson_interval(failed_b, num_b)
    if first is None or second is None:
        low, high = -1.0, 1.0
    else:
        share_a, share_b = failed_a / num_a, failed_b / num_b
        low = share_b - share_a - math.hypot(share_b - second.low, first.high - share_a)
        high = share_b - share_a + math.hypot(second.high - share_b, share_a - first.low)
    return ErrorsCompared(
        outcome=Outcome.SAME if failed_a == failed_b == 0 else _outcome(low, high),
        num_failed_a=failed_a,
        num_a=num_a,
        num_failed_b=failed_b,
        num_b=num_b,
        low=low,
        high=high,
    )


def _outcome(low: float, high: float) -> Outcome:
    if low > 0.0:
        return Outcome.WORSE
    if high < 0.0:
        return Outcome.BETTER
    return Outcome.SAME if high <= ERROR_MARGIN else Outcome.INCONCLUSIVE


def _count(runs: Sequence[Run]) -> tuple[int, int]:
    settled = [request for run in runs for request in run.requests if request.outcome is not RequestOutcome.CANCELLED]
    return sum(not request.is_ok for request in settled), len(settled)
