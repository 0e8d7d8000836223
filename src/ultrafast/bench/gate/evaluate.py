"""A gate's whole answer about one run: every target, every pre-check, one verdict and one reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ultrafast.bench.gate.judge import Rules, judge
from ultrafast.bench.gate.prechecks import Limits, precheck
from ultrafast.bench.gate.samples import sample
from ultrafast.bench.gate.targets import Target
from ultrafast.bench.gate.verdicts import GateReport, Verdict, combine
from ultrafast.bench.records import Outcome, RequestRecord, Run


def evaluate(
    run: Run, targets: Sequence[Target], rules: Rules, limits: Limits, *, source: str, num_judged: int | None = None
) -> GateReport:
    """Judge a finished run.

    Args:
        run: with its flags set.
        targets: to judge; at least one.
        rules: `num_targets` is set here.
        limits: of the pre-checks, which look at the whole run.
        source: where the run came from, for the report.
        num_judged: the first so many requests of the plan made the verdict certain; what came in while the run was
            being stopped is not looked at again. None: all requests.

    A run in which no request got through is an ERROR: the address, the key or the model name is wrong, and that says
    nothing about latency.
    """
    settled = [request for request in run.requests if request.outcome is not Outcome.CANCELLED]
    if not any(request.is_ok for request in settled):
        return GateReport(verdict=Verdict.ERROR, reason=_why_nothing(settled), source=source, num_requests=len(settled))
    rules = replace(rules, num_targets=len(targets))
    results = tuple(judge(target, sample(run.requests[:num_judged], target), rules) for target in targets)
    prechecks = precheck(run, targets, limits, rules.alpha_fail)
    verdict, reason = combine(results, prechecks)
    return GateReport(
        verdict=verdict,
        reason=reason,
        targets=results,
        prechecks=prechecks,
        source=source,
        num_requests=len(settled),
        duration_s=run.record.window.duration_s,
        is_stopped_early=num_judged is not None and num_judged < len(run.requests),
    )


def _why_nothing(settled: Sequence[RequestRecord]) -> str:
    if not settled:
        return "not a single request was finished"
    failure = settled[0].failure
    return f"all {len(settled)} requests failed" + (f"; the first: {failure.message}" if failure else "")
