"""Maximum-weight matchings: between senders and receivers, and between ports that light joins."""

import numpy as np
import rustworkx
from numpy.typing import ArrayLike, NDArray

from patchlight.controller.policies.engineering.traffic import checked

_STEPS = 1 << 40
"""Edmonds' algorithm counts in whole numbers: the heaviest pair has so many."""


def assignment(weights: ArrayLike) -> NDArray[np.intp]:
    """For each sender its receiver, each once, with the most weight in all; none is its own.

    The Hungarian method (Kuhn, 1955) as SciPy has it (Crouse, 2016): O(n³). Of fewer than two
    ports, nobody has a receiver.
    """
    # Not above: see paths.py.
    from scipy.optimize import linear_sum_assignment

    found = checked(weights).copy()
    if len(found) < 2:
        return np.zeros(0, np.intp)
    # Light that comes back to who sent it carries nothing: any other permutation is better.
    np.fill_diagonal(found, -(found.max() * len(found) + 1))
    _, columns = linear_sum_assignment(found, maximize=True)
    return np.asarray(columns, np.intp)


def pairs(weights: ArrayLike) -> list[tuple[int, int]]:
    """Pairs of ports to be joined both ways, with the most weight in all.

    A pair weighs what both send to each other; pairs of weight 0 are left apart. Edmonds (1965) in
    the O(n³) form of Galil (ACM Computing Surveys, 1986), as rustworkx has it.
    """
    directed = checked(weights)
    both = np.triu(directed + directed.T, 1)
    heaviest = both.max(initial=0.0)
    if not heaviest:
        return []
    graph: rustworkx.PyGraph[None, int] = rustworkx.PyGraph()
    graph.add_nodes_from([None] * len(both))
    rows, columns = np.nonzero(both)
    whole = np.maximum(1, np.rint(both[rows, columns] / heaviest * _STEPS)).astype(np.int64)
    edges = zip(rows.tolist(), columns.tolist(), whole.tolist(), strict=True)
    graph.add_edges_from(list(edges))
    found = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in found)
