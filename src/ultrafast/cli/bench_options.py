"""The options that say what to measure and how: shared by every command that sends load. Names follow `vllm bench serve`."""

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from ultrafast.bench.dialect import CHAT_PATH, COMPLETIONS_PATH
from ultrafast.bench.http1 import Address
from ultrafast.bench.lengths import parse_lengths
from ultrafast.bench.metrics import SLO_METRICS
from ultrafast.bench.session import BenchSpec
from ultrafast.bench.tier_mix import parse_tier_mix
from ultrafast.bench.workload import SHAPES, WorkloadSpec
from ultrafast.cli.number_range import CountRange, NumberRange
from ultrafast.cli.vllm_words import SeveralValues
from ultrafast.config.api_keys import read_api_keys
from ultrafast.core.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])

SHARED_PREFIX, MULTI_TURN = "shared-prefix", "multi-turn"
SCENARIOS = (*SHAPES, SHARED_PREFIX, MULTI_TURN)
_DEFAULT_SHARED_TOKENS = 1024
_DEFAULT_TURNS = 4

_OPTIONS = (
    click.option(
        "--url", "--base-url", envvar="ULTRAFAST_URL", default="http://127.0.0.1:8080", show_default=True, help="The server."
    ),
    click.option(
        "--api-key", envvar="ULTRAFAST_API_KEY", metavar="KEY", help="Its key; better set ULTRAFAST_API_KEY or use a file."
    ),
    click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE", help="File with the key."),
    click.option("--model", metavar="NAME", help="Model to ask; the server's first one by default."),
    click.option(
        "--endpoint",
        type=click.Choice([CHAT_PATH, COMPLETIONS_PATH]),
        default=CHAT_PATH,
        show_default=True,
        help="Route to call.",
    ),
    click.option(
        "--scenario", type=click.Choice(SCENARIOS), default="short-short", show_default=True, help="Shape of prompts and answers."
    ),
    click.option(
        "--input-len",
        "--random-input-len",
        metavar="LENGTHS",
        help="Prompt tokens: 512, uniform:64-256 or lognormal:512,0.5[,MAX].",
    ),
    click.option("--output-len", "--random-output-len", metavar="LENGTHS", help="Output tokens, written the same way."),
    click.option(
        "--prompts", type=click.Path(path_type=Path), metavar="FILE", help="Own prompts: JSONL, or text with one per line."
    ),
    click.option(
        "--prefix-len",
        "--random-prefix-len",
        type=CountRange(min=0),
        metavar="N",
        help="Tokens that all prompts share (shared-prefix).",
    ),
    click.option("--turns", type=CountRange(min=1), metavar="N", help="Turns of a conversation (multi-turn)."),
    click.option("--warm-cache", is_flag=True, help="No nonce before your own prompts: the server's prefix cache may help."),
    click.option("--tier-mix", metavar="MIX", help="Service tiers by share: ultrafast=0.8,flex=0.2."),
    click.option(
        "--num-prompts", type=CountRange(min=1), default=100, show_default=True, metavar="N", help="Requests to measure."
    ),
    click.option("--request-rate", metavar="R", help="Open loop: arrivals per second. Without it, or inf: closed loop."),
    click.option(
        "--burstiness", type=NumberRange(), default=1.0, show_default=True, metavar="B", help="Shape of gamma gaps; 1 is Poisson."
    ),
    click.option("--constant-rate", is_flag=True, help="Evenly spaced arrivals instead of random ones."),
    click.option("--max-concurrency", type=CountRange(min=1), metavar="N", help="Closed loop: slots. Open loop: cap in flight."),
    click.option(
        "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Replay an Azure CSV, Mooncake JSONL or our JSONL."
    ),
    click.option(
        "--trace-speed", type=NumberRange(), default=1.0, show_default=True, metavar="X", help="Replay so many times as fast."
    ),
    click.option(
        "--num-warmups", type=CountRange(min=0), metavar="N", help="Exactly so many warm-up requests; default: until steady."
    ),
    click.option(
        "--max-duration", type=NumberRange(), metavar="S", help="Give up after so many seconds; the rest counts as cancelled."
    ),
    click.option(
        "--timeout", type=NumberRange(), default=600.0, show_default=True, metavar="S", help="Longest time of one request."
    ),
    click.option("--ignore-eos/--no-ignore-eos", default=True, show_default=True, help="Ask for answers of full length."),
    click.option("--temperature", type=NumberRange(), metavar="T", help="Sampling temperature; the server's own by default."),
    click.option("--extra-body", metavar="JSON", help="Fields added to every request body."),
    click.option(
        "--goodput",
        cls=SeveralValues,
        pattern=r"[\w ]+:[\d.]+",
        metavar="NAME:MS...",
        help="SLOs for goodput, such as ttft:200 tpot:50.",
    ),
    click.option("--seed", type=CountRange(min=0), metavar="N", help="Same seed, same plan; a new one each run by default."),
    click.option("--processes", type=CountRange(1, 64), default=1, show_default=True, metavar="N", help="Client processes."),
    click.option("--ca-file", type=click.Path(path_type=Path), metavar="FILE", help="Certificates to trust."),
    click.option("--insecure", is_flag=True, help="Trust any certificate."),
    click.option(
        "--metadata", cls=SeveralValues, pattern=r"[^-=][^=]*=.*", metavar="KEY=VALUE...", help="Stored with the result."
    ),
)


def bench_options(command: _Command) -> _Command:
    """Add the options to a command; read them back with `spec_from_options`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@bench_options
def load_command(**_: Any) -> None:
    """Has these options and no other; to read or list them, never run."""


def given_load_options(context: click.Context) -> list[str]:
    """Those of these options that stand on the command line of a command, as flags."""
    names = {parameter.name for parameter in load_command.params}
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def spec_from_options(options: Mapping[str, Any]) -> BenchSpec:
    """The specification that the options describe; unknown entries are left alone.

    Raises:
        ConfigError: options that contradict each other or cannot be read.
        BadUrlError: the URL.
    """
    Address.parse(options["url"])
    if options["trace"] and options["prompts"]:
        raise ConfigError("--trace and --prompts exclude each other.", hint="A trace brings its own lengths.")
    workload = _workload(options)
    return BenchSpec(
        name=_name(options),
        url=options["url"],
        model=options["model"],
        path=options["endpoint"],
        headers=_headers(options),
        workload=workload,
        concurrency=_concurrency(options, workload),
        num_warmups=options["num_warmups"],
        num_processes=options["processes"],
        ignores_eos=options["ignore_eos"],
        prompts_path=options["prompts"],
        trace_path=options["trace"],
        speed=_positive("--trace-speed", options["trace_speed"]),
        max_duration_s=options["max_duration"],
        timeout_s=_positive("--timeout", options["timeout"]),
        goodput_s=parse_slos(options["goodput"]),
        metadata=dict(_pair(text) for text in options["metadata"]),
        extra=_extra(options),
        ca_file=options["ca_file"],
        is_insecure=options["insecure"],
    )


def parse_slos(texts: tuple[str, ...]) -> dict[str, float]:
    """`ttft:200` and the like as seconds by metric; `e2el` is what vLLM calls E2E.

    Raises:
        ConfigError: an unknown name or no number.
    """
    limits: dict[str, float] = {}
    for text in " ".join(texts).replace(",", " ").split():
        name, _, value = text.partition(":")
        name = "e2e" if name == "e2el" else name
        try:
            limit_ms = float(value)
        except ValueError as error:
            raise ConfigError(f"--goodput {text}: no number of milliseconds.", hint="Write ttft:200.") from error
        if name not in SLO_METRICS or not limit_ms > 0:
            raise ConfigError(f"--goodput {text} is no SLO.", hint=f"Names: {', '.join(SLO_METRICS)}; limits in ms, above 0.")
        limits[name] = limit_ms / 1000
    return limits


def sweep(spec: BenchSpec, loads: Sequence[float]) -> list[BenchSpec]:
    """One specification per load: its rate in open loop, its slots in closed loop.

    Each has its own seed: the same prompts again would meet a warm cache.
    """
    specs = []
    for number, load in enumerate(loads):
        workload = msgspec.structs.replace(spec.workload, seed=spec.workload.seed + number)
        if workload.arrival == "closed":
            specs.append(replace(spec, workload=workload, concurrency=max(1, round(load))))
        else:
            specs.append(replace(spec, workload=msgspec.structs.replace(workload, rate_per_s=load)))
    return specs


def _workload(options: Mapping[str, Any]) -> WorkloadSpec:
    scenario = options["scenario"]
    input_len, output_len = SHAPES.get(scenario, SHAPES["short-short"])
    num_shared = options["prefix_len"]
    if scenario == SHARED_PREFIX:
        num_shared = _DEFAULT_SHARED_TOKENS if num_shared is None else num_shared
        input_len = str(num_shared + 128)
    num_turns = options["turns"] or (_DEFAULT_TURNS if scenario == MULTI_TURN else 1)
    rate = _rate(options["request_rate"])
    if not options["burstiness"] > 0:
        raise ConfigError("--burstiness must be above 0.", hint="1 is Poisson, below 1 is burstier.")
    input_len, output_len = options["input_len"] or input_len, options["output_len"] or output_len
    for text in (input_len, output_len):
        parse_lengths(text)
    return WorkloadSpec(
        num_requests=options["num_prompts"],
        input_len=input_len,
        output_len=output_len,
        arrival=_arrival(options, rate),
        rate_per_s=rate or 1.0,
        burstiness=options["burstiness"],
        num_turns=num_turns,
        num_shared_tokens=num_shared or 0,
        tier_mix=parse_tier_mix(options["tier_mix"]) if options["tier_mix"] else {},
        is_cold=not options["warm_cache"],
        seed=secrets.randbelow(1 << 31) if options["seed"] is None else options["seed"],
    )


def _arrival(options: Mapping[str, Any], rate: float | None) -> str:
    if rate is None:
        if options["constant_rate"]:
            raise ConfigError(
                "--constant-rate needs --request-rate.", hint="Give arrivals per second, such as --request-rate 2.5."
            )
        return "closed"
    if options["constant_rate"]:
        return "constant"
    return "poisson" if options["burstiness"] == 1.0 else "gamma"


def _concurrency(options: Mapping[str, Any], workload: WorkloadSpec) -> int | None:
    """Without a rate one at a time; with the rate `inf`, as in vLLM, all at once."""
    if options["max_concurrency"] or workload.arrival != "closed" or options["trace"]:
        return options["max_concurrency"] or None
    return 1 if options["request_rate"] is None else workload.num_requests


def _rate(text: str | None) -> float | None:
    """None: closed loop."""
    if text is None or text.strip().lower() == "inf":
        return None
    hint = "Give arrivals per second, such as 2.5, or inf for all at once."
    try:
        rate = float(text)
    except ValueError as error:
        raise ConfigError(f"--request-rate {text} is no number.", hint=hint) from error
    if not rate > 0 or math.isinf(rate):
        raise ConfigError(f"--request-rate {text} makes no schedule.", hint=hint)
    return rate


def _positive(flag: str, value: float) -> float:
    if not value > 0 or math.isinf(value):
        raise ConfigError(f"{flag} must be above 0.", hint="Give a number above 0, not inf.")
    return value


def _name(options: Mapping[str, Any]) -> str:
    if options["trace"]:
        return f"replay-{options['trace'].stem}"
    return f"prompts-{options['prompts'].stem}" if options["prompts"] else str(options["scenario"])


def _headers(options: Mapping[str, Any]) -> dict[str, str]:
    headers = {"accept": "text/event-stream, application/json", "user-agent": "ultrafast-bench"}
    if options["api_key_file"]:
        key = read_api_keys(str(options["api_key_file"]), {})[0][1]
    else:
        key = options["api_key"] or os.environ.get("OPENAI_API_KEY") or ""
    if not key.isascii() or any(character.isspace() for character in key):
        raise ConfigError(
            "The API key holds a space, a line break or a character outside ASCII.",
            hint="Look for a quote or a line break in it.",
        )
    return headers | ({"authorization": f"Bearer {key}"} if key else {})


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--metadata {text}: there is no `=`.", hint="Write --metadata commit=abc123.")
    return key, value


def _extra(options: Mapping[str, Any]) -> dict[str, Any]:
    extra: dict[str, Any] = {} if options["temperature"] is None else {"temperature": options["temperature"]}
    if options["extra_body"] is None:
        return extra
    try:
        return extra | msgspec.json.decode(options["extra_body"], type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise ConfigError(f"--extra-body is no JSON object: {error}.", hint="""Write --extra-body '{"top_p": 0.9}'.""") from error
