"""The options of `ultrafast compare` that start a server for each side, and the configurations that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from ultrafast.bench.compare.configurations import Configuration, check_apart
from ultrafast.cli.options import split_assignment
from ultrafast.config.api_keys import read_api_keys
from ultrafast.config.given import Given
from ultrafast.config.load import Layer, load_settings
from ultrafast.config.reference import effective
from ultrafast.core.errors import ConfigError
from ultrafast.models.resolve import resolve_model

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)
_ASSIGNMENT = "SECTION.KEY=VALUE"
_OWN_SETTINGS = ("server.host", "server.port")
"""What we set ourselves: a free local port."""
_NAMES = ("config_file", "config_a", "config_b", "assignments", "assignments_a", "assignments_b")

_OPTIONS = (
    click.option("--config-a", type=_FILE, metavar="FILE", help="Start a server for A with this settings file (TOML)."),
    click.option("--config-b", type=_FILE, metavar="FILE", help="The same for B."),
    click.option("--set-a", "assignments_a", multiple=True, metavar=_ASSIGNMENT, help="A setting of A's server; repeatable."),
    click.option("--set-b", "assignments_b", multiple=True, metavar=_ASSIGNMENT, help="A setting of B's server; repeatable."),
    click.option("--config", "config_file", type=_FILE, metavar="FILE", help="Settings file of both servers."),
    click.option("--set", "assignments", multiple=True, metavar=_ASSIGNMENT, help="A setting of both servers; repeatable."),
    click.option("--restart", is_flag=True, help="Only one server at a time, started for each run: needs less memory."),
)


def serve_options(command: _Command) -> _Command:
    """Add the options to a command; read them back with `configurations`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def is_serving(options: Mapping[str, Any]) -> bool:
    """Whether servers of our own are wanted."""
    return any(options[name] for name in _NAMES)


def configurations(options: Mapping[str, Any]) -> tuple[Configuration, Configuration]:
    """Both sides, checked as far as it goes without starting anything.

    Raises:
        ConfigError: a setting or a file that is wrong, or both servers would write to the same place.
    """
    if options["config_file"] and (options["config_a"] or options["config_b"]):
        raise ConfigError(
            "--config is for both servers, --config-a and --config-b are for one.", hint="Give one file, or one for each side."
        )
    a, b = (_configuration(options, side) for side in "ab")
    if not options["restart"]:
        check_apart(a, b)
    return a, b


def _configuration(options: Mapping[str, Any], side: str) -> Configuration:
    """What is written for one side wins over what is written for both."""
    file = options["config_file"] or options[f"config_{side}"]
    flags: Layer = {}
    for flag, name in (("--set", "assignments"), (f"--set-{side}", f"assignments_{side}")):
        for assignment in options[name]:
            dotted, value = split_assignment(assignment, flag)
            _refuse_own(dotted, flag)
            flags[dotted] = Given(value, f"{flag} {dotted}")
    loaded = load_settings(os.environ, file, flags)
    resolve_model(loaded.settings.model.path_or_name)  # a missing model is an error of now, not of the server's start
    keys = read_api_keys(loaded.settings.server.api_key_file, os.environ)
    values = {name: value for name, value, _ in effective(loaded) if name not in _OWN_SETTINGS}
    return Configuration(
        words=_words(options, side),
        config_file=file,
        settings={dotted: given.value for dotted, given in flags.items()},
        effective=values,
        headers={"authorization": f"Bearer {keys[0][1]}"} if keys else {},
    )


def _words(options: Mapping[str, Any], side: str) -> tuple[str, ...]:
    file = options[f"config_{side}"]
    return (*([f"--config {file}"] if file else []), *(f"--set {each}" for each in options[f"assignments_{side}"]))


def _refuse_own(dotted: str, flag: str) -> None:
    if dotted in _OWN_SETTINGS:
        raise ConfigError(f"{flag} {dotted}: these servers listen on free local ports.", param=dotted, hint="Leave it out.")
