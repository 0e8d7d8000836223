"""`ultrafast version`: what to put into a bug report."""

from __future__ import annotations

import json
import platform

import click

from ultrafast import __version__
from ultrafast.engine.llama import abi


@click.command()
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def version(is_json: bool) -> None:
    """Print the versions of Ultrafast, Python and libllama. Loads and checks libllama."""
    facts = {
        "ultrafast": __version__,
        "python": platform.python_version(),
        "libllama": abi.load().build,
        "platform": platform.platform(),
    }
    if is_json:
        click.echo(json.dumps(facts))
        return
    for name, value in facts.items():
        click.echo(f"{name:<10} {value}")
