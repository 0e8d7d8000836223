"""Files that a command writes at its end: what would stop that is said before anything is measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from ultrafast.core.errors import ConfigError


class OutFile(click.Path):
    """Type of an option: a path whose folder exists and takes files."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, dir_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Raises ConfigError."""
        path = Path(os.fsdecode(super().convert(value, param, ctx))).expanduser()
        folder = path.parent
        reason = None
        if not folder.is_dir():
            reason = f"there is no folder {folder}"
        elif not os.access(folder if not path.exists() else path, os.W_OK):
            reason = "it may not be written"
        if reason is not None:
            name = param.opts[0] if param is not None else "the file"
            raise ConfigError(f"{name} {path}: {reason}.", hint="Make the folder first, or choose another one.")
        return path
