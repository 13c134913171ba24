"""Models the maps of optical switches, and those of circuit switches.

A fibre pair in port *n* of a switch ends at ``in:n`` and ``out:n``. A cross-connect joins one
input to one output; a duplex circuit between ports *a* and *b* is ``a>b`` and ``b>a``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from patchlight.testbed.errors import BadInput


class JoinsPorts(Protocol):
    """One entry of a switch's map: a connection from ``in:inp`` to ``out:out``. Sortable."""

    @property
    def inp(self) -> int:
        """The input's number."""

    @property
    def out(self) -> int:
        """The output's number."""

    @property
    def reverse(self) -> Self:
        """The reverse direction, between the same ports."""

    def __lt__(self, other: Any, /) -> bool: ...


C = TypeVar("C", bound=JoinsPorts)


@dataclass(frozen=True)
class MapChange(Generic[C]):
    """The smallest change between two maps: what to break, then what to make."""

    breaks: tuple[C, ...] = ()
    makes: tuple[C, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.breaks or self.makes)

    @property
    def inverse(self) -> MapChange[C]:
        """The change that undoes this one."""
        return MapChange(
            breaks=self.makes,
            makes=self.breaks,
        )

    @property
    def ports(self) -> frozenset[int]:
        """Every port number, on either side, that the change touches."""
        touched = (*self.breaks, *self.makes)
        return frozenset(p for c in touched for p in (c.inp, c.out))


@dataclass(frozen=True)
class SwitchMap(Generic[C]):
    """The entries of one switch, in order. Immutable: every change returns a new map."""

    _entries: tuple[C, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[C]) -> Self:
        """A map of these; ``BadInput`` names two that conflict."""
        raise NotImplementedError

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """The map of these texts; ``BadInput`` if one is not an entry."""
        raise NotImplementedError

    def clashing(self, others: Self) -> tuple[C, ...]:
        """The entries that conflict with those of ``others``, or are equal."""
        raise NotImplementedError

    @property
    def texts(self) -> tuple[str, ...]:
        """The shortest form of this map that ``parse`` reads back as equal."""
        here = set(self._entries)
        written = list[str]()
        for entry in self._entries:
            if entry.inp == entry.out or entry.reverse not in here:
                written.append(str(entry))
            elif entry.inp < entry.out:
                written.append(str(entry).replace(">", "-", 1))
        return tuple(written)

    @cached_property
    def one_way_texts(self) -> Sequence[str]:
        """Every entry as ``"1>7"``, in order of inputs."""
        return tuple(map(str, self._entries))

    def __iter__(self) -> Iterator[C]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: C) -> bool:
        at = bisect_left(self._entries, entry)
        return self._entries[at : at + 1] == (entry,)

    def diff(self, wanted: Self) -> MapChange[C]:
        """The smallest change that turns this map into ``wanted``: O(entries), not ports²."""
        have = set(self._entries)
        want = set(wanted._entries)
        # Filtered in their order: sorting would cost more.
        return MapChange(
            breaks=tuple(
                entry for entry in self._entries if entry not in want
            ),
            makes=tuple(
                entry for entry in wanted._entries if entry not in have
            ),
        )

    def without(self, entries: Iterable[C]) -> Self:
        """This map without these entries."""
        gone = frozenset(entries)
        return type(self)(
            tuple(entry for entry in self._entries if entry not in gone)
        )

    def apply(self, change: MapChange[C]) -> Self:
        """This map after ``change``; ``BadInput`` if it breaks a missing entry or conflicts."""
        have = set(self._entries)
        for entry in change.breaks:
            if entry not in have:
                raise BadInput(f"cannot break {entry}: it is not connected")
            have.remove(entry)
        return self.of([*have, *change.makes])

    def joined(self, additions: Self) -> Self:
        """This map with ``additions``, without what conflicts with them."""
        return self.of([*self.without(self.clashing(additions)), *additions])


AnyMap = SwitchMap[Any]
"""The map of a circuit switch or of a wavelength switch."""


_ONE_WAY = re.compile(r"[0-9]{1,9}>[0-9]{1,9}")
_WRITTEN = re.compile(
    r"(?P<inp>[0-9]{1,9})\s*(?P<way>[->])\s*(?P<out>[0-9]{1,9})"
)


class CrossConnect(NamedTuple):
    """A signal that enters at ``in:inp`` leaves at ``out:out`` (ports count from 1)."""

    inp: int
    out: int

    def __str__(self) -> str:
        return f"{self.inp}>{self.out}"

    @property
    def reverse(self) -> CrossConnect:
        """The reverse direction of a duplex circuit."""
        return CrossConnect(self.out, self.inp)


def parse_cross_connects(text: str) -> tuple[CrossConnect, ...]:
    """``"1-7"`` → ``1>7`` and ``7>1``; ``"2>8"`` → itself; else ``BadInput``."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise BadInput(
            f"{text!r} is not a cross-connect: expected two ports, like '1-7' for both ways "
            "or '2>8' for one way"
        )
    one_way = CrossConnect(int(match["inp"]), int(match["out"]))
    if match["way"] == ">":
        return (one_way,)
    if one_way.inp == one_way.out:
        raise BadInput(
            f"{text!r} connects a port to itself: expected two different ports"
        )
    return one_way, one_way.reverse


PortMapChange = MapChange[CrossConnect]


class PortMap(SwitchMap[CrossConnect]):
    """Which output each connected input leads to."""

    @classmethod
    def of(
        cls, cross_connects: Iterable[CrossConnect | tuple[int, int]]
    ) -> Self:
        """A map of these cross-connects; ``BadInput`` if an input or output is used twice."""
        pairs = [
            c if isinstance(c, CrossConnect) else CrossConnect(*c)
            for c in cross_connects
        ]
        # A third of what dict() takes for such pairs.
        once = {c.inp: c.out for c in pairs}
        if len(once) == len(pairs) == len(set(once.values())):
            return cls(tuple(sorted(pairs)))
        # A cross-connect, input or output appears twice.
        out_of: dict[int, int] = {}
        taken: dict[int, int] = {}
        for inp, out in pairs:
            if out_of.get(inp, out) != out:
                raise BadInput(
                    f"input port {inp} is used twice: {inp}>{out_of[inp]} and {inp}>{out}"
                )
            if taken.get(out, inp) != inp:
                raise BadInput(
                    f"output port {out} is used twice: {taken[out]}>{out} and {inp}>{out}"
                )
            out_of[inp] = out
            taken[out] = inp
        return cls(tuple(sorted(set(pairs))))

    @classmethod
    def duplex(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """The map of these two-way circuits: ``(a, b)`` becomes ``a>b`` and ``b>a``."""
        return cls.of(c for a, b in pairs for c in ((a, b), (b, a)))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """The map written as ``["1-7", "2>8"]``: ``a-b`` both ways, ``a>b`` one way."""
        cross_connects: list[CrossConnect | tuple[int, int]] = []
        for text in texts:
            if _ONE_WAY.fullmatch(text):
                inp, _, out = text.partition(">")
                cross_connects.append((int(inp), int(out)))
            else:
                cross_connects += parse_cross_connects(text)
        return cls.of(cross_connects)

    @cached_property
    def one_way_texts(self) -> Sequence[str]:
        """Every cross-connect as ``"1>7"``, in order of inputs."""
        return tuple(f"{inp}>{out}" for inp, out in self._entries)

    @cached_property
    def out_of(self) -> Mapping[int, int]:
        """Output by input."""
        return {c.inp: c.out for c in self._entries}

    @cached_property
    def in_of(self) -> Mapping[int, int]:
        """Input by output."""
        return {c.out: c.inp for c in self._entries}

    def clashing(self, others: PortMap) -> tuple[CrossConnect, ...]:
        """Those that conflict with ``others``: their input or output is in use."""
        inputs = set(others.out_of)
        outputs = set(others.in_of)
        return tuple(
            c for c in self._entries if c.inp in inputs or c.out in outputs
        )

    def check(self, port_count: int) -> None:
        """Raise ``BadInput`` if a cross-connect names a port outside 1…``port_count``."""
        for inp, out in self._entries:
            if not (1 <= inp <= port_count and 1 <= out <= port_count):
                port = out if 1 <= inp <= port_count else inp
                raise BadInput(
                    f"cross-connect {inp}>{out}: port {port} is outside 1–{port_count}"
                )
