"""Verdicts, and what a gate hands to its reader: one result per target, the pre-checks, one reason."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from ultrafast.bench.gate.targets import Target


class Verdict(StrEnum):
    """Outcome of a target or of the whole gate."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 2, Verdict.ERROR: 3}


class TargetResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the run says about one target.

    Attributes:
        observed: the figure of the sample; None without samples, `inf` when failed requests reach into the percentile.
        low, high: one-sided bounds of the true figure; None where the sample is too small for one.
        confidence: of each bound, that is, 1 - the probability of a wrong verdict.
        num_requests: requests that had a value and are settled.
        num_violations: values above the limit (percentiles and errors).
        num_not_applicable: settled requests for which the metric does not exist (too short, failed before its first gap).
        num_open: requests that were left out because an earlier one had not finished.
        dispersion: how much violations cluster in time; divides the evidence.
    """

    target: Target
    verdict: Verdict
    reason: str
    observed: float | None
    low: float | None
    high: float | None
    confidence: float
    num_requests: int
    num_violations: int | None = None
    num_not_applicable: int = 0
    num_open: int = 0
    dispersion: float = 1.0
    method: str = ""


class Precheck(msgspec.Struct, frozen=True, kw_only=True):
    """Something that keeps the run from proving anything about `metrics` (empty: about all of them).

    Attributes:
        verdict: INCONCLUSIVE; FAIL when it is itself proved to be the server's fault.
    """

    code: str
    message: str
    verdict: Verdict = Verdict.INCONCLUSIVE
    metrics: tuple[str, ...] = ()


class GateReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole outcome. `reason` is one line that says why."""

    verdict: Verdict
    reason: str
    targets: tuple[TargetResult, ...] = ()
    prechecks: tuple[Precheck, ...] = ()
    source: str = ""
    num_requests: int = 0
    duration_s: float = 0.0
    is_stopped_early: bool = False

    def counts_as(self, result: TargetResult) -> tuple[Verdict, str]:
        """Verdict and reason of a target with the pre-checks: what a run cannot prove is INCONCLUSIVE, whatever it looks like."""
        for precheck in self.prechecks:
            if precheck.verdict is Verdict.INCONCLUSIVE and (not precheck.metrics or result.target.metric in precheck.metrics):
                return Verdict.INCONCLUSIVE, f"{result.target}: {precheck.message}"
        return result.verdict, result.reason

    @property
    def exit_code(self) -> int:
        """0 pass, 1 fail, 2 inconclusive, 3 error."""
        return EXIT_CODES[self.verdict]


def combine(results: tuple[TargetResult, ...], prechecks: tuple[Precheck, ...]) -> tuple[Verdict, str]:
    """The verdict of the gate and its one-line reason.

    A pre-check overrules what it touches, whether that passed or failed: a client that was late itself measured nothing.
    Then one failed target fails the gate, and all must pass to pass it.
    """
    for precheck in prechecks:
        if precheck.verdict is Verdict.FAIL:
            return Verdict.FAIL, precheck.message
    for precheck in prechecks:
        if not precheck.metrics:
            return Verdict.INCONCLUSIVE, precheck.message
    blocked = {metric: precheck.message for precheck in prechecks for metric in precheck.metrics}
    sound = [result for result in results if result.target.metric not in blocked]
    for result in sound:
        if result.verdict is Verdict.FAIL:
            return Verdict.FAIL, result.reason
    for result in results:
        if result.target.metric in blocked:
            return Verdict.INCONCLUSIVE, f"{result.target}: {blocked[result.target.metric]}"
        if result.verdict is not Verdict.PASS:
            return Verdict.INCONCLUSIVE, result.reason
    return Verdict.PASS, "; ".join(result.reason for result in results)
