"""Progress of loading on stderr: one line that is rewritten on a terminal, else one line per stage."""

from __future__ import annotations

import sys

import click


class LoadingDisplay:
    """Called with a stage and how far it is, in [0, 1]."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._stage: str | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        if self._is_terminal:
            click.echo(f"\r\033[K{stage} {fraction:4.0%}", err=True, nl=False)
        elif stage != self._stage:
            click.echo(stage, err=True)
        self._stage = stage

    def close(self) -> None:
        """Remove the line."""
        if self._is_terminal and self._stage is not None:
            click.echo("\r\033[K", err=True, nl=False)
            self._stage = None
