"""What a network's parts cost and draw, by a price list that users may replace."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from patchlight.testbed.errors import BadInput

BUILT_IN = Path(__file__).with_name("prices.yaml")
_DASHES = ("–", "-")


class Price(NamedTuple):
    """One part's price in US dollars and its power in watts, and who says so.

    Text that begins with a dash says why nobody knows.
    """

    usd: float | str
    watts: float | str
    source: str


class Total(NamedTuple):
    """What parts come to whose figure is known, and why it is not of the others, by part.

    ``known`` is ``None`` where that is none of them.
    """

    known: float | None
    unknown: Mapping[str, str]


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
        usd, watts = (_figure(f"{file}: {part}: {key}", row[key]) for key in ("usd", "watts"))
        found[str(part)] = Price(usd, watts, str(row["source"]))
    return found


def _figure(place: str, value: Any) -> float | str:
    if isinstance(value, str) and value.startswith(_DASHES) and value.strip("–- "):
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise BadInput(
            f"{place}: {value!r}: expected a number, 0 or more, or a dash and why there is none"
        )
    return float(value)


def totals(parts: Mapping[str, float], prices: Mapping[str, Price]) -> tuple[Total, Total]:
    """US dollars and watts of so many parts; ``BadInput`` if the list lacks one."""
    if missing := sorted(set(parts) - set(prices)):
        raise BadInput(
            f"the price list has no {', '.join(missing)}", hint="copy the built-in one, and add it"
        )
    return (
        _total(parts, {part: prices[part].usd for part in parts}),
        _total(parts, {part: prices[part].watts for part in parts}),
    )


def _total(parts: Mapping[str, float], figures: Mapping[str, float | str]) -> Total:
    known = [parts[part] * each for part, each in figures.items() if not isinstance(each, str)]
    unknown = {part: each for part, each in figures.items() if isinstance(each, str)}
    return Total(sum(known) if known else None, unknown)
