"""A gate's whole answer about one run: every target, every pre-check, one verdict and one reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultrafast.bench.gate.judge import Mode, Rules, judge
from ultrafast.bench.gate.prechecks import Limits, precheck
from ultrafast.bench.gate.samples import sample
from ultrafast.bench.gate.targets import Target
from ultrafast.bench.gate.verdicts import GateReport, Verdict, combine
from ultrafast.bench.records import Outcome, RequestRecord, Run


def evaluate(run: Run, targets: Sequence[Target], rules: Rules, limits: Limits, *, source: str) -> GateReport:
    """Judge a finished run.

    A run in which no request got through is an ERROR: the address, the key or the model name is wrong, and that says
    nothing about latency.
    """
    settled = [request for request in run.requests if request.outcome is not Outcome.CANCELLED]
    if not any(request.is_ok for request in settled):
        return GateReport(verdict=Verdict.ERROR, reason=_why_nothing(settled), source=source, num_requests=len(settled))
    rules = replace(rules, num_targets=max(1, len(targets)))
    results = tuple(judge(target, sample(run.requests, target), rules) for target in targets)
    prechecks = precheck(run, targets, limits)
    verdict, reason = combine(results, prechecks)
    return GateReport(
        verdict=verdict,
        reason=reason,
        targets=results,
        prechecks=prechecks,
        source=source,
        num_requests=len(settled),
        duration_s=run.record.window.duration_s,
        is_stopped_early=rules.mode is Mode.SEQUENTIAL and len(settled) < len(run.requests),
    )


def _why_nothing(settled: Sequence[RequestRecord]) -> str:
    if not settled:
        return "not a single request was finished"
    failure = settled[0].failure
    return f"all {len(settled)} requests failed" + (f"; the first: {failure.message}" if failure else "")
