"""Finds, among saved results, the run that a specification asks for: a sweep that was stopped goes on where it stopped."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ultrafast.bench.dialect import Dialect
from ultrafast.bench.record_files import ResultFileError, read_run
from ultrafast.bench.records import Outcome, Run, Scenario
from ultrafast.bench.session import BenchSpec, scenario_of
from ultrafast.bench.target import Target

_FREE = ("model", "seed", "num_planned", "ignores_eos", "goodput", "metadata")
"""What a specification does not know before it asked the server, what is drawn anew each time, and what changes no request."""


def find_finished(spec: BenchSpec, directory: Path) -> Run | None:
    """The newest run in `directory` that was made with `spec` and ran to its end; None if there is none.

    Seeds do not count: one that was drawn is not drawn twice. Its SLOs become those of `spec`.
    """
    found = []
    for path in directory.glob("*.jsonl"):
        try:
            run = read_run(path)
        except ResultFileError:
            continue  # another tool's file, or one that was cut
        if _is_of(spec, run) and not any(request.outcome is Outcome.CANCELLED for request in run.requests):
            found.append(run)
    newest = max(found, key=lambda run: run.record.started_at, default=None)
    if newest is not None:
        newest.record.scenario = msgspec.structs.replace(newest.record.scenario, goodput=spec.goodput_s)
    return newest


def _is_of(spec: BenchSpec, run: Run) -> bool:
    scenario = run.record.scenario
    wanted = scenario_of(spec, Target(scenario.model, Dialect()), scenario.num_planned)
    is_model = spec.model in (None, scenario.model)
    is_size = spec.trace_path is not None or scenario.num_planned == spec.workload.num_requests
    return is_model and is_size and _conditions(wanted) == _conditions(scenario)


def _conditions(scenario: Scenario) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(scenario).items() if name not in _FREE}
