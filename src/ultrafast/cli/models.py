"""`ultrafast models list|pull|path`: models by name."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from ultrafast.models.download import PullPhase, PullProgress
from ultrafast.models.pull import pull_model
from ultrafast.models.resolve import ListedModel, list_models, locate_model


@click.group()
def models() -> None:
    """List, fetch and find model files."""


@models.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_command(is_json: bool) -> None:
    """List the models that can be named, and whether they are on this machine."""
    listed = list_models()
    if is_json:
        click.echo(json.dumps([_as_json(model) for model in listed], indent=2))
        return
    width = max((len(model.name) for model in listed), default=4)
    click.echo(f"{'name':<{width}}  {'MB':>6}  {'here':<4}  {'licence':<12}  about")
    for model in listed:
        here = "yes" if model.is_present else "no"
        click.echo(f"{model.name:<{width}}  {model.size_bytes / 1e6:6.0f}  {here:<4}  {model.license or '?':<12}  {model.title}")


@models.command()
@click.argument("name")
@click.option("--verify", is_flag=True, help="Hash a file that is here already, and fetch it again if it is damaged.")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def pull(name: str, verify: bool, is_json: bool) -> None:
    """Fetch the model NAME unless it is here, and print its path. `OWNER/REPO:FILE.gguf` names a file of a hub."""
    with _progress_bar() as bar:
        path = pull_model(name, progress=_Display(bar), verify=verify)
    click.echo(json.dumps({"name": name, "path": str(path)}) if is_json else str(path))


@models.command()
@click.argument("name")
def path(name: str) -> None:
    """Print the path of the model NAME; fails when it is not on this machine."""
    click.echo(str(locate_model(name)))


class _Display:
    """Shows a pull on stderr: a bar on a terminal, else one line per phase."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task: TaskID | None = None
        self._phase: PullPhase | None = None

    def __call__(self, progress: PullProgress) -> None:
        if progress.phase is not self._phase:
            self._start_phase(progress)
        if self._task is not None:
            self._bar.update(self._task, completed=progress.done_bytes, total=progress.total_bytes)

    def _start_phase(self, progress: PullProgress) -> None:
        is_first = self._phase is None
        self._phase = progress.phase
        if progress.phase is PullPhase.DONE and is_first:
            return  # it was here already: nothing to show
        if not self._bar.console.is_terminal:
            click.echo(f"model: {progress.phase.value}", err=True)
        elif self._task is None:
            self._task = self._bar.add_task(progress.phase.value, total=progress.total_bytes)
        else:
            self._bar.update(self._task, description=progress.phase.value)


def _progress_bar() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _as_json(model: ListedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "aliases": list(model.aliases),
        "title": model.title,
        "license": model.license,
        "size_bytes": model.size_bytes,
        "path": str(model.path),
        "is_present": model.is_present,
    }
