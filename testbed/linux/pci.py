"""How far two PCI devices of a machine are from each other."""

import itertools
from collections.abc import Sequence
from enum import IntEnum


class Distance(IntEnum):
    """From one device to another, the nearest first."""

    SWITCH = 0
    ROOT = 1
    NODE = 2
    FAR = 3

    @property
    def in_words(self) -> str:
        """As part of a sentence."""
        return (
            "under one PCIe switch",
            "under one PCIe root",
            "at one NUMA node",
            "at different NUMA nodes",
        )[self]


def distance(
    path: Sequence[str], node: int | None, other: Sequence[str], other_node: int | None
) -> Distance | None:
    """By what is above both; ``None`` where the machine does not say.

    ``path``: the folders in ``/sys/devices``, the bus's root first and the device last; ``node`` is
    the NUMA node.
    """
    above = zip(path[:-1], other[:-1], strict=False)
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], above)))
    if shared > 1:
        return Distance.SWITCH
    known = node is not None and other_node is not None
    if known and node != other_node:
        return Distance.FAR
    if shared:
        return Distance.ROOT
    return Distance.NODE if known else None
