"""The map of one optical circuit switch: directed cross-connects from inputs to outputs.

A fibre pair plugged into port *n* of a switch brings light in at ``in:n`` and takes it
away at ``out:n``. A cross-connect joins one input to one output; a duplex circuit between
ports *a* and *b* is the two cross-connects ``a>b`` and ``b>a``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

from patchlight.testbed.errors import BadInput

_ONE_WAY = re.compile(r"[0-9]{1,9}>[0-9]{1,9}")
_WRITTEN = re.compile(r"(?P<inp>[0-9]{1,9})\s*(?P<way>[->])\s*(?P<out>[0-9]{1,9})")


class CrossConnect(NamedTuple):
    """Light entering at ``in:inp`` leaves at ``out:out`` (ports count from 1)."""

    inp: int
    out: int

    def __str__(self) -> str:
        return f"{self.inp}>{self.out}"

    @property
    def reverse(self) -> CrossConnect:
        """The other direction of a duplex circuit."""
        return CrossConnect(self.out, self.inp)


def parse_cross_connects(text: str) -> tuple[CrossConnect, ...]:
    """``"1-7"`` → ``1>7`` and ``7>1``; ``"2>8"`` → itself; ``BadInput`` for all else."""
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
            f"{text!r} sends light back where it came from: expected two different ports"
        )
    return one_way, one_way.reverse


class JoinsPorts(Protocol):
    """One entry of a switch's map: light from ``in:inp`` to ``out:out``."""

    @property
    def inp(self) -> int:
        """The input's number."""

    @property
    def out(self) -> int:
        """The output's number."""

    @property
    def reverse(self) -> Self:
        """The other direction, between the same ports."""


C = TypeVar("C", bound=JoinsPorts)


@dataclass(frozen=True)
class MapChange(Generic[C]):
    """The smallest change from one map to another: what to break, then what to make."""

    breaks: tuple[C, ...] = ()
    makes: tuple[C, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.breaks or self.makes)

    @property
    def inverse(self) -> MapChange[C]:
        """The change that undoes this one."""
        return MapChange(breaks=self.makes, makes=self.breaks)

    @property
    def ports(self) -> frozenset[int]:
        """Every port number, on either side, that the change touches."""
        touched = (*self.breaks, *self.makes)
        return frozenset(p for c in touched for p in (c.inp, c.out))


PortMapChange = MapChange[CrossConnect]


@dataclass(frozen=True)
class PortMap:
    """Which output each connected input leads to. A value: every change gives a new map."""

    _cross_connects: tuple[CrossConnect, ...] = ()

    @classmethod
    def of(cls, cross_connects: Iterable[CrossConnect | tuple[int, int]]) -> PortMap:
        """A map of these cross-connects; ``BadInput`` if an input or output is used twice."""
        pairs = [c if isinstance(c, CrossConnect) else CrossConnect(*c) for c in cross_connects]
        once = {c.inp: c.out for c in pairs}  # a third of what dict() takes for such pairs
        if len(once) == len(pairs) == len(set(once.values())):
            return cls(tuple(sorted(pairs)))
        # Something is there twice: as a whole, or an input or output of it.
        out_of: dict[int, int] = {}
        taken: dict[int, int] = {}
        for inp, out in pairs:
            if out_of.get(inp, out) != out:
                raise BadInput(f"in:{inp} is used twice: {inp}>{out_of[inp]} and {inp}>{out}")
            if taken.get(out, inp) != inp:
                raise BadInput(f"out:{out} is used twice: {taken[out]}>{out} and {inp}>{out}")
            out_of[inp], taken[out] = out, inp
        return cls(tuple(sorted(set(pairs))))

    @classmethod
    def duplex(cls, pairs: Iterable[tuple[int, int]]) -> PortMap:
        """The map of these two-way circuits: ``(a, b)`` gives ``a>b`` and ``b>a``."""
        return cls.of(c for a, b in pairs for c in ((a, b), (b, a)))

    @classmethod
    def parse(cls, texts: Iterable[str]) -> PortMap:
        """The map written as ``["1-7", "2>8"]``: ``a-b`` both ways, ``a>b`` one way."""
        cross_connects: list[CrossConnect | tuple[int, int]] = []
        for text in texts:
            if _ONE_WAY.fullmatch(text):
                inp, _, out = text.partition(">")
                cross_connects.append((int(inp), int(out)))
            else:
                cross_connects += parse_cross_connects(text)
        return cls.of(cross_connects)

    @property
    def texts(self) -> tuple[str, ...]:
        """The shortest way to write this map so that ``parse`` reads it back equal."""
        here = set(self._cross_connects)
        written: list[str] = []
        for inp, out in self._cross_connects:
            if inp != out and (out, inp) in here:
                if inp < out:
                    written.append(f"{inp}-{out}")
            else:
                written.append(f"{inp}>{out}")
        return tuple(written)

    @cached_property
    def one_way_texts(self) -> Sequence[str]:
        """Every cross-connect as ``"1>7"``, in order of inputs."""
        return tuple(f"{inp}>{out}" for inp, out in self._cross_connects)

    def __iter__(self) -> Iterator[CrossConnect]:
        return iter(self._cross_connects)

    def __len__(self) -> int:
        return len(self._cross_connects)

    def __contains__(self, cross_connect: CrossConnect) -> bool:
        at = bisect_left(self._cross_connects, cross_connect)
        return self._cross_connects[at : at + 1] == (cross_connect,)

    @property
    def out_of(self) -> Mapping[int, int]:
        """Output by input."""
        return {c.inp: c.out for c in self._cross_connects}

    @property
    def in_of(self) -> Mapping[int, int]:
        """Input by output."""
        return {c.out: c.inp for c in self._cross_connects}

    def diff(self, wanted: PortMap) -> PortMapChange:
        """The smallest change that turns this map into ``wanted``: O(circuits), not ports²."""
        have, want = set(self._cross_connects), set(wanted._cross_connects)
        # Filtered in the order they have: sorting what is left would cost more.
        return PortMapChange(
            breaks=tuple(c for c in self._cross_connects if c not in want),
            makes=tuple(c for c in wanted._cross_connects if c not in have),
        )

    def without(self, cross_connects: Iterable[CrossConnect]) -> PortMap:
        """This map less these, as far as it has them."""
        gone = frozenset(cross_connects)
        return PortMap(tuple(c for c in self._cross_connects if c not in gone))

    def apply(self, change: PortMapChange) -> PortMap:
        """This map after ``change``; ``BadInput`` if it breaks what is not there or clashes."""
        have = set(self._cross_connects)
        for cross_connect in change.breaks:
            if cross_connect not in have:
                raise BadInput(f"cannot break {cross_connect}: it is not connected")
            have.remove(cross_connect)
        return PortMap.of([*have, *change.makes])

    def joined(self, additions: PortMap) -> PortMap:
        """This map with ``additions`` made, whatever stood in their way broken."""
        inputs, outputs = set(additions.out_of), set(additions.in_of)
        kept = (c for c in self._cross_connects if c.inp not in inputs and c.out not in outputs)
        return PortMap.of([*kept, *additions._cross_connects])

    def check(self, port_count: int) -> None:
        """Raise ``BadInput`` if a cross-connect names a port outside 1…``port_count``."""
        for inp, out in self._cross_connects:
            if not (1 <= inp <= port_count and 1 <= out <= port_count):
                port = out if 1 <= inp <= port_count else inp
                raise BadInput(f"cross-connect {inp}>{out}: port {port} is outside 1–{port_count}")
