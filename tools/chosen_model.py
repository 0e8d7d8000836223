"""Print the registered name of the model that `ultrafast serve ARGS` would serve; nothing where it is a file or of a hub.

    chosen_model.py [ARGS of `ultrafast serve`]      `make serve` fetches the bundled model only where it is the one

The command line, the environment and the settings file count, as they do for the server. Arguments that `ultrafast serve` refuses
print nothing: it says itself what is wrong with them.
"""

import sys
from typing import Any

import click

from ultrafast.cli.options import load_from_options, settings_options
from ultrafast.core.errors import UltrafastError
from ultrafast.models.registry import find_model


@click.command(add_help_option=False)
@click.option("--json", is_flag=True, expose_value=False)
@settings_options
def chosen_model(**options: Any) -> None:
    """See above. `--json` changes only how the server prints."""
    model = find_model(load_from_options(options).settings.model.path_or_name)
    if model is not None:
        click.echo(model.name)


if __name__ == "__main__":
    try:
        chosen_model.main(args=sys.argv[1:], standalone_mode=False)
    except (click.ClickException, UltrafastError):
        sys.exit(0)
