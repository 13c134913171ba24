"""What a lab file lists, as far as it could be read."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from patchlight.testbed.io.groups import Fields
from patchlight.testbed.io.issues import Located

T = TypeVar("T")

SWITCHES = ("packet_switches", "circuit_switches", "wavelength_switches", "passive_parts")
"""The lists of what fibres end on, but for servers."""


def items(fields: Fields, key: str) -> list[Fields]:
    """The items of a list; none where there is no such key."""
    return [item.value for item in fields[key].value] if key in fields else []


def value_of(fields: Fields, key: str, default: Any) -> Any:
    """The value of a key."""
    return fields[key].value if key in fields else default


def devices(lab: Fields) -> list[Fields]:
    """Everything that has ports."""
    return [device for kind in ("servers", *SWITCHES) for device in items(lab, kind)]


def repeated(values: Iterable[Located[T]]) -> Iterator[tuple[Located[T], Located[T]]]:
    """Each value that was there before, and where it was first."""
    first: dict[T, Located[T]] = {}
    for value in values:
        before = first.setdefault(value.value, value)
        if before is not value:
            yield value, before
