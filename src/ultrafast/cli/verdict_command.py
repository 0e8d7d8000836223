"""Commands whose exit code is a verdict: 0, 1 and 2 say what was found, so everything that went wrong must be 3.

A script that reads 1 as "slower" and 2 as "not certain" must never see them for a typing mistake, a server that is down
or a defect of ours.
"""

from __future__ import annotations

import traceback
from typing import Any

import click

from ultrafast.cli.errors import report, report_usage
from ultrafast.core.errors import UltrafastError

EXIT_ERROR = 3


class VerdictCommand(click.Command):
    """A command whose callback returns 0, 1 or 2."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            report_usage(error)
            raise click.exceptions.Exit(EXIT_ERROR) from error

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            report_usage(error)
            raise click.exceptions.Exit(EXIT_ERROR) from error
        except UltrafastError as error:
            report(error.message, error.hint)
            raise click.exceptions.Exit(EXIT_ERROR) from error
        except (click.exceptions.Exit, click.Abort, click.ClickException, BrokenPipeError):
            raise
        except Exception as error:
            traceback.print_exc()
            report(f"A defect in Ultrafast: {type(error).__name__}.", "Please report it with the lines above.")
            raise click.exceptions.Exit(EXIT_ERROR) from error
