"""`ultrafast compare`: is B slower than A? Two saved results, two servers, or one server with two sets of options."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from ultrafast.bench.compare.conditions import ALL_KEYS
from ultrafast.bench.compare.interleave import run_pairs
from ultrafast.bench.compare.judge import MIN_RUNS, Rules
from ultrafast.bench.compare.metrics import DEFAULT_FIGURES, parse_figure
from ultrafast.bench.compare.report import as_json, as_text, first_line
from ultrafast.bench.compare.verdicts import ComparisonReport
from ultrafast.bench.compare.verdicts import compare as compare_runs
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.gate.targets import canonical_tier
from ultrafast.bench.record_files import read_run, write_run
from ultrafast.bench.records import Run
from ultrafast.bench.session import BenchSpec
from ultrafast.cli.bench_options import bench_options, spec_from_options
from ultrafast.cli.bench_view import measure_with_view
from ultrafast.cli.verdict_command import VerdictCommand
from ultrafast.core.errors import ConfigError

DEFAULT_PAIRS = 6
"""Five per side are the least; an even number starts as often with A as with B."""

_MEANT = {
    "model": ("model", "prompt_tokens", "output_tokens"),
    "endpoint": ("endpoint", "prompt_tokens"),
    "scenario": (
        "shape",
        "input_len",
        "output_len",
        "shared_prefix_tokens",
        "num_turns",
        "is_cache_cold",
        "prompt_tokens",
        "output_tokens",
    ),
    "input_len": ("input_len", "prompt_tokens"),
    "output_len": ("output_len", "output_tokens"),
    "prompts": ("shape", "input_len", "prompt_tokens", "output_tokens"),
    "prefix_len": ("shared_prefix_tokens", "is_cache_cold", "prompt_tokens"),
    "turns": ("num_turns", "is_cache_cold", "prompt_tokens"),
    "warm_cache": ("is_cache_cold",),
    "tier_mix": ("tier_mix",),
    "num_prompts": ("num_planned",),
    "request_rate": ("arrival", "rate_per_s", "concurrency"),
    "burstiness": ("arrival", "burstiness"),
    "constant_rate": ("arrival",),
    "max_concurrency": ("concurrency",),
    "trace": ("arrival", "shape", "input_len", "output_len", "prompt_tokens", "output_tokens"),
    "ignore_eos": ("ignores_eos", "output_tokens"),
    "processes": ("num_processes",),
}
"""Option given with --a or --b -> conditions that it may change; the comparison is about these."""


_SECRET = ("api_key", "api_key_file", "extra_body")


@click.command()
@bench_options
def _side(**_: Any) -> None:
    """Reads the options of one side; never run."""


@click.command(cls=VerdictCommand)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "--a", "a_options", default="", metavar="OPTIONS", help="Live: options for A only, in quotes: --a '--tier-mix flex'."
)
@click.option("--b", "b_options", default="", metavar="OPTIONS", help="Live: options for B only.")
@click.option(
    "--runs", type=click.IntRange(min=1), default=DEFAULT_PAIRS, show_default=True, metavar="N", help="Live: runs per side."
)
@click.option("--figure", "figures", multiple=True, metavar="NAME", help="ttft:p99, jitter, throughput, ...; repeatable.")
@click.option("--tier", metavar="TIER", help="Compare the requests of this tier only.")
@click.option(
    "--margin", type=click.FloatRange(0.1, 100), default=5.0, show_default=True, metavar="%", help="Change that does not matter."
)
@click.option("--confidence", type=click.FloatRange(0.5, 0.9999), default=0.95, show_default=True, help="Of the intervals.")
@click.option(
    "--min-runs", type=click.IntRange(min=1), default=MIN_RUNS, show_default=True, metavar="N", help="Fewer decide nothing."
)
@click.option("--paired", is_flag=True, help="Saved runs: the i-th of A and of B ran next to each other.")
@click.option(
    "--allow-different", multiple=True, type=click.Choice(ALL_KEYS), metavar="KEY", help="Accept this difference; repeatable."
)
@click.option("--result-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Live: save every run there.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@bench_options
def compare(**options: Any) -> int:
    """Compare A with B: result files or directories of them, two URLs, or one URL with --a and --b.

    Exit codes: 0 B is the same or better, 1 B is worse, 2 inconclusive, 3 error.
    """
    first, second = options["a"], options["b"] or options["a"]
    rules = Rules(
        margin=options["margin"] / 100,
        confidence=options["confidence"],
        is_paired=options["paired"] or _is_url(first),
        min_runs=options["min_runs"],
    )
    figures = [parse_figure(text) for text in options["figures"]] or list(DEFAULT_FIGURES)
    tier = canonical_tier(options["tier"]) if options["tier"] else None
    allowed = list(options["allow_different"])
    if _is_url(first) != _is_url(second):
        raise ConfigError("One side is a URL and the other one is not.", hint="Compare saved with saved or live with live.")
    if _is_url(first):
        a, b, names, meant = _measure(first, second, options)
        allowed += meant
    else:
        a, b, names = _read(first), _read(options["b"]), (first, second)
    report = compare_runs(a, b, figures, rules, names=names, tier=tier, allowed=allowed)
    _tell(report, options["is_json"])
    return report.exit_code


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


def _measure(first: str, second: str, options: dict[str, Any]) -> tuple[list[Run], list[Run], tuple[str, str], list[str]]:
    """Both sides live, in turns; their names, and the conditions that --a and --b change on purpose."""
    own_a, own_b = _own_options("--a", options["a_options"]), _own_options("--b", options["b_options"])
    if first == second and own_a == own_b:
        raise ConfigError("A and B are the same.", hint="Name a second URL, or give --a and --b different options.")
    seed = spec_from_options(options).workload.seed
    specs = [_spec(options | own | {"url": url}, seed) for url, own in ((first, own_a), (second, own_b))]
    a, b = run_async(run_pairs(specs[0], specs[1], options["runs"], _Shown(options["runs"], options["result_dir"]).measure))
    names = (_name(a[0], own_a), _name(b[0], own_b))
    return a, b, names, [key for name in {*own_a, *own_b} for key in _MEANT.get(name, ())]


def _name(run: Run, own: dict[str, Any]) -> str:
    """The address and what is special about a side; never a key."""
    shown = [f"{name}={value}" for name, value in own.items() if name not in _SECRET]
    return " ".join([run.record.scenario.url, *shown])


def _own_options(flag: str, text: str) -> dict[str, Any]:
    """What was really written in --a or --b, by parameter name."""
    try:
        context = _side.make_context(flag, shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}.", hint="Put the options in quotes.") from error
    return {
        name: value for name, value in context.params.items() if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def _spec(options: dict[str, Any], seed: int) -> BenchSpec:
    """Both sides have the same seed, also when none was given."""
    spec = spec_from_options(options)
    return replace(spec, workload=msgspec.structs.replace(spec.workload, seed=seed))


class _Shown:
    """Measures with a view, counts runs, saves them."""

    def __init__(self, num_pairs: int, directory: Path | None) -> None:
        self._num_pairs = num_pairs
        self._directory = directory
        self._num_done = {"a": 0, "b": 0}
        self._console = Console(stderr=True)

    async def measure(self, side: str, spec: BenchSpec) -> Run:
        total = sum(self._num_done.values())
        self._console.print(f"run      {total + 1} of {2 * self._num_pairs}: {side.upper()}", highlight=False)
        run = await measure_with_view(spec, self._console)
        if self._directory is not None:
            directory = self._directory / side
            directory.mkdir(parents=True, exist_ok=True)
            write_run(run, directory / f"{self._num_done[side]:03}.jsonl")
        self._num_done[side] += 1
        return run


def _tell(report: ComparisonReport, is_json: bool) -> None:
    if is_json:
        click.echo(as_json(report).decode())
        click.echo(first_line(report), err=True)
    else:
        click.echo(first_line(report))
        click.echo(as_text(report))
