"""Traffic of collectives, and schedules of circuits that change: a library for studies.

A schedule is a sequence of permutations, each of which an OCS holds for a while. Birkhoff (1946)
and von Neumann (1953): a doubly stochastic matrix is a convex combination of permutations. With a
reconfiguration delay, only those are worth a slot that are long compared with it: Liu et al.,
"Scheduling Techniques for Hybrid Circuit/Packet Networks" (Solstice), CoNEXT 2015.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from patchlight.controller.policies.engineering.traffic import Matrix, Topology, checked, fitted
from patchlight.testbed.errors import BadInput

_SINKHORN_ROUNDS = 10_000


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


class Segment(NamedTuple):
    """Phases ``first`` up to ``last`` (not included) under one topology."""

    first: int
    last: int
    topology: Topology


def in_job(
    phases: Sequence[Matrix],
    delay_s: float,
    engineer: Callable[[Matrix], Topology],
    time_s: Callable[[Matrix, Topology], float],
    *,
    one_shot: bool = False,
) -> tuple[list[Segment], float]:
    """When to reconfigure within an iteration of some phases, and how long that takes in all.

    Each segment has the topology that ``engineer`` gives for the sum of its phases, which take
    ``time_s`` of it; a change between two segments, the first after the last included, takes
    ``delay_s``. Best over all cuts by dynamic programming (Bellman, 1957), O(phases²) topologies.
    ``one_shot`` has one topology for all: TopoOpt's way, where the delay is long.
    """
    count = len(phases)
    if not count:
        return [], 0.0
    best: list[tuple[float, list[Segment]]] = [(0.0, [])]
    for last in range(1, count + 1):
        choices = []
        for first in (0,) if one_shot and last == count else range(last):
            topology = engineer(np.sum(phases[first:last], axis=0))
            spent_s = sum(time_s(phase, topology) for phase in phases[first:last])
            # One segment alone needs no change: its topology stays from iteration to iteration.
            change_s = 0.0 if (first, last) == (0, count) else delay_s
            before_s, segments = best[first]
            total_s = before_s + change_s + spent_s
            choices.append((total_s, [*segments, Segment(first, last, topology)]))
        best.append(min(choices, key=lambda choice: choice[0]))
    return best[count][1], best[count][0]


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
    from scipy.sparse import csgraph, csr_matrix

    permuted = matrix[:, columns]
    _, component = csgraph.connected_components(csr_matrix(np.sign(permuted)), connection="strong")
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
    from scipy.sparse import csgraph, csr_matrix

    found = csgraph.maximum_bipartite_matching(csr_matrix(allowed), perm_type="column")
    return None if (found < 0).any() else found.astype(np.intp)


def ring(workers: int, gradient: float) -> Matrix:
    """A ring all-reduce of ``gradient``: each worker sends 2(n−1)/n of it to the next one.

    Patarasuk and Yuan, JPDC 2009.
    """
    found = np.zeros((workers, workers))
    if workers > 1:
        numbers = np.arange(workers)
        found[numbers, (numbers + 1) % workers] = 2 * (workers - 1) / workers * gradient
    return found


def all_to_all(workers: int, data: float) -> Matrix:
    """Each worker sends an n-th of its ``data`` to each other one (mixture of experts)."""
    found = np.full((workers, workers), data / max(1, workers))
    np.fill_diagonal(found, 0.0)
    return found


def halving_doubling(workers: int, gradient: float) -> Matrix:
    """A recursive halving and doubling all-reduce: with the partner at distance 2^k, twice
    gradient / (n / 2^k).

    Thakur, Rabenseifner and Gropp, IJHPCA 2005; with the nearest partner the most is exchanged
    last, here. ``BadInput`` where the workers are no power of two.
    """
    if workers < 1 or workers & (workers - 1):
        raise BadInput(f"halving and doubling over {workers} workers: expected a power of two")
    found = np.zeros((workers, workers))
    numbers = np.arange(workers)
    distance = 1
    while distance < workers:
        found[numbers, numbers ^ distance] = 2 * gradient * distance / workers
        distance *= 2
    return found


def pipeline(stages: int, activation: float) -> Matrix:
    """Each stage sends its activations to the next one, and gets as many gradients back."""
    found = np.zeros((stages, stages))
    numbers = np.arange(stages - 1)
    found[numbers, numbers + 1] = found[numbers + 1, numbers] = activation
    return found


COLLECTIVES: Mapping[str, Callable[[int, float], Matrix]] = {
    "ring": ring,
    "all-to-all": all_to_all,
    "halving-doubling": halving_doubling,
    "pipeline": pipeline,
}
"""By name: the traffic of so many workers, each with so much data."""


def placed(traffic: ArrayLike, gpus: Sequence[int], count: int) -> Matrix:
    """The traffic between a cluster's ``count`` GPUs of a job whose workers run on ``gpus``."""
    found = np.zeros((count, count))
    found[np.ix_(gpus, gpus)] = checked(traffic)
    return found


def gravity(sent: ArrayLike, received: ArrayLike) -> Matrix:
    """The guess of who knows counters alone: in proportion to what both ends count."""
    guess = np.outer(np.asarray(sent, np.float64), np.asarray(received, np.float64))
    np.fill_diagonal(guess, 0.0)
    return fitted(guess, sent, received)
