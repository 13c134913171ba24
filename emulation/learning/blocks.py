"""The blocks of a RAMP in many clusters at once: the first free ones, and how many are free when.

Loops are compiled where Numba is installed (extra ``fast``), and slow elsewhere.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.observation import Array
from patchlight.emulation.simulator.network.compiled import compiled
from patchlight.emulation.simulator.ramp.ramp import Block, Ramp, RampShape

SIZES = (2, 4, 6, 8, 16)
"""Sizes of the blocks that networks are told of."""
EACH = 1 + 2 * len(SIZES)
"""Numbers for each time: the share of servers free, of each size the share of blocks, and 1 if
there is one."""

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Bools = NDArray[np.bool_]
_Words = NDArray[np.uint64]


class BlockTable:
    """The blocks of some sizes, one after the other, each size in the order of first fit.

    Block b has the servers ``members[first[b]]`` to ``members[first[b + 1] - 1]``; those of the
    k-th size are the ones from ``begin[k]`` to ``begin[k + 1] - 1``.
    """

    def __init__(self, ramp: Ramp, sizes: Sequence[int]) -> None:
        self.sizes, self.servers = tuple(sizes), ramp.shape.size
        self.blocks: tuple[tuple[Block, ...], ...] = tuple(ramp.blocks(size) for size in sizes)
        each = [block.servers for blocks in self.blocks for block in blocks]
        self.members = np.array([server for servers in each for server in servers], np.int64)
        self.first = np.cumsum([0, *map(len, each)]).astype(np.int64)
        self.begin = np.cumsum([0, *map(len, self.blocks)]).astype(np.int64)
        # Servers as bits of words, words × blocks, so that one loop goes over all blocks.
        self._masks = np.zeros((-(-self.servers // 64), len(each)), np.uint64)
        for number, servers in enumerate(each):
            for server in servers:
                self._masks[server >> 6, number] |= np.uint64(1) << np.uint64(server & 63)

    def block(self, size: int, number: int) -> Block:
        """Block ``number``, one of the size at this place."""
        return self.blocks[size][int(number - self.begin[size])]

    def first_free(self, left_s: _Floats) -> _Ints:
        """The first free block of each size, E × sizes, −1 where there is none.

        ``left_s`` E × servers is for how long each server is still busy.
        """
        found = np.empty((len(left_s), len(self.sizes)), np.int64)
        _first_free(left_s, self.members, self.first, self.begin, found)
        return found

    def taken(self, needs: _Bools, chosen: _Ints) -> _Bools:
        """The servers, N × servers, of those ``chosen`` blocks that are needed, both N × sizes."""
        found = np.zeros((len(chosen), self.servers), bool)
        _taken(needs, chosen, self.members, self.first, found)
        return found

    def shares(self, remaining: Array, after: Array) -> Array:
        """Which share of the blocks of each size is free when, N × (times × (1 + 2 × sizes)).

        ``remaining`` N × servers, ``after`` N × times, ascending. For each time the share of
        servers that are free, that of blocks of each size, and 1 for each where there is one.
        """
        rows, times = after.shape
        found = np.zeros((rows, times, 1 + 2 * len(self.sizes)), np.float32)
        remaining, after = np.ascontiguousarray(remaining), np.ascontiguousarray(after)
        _shares(remaining, after, self._masks, self.begin, found)
        return found.reshape(rows, -1)


class BlockChoices:
    """Which ``count`` free blocks of a size a policy may choose from.

    The first one, and those that take the fewest other free blocks away, counted in servers.
    """

    def __init__(self, table: BlockTable, count: int) -> None:
        self._table = table
        self.others = np.arange(1, count)[:, None]
        """The places of all but the first one, as a column."""
        sizes = np.diff(table.first)
        is_member = np.zeros((len(sizes), table.servers), np.int64)
        is_member[np.repeat(np.arange(len(sizes)), sizes), table.members] = 1
        self._takes = np.where(is_member @ is_member.T > 0, sizes, 0)  # from each other block

    def of(self, left_s: _Floats, first: _Ints, wanted: _Bools) -> _Ints:
        """Of each size these free blocks, E × count × sizes, −1 where there are no more.

        ``left_s`` as for ``BlockTable.first_free``, ``first`` what that found. Others are found
        only of the sizes ``wanted``, E × sizes, and only those blocks count as taken away.
        """
        table = self._table
        found = np.full((len(first), len(self.others) + 1, first.shape[1]), -1)
        found[:, 0] = first
        _least_harmful(left_s, table.members, table.first, table.begin, self._takes, wanted, found)
        return found


@lru_cache(maxsize=16)
def told_blocks(shape: tuple[int, int, int]) -> BlockTable:
    """The blocks of a RAMP that networks are told of; none of sizes that no shape serves."""
    return BlockTable(Ramp(RampShape(*shape)), SIZES)


@compiled
def _first_free(left_s: _Floats, members: _Ints, first: _Ints, begin: _Ints, out: _Ints) -> None:
    for env in range(len(left_s)):
        for size in range(out.shape[1]):
            out[env, size] = -1
            for block in range(begin[size], begin[size + 1]):
                free = True
                for place in range(first[block], first[block + 1]):
                    if left_s[env, members[place]] > 0:
                        free = False
                        break
                if free:
                    out[env, size] = block
                    break


@compiled
def _least_harmful(
    left_s: _Floats,
    members: _Ints,
    first: _Ints,
    begin: _Ints,
    takes: _Ints,
    wanted: _Bools,
    out: _Ints,
) -> None:
    most, free = len(first) - 1, np.zeros(len(first) - 1, np.int64)
    left, harm = np.zeros(most, np.bool_), np.zeros(most, np.int64)
    for env in range(len(left_s)):
        count = 0
        for size in range(out.shape[2]):
            if not wanted[env, size]:
                continue
            for block in range(begin[size], begin[size + 1]):
                left[block] = True
                for place in range(first[block], first[block + 1]):
                    if left_s[env, members[place]] > 0:
                        left[block] = False
                        break
                if left[block]:
                    free[count] = block
                    count += 1
        for number in range(count):
            block = free[number]
            harm[block] = 0
            for other in range(count):
                harm[block] += takes[block, free[other]]
        for size in range(out.shape[2]):
            if not wanted[env, size]:
                continue
            left[out[env, 0, size]] = False
            for choice in range(1, out.shape[1]):
                best = -1
                for block in range(begin[size], begin[size + 1]):
                    if left[block] and (best < 0 or harm[block] < harm[best]):
                        best = block
                if best < 0:
                    break
                left[best] = False
                out[env, choice, size] = best


@compiled
def _taken(needs: _Bools, chosen: _Ints, members: _Ints, first: _Ints, out: _Bools) -> None:
    for row in range(len(chosen)):
        for size in range(chosen.shape[1]):
            block = chosen[row, size]
            if needs[row, size] and block >= 0:
                for place in range(first[block], first[block + 1]):
                    out[row, members[place]] = True


@compiled
def _shares(remaining: Array, after: Array, masks: _Words, begin: _Ints, out: Array) -> None:
    rows, servers = remaining.shape
    times, sizes, words = after.shape[1], len(begin) - 1, masks.shape[0]
    busy, hit = np.zeros(words, np.uint64), np.zeros(masks.shape[1], np.uint64)
    place, freed = np.zeros(servers, np.int64), np.zeros(times + 1, np.int64)
    for row in range(rows):
        freed[:] = 0
        busy[:] = 0
        for server in range(servers):
            # The first of the times at which it is free, one past the last if at none.
            time = 0
            while time < times and remaining[row, server] > after[row, time]:
                time += 1
            place[server] = time
            freed[time] += 1
            busy[server >> 6] |= np.uint64(1) << np.uint64(server & 63)
        free = 0
        for time in range(times):
            if time and not freed[time]:
                out[row, time] = out[row, time - 1]
                continue
            free += freed[time]
            for server in range(servers):
                if place[server] == time:
                    busy[server >> 6] &= ~(np.uint64(1) << np.uint64(server & 63))
            out[row, time, 0] = free / servers
            hit[:] = 0
            for word in range(words):
                for block in range(len(hit)):
                    hit[block] |= masks[word, block] & busy[word]
            for size in range(sizes):
                count, blocks = 0, begin[size + 1] - begin[size]
                for block in range(begin[size], begin[size + 1]):
                    count += hit[block] == 0
                if count:
                    out[row, time, 1 + size] = count / blocks
                    out[row, time, 1 + sizes + size] = 1.0
