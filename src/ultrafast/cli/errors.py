"""How the command line reports that something went wrong."""

from __future__ import annotations

import click

from ultrafast.cli.vllm_words import hint_for
from ultrafast.core.errors import ConfigError, UltrafastError

EXIT_OK = 0
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def exit_code_of(error: UltrafastError) -> int:
    """A wrong setting is wrong usage; everything else is a failure."""
    return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE


def report(message: str, hint: str | None) -> None:
    """Write an error to stderr, the hint last."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def report_usage(error: click.UsageError) -> None:
    """Write a click error in our form."""
    command = error.ctx.command_path if error.ctx else "ultrafast"
    report(error.format_message(), hint_for(error) or f"`{command} --help` shows what it takes.")
