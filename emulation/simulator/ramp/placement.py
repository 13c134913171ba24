"""Where the parts of a job's operations go: the two rules, and the first one spelt out.

A placement gives, for each number of parts n that occurs in the job, the n servers that the
operations with n parts run on. ``ramp-first-fit`` fits each operation by itself, as PAC-ML's
simulator does; as every part keeps within the servers' memory, that comes to one block for each
n, the first free one (``place_one_by_one`` shows it, and counts memory). So a job's operations
with fewer parts can take servers beyond its largest block. ``ramp-block`` takes one block for
the job and runs operations with fewer parts on servers within it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cache

from patchlight.emulation.simulator.ramp.ramp import Block, Ramp
from patchlight.testbed.graphs.partitioning import PartitionedGraph

Placement = Mapping[int, Block]


class PlacementRule(StrEnum):
    """How a job's operations are put on servers; every table says which."""

    RAMP_FIRST_FIT = "ramp-first-fit"
    RAMP_BLOCK = "ramp-block"


def place(
    ramp: Ramp, rule: PlacementRule, splits: tuple[int, ...], occupied: int
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
def sub_blocks(ramp: Ramp, whole: Block, splits: tuple[int, ...]) -> tuple[Block, ...]:
    """For each number of parts the first block within ``whole``.

    Where no shape fits (6 within 2×2×2), the first servers of ``whole`` are taken.
    """
    return tuple(_within(ramp, whole, count) for count in splits)


def _within(ramp: Ramp, whole: Block, count: int) -> Block:
    if count == len(whole.servers):
        return whole
    fitting = (block for block in ramp.blocks(count) if not block.mask & ~whole.mask)
    first = whole.servers[:count]
    return next(fitting, Block(sum(1 << server for server in first), first))


def place_one_by_one(
    ramp: Ramp, graph: PartitionedGraph, occupied: int, memory_bytes: float
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
        count, each = graph.splits[operation], float(graph.part_bytes[operation])
        inherited = (found[p] for p in forward.parents[operation] if len(found[p]) == count)
        chosen = next((s for s in inherited if sum(left[i] for i in s) >= each * count), None)
        if chosen is None:
            free = (block.servers for block in ramp.free_blocks(count, occupied))
            chosen = next((s for s in free if all(left[i] >= each for i in s)), None)
        if chosen is None:
            return None
        for server in chosen:
            left[server] -= each
        found[operation] = chosen
    return [found[operation] for operation in range(len(forward.operations))]
