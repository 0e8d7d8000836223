"""`ultrafast simulate`: traffic through the real scheduler on engines that only take time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from ultrafast import __version__
from ultrafast.bench.simulate.engine_settings import (
    all_engine_values,
    given_engine_values,
    left_out,
    refuse_unknown_to_simulation,
)
from ultrafast.bench.simulate.engine_spec import (
    BUNDLED_COST,
    EngineSpec,
    decode_engine,
    make_limits,
    parse_cost,
    read_engine_file,
    spec_of,
)
from ultrafast.bench.simulate.load import Mix, SimRequest, from_trace, parse_class
from ultrafast.bench.simulate.outcome import Outcome
from ultrafast.bench.simulate.report import print_outcomes
from ultrafast.bench.simulate.routing import ROUTERS
from ultrafast.bench.simulate.whatif import Setup, Variants, simulate_all
from ultrafast.bench.tier_mix import assign_tiers, parse_tier_mix
from ultrafast.bench.traces import read_trace, scale
from ultrafast.cli.http_client import ServerClient
from ultrafast.cli.number_range import CountRange, NumberRange
from ultrafast.cli.out_file import OutFile
from ultrafast.config.api_keys import read_api_keys
from ultrafast.config.given import Given
from ultrafast.config.load import LoadedSettings, load_settings
from ultrafast.config.tier_policies import tier_order, tier_policies
from ultrafast.core.errors import ConfigError
from ultrafast.engine.description import EngineDescription

_PATH = click.Path(path_type=Path, dir_okay=False)
_DEFAULT_CLASSES = ("ultrafast=0.5:lognormal:128,0.6,1024/lognormal:64,0.6,512", "flex=0.5:lognormal:1024,0.6,8192/256")
_TABLE_WIDTH = 150

Load = tuple[str, Callable[[], Iterable[SimRequest]]]


@click.command()
@click.option("--trace", type=_PATH, metavar="FILE", help="Azure CSV, Mooncake JSONL, a result of bench, or our request log.")
@click.option(
    "--trace-speed", type=NumberRange(), default=1.0, show_default=True, metavar="X", help="Replay so many times as fast."
)
@click.option("--tier-mix", metavar="MIX", help="Tiers for a trace by share: ultrafast=0.8,flex=0.2.")
@click.option("--class", "classes", multiple=True, metavar="CLASS", help="Synthetic: TIER=SHARE:PROMPT/OUTPUT; repeatable.")
@click.option("--num-prompts", type=CountRange(min=1), metavar="N", help="Requests; 10000, or the whole trace.")
@click.option(
    "--request-rate", type=NumberRange(), default=1.0, show_default=True, metavar="R", help="Synthetic: arrivals per second."
)
@click.option(
    "--burstiness", type=NumberRange(), default=1.0, show_default=True, metavar="B", help="Shape of gamma gaps; 1 is Poisson."
)
@click.option("--constant-rate", is_flag=True, help="Evenly spaced arrivals.")
@click.option("--prefix-len", type=CountRange(min=0), default=0, metavar="N", help="Synthetic: tokens that prompts share.")
@click.option("--cost", metavar="COST", help="Of a step, in ms: base=4,output=7,token=5.5[,noise=0.1].")
@click.option("--engine", type=_PATH, metavar="FILE", help="Cost and limits from a file of --save-engine.")
@click.option("--fit", metavar="URL", help="Cost and limits from a running server of ours.")
@click.option("--api-key-file", type=_PATH, metavar="FILE", help="File with its key; or set ULTRAFAST_API_KEY.")
@click.option("--save-engine", type=OutFile(), metavar="FILE", help="Save what --fit found.")
@click.option("--config", "config_file", type=_PATH, metavar="FILE", help="Settings file: tiers and limits.")
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Set any setting; repeatable.")
@click.option("--replicas", default="1", show_default=True, metavar="N[,N...]", help="Engines behind a router.")
@click.option("--routing", type=click.Choice(list(ROUTERS)), default="least-ttft", show_default=True, help="How it chooses.")
@click.option("--kv-tokens", metavar="N[,N...]", help="KV pool of each engine, in tokens.")
@click.option("--step-budget", metavar="MS[,MS...]", help="Time that a step should take beside running streams.")
@click.option("--no-tiers", is_flag=True, help="Each variant also with all requests in one tier.")
@click.option("--seed", type=CountRange(min=0), default=0, show_default=True, metavar="N", help="Of synthetic traffic.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON; seconds throughout.")
def simulate(**options: Any) -> None:
    """Replay traffic through the real scheduler on simulated engines, and print attainment, goodput and what-ifs.

    Minutes of traffic take seconds. All combinations of --replicas, --kv-tokens and --step-budget are simulated.
    """
    loaded = _settings(options)
    engine = _engine(options, loaded)
    traffic, make_requests = _load(options)
    setup = Setup(engine, routing=options["routing"], seed=options["seed"])
    console = Console(stderr=True)
    if unused := left_out(loaded):
        console.print(f"note: not simulated: {', '.join(unused)}", highlight=False, soft_wrap=True)
    started_s = time.monotonic()
    outcomes: list[Outcome] = []
    num_variants = len(list(_variants(options).of(setup)))
    for outcome in simulate_all(setup, _variants(options), make_requests):
        outcomes.append(outcome)
        if num_variants > 1 and sys.stderr.isatty():
            console.print(f"{len(outcomes)} of {num_variants}: {outcome.name}", highlight=False)
    _tell(outcomes, engine, traffic, time.monotonic() - started_s, options["is_json"])


def _settings(options: dict[str, Any]) -> LoadedSettings:
    flags = {}
    for assignment in options["assignments"]:
        dotted, equals, value = assignment.partition("=")
        if not equals:
            raise ConfigError(f"--set {assignment}: there is no `=`.", hint="Write --set section.key=value.")
        flags[dotted.strip()] = Given(value, f"--set {dotted}")
    loaded = load_settings(os.environ, options["config_file"], flags)
    refuse_unknown_to_simulation(flags)
    return loaded


def _engine(options: dict[str, Any], loaded: LoadedSettings) -> EngineSpec:
    spec = _unordered_engine(options, loaded)
    limits = replace(spec.limits, order=tier_order(loaded.settings.tiers))
    if not loaded.settings.engine.enable_side_context:
        limits = replace(limits, max_side_tokens=0)
    return replace(spec, limits=limits)


def _unordered_engine(options: dict[str, Any], loaded: LoadedSettings) -> EngineSpec:
    given = [name for name in ("cost", "engine", "fit") if options[name]]
    if len(given) > 1:
        raise ConfigError(f"--{given[0]} and --{given[1]} exclude each other.", hint="Each of them says what a step costs.")
    if options["save_engine"] and not options["fit"]:
        raise ConfigError("--save-engine needs --fit.", hint="It saves what a running server says about itself.")
    tiers, changes = tier_policies(loaded.settings.tiers), given_engine_values(loaded)
    if options["fit"]:
        described = _ask(options)
        if options["save_engine"]:
            options["save_engine"].write_bytes(msgspec.json.format(msgspec.json.encode(described)))
        return spec_of(described, tiers, options["fit"], changes)
    if options["engine"]:
        return spec_of(read_engine_file(options["engine"]), tiers, str(options["engine"]), changes)
    is_bundled = not options["cost"]  # the bundled model on a CPU can be interrupted and suspended
    longest = None if is_bundled else 0
    limits = make_limits(**all_engine_values(loaded), can_interrupt=is_bundled, max_side_tokens=longest, tiers=tiers)
    if options["cost"]:
        return EngineSpec(limits, parse_cost(options["cost"]), "given")
    return EngineSpec(limits, BUNDLED_COST, "assumed: about the bundled model on two cores. Give --cost, --engine or --fit")


def _ask(options: dict[str, Any]) -> EngineDescription:
    keys = read_api_keys(str(options["api_key_file"]) if options["api_key_file"] else None, os.environ)
    answer = ServerClient(options["fit"], keys[0][1] if keys else None, flag="--fit").get("/admin/engine")
    return decode_engine(msgspec.json.encode(answer), options["fit"])


def _load(options: dict[str, Any]) -> Load:
    if options["trace"]:
        if options["classes"]:
            raise ConfigError("--trace and --class exclude each other.", hint="A trace brings its own lengths.")
        return _trace(options)
    if options["tier_mix"]:
        raise ConfigError("--tier-mix is for traces.", hint="Each --class names its tier.")
    arrival = "constant" if options["constant_rate"] else ("poisson" if options["burstiness"] == 1.0 else "gamma")
    mix = Mix(
        classes=tuple(parse_class(text) for text in options["classes"] or _DEFAULT_CLASSES),
        num_requests=options["num_prompts"] or 10_000,
        rate_per_s=options["request_rate"],
        arrival=arrival,
        burstiness=options["burstiness"],
        num_shared_tokens=options["prefix_len"],
        seed=options["seed"],
    )
    next(mix.requests())  # a rate or burstiness that makes no schedule is said before anything is simulated
    return f"{mix.num_requests:,} requests at {mix.rate_per_s:g}/s, {arrival}, seed {mix.seed}", mix.requests


def _trace(options: dict[str, Any]) -> Load:
    speed = options["trace_speed"]
    if not 0 < speed < float("inf"):
        raise ConfigError("--trace-speed must be above 0.", hint="2 replays twice as fast.")
    entries = scale(read_trace(options["trace"])[: options["num_prompts"]], speed)
    mix = parse_tier_mix(options["tier_mix"]) if options["tier_mix"] else {}
    requests = from_trace(entries, assign_tiers(mix, len(entries), options["seed"]))
    return f"{len(requests):,} requests of {options['trace']}, {speed:g} times as fast", lambda: requests


def _variants(options: dict[str, Any]) -> Variants:
    replicas = _numbers("--replicas", options["replicas"], int)
    return Variants(
        num_replicas=replicas if len(replicas) > 1 or replicas[0] != 1 else (),
        kv_tokens=_numbers("--kv-tokens", options["kv_tokens"], int),
        step_target_s=tuple(value / 1000 for value in _numbers("--step-budget", options["step_budget"], float)),
        with_no_tiers=options["no_tiers"],
    )


def _numbers(flag: str, text: str | None, kind: type[Any]) -> tuple[Any, ...]:
    try:
        values = tuple(kind(part) for part in text.split(",")) if text else ()
        if any(not 0 < value < float("inf") for value in values):
            raise ValueError(text)
    except ValueError as error:
        raise ConfigError(f"{flag} {text} is no list of numbers above 0.", hint=f"For example {flag} 1,2,4.") from error
    return values


def _tell(outcomes: Sequence[Outcome], engine: EngineSpec, traffic: str, wall_s: float, is_json: bool) -> None:
    num_requests = sum(outcome.num_requests for outcome in outcomes)
    simulated_s = sum(outcome.window_s + outcome.drain_s for outcome in outcomes)
    if is_json:
        head = {
            "version": __version__,
            "traffic": traffic,
            "cost": msgspec.to_builtins(engine.cost) | {"source": engine.source},
            "wall_s": wall_s,
            "num_requests_per_wall_s": num_requests / wall_s,
        }
        click.echo(msgspec.json.encode(head | {"outcomes": outcomes}).decode())
        return
    cost = engine.cost
    click.echo(traffic)
    click.echo(
        f"step = {cost.base_s * 1000:.4g} ms + {cost.output_s * 1000:.4g} per output"
        f" + {cost.token_s * 1000:.4g} per prefill token ({engine.source})"
    )
    click.echo("")
    console = Console()
    print_outcomes(outcomes, console if console.is_terminal else Console(width=_TABLE_WIDTH))
    click.echo(
        f"{num_requests:,} requests, {simulated_s:,.0f} simulated seconds in {wall_s:.1f} s: "
        f"{num_requests / wall_s:,.0f} requests/s, {simulated_s / wall_s:,.0f} times real time"
    )
