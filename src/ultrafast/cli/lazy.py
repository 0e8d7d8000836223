"""Commands that are imported when they are used, so that `ultrafast serve` does not load what only a benchmark needs."""

from __future__ import annotations

import importlib

import click


class LazyGroup(click.Group):
    """A group that knows some of its commands only by where they are.

    Attributes:
        places: command name -> module that holds the command under the same name.
    """

    places: dict[str, str] = {}  # noqa: RUF012 - set once per group, by its maker

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.places})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.places and cmd_name not in self.commands:
            self.add_command(getattr(importlib.import_module(self.places[cmd_name]), cmd_name))
        return super().get_command(ctx, cmd_name)
