"""What a benchmark found: a table and verdicts for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.options import Options


@dataclass(slots=True)
class Report:
    """Filled by a benchmark, printed and stored by `run`.

    Attributes:
        columns, rows: the table.
        goals: (claim, measured, goal, whether it is met).
        notes: what a reader must know to trust the figures.
        data: raw samples and everything else that goes into the JSON file only.
    """

    columns: Sequence[str] = ()
    rows: list[Sequence[object]] = field(default_factory=list)
    goals: list[tuple[str, str, str, bool]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def add_goal_at_most(self, claim: str, value: float, limit: float, shown: str | None = None) -> None:
        """A goal of the form "value <= limit"."""
        self.goals.append((claim, shown or f"{value:.3f}", f"<= {limit:g}", value <= limit))

    def add_goal_at_least(self, claim: str, value: float, limit: float, shown: str | None = None) -> None:
        """A goal of the form "value >= limit"."""
        self.goals.append((claim, shown or f"{value:.3f}", f">= {limit:g}", value >= limit))

    def to_text(self) -> str:
        """The table, the verdicts and the notes."""
        lines = format_table([self.columns, *self.rows]) if self.rows else []
        lines += [
            f"  {'met   ' if is_met else 'MISSED'} {claim}: {value} (goal {goal})" for claim, value, goal, is_met in self.goals
        ]
        return "\n".join(lines + [f"  note: {note}" for note in self.notes])


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark. `planned_s` estimates its duration on two cores with the bundled model."""

    name: str
    title: str
    planned_s: Callable[[bool], float]
    run: Callable[[Options], Report]


def format_table(rows: Sequence[Sequence[object]]) -> list[str]:
    """Columns aligned: the first one left, the others right."""
    cells = [[f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines = []
    for row in cells:
        padded = [
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    lines.insert(1, "  " + "  ".join("-" * width for width in widths))
    return lines


def write_json(path: Path, report: Report, head: dict[str, Any]) -> None:
    """Store everything; NaN and infinity become null and text, so that any reader can read it."""
    goals = [dict(zip(("claim", "measured", "goal", "is_met"), goal, strict=True)) for goal in report.goals]
    body = {**head, "columns": report.columns, "rows": report.rows, "goals": goals, "notes": report.notes, "data": report.data}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_finite(body), indent=1) + "\n")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else (None if value != value else str(value))
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if isinstance(value, int | str | bool) or value is None else str(value)
