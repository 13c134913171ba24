"""The map of one optical circuit switch: directed cross-connects from inputs to outputs.

A fibre pair plugged into port *n* of a switch brings light in at ``in:n`` and takes it
away at ``out:n``. A cross-connect joins one input to one output; a duplex circuit between
ports *a* and *b* is the two cross-connects ``a>b`` and ``b>a``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Self

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.switchmap import JoinsPorts as JoinsPorts
from patchlight.testbed.lab.switchmap import MapChange as MapChange
from patchlight.testbed.lab.switchmap import SwitchMap

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


PortMapChange = MapChange[CrossConnect]


class PortMap(SwitchMap[CrossConnect]):
    """Which output each connected input leads to."""

    @classmethod
    def of(cls, cross_connects: Iterable[CrossConnect | tuple[int, int]]) -> Self:
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
    def duplex(cls, pairs: Iterable[tuple[int, int]]) -> Self:
        """The map of these two-way circuits: ``(a, b)`` gives ``a>b`` and ``b>a``."""
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
        """Those that cannot stand beside ``others``: their input or output is in use."""
        inputs, outputs = set(others.out_of), set(others.in_of)
        return tuple(c for c in self._entries if c.inp in inputs or c.out in outputs)

    def check(self, port_count: int) -> None:
        """Raise ``BadInput`` if a cross-connect names a port outside 1…``port_count``."""
        for inp, out in self._entries:
            if not (1 <= inp <= port_count and 1 <= out <= port_count):
                port = out if 1 <= inp <= port_count else inp
                raise BadInput(f"cross-connect {inp}>{out}: port {port} is outside 1–{port_count}")
