"""Handles sets of GPUs as integers with a bit for each, and the free GPUs of servers or racks.

Only groups whose free GPUs changed since the last decision are examined again: in large clusters a
decision takes time in proportion to the changes.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Larger sets are read word by word, because operations take time in proportion to their size.
_LARGE = 2048


def lowest(gpus: int, count: int) -> list[int]:
    """The ``count`` GPUs with the lowest numbers, all if there are fewer."""
    found: list[int] = []
    while gpus and len(found) < count:
        last = gpus & -gpus
        found.append(last.bit_length() - 1)
        gpus ^= last
    return found


def members(gpus: int) -> list[int]:
    """All GPUs of a set, ascending."""
    found: list[int] = []
    words: Iterable[tuple[int]] = [(gpus,)]
    if (size := gpus.bit_length()) > _LARGE:
        words = struct.iter_unpack(
            "<Q", gpus.to_bytes(-(-size // 64) * 8, "little")
        )
    for number, (word,) in enumerate(words):
        rest = word
        while rest:
            last = rest & -rest
            found.append(64 * number + last.bit_length() - 1)
            rest ^= last
    return found


def joined(gpus: Iterable[int]) -> int:
    """The set of these GPUs."""
    found = 0
    for gpu in gpus:
        found |= 1 << gpu
    return found


def pack(parts: Sequence[int], count: int) -> list[int]:
    """``count`` GPUs from as few of these sets as possible; fewer if there are not enough.

    The fullest sets, until one holds the rest: then the one with the least room left. In a tie the
    first.
    """
    roomiest = sorted(
        [part for part in parts if part],
        key=int.bit_count,
        reverse=True,
    )
    found: list[int] = []
    for place, part in enumerate(roomiest):
        size = part.bit_count()
        if size < count:
            found += members(part)
            count -= size
            continue
        # Sets that hold the rest are adjacent, the tightest last.
        tightest = part, size
        for other in roomiest[place + 1 :]:
            other_size = other.bit_count()
            if other_size < count:
                break
            if other_size < tightest[1]:
                tightest = other, other_size
        return found + lowest(tightest[0], count)
    return found


class Taken(NamedTuple):
    """A number of GPUs of one group."""

    group: int
    size: int


class FreeGroups:
    """Groups of GPUs by their number of free ones, largest first; in a tie in the groups' order.

    ``group_of`` has the group of each GPU, −1 for none. A set of a group's GPUs has a bit for each,
    counted within the group.
    """

    def __init__(self, group_of: Sequence[int], groups: int) -> None:
        self.gpus: list[list[int]] = [[] for _ in range(groups)]
        """The GPUs of each group, ascending."""
        self.free: list[int] = [0] * groups
        """The free ones, as a set of indices in ``gpus``."""
        self._group_of = group_of
        self._bit: list[int] = []
        for gpu, group in enumerate(group_of):
            self._bit.append(1 << len(self.gpus[group]) if group >= 0 else 0)
            if group >= 0:
                self.gpus[group].append(gpu)
        self.most = max(map(len, self.gpus), default=0)
        """The size of the largest group."""
        # The groups by their number of free GPUs.
        self._with: list[int] = [0] * (self.most + 1)
        self._seen = 0

    def look(self, free: int) -> None:
        """Mark the GPUs of this set as free."""
        changed = self._seen ^ free
        self._seen = free
        before: dict[int, int] = {}
        for gpu in members(changed):
            group = self._group_of[gpu]
            if group >= 0:
                before.setdefault(group, self.free[group].bit_count())
                self.free[group] ^= self._bit[gpu]
        for group, count in before.items():
            now = self.free[group].bit_count()
            if now != count:
                bit = 1 << group
                if count:
                    self._with[count] ^= bit
                if now:
                    self._with[now] |= bit

    def whole(self, wanted: int) -> tuple[list[Taken], list[Taken]]:
        """The fullest groups, taken as a whole while none holds the rest of ``wanted``.

        Also, by number of free GPUs, the first of the other groups that holds the rest, with the
        rest: fewest free first; empty if nothing is left.
        """
        taken = list[Taken]()
        left = list(self._with)
        for size in range(self.most, 0, -1):
            while left[size] and size < wanted:
                group = (left[size] & -left[size]).bit_length() - 1
                left[size] &= left[size] - 1
                taken.append(Taken(group, size))
                wanted -= size
            if left[size]:
                break
        if not wanted:
            return taken, []
        fitting = [groups for groups in left[wanted:] if groups]
        return taken, [
            Taken((each & -each).bit_length() - 1, wanted) for each in fitting
        ]

    def packed(self, wanted: int) -> list[Taken]:
        """As in ``sets.pack``: the whole ones, then the group with the least room left."""
        taken, fitting = self.whole(wanted)
        return taken + fitting[:1]

    def lowest(self, taken: Sequence[Taken]) -> list[int]:
        """The first free GPUs of these groups, as many as are taken."""
        return [
            self.gpus[group][place]
            for group, count in taken
            for place in lowest(self.free[group], count)
        ]
