"""The `ultrafast` command: finds the subcommand and turns errors into messages and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ultrafast import __version__
from ultrafast.cli.chat import chat
from ultrafast.cli.config import config
from ultrafast.cli.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, exit_code_of, report, report_usage
from ultrafast.cli.lazy import LazyGroup
from ultrafast.cli.models import models
from ultrafast.cli.serve import serve
from ultrafast.cli.version import version
from ultrafast.core.errors import UltrafastError


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="ultrafast", message="%(prog)s %(version)s")
def cli() -> None:
    """An OpenAI-compatible LLM server in which speed is a service level.

    Exit codes: 0 done, 1 it failed, 2 the command line or a setting is wrong, 130 interrupted.
    """


cli.places = {
    "bench": "ultrafast.cli.bench",
    "gate": "ultrafast.cli.gate",
    "compare": "ultrafast.cli.compare",
    "ablate": "ultrafast.cli.ablate",
    "cache": "ultrafast.cli.cache",
    "simulate": "ultrafast.cli.simulate",
    "warmup": "ultrafast.cli.warmup",
    "monitoring": "ultrafast.cli.monitoring",
}
for _command in (serve, chat, models, config, version):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` is `sys.argv[1:]` when None. Returns the exit code."""
    try:
        result = cli.main(args=arguments, prog_name="ultrafast", standalone_mode=False)
    except click.UsageError as error:
        report_usage(error)
        return EXIT_USAGE
    except click.ClickException as error:
        report(error.format_message(), None)
        return error.exit_code
    except UltrafastError as error:
        report(error.message, error.hint)
        return exit_code_of(error)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`ultrafast models list | head`): not our failure, but nothing more can be said.
        sys.stderr.close()
        return EXIT_OK
    return result if isinstance(result, int) else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
