"""`ultrafast compare`: is B slower than A? Two saved results, servers, sets of options or configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ultrafast.bench.compare.conditions import ALL_KEYS
from ultrafast.bench.compare.judge import MIN_RUNS, Rules
from ultrafast.bench.compare.metrics import DEFAULT_FIGURES, parse_figure
from ultrafast.bench.compare.report import as_json, as_text, first_line
from ultrafast.bench.compare.verdicts import ComparisonReport
from ultrafast.bench.compare.verdicts import compare as compare_runs
from ultrafast.bench.gate.targets import canonical_tier
from ultrafast.bench.record_files import read_run
from ultrafast.bench.records import Run
from ultrafast.cli.bench_options import bench_options, given_load_options
from ultrafast.cli.compare_live import Measured, measure_configurations, measure_urls
from ultrafast.cli.compare_serve import is_serving, serve_options
from ultrafast.cli.number_range import CountRange, NumberRange
from ultrafast.cli.verdict_command import VerdictCommand
from ultrafast.core.errors import ConfigError

DEFAULT_PAIRS = 6
"""Five per side are the least; an even number starts as often with A as with B."""

_LIVE_ONLY = {"a_options": "--a", "b_options": "--b", "runs": "--runs", "result_dir": "--result-dir"}


@click.command(cls=VerdictCommand)
@click.argument("a", metavar="[A]", required=False)
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--a", "a_options", default="", metavar="OPTIONS", help="Live: options for A only, in quotes: --a '--tier-mix flex'."
)
@click.option("--b", "b_options", default="", metavar="OPTIONS", help="Live: options for B only.")
@click.option(
    "--runs", type=CountRange(min=1), default=DEFAULT_PAIRS, show_default=True, metavar="N", help="Live: runs per side."
)
@click.option("--figure", "figures", multiple=True, metavar="NAME", help="ttft:p99, jitter, throughput, ...; repeatable.")
@click.option("--tier", metavar="TIER", help="Compare the requests of this tier only.")
@click.option(
    "--margin", type=NumberRange(0.1, 100), default=5.0, show_default=True, metavar="%", help="Change that does not matter."
)
@click.option("--confidence", type=NumberRange(0.5, 0.9999), default=0.95, show_default=True, help="Of the intervals.")
@click.option(
    "--min-runs", type=CountRange(min=1), default=MIN_RUNS, show_default=True, metavar="N", help="Fewer decide nothing."
)
@click.option("--paired", is_flag=True, help="Saved runs: the i-th of A and of B ran next to each other.")
@click.option(
    "--allow-different", multiple=True, type=click.Choice(ALL_KEYS), metavar="KEY", help="Accept this difference; repeatable."
)
@click.option("--result-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Live: save every run there.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@serve_options
@bench_options
@click.pass_context
def compare(context: click.Context, /, **options: Any) -> int:
    """Compare A with B: result files or directories of them, two URLs, or one URL with --a and --b.

    Without A and B, but with --set-b, --config-b, ...: two configurations, for which it starts servers of its own.

    Exit codes: 0 B is the same or better, 1 B is worse, 2 inconclusive, 3 error.
    """
    figures = [parse_figure(text) for text in options["figures"]] or list(DEFAULT_FIGURES)
    tier = canonical_tier(options["tier"]) if options["tier"] else None
    sides, is_live = _sides(context, options)
    rules = Rules(
        margin=options["margin"] / 100,
        confidence=options["confidence"],
        is_paired=options["paired"] or is_live,
        min_runs=options["min_runs"],
    )
    allowed = [*options["allow_different"], *sides.meant]
    report = compare_runs(
        sides.a, sides.b, figures, rules, names=sides.names, tier=tier, allowed=allowed, settings=sides.settings
    )
    _tell(report, options["is_json"])
    return report.exit_code


def _sides(context: click.Context, options: dict[str, Any]) -> tuple[Measured, bool]:
    """The runs of both sides, and whether they were measured now, in turns."""
    first, second = options["a"], options["b"] or options["a"]
    if "--url" in (load := given_load_options(context)):
        raise ConfigError(
            "--url is not for `ultrafast compare`.", hint="Name the servers themselves: ultrafast compare URL_OF_A URL_OF_B"
        )
    if is_serving(options):
        if first is not None:
            raise ConfigError(
                f"{first} is there already, and --set-a, --config-a and the like start servers.",
                hint="Leave A and B out, or leave the settings out.",
            )
        return measure_configurations(options), True
    if options["restart"]:
        raise ConfigError(
            "--restart is for servers that the comparison starts.", hint="Say what differs: --set-b section.key=value."
        )
    if first is None:
        raise ConfigError(
            "Missing argument A.", hint="Name two results or two URLs, or two configurations with --set-a and --set-b."
        )
    if _is_url(first) != _is_url(second):
        raise ConfigError("One side is a URL and the other one is not.", hint="Compare saved with saved or live with live.")
    if _is_url(first):
        return measure_urls(first, second, options), True
    written = [name for name in _LIVE_ONLY if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if idle := [_LIVE_ONLY[name] for name in written] + load:
        raise ConfigError(f"Nothing is sent for saved results, so there is no use for {', '.join(idle)}.", hint="Leave it out.")
    return Measured(_read(first), _read(options["b"]), (first, second), []), False


def _is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


def _read(text: str | None) -> list[Run]:
    """The runs of a result file, or of all `.jsonl` files in a directory in the order of their names."""
    if text is None:
        raise ConfigError("Side B is missing.", hint="Name two results: ultrafast compare A.jsonl B.jsonl")
    path = Path(text)
    if not path.is_dir():
        return [read_run(path)]
    files = sorted(path.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"There is no .jsonl file in {path}.", hint="Save runs with `ultrafast bench --result-dir`.")
    return [read_run(file) for file in files]


def _tell(report: ComparisonReport, is_json: bool) -> None:
    if is_json:
        click.echo(as_json(report).decode())
        click.echo(first_line(report), err=True)
    else:
        click.echo(first_line(report))
        click.echo(as_text(report))
