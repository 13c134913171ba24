"""What a network's parts cost and draw, by a price list that users may replace."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import yaml

from patchlight.testbed.errors import BadInput

BUILT_IN = Path(__file__).with_name("prices.yaml")


class Price(NamedTuple):
    """One part's price in US dollars, its power in watts, and who says so."""

    usd: float
    watts: float
    source: str


def read_prices(file: Path = BUILT_IN) -> dict[str, Price]:
    """The price list in a YAML file: for each part ``usd``, ``watts`` and ``source``.

    ``BadInput`` if it cannot be read, or says something else.
    """
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadInput(f"cannot read the price list {file}: {error}") from error
    if not isinstance(given, dict):
        raise BadInput(f"{file} is no price list: expected parts, each with usd, watts and source")
    found = {}
    for part, row in given.items():
        if not isinstance(row, dict) or set(row) != set(Price._fields):
            raise BadInput(f"{file}: {part}: expected usd, watts and source, and nothing else")
        for key in ("usd", "watts"):
            value = row[key]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 <= value < math.inf:
                raise BadInput(f"{file}: {part}: {key}: {value!r}: expected a number, 0 or more")
        found[str(part)] = Price(float(row["usd"]), float(row["watts"]), str(row["source"]))
    return found


def totals(parts: Mapping[str, float], prices: Mapping[str, Price]) -> tuple[float, float]:
    """US dollars and watts of so many parts; ``BadInput`` if the list lacks one."""
    if missing := sorted(set(parts) - set(prices)):
        raise BadInput(
            f"the price list has no {', '.join(missing)}", hint="copy the built-in one, and add it"
        )
    usd = sum(count * prices[part].usd for part, count in parts.items())
    return usd, sum(count * prices[part].watts for part, count in parts.items())
