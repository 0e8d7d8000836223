"""`ultrafast config --show`: the effective settings and where each came from."""

from __future__ import annotations

import json
from typing import Any

import click

from ultrafast.cli.options import load_from_options, settings_options
from ultrafast.config.load import LoadedSettings
from ultrafast.config.reference import default_text, effective


@click.command()
@click.option("--show", is_flag=True, help="Print the effective settings and where each came from.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
@settings_options
def config(show: bool, is_json: bool, **options: Any) -> None:
    """Check the settings; with --show, print them. Takes the same flags as `serve`."""
    loaded = load_from_options(options)
    if is_json:
        click.echo(
            json.dumps({dotted: {"value": value, "origin": origin} for dotted, value, origin in effective(loaded)}, indent=2)
        )
    elif show:
        click.echo(_as_toml(loaded), nl=False)
    else:
        click.echo("settings are valid")


def _as_toml(loaded: LoadedSettings) -> str:
    """A settings file that would give the same settings; unset ones as comments."""
    lines: list[str] = []
    table = ""
    for dotted, value, origin in effective(loaded):
        parent, _, key = dotted.rpartition(".")
        if parent != table:
            lines += ([""] if lines else []) + [f"[{parent}]"]
            table = parent
        text = f"# {key} is unset" if value is None else f"{key} = {_toml_value(value)}"
        lines.append(f"{text:<44}  # {origin}")
    return "\n".join(lines) + "\n"


def _toml_value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | tuple) else default_text(value).strip("`")
