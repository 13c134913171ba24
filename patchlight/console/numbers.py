"""Numbers on the command line: finite ones, between bounds, and with units."""

import math
from collections.abc import Callable
from typing import Any

import click

from patchlight.testbed.errors import BadInput


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


class Quantity(click.ParamType[Any]):
    """A number with its unit."""

    name = "quantity"

    def __init__(self, parse: Callable[[object], float]) -> None:
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """What ``parse`` makes of it; a usage error for what it refuses."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except BadInput as error:
            self.fail(error.message, param, ctx)


AT_LEAST_0 = FiniteFloat(min=0)
ANY = FiniteFloat()
