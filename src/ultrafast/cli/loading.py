"""Progress of loading on stderr: one line that is rewritten on a terminal, else one log line per stage."""

from __future__ import annotations

import logging
import sys

import click

from ultrafast.observe.logs import log_fields

_log = logging.getLogger("ultrafast.server")


class LoadingDisplay:
    """Called with a stage and how far it is, in [0, 1]."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._stage: str | None = None

    def __call__(self, stage: str, fraction: float) -> None:
        if self._is_terminal:
            click.echo(f"\r\033[K{stage} {fraction:4.0%}", err=True, nl=False)
        elif stage != self._stage:
            log_fields(_log, logging.INFO, "loading", {"stage": stage})
        self._stage = stage

    def close(self) -> None:
        """Remove the line, so that what follows starts on an empty one."""
        if self._is_terminal and self._stage is not None:
            click.echo("\r\033[K", err=True, nl=False)
            self._stage = None
