"""Sets of GPUs as integers with a bit for each, and the free GPUs of servers or racks.

Only groups in which a GPU was taken or given back since the last decision are examined again: in
large clusters a decision takes time in proportion to what it changes.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# From so many bits on a set is read word by word: each operation on it takes as long as it is.
_LARGE = 2048


def lowest(gpus: int, count: int) -> list[int]:
    """The ``count`` GPUs with the lowest numbers, all if there are no more."""
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
        words = struct.iter_unpack("<Q", gpus.to_bytes(-(-size // 64) * 8, "little"))
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
    """``count`` GPUs out of as few of these sets as possible; fewer if there are not so many.

    The fullest sets, until one holds the rest: of those that do, the one with the least room left
    over. Of equals the first.
    """
    roomiest = sorted([part for part in parts if part], key=int.bit_count, reverse=True)
    found: list[int] = []
    for place, part in enumerate(roomiest):
        size = part.bit_count()
        if size < count:
            found += members(part)
            count -= size
            continue
        # Those that hold the rest follow each other, the tightest of them last.
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
    """So many GPUs of one group."""

    group: int
    size: int


class FreeGroups:
    """Groups of GPUs by how many of them are free, largest first; of equals in the groups' order.

    ``group_of`` gives the group of each GPU, −1 for none. A set of a group's GPUs has a bit for
    each, counted within the group.
    """

    def __init__(self, group_of: Sequence[int], groups: int) -> None:
        self.gpus: list[list[int]] = [[] for _ in range(groups)]
        """The GPUs of each group, ascending."""
        self.free: list[int] = [0] * groups
        """Those that are free, as a set of places in ``gpus``."""
        self._group_of = group_of
        self._bit: list[int] = []
        for gpu, group in enumerate(group_of):
            self._bit.append(1 << len(self.gpus[group]) if group >= 0 else 0)
            if group >= 0:
                self.gpus[group].append(gpu)
        self.most = max(map(len, self.gpus), default=0)
        """How many GPUs the largest group has."""
        self._with: list[int] = [0] * (self.most + 1)  # By how many are free, the groups.
        self._seen = 0

    def look(self, free: int) -> None:
        """The GPUs of this set are free now."""
        changed, self._seen = self._seen ^ free, free
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
        """The fullest groups that are taken as a whole while none holds the rest of ``wanted``.

        Then, by how many are free in it, the first of the groups left that do hold it, with the
        rest: fewest free first; none if nothing is left to take, or to take it from.
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
        return taken, [Taken((each & -each).bit_length() - 1, wanted) for each in fitting]

    def packed(self, wanted: int) -> list[Taken]:
        """As ``sets.pack`` takes them: the whole ones, then the group with the least left over."""
        taken, fitting = self.whole(wanted)
        return taken + fitting[:1]

    def lowest(self, taken: Sequence[Taken]) -> list[int]:
        """The first free GPUs of these groups, as many as are taken."""
        return [
            self.gpus[group][place]
            for group, count in taken
            for place in lowest(self.free[group], count)
        ]
