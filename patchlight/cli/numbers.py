"""Numbers on the command line: finite ones, between bounds."""

import math
from typing import Any

import click


class FiniteFloat(click.FloatRange):
    """A range that ``nan`` and infinities, which Python reads as numbers, are outside of."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; a usage error for what is none."""
        if isinstance(value, str) and not value.isascii():
            self.fail(f"{value!r} is not a number", param, ctx)
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


AT_LEAST_0 = FiniteFloat(min=0)
ANY = FiniteFloat()
