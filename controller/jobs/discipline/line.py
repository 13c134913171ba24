"""Entries that wait, in order: all in one line, or in a line for each user."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from typing import Generic, TypeVar

from patchlight.controller.jobs.discipline.contract import Entry, OrderTraits
from patchlight.testbed.lab.queueing import Waiting

E = TypeVar("E", bound=Entry)
Place = tuple[int, float, int, E]
"""Minus an entry's priority, what the order policy says of it, its index: the lowest is next."""
Standing = tuple[int, float]
"""An entry's priority, and minus what the order policy says: the lowest is the furthest behind."""


class Line(Generic[E]):
    """The waiting in order. With ``apart`` each user's stand in a line of their own.

    Such a line may be shut for a pass without holding up the others. If the order policy goes
    by the user alone, it is asked once for each line; it is asked again about all that wait in
    each pass if it is not stable, else about each that joins. ``changes``: passes have to begin.
    """

    def __init__(self, rank: Callable[[E], float], order: OrderTraits, apart: bool) -> None:
        self._rank, self._by_user = rank, order.by_user
        self._apart = apart or order.by_user
        self._stable = order.stable or order.by_user
        self.changes = self._apart or not self._stable
        self._one: list[Place[E]] = []
        self._lines: dict[str, list[Place[E]]] = {} if self._apart else {"": self._one}
        self._ranks: dict[str, float] = {}
        self._shut: dict[str, Waiting] = {}

    def begin(self) -> None:
        """A new pass: all lines are open, and ranks are those of now."""
        if self._apart:
            self._shut.clear()
            self._ranks.clear()
        if not self._stable:
            for places in self._lines.values():
                places[:] = sorted(self._place(place[3]) for place in places)

    def standing(self, entry: E) -> Standing:
        """How an entry stands now, whether it waits or runs."""
        return entry.priority, -self._rank(entry)

    def first(self) -> Place[E] | None:
        """Who is next, of the lines that are open."""
        if not self._apart:
            return self._one[0] if self._one else None
        heads = (places[0] for places in self._open())
        return min(heads, key=self._turn, default=None)

    def some(self, count: int) -> list[Place[E]]:
        """The first so many, of the lines that are open."""
        if not self._apart:
            return self._one[:count]
        return list(islice(merge(*self._open(), key=self._turn), count))

    def add(self, entry: E) -> None:
        """One more waits."""
        if self._apart:
            insort(self._lines.setdefault(entry.user, []), self._place(entry))
        else:
            insort(self._one, (-entry.priority, self._rank(entry), entry.index, entry))

    def remove(self, place: Place[E]) -> None:
        """Somebody does not wait any more."""
        places = self._lines[place[3].user] if self._apart else self._one
        del places[0 if places[0] is place else bisect_left(places, place)]
        if self._apart and not places:
            del self._lines[place[3].user]

    def shut(self, user: str, why: Waiting) -> None:
        """None of this user's may start in this pass."""
        self._shut[user] = why

    def is_shut(self, user: str) -> bool:
        """Whether the first of this user's was looked at, and may not start."""
        return user in self._shut

    def all(self) -> Iterator[tuple[Place[E], Waiting | None]]:
        """Everybody in turn; the first in each line that is shut with the reason."""
        for place in merge(*self._lines.values(), key=self._turn):
            user = place[3].user
            is_first = user in self._shut and self._lines[user][0] is place
            yield place, self._shut[user] if is_first else None

    def _open(self) -> list[list[Place[E]]]:
        return [places for user, places in self._lines.items() if user not in self._shut]

    def _place(self, entry: E) -> Place[E]:
        rank = 0.0 if self._by_user else self._rank(entry)
        return -entry.priority, rank, entry.index, entry

    def _turn(self, place: Place[E]) -> tuple[int, float, int]:
        minus_priority, rank, index, entry = place
        if self._by_user:
            user = entry.user
            rank = self._ranks[user] if user in self._ranks else self._rank(entry)
            self._ranks[user] = rank
        return minus_priority, rank, index
