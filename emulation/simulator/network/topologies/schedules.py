"""Schedules of circuits that change, for studies.

A schedule is a sequence of permutations, each of which an OCS holds for a while. Birkhoff (1946)
and von Neumann (1953): a doubly stochastic matrix is a convex combination of permutations. With a
reconfiguration delay, only those are worth a slot that are long compared with it: Liu et al.,
"Scheduling Techniques for Hybrid Circuit/Packet Networks" (Solstice), CoNEXT 2015.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patchlight.controller.policies.engineering.traffic import Matrix, checked
from patchlight.testbed.errors import BadInput

_NOTHING = 1e-12
"""Less than this part of the largest sum counts as nothing: it is what rounding leaves."""


def assignment(weights: ArrayLike) -> NDArray[np.intp]:
    """For each sender its receiver, each once and not itself, with the most weight in all.

    The Hungarian method (Kuhn, 1955) as SciPy has it (Crouse, 2016): O(n³). Empty below two ports.
    """
    # Not above: it takes long to be imported.
    from scipy.optimize import linear_sum_assignment

    found = checked(weights).copy()
    if len(found) < 2:
        return np.zeros(0, np.intp)
    # Light that comes back to who sent it carries nothing: any other permutation is better.
    np.fill_diagonal(found, -(found.max() * len(found) + 1))
    _, columns = linear_sum_assignment(found, maximize=True)
    return np.asarray(columns, np.intp)


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
    from scipy.sparse import csgraph, csr_matrix

    found = csgraph.maximum_bipartite_matching(csr_matrix(allowed), perm_type="column")
    return None if (found < 0).any() else found.astype(np.intp)
