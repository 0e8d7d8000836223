"""Numbers on the command line, within bounds, and written as everywhere else: in settings an underscore is no digit either."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """As `click.FloatRange`, which lets `nan` through: it is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; what is none is wrong usage."""
        _check_written(self, value, param, ctx)
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number


class CountRange(click.IntRange):
    """The same for whole numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number; what is none is wrong usage."""
        _check_written(self, value, param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


def _check_written(kind: click.ParamType[Any], value: Any, param: click.Parameter | None, ctx: click.Context | None) -> None:
    """Python itself reads 1_000 as a thousand."""
    if isinstance(value, str) and "_" in value:
        kind.fail(f"{value!r} is not a number: write it without underscores.", param, ctx)
