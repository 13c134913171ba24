"""Max-min fair rates of sessions; a change recomputes only the rates that it touches.

A *session* moves bits at one rate over all its links at once: a flow over its path, or the edges
of a collective that move in step. On a link that it uses several times it takes as many shares.

Rates are max-min fair exactly if each session has a *bottleneck*: a link that is full, and on
which no session is faster (Bertsekas and Gallager, *Data Networks*, 1992, §6.5.2). So where
sessions come or go, those that may change are filled progressively while all others keep their
rates; then every session on the links of those is looked at, and one that has lost its bottleneck,
or that holds up a slower one, is filled with them. When none is found, the rates are those that
filling all of them would have given.
"""

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Loop = TypeVar("Loop", bound=Callable[..., Any])

_numba: Any = None
with suppress(ImportError):
    _numba = import_module("numba")


def compiled(loop: Loop) -> Loop:
    """The loop as machine code, kept on disk for the next process; itself without Numba."""
    if _numba is None:
        return loop
    made: Loop
    try:
        made = _numba.njit(
            cache=True,
            error_model="numpy",
        )(loop)
    except (
        RuntimeError
    ):  # Neither the package's folder nor the user's can be written to.
        made = _numba.njit(error_model="numpy")(loop)
    return made


# A binary heap of numbered items whose keys may change: ``keys[item]`` is an item's key,
# ``heap[:size]`` are the items, ``places[item]`` is where in it an item is, −1 if nowhere. Of equal
# keys the lower item comes first, so that runs are the same every time.
@compiled
def put(
    keys: Any,
    heap: Any,
    places: Any,
    size: int,
    item: int,
    key: float,
) -> int:
    """Put an item in, or give it another key; how many are in now."""
    keys[item] = key
    place = places[item]
    if place < 0:
        place = size
        size += 1
    # Up as far as it is sooner than what is above, then down as far as it is later.
    while place > 0:
        above = (place - 1) >> 1
        other = heap[above]
        if keys[other] < key or (keys[other] == key and other < item):
            break
        heap[place] = other
        places[other] = place
        place = above
    while True:
        below = 2 * place + 1
        if below >= size:
            break
        other = heap[below]
        if below + 1 < size:
            right = heap[below + 1]
            if keys[right] < keys[other] or (
                keys[right] == keys[other] and right < other
            ):
                below += 1
                other = right
        if key < keys[other] or (key == keys[other] and item < other):
            break
        heap[place] = other
        places[other] = place
        place = below
    heap[place] = item
    places[item] = place
    return size


@compiled
def drop(
    keys: Any,
    heap: Any,
    places: Any,
    size: int,
    item: int,
) -> int:
    """Take an item out if it is in; how many are left."""
    place = places[item]
    if place < 0:
        return size
    places[item] = -1
    size -= 1
    moved = heap[size]
    if moved != item:
        heap[place] = moved
        places[moved] = place
        put(
            keys,
            heap,
            places,
            size,
            moved,
            keys[moved],
        )
    return size


Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Rates that differ by less are the same: sums of floating-point numbers are not exact.
_SAME = 1e-9
_NOWHERE = -1


class Sharing(NamedTuple):
    """Links, the sessions that may use them, and their rates now. Memory is linear in their slots.

    Session s uses the links ``links[first[s]:first[s + 1]]``, each ``weights`` times; a place in
    that list is a *slot*. Slots of the sessions on a link are chained from ``heads[link]``.
    """

    capacity_bps: Floats
    first: Ints
    links: Ints
    weights: Floats
    owners: Ints
    heads: Ints
    following: Ints
    preceding: Ints
    rates_bps: Floats
    before_bps: Floats
    bottlenecks: Ints
    changing: Ints
    is_changing: Ints
    is_frozen: Ints
    touched: Ints
    is_touched: Ints
    spare_bps: Floats
    wanted: Floats
    left_bps: Floats
    shares: Floats
    fastest_bps: Floats
    level_bps: Floats
    heap: Ints
    places: Ints


def sharing(
    capacity_bps: Floats,
    first: Ints,
    links: Ints,
    weights: Floats,
) -> Sharing:
    """These sessions on these links, none of them begun yet."""
    sessions = len(first) - 1
    slots = len(links)
    count = len(capacity_bps)

    def numbers(size: int, value: int = 0) -> Ints:
        return np.full(size, value, np.int64)

    return Sharing(
        capacity_bps=capacity_bps,
        first=first,
        links=links,
        weights=weights,
        owners=np.repeat(np.arange(sessions, dtype=np.int64), np.diff(first)),
        heads=numbers(count, _NOWHERE),
        following=numbers(slots, _NOWHERE),
        preceding=numbers(slots, _NOWHERE),
        rates_bps=np.zeros(sessions),
        before_bps=np.zeros(sessions),
        bottlenecks=numbers(sessions, _NOWHERE),
        changing=numbers(sessions),
        is_changing=numbers(sessions),
        is_frozen=numbers(sessions),
        touched=numbers(count),
        is_touched=numbers(count),
        spare_bps=np.zeros(count),
        wanted=np.zeros(count),
        left_bps=np.zeros(count),
        shares=np.zeros(count),
        fastest_bps=np.zeros(count),
        level_bps=np.zeros(count),
        heap=numbers(count),
        places=numbers(count, _NOWHERE),
    )


@compiled
def _mark(
    s: Any,
    session: int,
    count: int,
) -> int:
    """Mark a session's rate for recomputing; how many are marked."""
    if s.is_changing[session]:
        return count
    s.is_changing[session] = 1
    s.before_bps[session] = s.rates_bps[session]
    s.changing[count] = session
    return count + 1


@compiled
def begin(
    s: Any,
    session: int,
    count: int,
) -> int:
    """Put a session on its links; ``count`` sessions are to change already; how many are now."""
    for slot in range(s.first[session], s.first[session + 1]):
        link = s.links[slot]
        head = s.heads[link]
        s.following[slot] = head
        s.preceding[slot] = -1
        if head >= 0:
            s.preceding[head] = slot
        s.heads[link] = slot
    return _mark(s, session, count)


@compiled
def leave(s: Any, session: int) -> None:
    """Take a session off its links. All that end at once do so before any is ``released``."""
    for slot in range(s.first[session], s.first[session + 1]):
        before = s.preceding[slot]
        after = s.following[slot]
        if before >= 0:
            s.following[before] = after
        else:
            s.heads[s.links[slot]] = after
        if after >= 0:
            s.preceding[after] = before
    s.rates_bps[session] = 0.0
    s.bottlenecks[session] = -1


@compiled
def release(
    s: Any,
    session: int,
    count: int,
) -> int:
    """Mark the sessions that one that left had held up; how many are to change now."""
    for slot in range(s.first[session], s.first[session + 1]):
        link = s.links[slot]
        other = s.heads[link]
        while other >= 0:
            if s.bottlenecks[s.owners[other]] == link:
                count = _mark(s, s.owners[other], count)
            other = s.following[other]
    return count


@compiled
def resize(
    s: Any,
    link: int,
    capacity_bps: float,
    count: int,
) -> int:
    """Give a link another capacity, 0 if it fails; how many sessions are to change now."""
    s.capacity_bps[link] = capacity_bps
    slot = s.heads[link]
    while slot >= 0:
        count = _mark(s, s.owners[slot], count)
        slot = s.following[slot]
    return count


@compiled
def _touch(
    s: Any,
    known: int,
    count: int,
    links: int,
) -> int:
    """Recompute the links of those marked after the first ``known``; how many links now.

    ``spare_bps`` is what those that keep their rates leave of a link, ``wanted`` how many shares
    those that change take of it.
    """
    for number in range(known, count):
        session = s.changing[number]
        for slot in range(s.first[session], s.first[session + 1]):
            link = s.links[slot]
            if s.is_touched[link]:
                # One of this round, or of those that kept their rate on it until now.
                if s.is_touched[link] == 1:
                    s.spare_bps[link] += (
                        s.weights[slot] * s.before_bps[session]
                    )
            else:
                s.is_touched[link] = 2
                s.touched[links] = link
                links += 1
                s.wanted[link] = 0.0
                s.spare_bps[link] = s.capacity_bps[link]
                other = s.heads[link]
                while other >= 0:
                    owner = s.owners[other]
                    if not s.is_changing[owner]:
                        s.spare_bps[link] -= (
                            s.weights[other] * s.rates_bps[owner]
                        )
                    other = s.following[other]
            s.wanted[link] += s.weights[slot]
    for number in range(links):
        s.is_touched[s.touched[number]] = 1
    return links


@compiled
def _fill(
    s: Any,
    count: int,
    links: int,
) -> None:
    """Let the rates of those that change rise together until each is held up by a full link."""
    for number in range(count):
        s.is_frozen[s.changing[number]] = 0
    size = 0
    for number in range(links):
        link = s.touched[number]
        s.left_bps[link] = s.spare_bps[link]
        s.shares[link] = s.wanted[link]
        level_bps = max(0.0, s.spare_bps[link]) / s.wanted[link]
        size = put(
            s.level_bps,
            s.heap,
            s.places,
            size,
            link,
            level_bps,
        )
    while size:
        full = s.heap[0]
        if s.shares[full] < 0.5:
            size = drop(
                s.level_bps,
                s.heap,
                s.places,
                size,
                full,
            )
            continue
        # The level at which a link is full rises as others of its sessions stop: a key in the heap
        # is a lower bound, and is brought up to date when it comes to the top.
        level_bps = max(0.0, s.left_bps[full]) / s.shares[full]
        if level_bps > s.level_bps[full]:
            size = put(
                s.level_bps,
                s.heap,
                s.places,
                size,
                full,
                level_bps,
            )
            if s.heap[0] != full:
                continue
        level_bps = s.level_bps[full]
        slot = s.heads[full]
        while slot >= 0:
            session = s.owners[slot]
            if s.is_changing[session] and not s.is_frozen[session]:
                s.is_frozen[session] = 1
                s.rates_bps[session] = level_bps
                s.bottlenecks[session] = full
                for mine in range(s.first[session], s.first[session + 1]):
                    s.left_bps[s.links[mine]] -= s.weights[mine] * level_bps
                    s.shares[s.links[mine]] -= s.weights[mine]
            slot = s.following[slot]
        size = drop(
            s.level_bps,
            s.heap,
            s.places,
            size,
            full,
        )


@compiled
def _look(
    s: Any,
    links: int,
    count: int,
) -> int:
    """Mark sessions whose bottleneck is no longer full, and those that hold up slower ones."""
    for number in range(links):
        link = s.touched[number]
        used_bps = 0.0
        fastest_bps = 0.0
        slot = s.heads[link]
        while slot >= 0:
            rate_bps = s.rates_bps[s.owners[slot]]
            used_bps += s.weights[slot] * rate_bps
            fastest_bps = max(fastest_bps, rate_bps)
            slot = s.following[slot]
        s.fastest_bps[link] = fastest_bps
        # Negative where the link is not full: then it is nobody's bottleneck.
        s.left_bps[link] = s.capacity_bps[link] - used_bps
    found = count
    for number in range(links):
        link = s.touched[number]
        full = s.left_bps[link] <= _SAME * s.capacity_bps[link]
        fastest_bps = s.fastest_bps[link]
        slowest_bps = np.inf  # Of those that changed and are held up here.
        slot = s.heads[link]
        while slot >= 0:
            session = s.owners[slot]
            if s.bottlenecks[session] == link:
                if s.is_changing[session]:
                    slowest_bps = min(slowest_bps, s.rates_bps[session])
                elif not full or s.rates_bps[session] < fastest_bps * (
                    1 - _SAME
                ):
                    found = _mark(s, session, found)
            slot = s.following[slot]
        if slowest_bps >= fastest_bps * (1 - _SAME):
            continue
        slot = s.heads[link]
        while slot >= 0:
            session = s.owners[slot]
            if not s.is_changing[session] and s.rates_bps[
                session
            ] > slowest_bps * (1 + _SAME):
                found = _mark(s, session, found)
            slot = s.following[slot]
    return found


@compiled
def reshare(s: Any, count: int) -> int:
    """Give the ``count`` sessions in ``changing``, and all that this touches, their fair rates.

    How many they are in the end; the rates before are in ``before_bps``. They are marked until
    ``settled``.
    """
    known = links = 0
    while known < count:
        links = _touch(
            s,
            known,
            count,
            links,
        )
        known = count
        _fill(s, known, links)
        count = _look(s, links, known)
    for number in range(links):
        s.is_touched[s.touched[number]] = 0
    return count


@compiled
def settled(s: Any, count: int) -> None:
    """Forget which sessions changed."""
    for number in range(count):
        s.is_changing[s.changing[number]] = 0
