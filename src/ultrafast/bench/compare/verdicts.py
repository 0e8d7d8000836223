"""The outcome of a whole comparison. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from ultrafast.bench.compare.conditions import Mismatch, check_conditions, server_differences
from ultrafast.bench.compare.errors import ErrorsCompared, compare_errors
from ultrafast.bench.compare.judge import Compared, Outcome, Rules, compare_figures
from ultrafast.bench.compare.metrics import Figure, of_tier
from ultrafast.bench.records import FlagLevel, Run
from ultrafast.bench.validity import touched
from ultrafast.core.errors import UltrafastError


class Verdict(StrEnum):
    """Of the whole comparison."""

    SAME_OR_BETTER = "same_or_better"
    WORSE = "worse"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


EXIT_CODES = {Verdict.SAME_OR_BETTER: 0, Verdict.WORSE: 1, Verdict.INCONCLUSIVE: 2, Verdict.ERROR: 3}


class Side(msgspec.Struct, frozen=True):
    """Where the runs of a side came from."""

    name: str
    num_runs: int
    num_requests: int


class ComparisonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole outcome. `reason` is one line.

    Attributes:
        allowed: conditions that differ, and that the user chose to accept.
        settings: those of two servers of our own that differ: what the comparison is about.
        servers: what the servers say about themselves that differs.
        blocked: why the runs prove nothing, one sentence each; then the verdict is INCONCLUSIVE.
    """

    verdict: Verdict
    reason: str
    a: Side
    b: Side
    margin: float
    confidence: float
    is_paired: bool
    figures: tuple[Compared, ...] = ()
    errors: ErrorsCompared | None = None
    allowed: tuple[Mismatch, ...] = ()
    settings: tuple[Mismatch, ...] = ()
    servers: tuple[Mismatch, ...] = ()
    blocked: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 same or better, 1 worse, 2 inconclusive, 3 error."""
        return EXIT_CODES[self.verdict]


class NoSuccessError(UltrafastError):
    """A side in which not one request succeeded."""

    code = "no_success"


def compare(
    a: Sequence[Run],
    b: Sequence[Run],
    figures: Sequence[Figure],
    rules: Rules,
    *,
    names: tuple[str, str],
    tier: str | None = None,
    allowed: Sequence[str] = (),
    settings: Sequence[Mismatch] = (),
) -> ComparisonReport:
    """Compare two sides of finished runs. `settings`: those that differ, for the report.

    Raises:
        ConditionsDifferError: they do not compare.
        NoSuccessError: nothing succeeded on a side.
    """
    accepted = check_conditions(a, b, allowed)
    mine_a, mine_b = [of_tier(run, tier) for run in a], [of_tier(run, tier) for run in b]
    for name, runs in zip(names, (mine_a, mine_b), strict=True):
        if not any(request.is_ok for run in runs for request in run.requests):
            raise NoSuccessError(
                f"Not one request of {name} succeeded.", hint=f"See the failures with `ultrafast bench` on {name}."
            )
    compared = [_without_unreliable(each, [*a, *b]) for each in compare_figures(mine_a, mine_b, figures, rules)]
    errors, blocked = compare_errors(mine_a, mine_b), _blocked([*a, *b])
    told = [mismatch for mismatch in server_differences(a[0], b[0]) if not settings or mismatch.key != "url"]
    verdict, reason = _combine(compared, errors, blocked, rules)
    return ComparisonReport(
        verdict=verdict,
        reason=reason,
        a=Side(names[0], len(a), sum(len(run.requests) for run in mine_a)),
        b=Side(names[1], len(b), sum(len(run.requests) for run in mine_b)),
        margin=rules.margin,
        confidence=rules.confidence,
        is_paired=rules.is_paired,
        figures=tuple(compared),
        errors=errors,
        allowed=accepted,
        settings=tuple(settings),
        servers=tuple(told),
        blocked=blocked,
    )


def _blocked(runs: Sequence[Run]) -> tuple[str, ...]:
    found = [flag.message for run in runs for flag in run.record.flags if flag.level is FlagLevel.INVALID]
    return tuple(dict.fromkeys(found))


def _without_unreliable(compared: Compared, runs: Sequence[Run]) -> Compared:
    flags = [flag for run in runs for flag in run.record.flags if flag.metrics]
    why = next((flag.message for flag in flags if touched([flag], compared.figure.metric)), None)
    return compared if why is None else msgspec.structs.replace(compared, outcome=Outcome.INCONCLUSIVE, note=why)


def _combine(compared: Sequence[Compared], errors: ErrorsCompared, blocked: Sequence[str], rules: Rules) -> tuple[Verdict, str]:
    if blocked:
        return Verdict.INCONCLUSIVE, blocked[0]
    if errors.outcome is Outcome.WORSE:
        return (
            Verdict.WORSE,
            f"{errors.num_failed_b} of {errors.num_b} requests fail in B, {errors.num_failed_a} of {errors.num_a} in A",
        )
    worse = [each for each in compared if each.outcome is Outcome.WORSE]
    if worse:
        return Verdict.WORSE, f"more than {rules.margin * 100:g} % worse: " + ", ".join(map(_change, worse))
    open_ones = [each for each in compared if each.outcome is Outcome.INCONCLUSIVE]
    if open_ones:
        return Verdict.INCONCLUSIVE, f"{open_ones[0].figure.name}: {open_ones[0].note}" + _and_others(len(open_ones) - 1)
    if errors.outcome is Outcome.INCONCLUSIVE:
        return Verdict.INCONCLUSIVE, "too few requests to rule out that B fails more often"
    better = [each for each in compared if each.outcome is Outcome.BETTER]
    gain = "; better: " + ", ".join(map(_change, better)) if better else ""
    return Verdict.SAME_OR_BETTER, f"no figure is more than {rules.margin * 100:g} % worse{gain}"


def _change(compared: Compared) -> str:
    return f"{compared.figure.name} {((compared.ratio or 1.0) - 1.0) * 100:+.1f} %"


def _and_others(count: int) -> str:
    return f" (and {count} more)" if count else ""
