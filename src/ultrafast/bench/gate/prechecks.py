"""When a run proves nothing: the client was late, the requests were not those that were asked for, or too many failed.

The flags of a run count: `invalid` blocks every verdict, `unreliable` the metrics that it names. The checks of its own are
those that depend on the targets, and those that a gate takes harder than a report does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ultrafast.bench.gate.targets import Target, show_time
from ultrafast.bench.gate.verdicts import Precheck, Verdict
from ultrafast.bench.records import FlagLevel, Outcome, RequestRecord, Run, RunRecord
from ultrafast.bench.stats.sequential import weigh

MAX_LAG_SHARE = 0.10
"""Of the smallest limit: a client that wakes up later than that cannot see whether it was kept."""

MIN_RATE_SHARE = 0.98
MAX_LENGTH_ERROR = 0.02


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user can set.

    Attributes:
        max_error_share: of the requests, in [0, 1].
        accepted: codes of checks that the user chose to pass over.
    """

    max_error_share: float = 0.01
    accepted: frozenset[str] = frozenset()


def precheck(run: Run, targets: Sequence[Target], limits: Limits, alpha: float) -> tuple[Precheck, ...]:
    """Everything that is wrong with the run, the gravest first. `alpha`: below it, too many errors are proved."""
    checks = [*_errors(run.requests, limits, alpha), *_loop_lag(run.record, targets), *_rate(run), *_lengths(run.requests)]
    checks += [check for check in _flags(run.record) if check.code not in {own.code for own in checks}]
    return tuple(check for check in checks if check.code not in limits.accepted)


def _errors(requests: Sequence[RequestRecord], limits: Limits, alpha: float) -> Iterator[Precheck]:
    """Too many errors prove FAIL when it is sure that they are too many: they are the server's, not a flaw of the run."""
    settled = [request for request in requests if request.outcome is not Outcome.CANCELLED]
    failed = [request for request in settled if not request.is_ok]
    if not settled or len(failed) / len(settled) <= limits.max_error_share:
        return
    hits = np.array([int(not request.is_ok) for request in settled], dtype=np.int64)
    quantile = min(max(1.0 - limits.max_error_share, 1e-6), 1.0 - 1e-6)
    is_proved = weigh(hits, np.ones_like(hits), quantile).is_fail(alpha)
    first = failed[0].failure
    cause = f"; the first: {first.message}" if first else ""
    message = f"{len(failed)} of {len(settled)} requests failed, more than {limits.max_error_share * 100:g} %{cause}"
    yield Precheck(code="errors", message=message, verdict=Verdict.FAIL if is_proved else Verdict.INCONCLUSIVE)


def _flags(record: RunRecord) -> Iterator[Precheck]:
    for flag in record.flags:
        if flag.level is FlagLevel.INVALID:
            yield Precheck(code=flag.code, message=flag.message)
    for flag in record.flags:
        if flag.level is FlagLevel.UNRELIABLE:
            yield Precheck(code=flag.code, message=flag.message, metrics=flag.metrics)


def _loop_lag(record: RunRecord, targets: Sequence[Target]) -> Iterator[Precheck]:
    smallest = min((target.limit for target in targets if target.is_time), default=None)
    lag_s = record.loop_lag.p99_s
    if smallest is not None and lag_s > MAX_LAG_SHARE * smallest:
        message = (
            f"the client itself was late by {show_time(lag_s)} (P99 of its event loop), more than a tenth of the smallest limit, "
            f"{show_time(smallest)}"
        )
        yield Precheck(code="loop_lag", message=message)


def _rate(run: Run) -> Iterator[Precheck]:
    """Open loop only: the span of the planned arrivals over the span in which they were really sent."""
    if run.record.scenario.rate_per_s is None:
        return
    pairs = [(request.scheduled_ns, request.sent_ns) for request in run.requests if request.sent_ns is not None]
    if len(pairs) < 2:
        return
    planned, sent = zip(*pairs, strict=True)
    share = (max(planned) - min(planned)) / max(1, max(sent) - min(sent))
    if share < MIN_RATE_SHARE:
        message = f"only {share * 100:.0f} % of the requested rate was sent; {MIN_RATE_SHARE * 100:.0f} % are needed"
        yield Precheck(code="late_dispatch", message=message)


def _lengths(requests: Sequence[RequestRecord]) -> Iterator[Precheck]:
    answered = [request for request in requests if request.is_ok]
    prompt = [(request.num_asked_prompt_tokens, request.usage.num_prompt_tokens) for request in answered]
    output = [(request.num_asked_output_tokens, request.usage.num_output_tokens) for request in answered]
    for name, pairs in (("prompt", prompt), ("output", output)):
        known = [(asked, got) for asked, got in pairs if asked and got is not None]
        if not known:
            continue
        error = sum(got for _, got in known) / sum(asked for asked, _ in known) - 1.0
        if abs(error) > MAX_LENGTH_ERROR:
            message = f"the {name} was {abs(error) * 100:.0f} % {'longer' if error > 0 else 'shorter'} than asked for"
            yield Precheck(code=f"{name}_length", message=message)
