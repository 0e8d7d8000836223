"""The live half of `ultrafast compare`: options of one side, the runs in turns, and servers of our own for two configurations."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console

from ultrafast.bench.compare.conditions import Mismatch
from ultrafast.bench.compare.configurations import Configuration, consequences, differing_settings
from ultrafast.bench.compare.interleave import Measure, run_pairs
from ultrafast.bench.compare.own_servers import OwnServers
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.record_files import write_run
from ultrafast.bench.records import Run
from ultrafast.bench.session import BenchSpec
from ultrafast.cli.bench_options import load_command, spec_from_options
from ultrafast.cli.bench_view import measure_with_view
from ultrafast.cli.compare_serve import configurations
from ultrafast.core.errors import ConfigError

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


@dataclass(frozen=True, slots=True)
class Measured:
    """Both sides after their runs.

    Attributes:
        names: of the sides, for the report; never a key.
        meant: conditions that differ on purpose.
        settings: those of servers of our own that differ.
    """

    a: list[Run]
    b: list[Run]
    names: tuple[str, str]
    meant: list[str]
    settings: tuple[Mismatch, ...] = ()


def measure_urls(first: str, second: str, options: dict[str, Any]) -> Measured:
    """Two servers that run already, or one with two sets of options, in turns."""
    own = _own_options_of_both(options)
    if first == second and own[0] == own[1]:
        raise ConfigError("A and B are the same.", hint="Name a second URL, or give --a and --b different options.")
    specs = _specs(options, own, (first, second))
    a, b = _run(run_pairs(specs[0], specs[1], options["runs"], _Shown(options["runs"], options["result_dir"]).measure))
    return Measured(a, b, (_name(_url_of(a), own[0]), _name(_url_of(b), own[1])), _meant(own))


def measure_configurations(options: dict[str, Any]) -> Measured:
    """Two configurations: a server of our own for each, in turns; both are stopped whatever happens."""
    sides, own = configurations(options), _own_options_of_both(options)
    settings = differing_settings(*sides)
    if not settings and own[0] == own[1]:
        raise ConfigError(
            "A and B have the same settings.", hint="Say what differs: --set-b section.key=value, or --config-b FILE."
        )
    specs = _specs(options, own, (options["url"], options["url"]))  # the servers' own addresses come with their start
    keyed = [replace(spec, headers=spec.headers | dict(side.headers)) for spec, side in zip(specs, sides, strict=True)]
    a, b = _run(_serve_and_measure(sides, keyed, options))
    names = (_name(sides[0].command, own[0]), _name(sides[1].command, own[1]))
    return Measured(a, b, names, _meant(own) + consequences(settings), settings)


async def _serve_and_measure(
    sides: tuple[Configuration, Configuration], specs: list[BenchSpec], options: dict[str, Any]
) -> tuple[list[Run], list[Run]]:
    shown = _Shown(options["runs"], options["result_dir"])
    servers = OwnServers(*sides, os.environ, is_restarting=options["restart"], on_start=shown.on_start)
    try:
        return await run_pairs(specs[0], specs[1], options["runs"], served(servers, shown.measure))
    finally:
        await servers.stop()


def served(servers: OwnServers, measure: Measure) -> Measure:
    """`measure`, each run on the server of its side."""

    async def measure_served(side: str, spec: BenchSpec) -> Run:
        async with servers.serving(side) as url:
            return await measure(side, replace(spec, url=url))

    return measure_served


def _run(pairs: Coroutine[Any, Any, tuple[list[Run], list[Run]]]) -> tuple[list[Run], list[Run]]:
    """SIGTERM ends it like Ctrl-C: with everything that was started."""

    async def run() -> tuple[list[Run], list[Run]]:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await pairs

    try:
        return run_async(run())
    except asyncio.CancelledError as error:
        raise click.Abort from error


def _own_options_of_both(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return _own_options("--a", options["a_options"]), _own_options("--b", options["b_options"])


def _own_options(flag: str, text: str) -> dict[str, Any]:
    """What was really written in --a or --b, by parameter name."""
    try:
        context = load_command.make_context(flag, shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}.", hint="Put the options in quotes.") from error
    written = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if "url" in written:
        raise ConfigError(f"{flag} cannot name a server.", hint="Name both: ultrafast compare URL_OF_A URL_OF_B")
    return {name: context.params[name] for name in written}


def _specs(options: dict[str, Any], own: tuple[dict[str, Any], dict[str, Any]], urls: tuple[str, str]) -> list[BenchSpec]:
    """Both sides have the same seed, also when none was given."""
    seed = spec_from_options(options).workload.seed
    specs = [spec_from_options(options | mine | {"url": url}) for mine, url in zip(own, urls, strict=True)]
    return [replace(spec, workload=msgspec.structs.replace(spec.workload, seed=seed)) for spec in specs]


def _meant(own: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
    return [key for name in {*own[0], *own[1]} for key in _MEANT.get(name, ())]


def _url_of(runs: list[Run]) -> str:
    return runs[0].record.scenario.url


def _name(what: str, own: dict[str, Any]) -> str:
    """What a side is, and what is special about it; never a key."""
    return " ".join([what, *(f"{name}={value}" for name, value in own.items() if name not in _SECRET)])


class _Shown:
    """Measures with a view, counts runs, saves them."""

    def __init__(self, num_pairs: int, directory: Path | None) -> None:
        self._num_pairs = num_pairs
        self._directory = directory
        self._num_done = {"a": 0, "b": 0}
        self._console = Console(stderr=True)

    def on_start(self, side: str, configuration: Configuration) -> None:
        """A server of our own is being started."""
        self._console.print(f"start    {side.upper()}: {configuration.command}", highlight=False, soft_wrap=True)

    async def measure(self, side: str, spec: BenchSpec) -> Run:
        """One run. Ctrl-C in it ends the comparison: half a run, or half the pairs, would not be what was asked for."""
        total, stop = sum(self._num_done.values()), asyncio.Event()
        self._console.print(f"run      {total + 1} of {2 * self._num_pairs}: {side.upper()}", highlight=False)
        run = await measure_with_view(spec, self._console, stop=stop)
        if stop.is_set():
            raise click.Abort
        if self._directory is not None:
            directory = self._directory / side
            directory.mkdir(parents=True, exist_ok=True)
            write_run(run, directory / f"{self._num_done[side]:03}.jsonl")
        self._num_done[side] += 1
        return run
