"""Synthetic gradients whose true sum every worker knows.

The values are small integers, so float32 adds them exactly in any order: one wrong, lost or
doubled bit anywhere on the way shows. Made from the raw stream of PCG64, which NumPy keeps
the same in all versions, so workers with different NumPys agree.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import WrongSum

Array = NDArray[np.float32]


def gradient(seed: int, rank: int, iteration: int, elements: int) -> Array:
    """What ``rank`` computes in ``iteration``: float32 integers from −8 to 7."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, rank, iteration]))
    words = np.asarray(bits.random_raw(-(-elements // 8)), dtype="<u8")
    nibbles = words.view(np.uint8)[:elements] & np.uint8(15)
    values = nibbles.astype(np.float32)
    values -= np.float32(8)
    return values


def true_sum(seed: int, ranks: int, iteration: int, elements: int) -> Array:
    """What the all-reduce of ``iteration`` must give on every worker."""
    total = gradient(seed, 0, iteration, elements)
    for rank in range(1, ranks):
        total += gradient(seed, rank, iteration, elements)
    return total


def check_sum(got: Array, expected: Array, iteration: int) -> None:
    """Raise ``WrongSum`` unless the two are equal in every bit that counts."""
    if np.array_equal(got, expected):
        return
    wrong = np.flatnonzero(got != expected)
    first = int(wrong[0])
    raise WrongSum(
        f"all-reduce of iteration {iteration}: {wrong.size} of {got.size} values are wrong, the "
        f"first at {first}: got {got[first]}, the true sum is {expected[first]}"
    )
