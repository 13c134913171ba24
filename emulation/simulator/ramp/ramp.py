"""RAMP: servers in communication groups and racks, and the blocks that a job may take.

RAMP (Ottino et al., 2022) is an optical network in which sets of servers of certain shapes can
run collectives without contention. Servers are numbered group by group, rack by rack; a set of
servers is an integer with one bit for each, so that "is this block free" is one ``and``.

A placement gives, for each number of parts n that occurs in a job, the n servers that the
operations with n parts run on. ``ramp-first-fit`` fits each operation by itself, as PAC-ML's
simulator does; as every part keeps within the servers' memory, that is one block for each
n, the first free one (``place_one_by_one`` shows it, and counts memory). So a job's operations
with fewer parts can take servers beyond its largest block. ``ramp-block`` takes one block for
the job and runs operations with fewer parts on servers within it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.model import PartitionedGraph


@dataclass(
    frozen=True,
    slots=True,
)
class RampShape:
    """How many communication groups, racks in each, and servers in each rack."""

    groups: int
    racks: int
    servers: int

    def __post_init__(self) -> None:
        if min(self.groups, self.racks, self.servers) < 1:
            raise BadInput(
                f"{self} is not a RAMP cluster: expected at least 1 of each"
            )

    @property
    def size(self) -> int:
        """The number of servers."""
        return self.groups * self.racks * self.servers


PAC_ML_SHAPE = RampShape(
    groups=4,
    racks=4,
    servers=2,
)
"""The cluster of PAC-ML: 32 servers."""
_MOST_LISTED = 512


class Block(NamedTuple):
    """Servers that fit the rules together; parts go to ``servers`` in this order."""

    mask: int
    servers: tuple[int, ...]


class _Masks(dict[int, tuple[tuple[int, Block], ...]]):
    """Blocks by their number of servers, made when first used."""

    def __init__(self, ramp: Ramp) -> None:
        super().__init__()
        self._ramp = ramp

    def __missing__(self, count: int) -> tuple[tuple[int, Block], ...]:
        made = self[count] = tuple(
            (block.mask, block) for block in _blocks(self._ramp, count)
        )
        return made


@dataclass(frozen=True)
class Ramp:
    """A RAMP cluster of one GPU a server."""

    shape: RampShape

    def coordinates(self, server: int) -> tuple[int, int, int]:
        """Communication group, rack, and place in the rack of a server."""
        rest, place = divmod(server, self.shape.servers)
        group, rack = divmod(rest, self.shape.racks)
        return group, rack, place

    def server(
        self,
        group: int,
        rack: int,
        place: int,
    ) -> int:
        """The number of the server at these coordinates."""
        return (group * self.shape.racks + rack) * self.shape.servers + place

    def blocks(self, count: int) -> tuple[Block, ...]:
        """The blocks of ``count`` servers in the order in which first fit tries them."""
        return tuple(block for _, block in self._masks[count])

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """The partition degrees that some shape serves: 1 and even numbers, ascending."""
        even = (
            n
            for n in range(2, self.shape.size + 1, 2)
            if block_shapes(n, self.shape)
        )
        return (1, *even)

    @cached_property
    def _masks(self) -> _Masks:
        return _Masks(self)

    def first_free(self, count: int, occupied: int) -> Block | None:
        """The first block of ``count`` servers that are all free; ``None`` if there is none."""
        if self.shape.size > _MOST_LISTED:
            return scan(self, count, occupied)
        for mask, block in self._masks[count]:
            if not mask & occupied:
                return block
        return None

    def free_blocks(self, count: int, occupied: int) -> list[Block]:
        """All blocks of ``count`` servers that are free, in first fit's order."""
        return [
            block for mask, block in self._masks[count] if not mask & occupied
        ]

    def block(self, servers: int) -> Block:
        """The block with this set of servers; ``BadInput`` if there is none."""
        for mask, block in self._masks[servers.bit_count()]:
            if mask == servers:
                return block
        raise BadInput(
            f"servers {servers:#x} are not a block of a RAMP of {self.shape}"
        )


def block_shapes(count: int, within: RampShape) -> list[tuple[int, int, int]]:
    """The shapes (groups, racks, servers of a rack) for ``count`` servers, in the order tried.

    For each way to write ``count`` as a·b: a square of √a groups by √a racks with b servers,
    then a groups with b servers of one rack, then a groups by b racks.
    """
    found: dict[tuple[int, int, int], None] = {}
    for b in range(1, min(count, within.servers) + 1):
        a, rest = divmod(count, b)
        if rest:
            continue
        root = math.isqrt(a)
        if root * root == a and root <= min(within.groups, within.racks):
            found[root, root, b] = None
        if a <= min(within.groups, within.racks):
            found[a, 1, b] = None
            if b <= within.racks:
                found[a, b, 1] = None
    return list(found)


_Form = list[tuple[int, int, int]]


def _forms(shape: RampShape, count: int) -> Iterator[_Form]:
    """The positions of a block's servers relative to the first one: shapes, diagonals, a column."""
    for groups, racks, places in block_shapes(count, shape):
        yield list(
            itertools.product(range(groups), range(racks), range(places))
        )
    yield [(i, i, 0) for i in range(count)]
    if count <= shape.groups:
        yield [(i, 0, 0) for i in range(count)]


def _room(shape: RampShape, form: _Form) -> tuple[int, int, int]:
    """The number of groups, racks and places for its first server; none if it is too large."""
    i, j, k = (max(each) for each in zip(*form, strict=True))
    return shape.groups - i, shape.racks - j, shape.servers - k


def _blocks(ramp: Ramp, count: int) -> tuple[Block, ...]:
    """Every block of this many servers: each form at each origin."""
    shape = ramp.shape
    found: dict[int, Block] = {}
    for form in _forms(shape, count):
        for c, r, s in itertools.product(*map(range, _room(shape, form))):
            cells = [ramp.server(c + i, r + j, s + k) for i, j, k in form]
            mask = sum(1 << cell for cell in cells)
            found.setdefault(mask, Block(mask, tuple(cells)))
    return tuple(found.values())


def scan(
    ramp: Ramp,
    count: int,
    occupied: int,
) -> Block | None:
    """As ``Ramp.first_free``, without a list of all blocks: in large clusters that takes memory
    with the square of their size.
    """
    shape = ramp.shape
    bits = np.frombuffer(
        occupied.to_bytes(-(-shape.size // 8), "little"), np.uint8
    )
    taken = np.unpackbits(
        bits,
        count=shape.size,
        bitorder="little",
    ).astype(bool)
    free = ~taken.reshape(shape.groups, shape.racks, shape.servers)
    for form in _forms(shape, count):
        room = _room(shape, form)
        if min(room) < 1:
            continue
        fits = np.ones(room, bool)
        for i, j, k in form:
            fits &= free[i : i + room[0], j : j + room[1], k : k + room[2]]
        first = int(fits.argmax())
        if fits.flat[first]:
            c, r, s = map(int, np.unravel_index(first, room))
            cells = tuple(ramp.server(c + i, r + j, s + k) for i, j, k in form)
            return Block(sum(1 << cell for cell in cells), cells)
    return None


class PlacementRule(StrEnum):
    """The rule that places a job's operations on servers; tables name it."""

    RAMP_FIRST_FIT = "ramp-first-fit"
    RAMP_BLOCK = "ramp-block"


def place(
    ramp: Ramp,
    rule: PlacementRule,
    splits: tuple[int, ...],
    occupied: int,
) -> tuple[Block, ...] | None:
    """A block for each number of parts in ``splits`` (ascending); ``None`` if one is missing."""
    if rule == PlacementRule.RAMP_BLOCK:
        whole = ramp.first_free(splits[-1], occupied)
        return None if whole is None else sub_blocks(ramp, whole, splits)
    found = []
    for count in splits:
        block = ramp.first_free(count, occupied)
        if block is None:
            return None
        found.append(block)
    return tuple(found)


@cache
def sub_blocks(
    ramp: Ramp,
    whole: Block,
    splits: tuple[int, ...],
) -> tuple[Block, ...]:
    """For each number of parts the first block within ``whole``.

    If no shape fits (6 within 2×2×2), it is the first servers of ``whole``.
    """
    return tuple(_within(ramp, whole, count) for count in splits)


def _within(
    ramp: Ramp,
    whole: Block,
    count: int,
) -> Block:
    if count == len(whole.servers):
        return whole
    first = whole.servers[:count]
    others = (1 << ramp.shape.size) - 1 & ~whole.mask
    fitting = ramp.first_free(count, others)
    return fitting or Block(sum(1 << server for server in first), first)


def place_one_by_one(
    ramp: Ramp,
    graph: PartitionedGraph,
    occupied: int,
    memory_bytes: float,
) -> list[tuple[int, ...]] | None:
    """``ramp-first-fit`` operation by operation: the servers of each forward operation's parts.

    In topological order each operation goes to the servers of the first of its parents that
    has as many parts, where these have the memory, else to the first block whose servers have
    no other job and the memory. An operation's memory counts once for both passes. ``None`` if
    one of them fits nowhere.
    """
    forward = graph.training.forward
    left = dict.fromkeys(range(ramp.shape.size), memory_bytes)
    found: dict[int, tuple[int, ...]] = {}
    for operation in forward.order:
        count = graph.splits[operation]
        each = float(graph.part_bytes[operation])
        inherited = (
            found[p]
            for p in forward.parents[operation]
            if len(found[p]) == count
        )
        chosen = next(
            (s for s in inherited if sum(left[i] for i in s) >= each * count),
            None,
        )
        if chosen is None:
            free = (
                block.servers for block in ramp.free_blocks(count, occupied)
            )
            chosen = next(
                (s for s in free if all(left[i] >= each for i in s)), None
            )
        if chosen is None:
            return None
        for server in chosen:
            left[server] -= each
        found[operation] = chosen
    return [found[operation] for operation in range(len(forward.operations))]
