"""A comparison as text for people and JSON for programs."""

from __future__ import annotations

import msgspec

from ultrafast.bench.compare.judge import Compared
from ultrafast.bench.compare.verdicts import ComparisonReport, Side, Verdict

SCHEMA_VERSION = 1
_WORDS = {
    Verdict.SAME_OR_BETTER: "SAME OR BETTER",
    Verdict.WORSE: "WORSE",
    Verdict.INCONCLUSIVE: "INCONCLUSIVE",
    Verdict.ERROR: "ERROR",
}


def first_line(report: ComparisonReport) -> str:
    """The verdict and why, on one line."""
    return f"{_WORDS[report.verdict]}: {report.reason}"


def as_text(report: ComparisonReport) -> str:
    """The table of figures, then what differs and what limits the comparison."""
    sides = [f"{label}: {side.name} ({side.num_runs} runs, {side.num_requests} requests)" for label, side in _sides(report)]
    confidence = f"{report.confidence * 100:g} %"
    rows: list[tuple[str, ...]] = [("figure", "A", "B", "change", f"{confidence} interval", "p worse", "verdict", "")]
    rows += [_row(each) for each in report.figures]
    lines = [*sides, "", *_align(rows)]
    if report.errors is not None:
        errors = report.errors
        counts = f"A {errors.num_failed_a} of {errors.num_a}, B {errors.num_failed_b} of {errors.num_b}"
        lines.append(f"failed requests: {counts}: {errors.outcome}")
    lines += [f"! {text}" for text in report.blocked]
    lines += [f"setting: {mismatch}" for mismatch in report.settings]
    lines += [f"! differs, accepted: {mismatch}" for mismatch in report.allowed]
    lines += [f"server: {mismatch}" for mismatch in report.servers]
    return "\n".join(lines)


def _sides(report: ComparisonReport) -> list[tuple[str, Side]]:
    return [("A", report.a), ("B", report.b)]


def _row(compared: Compared) -> tuple[str, ...]:
    unit, figure = compared.figure.unit, compared.figure
    interval = "-" if compared.low is None or compared.high is None else f"{_percent(compared.low)} .. {_percent(compared.high)}"
    return (
        figure.name,
        _value(compared.a, unit),
        _value(compared.b, unit),
        "-" if compared.ratio is None else _percent(compared.ratio),
        interval,
        "-" if compared.p_worse is None else f"{compared.p_worse:.3f}",
        compared.outcome,
        compared.note,
    )


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    scaled = value * 1e3 if unit == "ms" else value
    return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"


def _percent(ratio: float) -> str:
    return f"{(ratio - 1.0) * 100:+.1f} %"


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_json(report: ComparisonReport) -> bytes:
    """One object; times are seconds, ratios are B / A."""
    document = {"type": "compare", "schema_version": SCHEMA_VERSION, "exit_code": report.exit_code}
    return msgspec.json.format(msgspec.json.encode(document | msgspec.to_builtins(report)), indent=2)
