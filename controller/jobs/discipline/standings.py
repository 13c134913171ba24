"""Orders waiting entries, and running ones that may be preempted."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

from patchlight.controller.jobs.discipline.contract import (
    EPSILON_S,
    OrderTraits,
    QueueEntry,
    Site,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Waiting

E = TypeVar("E", bound=QueueEntry)
Place = tuple[int, float, int, E]
"""Minus the priority, the order policy's value, the index, the entry: the lowest is next."""
Standing = tuple[int, float]
"""The priority, and minus the order policy's value: the lowest is the last in order."""

# Rises are expected a little early, because sums of GPU-seconds are rounded.
_EARLY_S = 1e-3


class WaitingLine(Generic[E]):
    """The waiting entries in order; with ``apart`` in one line per user.

    A line can be shut for a pass without blocking others. An order policy by user is called once
    per line; one that is not stable, for all entries in each pass; any other, for each new entry.
    With ``changes`` each pass must ``begin``.
    """

    def __init__(
        self,
        rank: Callable[[E], float],
        order: OrderTraits,
        apart: bool,
    ) -> None:
        self._rank = rank
        self._by_user = order.by_user
        self._apart = apart or order.by_user
        self._stable = order.stable or order.by_user
        self.changes = self._apart or not self._stable
        self._one: list[Place[E]] = []
        self._lines: dict[str, list[Place[E]]] = (
            {} if self._apart else {"": self._one}
        )
        self._ranks: dict[str, float] = {}
        self._shut: dict[str, Waiting] = {}

    def begin(self) -> None:
        """Begin a pass: all lines are open, and ranks are current."""
        if self._apart:
            self._shut.clear()
            self._ranks.clear()
        if not self._stable:
            for places in self._lines.values():
                places[:] = sorted(self._place(place[3]) for place in places)

    def standing(self, entry: E) -> Standing:
        """The standing of an entry now, waiting or running."""
        return entry.priority, -self._rank(entry)

    def first(self) -> Place[E] | None:
        """The next entry of the open lines."""
        if not self._apart:
            return self._one[0] if self._one else None
        return min(
            (places[0] for places in self._open()),
            key=self._turn,
            default=None,
        )

    def some(self, count: int) -> list[Place[E]]:
        """The first entries of the open lines."""
        if not self._apart:
            return self._one[:count]
        return list(islice(merge(*self._open(), key=self._turn), count))

    def add(self, entry: E) -> None:
        """Add a waiting entry."""
        line = (
            self._lines.setdefault(entry.user, [])
            if self._apart
            else self._one
        )
        insort(line, self._place(entry))

    def remove(self, place: Place[E]) -> None:
        """Remove an entry."""
        places = self._lines[place[3].user] if self._apart else self._one
        del places[0 if places[0] is place else bisect_left(places, place)]
        if self._apart and not places:
            del self._lines[place[3].user]

    def shut(self, user: str, why: Waiting) -> None:
        """Shut a user's line for this pass."""
        self._shut[user] = why

    def is_shut(self, user: str) -> bool:
        """Whether a user's line is shut."""
        return user in self._shut

    def all(self) -> Iterator[tuple[Place[E], Waiting | None]]:
        """All in order; the first in each shut line with the reason."""
        for place in merge(*self._lines.values(), key=self._turn):
            user = place[3].user
            is_first = user in self._shut and self._lines[user][0] is place
            yield place, self._shut[user] if is_first else None

    def _open(self) -> list[list[Place[E]]]:
        return [
            places
            for user, places in self._lines.items()
            if user not in self._shut
        ]

    def _place(self, entry: E) -> Place[E]:
        rank = 0.0 if self._by_user else self._rank(entry)
        return -entry.priority, rank, entry.index, entry

    def _turn(self, place: Place[E]) -> tuple[int, float, int]:
        minus_priority, rank, index, entry = place
        if self._by_user:
            user = entry.user
            rank = (
                self._ranks[user] if user in self._ranks else self._rank(entry)
            )
            self._ranks[user] = rank
        return minus_priority, rank, index


class _Bound(NamedTuple, Generic[E]):
    """An entry that runs since ``began_s`` is not further behind than this; the lowest is first."""

    standing: Standing
    minus_index: int
    asked_s: float
    began_s: float
    entry: E


class Victims(Generic[E]):
    """The running entries of a site that may be preempted.

    With the order policy's ``rises_at``, the last standing of each entry is kept. Until the entry
    passes one of these amounts it cannot be further behind, so the policy is not called for entries
    that were not far enough behind.
    """

    def __init__(
        self,
        site: Site[E, Any],
        standing: Callable[[E], Standing],
        quantum_s: float,
        rises_at: Sequence[float] | None,
    ) -> None:
        self._site = site
        self._standing = standing
        self._quantum_s = quantum_s
        try:
            self._rises_at = [float(amount) for amount in rises_at or ()]
        except (TypeError, ValueError):
            self._rises_at = [math.nan]
        ascending = self._rises_at == sorted(self._rises_at)
        if not ascending or any(map(math.isnan, self._rises_at)):
            raise BadInput(
                f"an order policy's rises_at cannot be {rises_at!r}: expected GPU-seconds, "
                "ascending"
            )
        self._asks_about_all = rises_at is None
        self._fresh: deque[tuple[float, E]] = deque()
        self._bounds: list[_Bound[E]] = []
        self._rising: list[tuple[float, int, _Bound[E]]] = []
        self._latest: dict[int, _Bound[E]] = {}
        self._given: list[_Bound[E]] = []

    def started(self, entry: E) -> None:
        """An entry has started."""
        if entry.preemptible and not self._asks_about_all:
            self._fresh.append((entry.began_s, entry))

    def behind(self, standing: Standing) -> Iterator[E]:
        """The entries behind that standing that have run for the quantum, furthest behind first."""
        now_s = self._site.now_s
        bounds = self._bounds
        if self._asks_about_all:
            latest_s = now_s - self._quantum_s + EPSILON_S
            asked = [
                (self._standing(entry), -entry.index, entry)
                for entry in self._site.running.values()
                if entry.began_s <= latest_s and entry.preemptible
            ]
            yield from (
                each[2]
                for each in sorted(
                    each for each in asked if each[0] < standing
                )
            )
            return
        self._catch_up(now_s)
        while bounds and bounds[0].standing < standing:
            bound = heappop(bounds)
            if not self._holds(bound):
                continue
            if bound.asked_s < now_s:
                self._ask(bound.entry)
                continue
            self._given.append(bound)
            yield bound.entry

    def _catch_up(self, now_s: float) -> None:
        for bound in self._given:
            heappush(self._bounds, bound)
        self._given.clear()
        again: list[E] = []
        while self._rising and self._rising[0][0] <= now_s:
            bound = heappop(self._rising)[2]
            if self._holds(bound):
                again.append(bound.entry)
        latest_s = now_s - self._quantum_s + EPSILON_S
        while self._fresh and self._fresh[0][0] <= latest_s:
            began_s, entry = self._fresh.popleft()
            if entry.index in self._site.running and entry.began_s == began_s:
                again.append(entry)
        for entry in again:
            self._ask(entry)

    def _holds(self, bound: _Bound[E]) -> bool:
        entry = bound.entry
        if self._latest.get(entry.index) is not bound:
            return False
        if (
            entry.index in self._site.running
            and entry.began_s == bound.began_s
        ):
            return True
        del self._latest[entry.index]
        return False

    def _ask(self, entry: E) -> None:
        now_s = self._site.now_s
        bound = _Bound(
            self._standing(entry),
            -entry.index,
            now_s,
            entry.began_s,
            entry,
        )
        self._latest[entry.index] = bound
        heappush(self._bounds, bound)
        attained_gpu_s = entry.progress(now_s, known=False).attained_gpu_s
        passed = bisect_right(self._rises_at, attained_gpu_s)
        if passed < len(self._rises_at):
            away_s = (self._rises_at[passed] - attained_gpu_s) / entry.workers
            heappush(
                self._rising, (now_s + away_s - _EARLY_S, entry.index, bound)
            )
