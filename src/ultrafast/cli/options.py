"""Flags that set settings, shared by every command that loads them.

Each flag is a short name of one setting; `--set section.key=value` reaches all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from ultrafast.config.given import Given
from ultrafast.config.load import Layer, LoadedSettings, load_settings
from ultrafast.core.errors import ConfigError

_Command = TypeVar("_Command", bound=Callable[..., Any])

FLAGS: dict[str, tuple[str, str, str]] = {
    "--model": ("model.path_or_name", "PATH|NAME", "Model file (.gguf) or a name that `ultrafast models list` knows."),
    "--served-name": ("model.served_name", "NAME", "Name of the model in the API."),
    "--host": ("server.host", "ADDRESS", "Address to listen on."),
    "--port": ("server.port", "PORT", "TCP port; 0 takes a free one."),
    "--api-key-file": ("server.api_key_file", "FILE", "File with one API key per line."),
    "--threads": ("engine.num_threads", "N", "Threads of the forward pass."),
    "--context": ("engine.kv_capacity_tokens", "TOKENS", "Size of the KV pool, shared by all requests."),
    "--max-running": ("engine.max_num_running", "N", "Sequences that may run at once."),
    "--gpu-layers": ("engine.num_gpu_layers", "N", "Layers on the GPU; -1: all that fit."),
    "--log-level": ("logging.level", "LEVEL", "debug, info, warning or error."),
}
"""Flag -> (setting, placeholder, help)."""


def settings_options(command: _Command) -> _Command:
    """Add `--config`, the flags and `--set` to a command; read them back with `load_from_options`."""
    command = click.option(
        "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Set any setting; repeatable."
    )(command)
    for flag, (_, placeholder, text) in reversed(FLAGS.items()):
        command = click.option(flag, _parameter(flag), metavar=placeholder, help=text)(command)
    return click.option("--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="Settings file (TOML).")(
        command
    )


def load_from_options(options: dict[str, Any]) -> LoadedSettings:
    """Settings from the options of a command, the environment and the file.

    Raises:
        ConfigError: see `load_settings`; also a malformed `--set` and a setting that is given twice.
    """
    flags: Layer = {}
    for flag, (dotted, _, _) in FLAGS.items():
        value = options[_parameter(flag)]
        if value is not None:
            flags[dotted] = Given(value, flag)
    for assignment in options["assignments"]:
        dotted, value = split_assignment(assignment)
        if dotted in flags:
            raise ConfigError(
                f"{dotted} is given twice on the command line: by {flags[dotted].origin} and by --set {assignment}.",
                hint="Keep one.",
            )
        flags[dotted] = Given(value, f"--set {dotted}")
    return load_settings(os.environ, options["config_file"], flags)


def _parameter(flag: str) -> str:
    return "flag_" + flag.removeprefix("--").replace("-", "_")


def split_assignment(assignment: str, flag: str = "--set") -> tuple[str, str]:
    """Name and value of `section.key=value`.

    Raises:
        ConfigError: there is no `=`.
    """
    dotted, equals, value = assignment.partition("=")
    if not equals:
        raise ConfigError(
            f"{flag} {assignment}: there is no `=`.",
            hint=f"Write {flag} section.key=value, for example {flag} logging.level=debug.",
        )
    return dotted.strip(), value
