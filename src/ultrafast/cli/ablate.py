"""`ultrafast ablate`: what does each optimisation save, on this machine, with this model?"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from dataclasses import asdict
from typing import Any

import click
import msgspec
from rich.console import Console

from ultrafast.bench.ablate.conversations import CLIENTS, TURNS, Workload
from ultrafast.bench.ablate.pipelines import Pipeline, check_switches, make_pipelines
from ultrafast.bench.ablate.records import Ablation, AblationSpec
from ultrafast.bench.ablate.report import Report
from ultrafast.bench.ablate.session import Listener
from ultrafast.bench.ablate.session import ablate as measure
from ultrafast.bench.event_loop import run_async
from ultrafast.bench.own_server import setting_text
from ultrafast.bench.wording import duration
from ultrafast.cli.number_range import CountRange, NumberRange
from ultrafast.cli.options import FLAGS, load_from_options, settings_options
from ultrafast.cli.out_file import OutFile
from ultrafast.config.api_keys import admin_key, read_api_keys
from ultrafast.config.reference import effective
from ultrafast.core.errors import ConfigError
from ultrafast.models.resolve import resolve_model

EXIT_INVALID = 3
"""Measured, but requests failed."""
_FILE_WIDTH = 170
_OWN_FLAGS = ("--host", "--port")
"""Options of `serve` that the ablation sets itself."""
_SIZES = {
    # turns, system, user, output tokens
    (TURNS, False): (6, 256, 32, 24),
    (TURNS, True): (3, 160, 24, 8),
    (CLIENTS, False): (2, 96, 32, 24),
    (CLIENTS, True): (2, 48, 16, 8),
}
_NUM_CLIENTS, _NUM_QUICK_CLIENTS = 16, 4


@click.command()
@click.option(
    "--workload",
    type=click.Choice([TURNS, CLIENTS, "both"]),
    default="both",
    show_default=True,
    help="One client with a long conversation, or many clients at once.",
)
@click.option("--rounds", type=CountRange(min=1), default=5, show_default=True, metavar="N", help="Runs of each pipeline.")
@click.option("--clients", type=CountRange(min=1), metavar="N", help="Clients at once; default 16, with --quick 4.")
@click.option("--turns", type=CountRange(min=1), metavar="N", help="Turns of a conversation.")
@click.option("--system-len", type=CountRange(min=1), metavar="N", help="Tokens of instructions before the first question.")
@click.option("--input-len", type=CountRange(min=1), metavar="N", help="Tokens of each question.")
@click.option("--output-len", type=CountRange(min=1), metavar="N", help="Tokens of each answer.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this pipeline beside the naive one; repeatable.")
@click.option("--left-out", is_flag=True, help="Also measure all optimisations but one, for each one.")
@click.option("--quick", is_flag=True, help="Shorter conversations and fewer clients.")
@click.option("--restart", is_flag=True, help="Only one server at a time, started for each run: slower, but needs less memory.")
@click.option("--max-duration", type=NumberRange(), metavar="S", help="Begin no new round after so many seconds.")
@click.option("--timeout", type=NumberRange(), default=600.0, show_default=True, metavar="S", help="Longest time of one request.")
@click.option("--seed", type=CountRange(min=0), metavar="N", help="Same seed, same texts; a new one each time by default.")
@click.option("--dry-run", is_flag=True, help="Show the plan; start nothing.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@click.option("--html", type=OutFile(), metavar="FILE", help="Write a page with the plot.")
@settings_options
def ablate(**options: Any) -> int:
    """Measure what each optimisation saves by itself and together, against a naive pipeline, on this machine.

    Starts servers of its own with the options of `ultrafast serve`; nothing else should run meanwhile.

    Exit codes: 0 measured, 1 it failed, 2 the command line is wrong, 3 measured, but requests failed.
    """
    spec = _spec(options)
    console = Console(stderr=True)
    console.print(f"plan     {describe(spec)}", highlight=False, soft_wrap=True)
    if options["dry_run"]:
        _tell_plan(spec, options["is_json"])
        return 0
    report = Report(_run(spec, console))
    if options["html"]:
        report.write_html(options["html"])
        click.echo(f"report   {options['html']}", err=True)
    if options["is_json"]:
        click.echo(msgspec.json.format(msgspec.json.encode(report.as_json()), indent=2).decode())
    else:
        out = Console()
        report.print(out if out.is_terminal else Console(width=_FILE_WIDTH))
    return 0 if report.is_complete else EXIT_INVALID


def _run(spec: AblationSpec, console: Console) -> Ablation:
    """Ctrl-C and SIGTERM end it, with all its servers."""

    async def run() -> Ablation:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await measure(spec, _View(spec, console))

    try:
        return run_async(run())
    except asyncio.CancelledError as error:
        raise click.Abort from error


def describe(spec: AblationSpec) -> str:
    """What will be done, in one line."""
    loads = "; ".join(f"{one.title}, {one.num_requests} requests" for one in spec.workloads)
    limit = f", no new round after {duration(spec.max_duration_s)}" if spec.max_duration_s else ""
    return (
        f"{len(spec.pipelines)} pipelines on {spec.num_servers} servers, {spec.num_rounds} rounds of ({loads}): "
        f"{spec.num_requests} requests in all{limit}; seed {spec.seed}. The duration is told when the naive pipeline was timed."
    )


def _tell_plan(spec: AblationSpec, is_json: bool) -> None:
    if is_json:
        click.echo(msgspec.json.format(msgspec.json.encode(plan_json(spec)), indent=2).decode())
        return
    for pipeline in spec.pipelines:
        click.echo(_describe_pipeline(pipeline))


def plan_json(spec: AblationSpec) -> dict[str, Any]:
    """The same for programs: everything but the key."""
    return {
        "type": "ablation-plan",
        "num_requests": spec.num_requests,
        "num_rounds": spec.num_rounds,
        "num_servers": spec.num_servers,
        "seed": spec.seed,
        "timeout_s": spec.timeout_s,
        "max_duration_s": spec.max_duration_s,
        "workloads": [asdict(load) | {"num_requests": load.num_requests} for load in spec.workloads],
        "pipelines": [
            {"name": one.name, "is_streamed": one.is_streamed, "settings": dict(one.settings)} for one in spec.pipelines
        ],
    }


def _describe_pipeline(pipeline: Pipeline) -> str:
    """What would reproduce its server by hand."""
    settings = "".join(f" --set {name}={setting_text(value)}" for name, value in pipeline.settings.items())
    return f"{pipeline.name:24} {'streamed' if pipeline.is_streamed else 'whole':8}  ultrafast serve{settings}"


def _spec(options: dict[str, Any]) -> AblationSpec:
    for flag in _OWN_FLAGS:
        if options[_parameter(flag)] is not None:
            raise ConfigError(
                f"{flag} is not for `ultrafast ablate`: its servers listen on free local ports.", hint="Leave it out."
            )
    loaded = load_from_options(options)
    resolve_model(loaded.settings.model.path_or_name)  # a missing model is an error of now, not of the first server
    check_switches({name: value for name, value, _ in effective(loaded)}, _given(options))
    keys = read_api_keys(loaded.settings.server.api_key_file, os.environ)
    return AblationSpec(
        pipelines=make_pipelines(options["only"], has_left_out=options["left_out"]),
        workloads=[
            _workload(name, options) for name in ((TURNS, CLIENTS) if options["workload"] == "both" else (options["workload"],))
        ],
        num_rounds=options["rounds"],
        seed=options["seed"] if options["seed"] is not None else secrets.randbits(32),
        config_file=options["config_file"],
        settings=_own_settings(options),
        headers={"authorization": f"Bearer {admin_key(keys)}"} if keys else {},
        is_restarting=options["restart"],
        timeout_s=options["timeout"],
        max_duration_s=options["max_duration"],
    )


def _workload(name: str, options: dict[str, Any]) -> Workload:
    num_turns, num_system, num_user, num_output = _SIZES[name, options["quick"]]
    default_clients = _NUM_QUICK_CLIENTS if options["quick"] else _NUM_CLIENTS
    num_clients = 1 if name == TURNS else options["clients"] or default_clients
    return Workload(
        name=name,
        num_clients=num_clients,
        num_conversations=num_clients,
        num_turns=options["turns"] or num_turns,
        num_system=options["system_len"] or num_system,
        num_user=options["input_len"] or num_user,
        num_output=options["output_len"] or num_output,
    )


def _given(options: dict[str, Any]) -> dict[str, str]:
    """Settings on the command line -> how they were given."""
    flags = {dotted: flag for flag, (dotted, _, _) in FLAGS.items() if options[_parameter(flag)] is not None}
    return flags | {text.partition("=")[0].strip(): f"--set {text}" for text in options["assignments"]}


def _own_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings on the command line, by dotted name."""
    # A long queue is what is measured, so nobody in it may expire before the client gives up.
    values: dict[str, Any] = {"logging.level": "warning", "tiers.default.queue_ttl_s": options["timeout"]}
    for flag, (dotted, _, _) in FLAGS.items():
        if (value := options[_parameter(flag)]) is not None:
            values[dotted] = value
    return values | {name.strip(): value for name, _, value in (text.partition("=") for text in options["assignments"])}


def _parameter(flag: str) -> str:
    return "flag_" + flag.removeprefix("--").replace("-", "_")


class _View(Listener):
    """Progress on stderr: one line, rewritten on a terminal."""

    def __init__(self, spec: AblationSpec, console: Console) -> None:
        self._spec = spec
        self._console = console
        self._num_runs = len(spec.pipelines) * spec.num_rounds * len(spec.workloads)

    def on_server(self, num_started: int) -> None:
        if not self._spec.is_restarting:
            self._line(f"server   {num_started} of {self._spec.num_servers} is up and warm")

    def on_estimate(self, duration_s: float) -> None:
        self._console.print(
            f"time     at most about {duration(duration_s)} beside the starts of the servers, if no optimisation helps",
            highlight=False,
            soft_wrap=True,
        )

    def on_run(self, pipeline: Pipeline, workload: Workload, num_done: int) -> None:
        self._line(f"run      {num_done + 1} of {self._num_runs}: {pipeline.title}, {workload.name}")

    def on_round(self, num_done: int) -> None:
        self._console.print(f"round    {num_done} of {self._spec.num_rounds} done", highlight=False)

    def _line(self, text: str) -> None:
        if self._console.is_terminal:
            click.echo(f"\r\033[K{text}\r", err=True, nl=False)
