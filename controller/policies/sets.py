"""Sets of GPUs as integers with a bit for each: taking GPUs out of them."""

import struct
from collections.abc import Iterable, Sequence

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
    if (size := gpus.bit_length()) > _LARGE:
        words = struct.iter_unpack("<Q", gpus.to_bytes(-(-size // 64) * 8, "little"))
        for number, (word,) in enumerate(words):
            if word:
                found += [64 * number + each for each in members(word)]
        return found
    while gpus:
        last = gpus & -gpus
        found.append(last.bit_length() - 1)
        gpus ^= last
    return found


def joined(gpus: Iterable[int]) -> int:
    """The set of these GPUs."""
    found = 0
    for gpu in gpus:
        found |= 1 << gpu
    return found


def pack(parts: Sequence[int], count: int) -> list[int]:
    """``count`` GPUs out of as few of these sets as possible; fewer if there are not so many.

    Of the sets that hold what is (still) wanted the one with the least room left over is
    taken, else the fullest first. Of equals the one that stands first.
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
