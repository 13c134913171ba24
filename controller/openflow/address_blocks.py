"""Addresses that go the same way, as few blocks with a mask.

Pure: numbers in, numbers out, so that one function does for MAC and IPv4 addresses.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, NamedTuple, TypeVar

Owner = TypeVar("Owner", bound=Hashable)


class AddressBlock(NamedTuple, Generic[Owner]):
    """All addresses whose first ``length`` bits are those of ``first``, and whose they are."""

    first: int
    length: int
    owner: Owner


def address_blocks(
    owner_of: Mapping[int, Owner], width: int, shortest: int = 0
) -> Iterator[AddressBlock[Owner]]:
    """The fewest blocks that hold every address, none of them an address of two owners.

    Addresses have ``width`` bits; no block has fewer than ``shortest`` in common. No two blocks
    overlap, so it does not matter in which order a switch looks them up, and one that is missing
    for a moment is not stood in for by another. Addresses that nobody has may be in a block.
    """
    addresses = sorted(owner_of)
    waiting = [(0, len(addresses))] if addresses else []
    while waiting:
        begin, end = waiting.pop()
        first, last = addresses[begin], addresses[end - 1]
        free = (first ^ last).bit_length()
        base = first >> free << free
        owner = owner_of[first]
        alike = all(owner_of[addresses[i]] == owner for i in range(begin, end))
        if alike and width - free >= shortest:
            yield AddressBlock(base, width - free, owner)
            continue
        middle = bisect_left(addresses, base | 1 << (free - 1), begin, end)
        waiting += [(middle, end), (begin, middle)]
