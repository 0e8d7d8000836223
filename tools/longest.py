"""Prints the longest files and functions, for a person to look at and decide.

Never fails: length is a hint, not a rule. Usage: ``python tools/longest.py DIR...``
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NUM_SHOWN = 10
SCREEN_LINES = 30


class Length(NamedTuple):
    """How many lines something has."""

    lines: int
    where: str


def find_functions(path: Path, tree: ast.Module) -> Iterator[Length]:
    """Yields every function of a file with its length, docstring included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            yield Length(last - node.lineno + 1, f"{path}:{node.lineno} {node.name}")


def percentile(sorted_lines: list[int], share: float) -> int:
    """The nearest-rank percentile of a sorted, possibly empty list."""
    if not sorted_lines:
        return 0
    return sorted_lines[min(len(sorted_lines) - 1, int(share * len(sorted_lines)))]


def print_folder(folder: Path) -> None:
    """Prints the summary and the longest entries of one folder."""
    files: list[Length] = []
    functions: list[Length] = []
    for path in sorted(folder.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        files.append(Length(text.count("\n"), str(path)))
        functions.extend(find_functions(path, ast.parse(text, str(path))))
    by_length = sorted(entry.lines for entry in functions)
    total = sum(entry.lines for entry in files)
    print(f"\n{folder}/: {len(files)} files, {total} lines; {len(functions)} functions,", end=" ")
    print(f"P50 {percentile(by_length, 0.5)}, P90 {percentile(by_length, 0.9)} lines,", end=" ")
    print(f"{sum(lines > SCREEN_LINES for lines in by_length)} over {SCREEN_LINES}")
    for title, entries in (("longest files", files), ("longest functions", functions)):
        print(f"  {title}")
        for entry in sorted(entries, reverse=True)[:NUM_SHOWN]:
            print(f"    {entry.lines:5d}  {entry.where}")


def main() -> None:
    """Reports every folder named on the command line."""
    for name in sys.argv[1:] or ["src"]:
        print_folder(Path(name))


if __name__ == "__main__":
    main()
