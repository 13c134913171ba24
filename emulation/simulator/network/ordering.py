"""Orders items that need each other, and finds the shortest cycle where that is impossible."""

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Ordered(NamedTuple):
    """``items`` in an order in which each can be done; those in or behind a cycle are missing.

    ``after`` is what each comes after: what it needs, and the one before it in its lanes. So many
    are ``swapped``: done before one that is ahead of them in a lane, but needs them.
    """

    items: list[int]
    after: list[set[int]]
    swapped: int


def ordered(
    needs: Sequence[set[int]],
    place: Sequence[int],
    lanes: Iterable[Sequence[int]],
) -> Ordered:
    """Items 0, 1, 2 … after what they need, and in each lane as they stand there.

    Of those that could be next, the one with the lowest ``place`` is.
    """
    left = [len(each) for each in needs]
    followers = _users(needs)
    ahead = [deque(lane) for lane in lanes]
    lanes_of: list[list[int]] = [[] for _ in needs]
    for number, waiting in enumerate(ahead):
        for item in waiting:
            lanes_of[item].append(number)
    last: dict[int, int] = {}
    done = bytearray(len(needs))
    ready = [
        (place[item], item) for item, count in enumerate(left) if not count
    ]
    heapify(ready)
    # They need nothing, but another is ahead of them.
    held: list[tuple[int, int]] = []
    items: list[int] = []
    after = [set(each) for each in needs]
    swapped = 0
    while ready or held:
        goes_ahead = not ready
        at, item = heappop(held if goes_ahead else ready)
        if done[item]:
            continue
        if not goes_ahead and any(
            ahead[lane][0] != item for lane in lanes_of[item]
        ):
            heappush(held, (at, item))
            continue
        swapped += goes_ahead
        done[item] = 1
        items.append(item)
        for lane in lanes_of[item]:
            if lane in last:
                after[item].add(last[lane])
            last[lane] = item
            while ahead[lane] and done[ahead[lane][0]]:
                ahead[lane].popleft()
            if ahead[lane] and not left[head := ahead[lane][0]]:
                heappush(ready, (place[head], head))
        for follower in followers[item]:
            left[follower] -= 1
            if not left[follower]:
                heappush(ready, (place[follower], follower))
    return Ordered(items, after, swapped)


def _users(needs: Sequence[set[int]]) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in needs]
    for item, each in enumerate(needs):
        for need in each:
            found[need].add(item)
    return found


def shortest_cycle(needs: Sequence[set[int]]) -> list[int]:
    """Items of which each needs the next and the last the first; empty if there are none."""
    open_needs = [set(each) for each in needs]
    users = _users(needs)
    gone = bytearray(len(needs))
    best: list[int] = []

    def remove(item: int) -> None:
        """Take an item out, and all that are in no cycle without it."""
        out = [item]
        while out:
            item = out.pop()
            if gone[item]:
                continue
            gone[item] = 1
            for near, far in ((open_needs, users), (users, open_needs)):
                for other in near[item]:
                    far[other].discard(item)
                    if not far[other]:
                        out.append(other)
                near[item] = set()

    for item in range(len(needs)):
        if not (open_needs[item] and users[item]):
            remove(item)
    # A cycle through an item that was looked at has been found: the item is not needed again.
    for item in range(len(needs)):
        if not gone[item]:
            best = (
                _cycle_through(item, open_needs, len(best) or len(needs) + 1)
                or best
            )
            remove(item)
    return best


def _cycle_through(
    start: int,
    needs: Sequence[set[int]],
    shorter_than: int,
) -> list[int]:
    """The shortest cycle through an item, if it is short enough."""
    user: dict[int, int] = {}
    reached = [start]
    for length in range(1, shorter_than):
        following: list[int] = []
        for item in reached:
            for need in sorted(needs[item]):
                if need == start:
                    way = [item]
                    while way[-1] != start:
                        way.append(user[way[-1]])
                    assert len(way) == length
                    return way[::-1]
                if need not in user:
                    user[need] = item
                    following.append(need)
        reached = following
        if not reached:
            break
    return []
