"""In which order entries wait, and which running ones others may take GPUs from."""

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush, merge
from itertools import islice
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from patchlight.controller.jobs.discipline.contract import EPSILON_S, OrderTraits, QueueEntry, Site
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Waiting

E = TypeVar("E", bound=QueueEntry)
Place = tuple[int, float, int, E]
"""Minus an entry's priority, what the order policy says of it, its index: the lowest is next."""
Standing = tuple[int, float]
"""An entry's priority, and minus what the order policy says: the lowest is the furthest behind."""

StandingOf = Callable[[E], Standing]
"""How an entry stands now."""

# A rise is looked for a little early: sums of GPU-seconds are rounded.
_EARLY_S = 1e-3


class WaitingLine(Generic[E]):
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


class Victims(Protocol[E]):
    """Running entries that may be preempted, the one that is furthest behind first."""

    def started(self, entry: E) -> None:
        """An entry has begun to run."""

    def behind(self, standing: Standing) -> Iterator[E]:
        """The entries behind that which have run for the quantum.

        The furthest behind first, of equals the one that came last.
        """


def victims_of(
    site: Site[E, Any], standing: StandingOf[E], quantum_s: float, rises_at: Sequence[float] | None
) -> Victims[E]:
    """Those of a site; ``rises_at`` is the order policy's, ``None`` if it says nothing."""
    if rises_at is None:
        return _AskedAboutAll(site, standing, quantum_s)
    return _AskedAboutFew(site, standing, quantum_s, rises_at)


class _AskedAboutAll(Generic[E]):
    def __init__(self, site: Site[E, Any], standing: StandingOf[E], quantum_s: float) -> None:
        self._site, self._standing, self._quantum_s = site, standing, quantum_s

    def started(self, entry: E) -> None:
        pass

    def behind(self, standing: Standing) -> Iterator[E]:
        latest_s = self._site.now_s - self._quantum_s + EPSILON_S
        asked = [
            (self._standing(entry), -entry.index, entry)
            for entry in self._site.running.values()
            if entry.began_s <= latest_s and entry.preemptible
        ]
        found = sorted(each for each in asked if each[0] < standing)
        return (entry for _, _, entry in found)


class _Bound(NamedTuple, Generic[E]):
    """An entry that runs since ``began_s`` is not further behind than this; the lowest is first.

    ``asked_s`` is when the policy was asked.
    """

    standing: Standing
    minus_index: int
    asked_s: float
    began_s: float
    entry: E


class _AskedAboutFew(Generic[E]):
    """Keeps for each entry how it stood when the policy was last asked about it.

    Until the entry passes one of ``rises_at`` it is no further behind, so nobody needs to be
    asked about who was not behind far enough then.
    """

    def __init__(
        self,
        site: Site[E, Any],
        standing: StandingOf[E],
        quantum_s: float,
        rises_at: Sequence[float],
    ) -> None:
        self._site, self._standing, self._quantum_s = site, standing, quantum_s
        self._rises_at = _ascending(rises_at)
        self._fresh: deque[tuple[float, E]] = deque()
        self._bounds: list[_Bound[E]] = []
        self._rising: list[tuple[float, int, _Bound[E]]] = []
        self._latest: dict[int, _Bound[E]] = {}
        self._given: list[_Bound[E]] = []

    def started(self, entry: E) -> None:
        if entry.preemptible:
            self._fresh.append((entry.began_s, entry))

    def behind(self, standing: Standing) -> Iterator[E]:
        now_s, bounds = self._site.now_s, self._bounds
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
        """Look at who has run for the quantum now, or may be further behind than before."""
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
        if entry.index in self._site.running and entry.began_s == bound.began_s:
            return True
        del self._latest[entry.index]
        return False

    def _ask(self, entry: E) -> None:
        now_s = self._site.now_s
        bound = _Bound(self._standing(entry), -entry.index, now_s, entry.began_s, entry)
        self._latest[entry.index] = bound
        heappush(self._bounds, bound)
        attained_gpu_s = entry.progress(now_s, known=False).attained_gpu_s
        passed = bisect_right(self._rises_at, attained_gpu_s)
        if passed < len(self._rises_at):
            away_s = (self._rises_at[passed] - attained_gpu_s) / entry.workers
            heappush(self._rising, (now_s + away_s - _EARLY_S, entry.index, bound))


def _ascending(amounts: Sequence[float]) -> list[float]:
    try:
        found = [float(amount) for amount in amounts]
    except (TypeError, ValueError):
        found = [math.nan]
    if found != sorted(found) or any(math.isnan(amount) for amount in found):
        raise BadInput(
            f"an order policy's rises_at cannot be {amounts!r}: expected GPU-seconds, ascending"
        )
    return found
