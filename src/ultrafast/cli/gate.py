"""`ultrafast gate`: does a server keep its latency targets? Yes, no or not certain, as an exit code."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from ultrafast.bench.event_loop import run_async
from ultrafast.bench.gate.evaluate import evaluate
from ultrafast.bench.gate.judge import Mode, Rules
from ultrafast.bench.gate.prechecks import Limits
from ultrafast.bench.gate.report import as_json, as_junit, as_text, first_line
from ultrafast.bench.gate.selection import select, tiers_of_mix, tiers_of_run
from ultrafast.bench.gate.sizing import planned_requests
from ultrafast.bench.gate.slo_file import read_slo_file
from ultrafast.bench.gate.targets import Target, parse_target
from ultrafast.bench.gate.verdicts import GateReport, Verdict
from ultrafast.bench.gate.watch import Watch, num_looks
from ultrafast.bench.record_files import read_run, write_run
from ultrafast.bench.records import Outcome, RequestRecord, Run
from ultrafast.bench.session import BenchSpec
from ultrafast.cli.bench_options import bench_options, given_load_options, spec_from_options
from ultrafast.cli.bench_view import measure_with_view
from ultrafast.cli.errors import report as report_error
from ultrafast.cli.number_range import NumberRange
from ultrafast.cli.out_file import OutFile
from ultrafast.cli.verdict_command import VerdictCommand
from ultrafast.core.errors import ConfigError, UltrafastError

DEFAULT_BUDGET_S = 600.0
_PATH = click.Path(path_type=Path, dir_okay=False)
_TTFT_FLAGS = {"target_p50": "p50", "target_p95": "p95", "target_p99": "p99"}


@click.command(cls=VerdictCommand)
@click.option("--target-p99", metavar="MS", help="Limit for the P99 of TTFT, milliseconds.")
@click.option("--target-p95", metavar="MS", help="The same for its P95.")
@click.option("--target-p50", metavar="MS", help="The same for its P50.")
@click.option("--max-jitter", metavar="MS", help="Limit for the deviation of the gaps within requests, pooled.")
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="Any target: itl:p99<=50ms@ultrafast; repeatable.")
@click.option("--slo", type=_PATH, metavar="FILE", help="Targets per tier from TOML; the server's settings file is one.")
@click.option("--from-result", type=_PATH, metavar="FILE", help="Judge a saved run instead of sending requests.")
@click.option(
    "--confidence", type=NumberRange(0.5, 0.9999), default=0.95, show_default=True, help="1 - chance of a wrong verdict."
)
@click.option(
    "--max-error-rate", type=NumberRange(0, 100), default=1.0, show_default=True, metavar="%", help="Tolerated failures."
)
@click.option("--inconclusive", type=click.Choice(["fail", "warn"]), default="fail", show_default=True, help="warn: exit with 0.")
@click.option("--accept", multiple=True, metavar="CODE", help="Judge in spite of this pre-check; repeatable.")
@click.option("--no-early-stop", is_flag=True, help="Send all --num-prompts requests, even when the verdict is certain.")
@click.option("--junit", type=OutFile(), metavar="FILE", help="Write JUnit XML for a CI system.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--result-file", type=OutFile(), metavar="FILE", help="Save every request of a live run as JSON Lines.")
@bench_options
@click.pass_context
def gate(context: click.Context, /, **options: Any) -> int:
    """Check a server, or a saved run, against latency targets.

    Exit codes: 0 PASS, 1 FAIL, 2 INCONCLUSIVE, 3 ERROR.
    """
    try:
        outcome = (
            _judge_saved(context, options)
            if options["from_result"]
            else _judge_live(options, _is_default(context, "num_prompts"))
        )
    except UltrafastError as error:
        report_error(error.message, error.hint)
        outcome = GateReport(verdict=Verdict.ERROR, reason=error.message, source=_source(options))
    return _tell(outcome, options)


def _is_default(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.DEFAULT


def _source(options: dict[str, Any]) -> str:
    return str(options["from_result"] or options["url"].rpartition("@")[2])  # what is before an @ may be a password


def _judge_saved(context: click.Context, options: dict[str, Any]) -> GateReport:
    if idle := given_load_options(context):
        raise ConfigError(f"--from-result sends nothing, so there is no use for {', '.join(idle)}.", hint="Leave it out.")
    run = read_run(options["from_result"])
    targets = _targets(options, tiers_of_run(run))
    return evaluate(run, targets, _rules_of_saved(run, options), _limits(options), source=_source(options))


def _rules_of_saved(run: Run, options: dict[str, Any]) -> Rules:
    """A run that was ended early may have been ended *because* of what was seen: then only the sequential tests hold."""
    num_settled = sum(request.outcome is not Outcome.CANCELLED for request in run.requests)
    if num_settled == len(run.requests):
        return _rules(options)
    return replace(_rules(options), mode=Mode.SEQUENTIAL, look=num_looks(num_settled))


def _judge_live(options: dict[str, Any], is_size_free: bool) -> GateReport:
    spec = spec_from_options(options)
    targets = _targets(options, tiers_of_mix(spec.workload.tier_mix))
    if is_size_free and spec.trace_path is None:
        size = planned_requests(targets, spec.workload.tier_mix)
        spec = replace(spec, workload=msgspec.structs.replace(spec.workload, num_requests=size))
    if spec.max_duration_s is None:
        spec = replace(spec, max_duration_s=DEFAULT_BUDGET_S)
    run, rules, num_judged = run_async(_measure(spec, targets, options))
    if options["result_file"]:
        write_run(run, options["result_file"])
    return evaluate(run, targets, rules, _limits(options), source=_source(options), num_judged=num_judged)


async def _measure(spec: BenchSpec, targets: list[Target], options: dict[str, Any]) -> tuple[Run, Rules, int | None]:
    """Run until certain. A size that must be kept is judged when all is done."""
    console, rules = Console(stderr=True), _rules(options)
    if options["no_early_stop"]:
        return await measure_with_view(spec, console), rules, None
    watch, stop = Watch(targets, rules), asyncio.Event()

    def hear(record: RequestRecord) -> None:
        if not stop.is_set() and watch.add(record):
            stop.set()

    run = await measure_with_view(spec, console, hear, stop)
    return run, watch.next_rules, watch.num_decided


def _targets(options: dict[str, Any], tiers: set[str]) -> list[Target]:
    explicit = [parse_target(text) for text in options["targets"]]
    explicit += [parse_target(f"ttft:{name}<={options[flag]}") for flag, name in _TTFT_FLAGS.items() if options[flag]]
    if options["max_jitter"]:
        explicit.append(parse_target(f"jitter<={options['max_jitter']}"))
    chosen, skipped = select(explicit, read_slo_file(options["slo"]) if options["slo"] else [], tiers)
    if skipped:
        click.echo(f"not gated, no such requests in the load: {', '.join(map(str, skipped))}", err=True)
    return chosen


def _rules(options: dict[str, Any]) -> Rules:
    return Rules(alpha=1.0 - options["confidence"], mode=Mode.FIXED)


def _limits(options: dict[str, Any]) -> Limits:
    accepted = frozenset(options["accept"])
    return Limits(max_error_share=options["max_error_rate"] / 100, accepted=accepted)


def _tell(outcome: GateReport, options: dict[str, Any]) -> int:
    is_strict = options["inconclusive"] == "fail"
    if options["junit"]:
        options["junit"].write_bytes(as_junit(outcome, is_inconclusive_failure=is_strict))
    if options["is_json"]:
        click.echo(as_json(outcome).decode())
    else:
        click.echo(first_line(outcome))
    if table := as_text(outcome):
        click.echo(table, err=options["is_json"])
    if outcome.verdict is Verdict.INCONCLUSIVE and not is_strict:
        click.echo("warning: not certain, and --inconclusive=warn lets it pass", err=True)
        return 0
    return outcome.exit_code
