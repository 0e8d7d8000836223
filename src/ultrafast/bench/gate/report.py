"""A gate's outcome as text for people, JSON for programs and JUnit XML for CI systems."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from typing import Any

import msgspec

from ultrafast.bench.gate.targets import Target
from ultrafast.bench.gate.verdicts import GateReport, TargetResult, Verdict

SCHEMA_VERSION = 1


def first_line(report: GateReport) -> str:
    """The verdict and why, on one line."""
    return f"{report.verdict.upper()}: {report.reason}"


def as_text(report: GateReport) -> str:
    """The table of targets, then what limits the run; nothing if there is neither."""
    rows: list[tuple[str, ...]] = [("target", "verdict", "seen", "true figure", "requests", "above limit")]
    rows += [_row(result, report.counts_as(result)[0]) for result in report.targets]
    lines = _align(rows) if report.targets else []
    lines += [f"! {check.code}: {check.message}" for check in report.prechecks]
    return "\n".join(lines)


def _row(result: TargetResult, verdict: Verdict) -> tuple[str, ...]:
    target = result.target
    above = "-" if result.num_violations is None else str(result.num_violations)
    return (str(target), verdict, _shown(target, result.observed), _span(result), str(result.num_requests), above)


def _span(result: TargetResult) -> str:
    if result.low is None and result.high is None:
        return "not known"
    low, high = _shown(result.target, result.low), _shown(result.target, result.high)
    if result.low is None:
        return f"<= {high}"
    return f">= {low}" if result.high is None else f"{low} .. {high}"


def _shown(target: Target, value: float | None) -> str:
    return "-" if value is None else target.show(value)


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def as_json(report: GateReport) -> bytes:
    """One object. Times are seconds; an infinite time, which JSON cannot hold, is the string "inf"."""
    document = {"type": "gate", "schema_version": SCHEMA_VERSION, "exit_code": report.exit_code, **_plain(report)}
    for shown, result in zip(document["targets"], report.targets, strict=True):
        shown["verdict"], shown["reason"] = report.counts_as(result)
    return msgspec.json.format(msgspec.json.encode(document), indent=2)


def _plain(value: Any) -> Any:
    plain = msgspec.to_builtins(value) if isinstance(value, msgspec.Struct) else value
    if isinstance(plain, dict):
        return {name: _plain(each) for name, each in plain.items()}
    if isinstance(plain, list | tuple):
        return [_plain(each) for each in plain]
    return "inf" if isinstance(plain, float) and math.isinf(plain) else plain


def as_junit(report: GateReport, *, is_inconclusive_failure: bool) -> bytes:
    """One test case per target and one per pre-check. Inconclusive is `failure` or `skipped`, as the caller decides."""
    cases = [_junit_case(str(one.target), *report.counts_as(one), is_inconclusive_failure) for one in report.targets]
    cases += [_junit_case(check.code, check.verdict, check.message, is_inconclusive_failure) for check in report.prechecks]
    if not cases:
        cases = [_junit_case("gate", report.verdict, report.reason, is_inconclusive_failure)]
    suite = ET.Element("testsuite", name="ultrafast gate", tests=str(len(cases)), time=f"{report.duration_s:.3f}")
    for name in ("failure", "error", "skipped"):
        attribute = name if name == "skipped" else f"{name}s"
        suite.set(attribute, str(sum(case.find(name) is not None for case in cases)))
    suite.extend(cases)
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document + b"\n"


def _junit_case(name: str, verdict: Verdict, reason: str, is_inconclusive_failure: bool) -> ET.Element:
    case = ET.Element("testcase", classname="ultrafast.gate", name=name)
    if verdict is Verdict.PASS:
        ET.SubElement(case, "system-out").text = reason
    elif verdict is Verdict.ERROR:
        ET.SubElement(case, "error", message=reason)
    elif verdict is Verdict.FAIL or is_inconclusive_failure:
        ET.SubElement(case, "failure", message=reason, type=verdict.value)
    else:
        ET.SubElement(case, "skipped", message=reason)
    return case
