"""Traffic as a sequence of permutations, each of which an OCS can hold for a while.

Birkhoff (1946) and von Neumann (1953): a doubly stochastic matrix is a convex combination of
permutations. With a reconfiguration delay only those are worth a slot that are long against it:
Liu et al., "Scheduling Techniques for Hybrid Circuit/Packet Networks" (Solstice), CoNEXT 2015.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching

from patchlight.controller.policies.engineering.traffic import Matrix, checked
from patchlight.testbed.errors import BadInput

_SINKHORN_ROUNDS = 10_000
_NOTHING = 1e-12
"""Less than this part of the largest sum is taken for nothing: it is what rounding leaves."""


def sinkhorn(matrix: ArrayLike, tolerance: float = 1e-9) -> Matrix:
    """The doubly stochastic matrix D₁ A D₂ of a matrix A (Sinkhorn and Knopp, 1967).

    Entries outside its total support (on no permutation of entries above 0) are taken for 0, as
    in the limit. ``BadInput`` where A has no permutation of entries above 0 at all.
    """
    found = _with_total_support(checked(matrix))
    for _ in range(_SINKHORN_ROUNDS):
        found = found / found.sum(axis=1, keepdims=True)
        sums = found.sum(axis=0)
        found = found / sums
        if np.abs(sums - 1).max() <= tolerance and np.abs(found.sum(axis=1) - 1).max() <= tolerance:
            break
    return found


def _with_total_support(matrix: Matrix) -> Matrix:
    """The entries on some permutation: those whose ends are in one strong component of the graph
    that a perfect matching makes (Dulmage and Mendelsohn, 1958)."""
    columns = _permutation(matrix > 0)
    if columns is None:
        raise BadInput(
            "the traffic matrix cannot be made doubly stochastic: no permutation avoids its zeros",
            hint="use 'stuffed', which adds traffic in place of scaling",
        )
    permuted = matrix[:, columns]
    _, component = connected_components(csr_matrix(np.sign(permuted)), connection="strong")
    kept = np.where(component[:, None] == component, permuted, 0.0)
    found = np.empty_like(matrix)
    found[:, columns] = kept
    return found


def stuffed(matrix: ArrayLike) -> Matrix:
    """The matrix with as little added as makes all its rows and columns sum up to the largest.

    What is added first goes where there is traffic already (QuickStuff of Solstice), the rest
    wherever there is room.
    """
    found = checked(matrix).copy()
    most = max(found.sum(axis=0).max(initial=0.0), found.sum(axis=1).max(initial=0.0))
    rows, columns = most - found.sum(axis=1), most - found.sum(axis=0)
    used = np.argwhere(found > 0)
    for row, column in used:
        added = min(rows[row], columns[column])
        if added > 0:
            found[row, column] += added
            rows[row] -= added
            columns[column] -= added
    # What is left over of rows and columns sums up to the same: a staircase fills it.
    row = column = 0
    while row < len(found) and column < len(found):
        added = min(rows[row], columns[column])
        found[row, column] += max(0.0, added)
        rows[row] -= added
        columns[column] -= added
        if rows[row] <= columns[column]:
            row += 1
        else:
            column += 1
    return found


class Slot(NamedTuple):
    """Circuits that are held for ``lasts_s``: sender i is lit to ``to[i]``."""

    to: NDArray[np.intp]
    lasts_s: float


class Schedule(NamedTuple):
    """Slots one after the other, each after a time of ``delay_s`` in the dark.

    ``left`` is the traffic that they do not carry, in seconds of a port: for a packet network.
    """

    slots: tuple[Slot, ...]
    left: Matrix
    delay_s: float

    @property
    def lasts_s(self) -> float:
        """All of it, the dark times included."""
        return sum(slot.lasts_s + self.delay_s for slot in self.slots)


def birkhoff(
    seconds: ArrayLike, delay_s: float = 0.0, *, least_duty: float = 0.5, most_slots: int = 0
) -> Schedule:
    """A schedule for traffic that takes each pair of ports so many ``seconds`` at a port's rate.

    The matrix is stuffed; then, as often as can be, the permutation is taken whose smallest entry
    is above a threshold, which is halved where there is none (BigSlice of Solstice). It stops
    before a slot that would spend less than ``least_duty`` of itself and of its ``delay_s`` on
    sending, after ``most_slots`` (0: any number), or when nothing is left. Without a delay
    everything is carried, in at most n² − 2n + 2 slots (Marcus and Ree, 1959).
    """
    if not (delay_s >= 0 and 0 <= least_duty < 1):
        raise BadInput(
            f"a delay of {delay_s} s with a duty of {least_duty}: expected 0 s or more, and a "
            "part from 0 up to 1"
        )
    demand = checked(seconds).copy()
    rest = stuffed(demand)
    most = rest.sum(axis=1).max(initial=0.0)
    nothing = most * _NOTHING * max(1, len(rest))
    # λ / (λ + δ) ≥ duty
    shortest = max(nothing, delay_s * least_duty / (1 - least_duty))
    threshold = 2.0 ** math.floor(math.log2(rest.max())) if most > nothing else 0.0
    slots: list[Slot] = []
    everyone = np.arange(len(rest))
    while most > nothing and not (most_slots and len(slots) >= most_slots):
        to = _permutation(rest >= max(threshold, shortest))
        if to is None:
            if threshold <= shortest:
                break
            threshold /= 2
            continue
        lasts = float(rest[everyone, to].min())
        rest[everyone, to] -= lasts
        rest[rest <= nothing] = 0.0
        demand[everyone, to] = np.maximum(0.0, demand[everyone, to] - lasts)
        slots.append(Slot(to, lasts))
        most -= lasts
    demand[demand <= nothing] = 0.0
    return Schedule(tuple(slots), demand, delay_s)


def _permutation(allowed: NDArray[np.bool_]) -> NDArray[np.intp] | None:
    """For each row a column of its own that is allowed (Hopcroft and Karp, 1973), if there are."""
    found = maximum_bipartite_matching(csr_matrix(allowed), perm_type="column")
    return None if (found < 0).any() else found.astype(np.intp)
