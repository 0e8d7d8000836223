"""A number on the command line, within bounds that `nan` does not slip through."""

from __future__ import annotations

import math
from typing import Any

import click


class NumberRange(click.FloatRange):
    """As `click.FloatRange`, which lets `nan` through: it is neither below nor above anything."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; what is none is wrong usage."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not a number.", param, ctx)
        return number
