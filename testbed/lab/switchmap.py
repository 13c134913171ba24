"""What the maps of all optical switches have in common, whatever an entry of them is.

``portmap.py`` has the map of a circuit switch, ``spectrum.py`` that
of a wavelength switch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, Self, TypeVar

from patchlight.testbed.errors import BadInput


class JoinsPorts(Protocol):
    """One entry of a switch's map: light from ``in:inp`` to ``out:out``. Sorted by these."""

    @property
    def inp(self) -> int:
        """The input's number."""

    @property
    def out(self) -> int:
        """The output's number."""

    @property
    def reverse(self) -> Self:
        """The other direction, between the same ports."""

    def __lt__(self, other: Any, /) -> bool: ...


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


@dataclass(frozen=True)
class SwitchMap(Generic[C]):
    """The entries of one switch, in order. A value: every change gives a new map."""

    _entries: tuple[C, ...] = ()

    @classmethod
    def of(cls, entries: Iterable[C]) -> Self:
        """A map of these; ``BadInput`` naming both where two of them clash."""
        raise NotImplementedError

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Self:
        """The map written as these texts; ``BadInput`` where one is no entry."""
        raise NotImplementedError

    def clashing(self, others: Self) -> tuple[C, ...]:
        """Those entries that cannot stand beside the entries of ``others``, or are the same."""
        raise NotImplementedError

    @property
    def texts(self) -> tuple[str, ...]:
        """The shortest way to write this map so that ``parse`` reads it back equal."""
        here, written = set(self._entries), list[str]()
        for entry in self._entries:
            if entry.inp == entry.out or entry.reverse not in here:
                written.append(str(entry))
            elif entry.inp < entry.out:
                written.append(str(entry).replace(">", "-", 1))
        return tuple(written)

    @cached_property
    def one_way_texts(self) -> Sequence[str]:
        """Every entry by itself, as ``"1>7"``, in order of inputs."""
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
        have, want = set(self._entries), set(wanted._entries)
        # Filtered in the order they have: sorting what is left would cost more.
        return MapChange(
            breaks=tuple(entry for entry in self._entries if entry not in want),
            makes=tuple(entry for entry in wanted._entries if entry not in have),
        )

    def without(self, entries: Iterable[C]) -> Self:
        """This map less these, as far as it has them."""
        gone = frozenset(entries)
        return type(self)(tuple(entry for entry in self._entries if entry not in gone))

    def apply(self, change: MapChange[C]) -> Self:
        """This map after ``change``; ``BadInput`` if it breaks what is not there or clashes."""
        have = set(self._entries)
        for entry in change.breaks:
            if entry not in have:
                raise BadInput(f"cannot break {entry}: it is not connected")
            have.remove(entry)
        return self.of([*have, *change.makes])

    def joined(self, additions: Self) -> Self:
        """This map with ``additions`` made, whatever stood in their way broken."""
        return self.of([*self.without(self.clashing(additions)), *additions])


AnyMap = SwitchMap[Any]
"""The map of a circuit switch or of a wavelength switch."""
