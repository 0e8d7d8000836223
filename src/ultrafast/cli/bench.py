"""`ultrafast bench`: measure any OpenAI-compatible server."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from ultrafast.bench.dialect import Dialect
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.metrics import METRICS, Summary, summarise
from ultrafast.bench.record_files import write_run
from ultrafast.bench.records import Run
from ultrafast.bench.report_console import load_name, print_run, print_sweep
from ultrafast.bench.report_html import write_html
from ultrafast.bench.report_json import to_json, to_vllm
from ultrafast.bench.resume import find_finished
from ultrafast.bench.session import BenchSpec, make_plan, scenario_of
from ultrafast.bench.target import Target
from ultrafast.bench.workload import planned_duration_s
from ultrafast.cli.bench_options import bench_options, spec_from_options, sweep
from ultrafast.cli.bench_view import describe_plan, measure_with_view
from ultrafast.cli.out_file import OutFile
from ultrafast.core.errors import ConfigError

Measured = list[tuple[Run, Summary]]

EXIT_INVALID = 3
"""The run was carried out, but its figures are not the server's, or not one request succeeded."""

_FILE_WIDTH = 120
"""Columns of tables that go to a file or a pipe."""
_SHOWN = "ttft,ttft_service,tpot,itl,gap,jitter,e2e,dispatch_lag"


@click.command()
@bench_options
@click.option("--sweep", metavar="LOADS", help="Several loads in turn: 1,2,4,8 (rates, or slots in closed loop).")
@click.option("--percentile-metrics", default=_SHOWN, show_default=True, metavar="NAMES", help="Metrics to show.")
@click.option("--metric-percentiles", default="50,90,95,99", show_default=True, metavar="P", help="Percentiles to show.")
@click.option(
    "--format", "output", type=click.Choice(["table", "json", "vllm"]), default="table", show_default=True, help="Of stdout."
)
@click.option("--json", "is_json", is_flag=True, help="Same as --format json.")
@click.option("--html", type=OutFile(), metavar="FILE", help="Write a report with plots.")
@click.option(
    "--save-result", "--save-detailed", is_flag=True, help="Save every request as JSON Lines, for `gate`, `compare` and --trace."
)
@click.option(
    "--result-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Where to; implies --save-result."
)
@click.option("--result-filename", metavar="NAME", help="Its name; made from scenario, load and time by default.")
@click.option("--resume", is_flag=True, help="Do not measure again what --result-dir holds: a stopped sweep goes on.")
@click.option("--dry-run", is_flag=True, help="Show the plan; send nothing.")
def bench(**options: Any) -> int:
    """Measure latency, jitter and throughput of any OpenAI-compatible server.

    Exit codes: 0 measured, 1 it failed, 2 the command line is wrong, 3 measured, but the figures must not be used.
    """
    quantiles = _quantiles(options["metric_percentiles"])
    metrics = _metrics(options["percentile_metrics"])
    loads = [_load(text) for text in options["sweep"].split(",")] if options["sweep"] else []
    spec = spec_from_options(options)
    if loads and spec.trace_path:
        raise ConfigError("--sweep and --trace exclude each other.", hint="Change the speed with --trace-speed.")
    specs = sweep(spec, loads) if loads else [spec]
    if options["resume"] and not options["result_dir"]:
        raise ConfigError("--resume needs --result-dir.", hint="Name the folder with the results so far.")
    if options["dry_run"]:
        return _show_plan(specs, is_json=options["is_json"] or options["output"] == "json")
    measured: Measured = []
    end_s = time.monotonic() + (spec.max_duration_s or math.inf)
    for one in specs:
        if time.monotonic() >= end_s:
            click.echo(f"budget   used up: {len(specs) - len(measured)} of {len(specs)} loads were not measured", err=True)
            break
        run = _run(one, options, end_s)
        measured.append((run, summarise(run, quantiles)))
    output = "json" if options["is_json"] else options["output"]
    _print(measured, output, metrics, quantiles)
    if options["html"]:
        write_html(measured, options["html"])
        click.echo(f"report   {options['html']}", err=True)
    is_whole = len(measured) == len(specs)
    is_usable = all(run.record.is_valid and summary.overall.num_ok for run, summary in measured)
    return 0 if is_whole and is_usable else EXIT_INVALID


def _run(spec: BenchSpec, options: dict[str, Any], end_s: float) -> Run:
    """Measure until `end_s` at the latest, and save; or take what an earlier call saved."""
    found = find_finished(spec, options["result_dir"]) if options["resume"] else None
    if found is not None:
        click.echo(f"resumed  {load_name(found)}: measured at {found.record.started_at}", err=True)
        return found
    rest_s = end_s - time.monotonic()
    run = run_async(measure_with_view(replace(spec, max_duration_s=None if math.isinf(rest_s) else rest_s), Console(stderr=True)))
    if options["save_result"] or options["result_dir"]:
        _save(run, options)
    return run


def _show_plan(specs: Sequence[BenchSpec], *, is_json: bool) -> int:
    """Without a server the tokenizer is unknown; lengths are then counted in words."""
    plans = []
    for spec in specs:
        sessions = make_plan(spec, Target(spec.model or "?", Dialect()))
        duration_s, num_requests = planned_duration_s(sessions), sum(len(session.turns) for session in sessions)
        plans.append(
            {"type": "bench-plan", "num_requests": num_requests, "duration_s": duration_s, "max_duration_s": spec.max_duration_s}
        )
        plans[-1]["scenario"] = msgspec.to_builtins(scenario_of(spec, Target(spec.model or "", Dialect()), num_requests))
        if not is_json:
            click.echo(describe_plan(spec, sessions, duration_s))
    if is_json:
        click.echo(_json(plans))
    return 0


def _print(measured: Measured, output: str, metrics: Sequence[str], quantiles: Sequence[float]) -> None:
    if output == "table":
        console = Console()
        if not console.is_terminal:
            console = Console(width=_FILE_WIDTH)
        for run, summary in measured:
            print_run(console, run, summary, metrics)
        if len(measured) > 1:
            print_sweep(console, measured)
        return
    bodies = [to_vllm(run, quantiles) if output == "vllm" else to_json(run, summary) for run, summary in measured]
    click.echo(_json(bodies))


def _json(bodies: Sequence[dict[str, Any]]) -> str:
    """One object, or a list for a sweep."""
    return msgspec.json.format(msgspec.json.encode(bodies[0] if len(bodies) == 1 else bodies), indent=2).decode()


def _save(run: Run, options: dict[str, Any]) -> None:
    directory: Path = options["result_dir"] or Path()
    directory.mkdir(parents=True, exist_ok=True)
    stamp = run.record.started_at[:19].replace(":", "").replace("-", "")
    load = load_name(run).replace("/", "-per-").replace(" ", "-")
    name = options["result_filename"] or f"{run.record.scenario.name}-{load}-{stamp}-{run.record.run_id[:6]}.jsonl"
    path = directory / name
    if options["result_filename"] and options["sweep"]:
        path = path.with_stem(f"{path.stem}-{load}")
    write_run(run, path)
    click.echo(f"result   {path}", err=True)


def _quantiles(text: str) -> list[float]:
    try:
        values = sorted({float(part) / 100 for part in text.split(",")})
    except ValueError as error:
        raise ConfigError(f"--metric-percentiles {text}: not numbers.", hint="Write 50,90,99.") from error
    if not all(0 < value <= 1 for value in values):
        raise ConfigError(f"--metric-percentiles {text}: outside 0 to 100.", hint="Write 50,90,99.")
    return values


def _metrics(text: str) -> list[str]:
    names = ["e2e" if name.strip() == "e2el" else name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in METRICS]:
        raise ConfigError(
            f"--percentile-metrics: there is no metric {', '.join(unknown)}.", hint=f"There are: {', '.join(METRICS)}."
        )
    return names


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError as error:
        raise ConfigError(f"--sweep: {text!r} is no load.", hint="Write --sweep 1,2,4,8.") from error
    if not 0 < load < float("inf"):
        raise ConfigError(f"--sweep: {text!r} is no load.", hint="Write loads above 0.")
    return load
