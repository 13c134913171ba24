"""Traffic matrices, the sites between which they count, and topologies of circuits made for them.

A traffic matrix is a square NumPy array with a row for each sender, in the caller's unit. A site is
a NIC at an OCS, or a packet switch with ports there. A topology is a symmetric matrix of whole
numbers: entry (i, j) counts the duplex circuits between sites i and j; a row sums up to the ports
that the site needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import rustworkx
from numpy.typing import ArrayLike, NDArray

from patchlight.controller.policies.contract import ClusterView
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab, PacketSwitch

Matrix = NDArray[np.float64]

_ROUNDS = 1000

Port = tuple[str, int]
"""A port of an OCS."""


def checked(matrix: ArrayLike) -> Matrix:
    """A square matrix of finite numbers of 0 or more as floats; ``BadInput`` for any other."""
    found = np.asarray(matrix, dtype=np.float64)
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise BadInput(
            f"a traffic matrix of shape {found.shape}: expected a square matrix"
        )
    if not np.isfinite(found).all() or (found < 0).any():
        raise BadInput(
            "a traffic matrix has invalid values: expected 0 or more"
        )
    return found


def of_cluster(cluster: ClusterView) -> Matrix:
    """What each GPU is expected to send to each other in bit/s: ``cluster.traffic`` as a matrix."""
    count = len(cluster.shape.gpus)
    found = np.zeros((count, count))
    for (source, sink), rate_bps in cluster.traffic.items():
        found[source, sink] = rate_bps
    return found


def fitted(
    guess: ArrayLike,
    sent: ArrayLike,
    received: ArrayLike,
) -> Matrix:
    """The matrix nearest to a guess whose rows and columns sum up to what ports have counted.

    Kruithof's iteration (De Ingenieur, 1937), which minimises the relative entropy; with the
    gravity model as the guess, tomogravity without link loads (Zhang et al., SIGMETRICS 2003). Of
    what all received, each column has its part of what all sent. What the guess rules out (0) stays
    so. ``BadInput`` where counters are not as many as rows.
    """
    found = checked(guess).copy()
    rows = np.asarray(sent, np.float64)
    columns = np.asarray(received, np.float64)
    if rows.shape != (len(found),) or columns.shape != (len(found),):
        raise BadInput(
            f"{rows.size} and {columns.size} counters of {len(found)} ports: expected a sent and "
            f"a received counter for each"
        )
    columns = (
        columns * (rows.sum() / columns.sum()) if columns.sum() else columns
    )
    for _ in range(_ROUNDS):
        before = found.copy()
        found *= _factors(rows, found.sum(axis=1))[:, None]
        found *= _factors(columns, found.sum(axis=0))
        if np.allclose(
            found,
            before,
            rtol=1e-9,
            atol=0,
        ):
            break
    return found


def _factors(wanted: Matrix, present: Matrix) -> Matrix:
    return np.divide(
        wanted,
        present,
        out=np.zeros_like(present),
        where=present > 0,
    )


@dataclass(
    frozen=True,
    slots=True,
)
class CircuitSite:
    """One end of light paths: its OCS ports, and the GPUs (by number) whose traffic goes there."""

    name: str
    ports: tuple[Port, ...]
    gpus: tuple[int, ...] = field(default=())


def sites_of(lab: Lab) -> tuple[CircuitSite, ...]:
    """Every NIC and packet switch with fibres to an OCS, in the order of the lab file.

    GPUs are numbered as in a cluster's shape. Those of a packet switch are the ones whose NICs are
    plugged into it; where an OCS decides that, the NIC is a site itself.
    """
    ports: dict[str, list[Port]] = {}
    for ocs, ends in lab.circuit_ends.items():
        for number, end in sorted(ends.items()):
            is_switch = isinstance(lab.device(end.device), PacketSwitch)
            ports.setdefault(end.device if is_switch else str(end), []).append(
                (ocs, number)
            )
    gpus: dict[str, list[int]] = {}
    for number, host in enumerate(
        host for host in lab.hosts if host.gpu is not None
    ):
        if (fibre := lab.fibre_ends.get(host.endpoint)) is not None:
            device = fibre[0].device
            at_ocs = device in lab.circuit_ends
            gpus.setdefault(
                str(host.endpoint) if at_ocs else device, []
            ).append(number)
    names = [
        *(str(host.endpoint) for host in lab.hosts),
        *(s.name for s in lab.packet_switches),
    ]
    return tuple(
        CircuitSite(name, tuple(ports[name]), tuple(gpus.get(name, ())))
        for name in names
        if name in ports
    )


def between_sites(traffic: Matrix, sites: Sequence[CircuitSite]) -> Matrix:
    """The traffic between sites, of that between GPUs; what stays at a site is none."""
    member = np.zeros((len(sites), len(traffic)))
    for row, site in enumerate(sites):
        member[row, list(site.gpus)] = 1.0
    found = np.asarray(member @ traffic @ member.T, np.float64)
    np.fill_diagonal(found, 0.0)
    return found


def order_of(ring: Sequence[int], sites: Sequence[CircuitSite]) -> list[int]:
    """The sites that a ring of GPUs visits, by number, in its order, each once."""
    at = {
        gpu: number for number, site in enumerate(sites) for gpu in site.gpus
    }
    return list(dict.fromkeys(at[gpu] for gpu in ring if gpu in at))


_STEPS = 1 << 40
"""Edmonds' algorithm counts in whole numbers: the heaviest pair has so many."""


Topology = NDArray[np.int64]


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
    whole = np.maximum(
        1, np.rint(both[rows, columns] / heaviest * _STEPS)
    ).astype(np.int64)
    edges = zip(
        rows.tolist(),
        columns.tolist(),
        whole.tolist(),
        strict=True,
    )
    graph.add_edges_from(list(edges))
    found = rustworkx.max_weight_matching(graph, weight_fn=int)
    return sorted((min(pair), max(pair)) for pair in found)


def ring_of(
    order: Sequence[int],
    count: int,
    step: int = 1,
) -> Topology:
    """A job's ring closed through the OCS: each site of ``order`` joined to the ``step``-th after
    it; two sites by one circuit, one by none."""
    found = np.zeros((count, count), np.int64)
    ends = zip(
        order,
        (order[(at + step) % len(order)] for at in range(len(order))),
        strict=True,
    )
    for a, b in {(min(pair), max(pair)) for pair in ends}:
        if a != b:
            found[a, b] = found[b, a] = 1
    return found


def degree_constrained(traffic: ArrayLike, degrees: Sequence[int]) -> Topology:
    """Circuits for the heaviest traffic, as many at each site as it has ports.

    Round after round, the maximum-weight matching of the sites that have a port left; a pair that
    has k circuits counts with 1/(k+1) of its traffic. The weights are TopoOpt's (Wang et al., NSDI
    2023), the matchings Helios' (Farrington et al., SIGCOMM 2010). ``BadInput`` where there is not
    one degree of 0 or more for each site.
    """
    directed = checked(traffic)
    demand = directed + directed.T
    np.fill_diagonal(demand, 0.0)
    left = np.asarray(degrees, np.int64).copy()
    if left.shape != (len(demand),) or (left < 0).any():
        raise BadInput(
            f"{list(degrees)} ports of {len(demand)} sites: expected 0 or more for each"
        )
    found = np.zeros(demand.shape, np.int64)
    while True:
        able = left > 0
        joined = pairs(
            np.triu(np.where(np.outer(able, able), demand / (found + 1), 0.0))
        )
        if not joined:
            return found
        for a, b in joined:
            found[a, b] += 1
            found[b, a] += 1
            left[a] -= 1
            left[b] -= 1


def totient_steps(sites: int) -> list[int]:
    """The steps p ≤ n/2, coprime to n, of the rings i → i + p mod n: they visit all n sites.

    TotientPerms of TopoOpt (Wang et al., NSDI 2023).
    """
    return [
        step for step in range(1, sites // 2 + 1) if math.gcd(step, sites) == 1
    ]


def spread_steps(sites: int, rings: int) -> list[int]:
    """``rings`` of the totient steps, near a geometric sequence from 1, so that every site is few
    hops from every other (SelectPermutations of TopoOpt); fewer where there are not so many."""
    left = totient_steps(sites)
    ratio = sites ** (1 / max(1, rings))
    found: list[int] = []
    for exponent in range(min(rings, len(left))):
        nearest = min(
            left, key=lambda step: (abs(step - ratio**exponent), step)
        )
        left.remove(nearest)
        found.append(nearest)
    return found


def totient(
    order: Sequence[int],
    traffic: ArrayLike,
    degrees: Sequence[int],
    rings: int = 1,
) -> Topology:
    """TopoOpt's topology for a job on the sites of ``order``, in its ring's order.

    As many as ``rings`` totient rings, two ports of each site for each; the other ports by
    ``degree_constrained`` for what of the ``traffic`` no ring joins directly. Two sites need one
    port each. ``BadInput`` where the ports do not do for one ring.
    """
    count = len(degrees)
    members = list(order)
    found = np.zeros((count, count), np.int64)
    if len(members) > 1:
        needed = 1 if len(members) == 2 else 2
        fewest = min(degrees[site] for site in members)
        if fewest < needed:
            raise BadInput(
                f"a ring over {len(members)} sites needs {needed} OCS ports of each: one has "
                f"{fewest}"
            )
        for step in spread_steps(len(members), min(rings, fewest // needed)):
            found += ring_of(members, count, step)
    left = np.asarray(degrees, np.int64) - found.sum(axis=1)
    apart = np.where(found > 0, 0.0, checked(traffic))
    inside = np.zeros(count, bool)
    inside[members] = True
    more = degree_constrained(
        np.where(np.outer(inside, inside), apart, 0.0), left.tolist()
    )
    return found + more
