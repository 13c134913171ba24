"""Traffic matrices, and the sites between which they count bytes.

Matrices are those of collectives, of the jobs of a cluster, or come out of port counters: square
NumPy arrays with a row for each sender, in the caller's unit. A site is a NIC at an OCS, or a
packet switch with ports there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
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
        raise BadInput(f"a traffic matrix of shape {found.shape}: expected as many rows as columns")
    if not np.isfinite(found).all() or (found < 0).any():
        raise BadInput("a traffic matrix has values that are no traffic: expected 0 or more")
    return found


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
    """The traffic of a job's workers between the ``count`` GPUs of a cluster; ``gpus``: where
    each worker runs."""
    found = np.zeros((count, count))
    found[np.ix_(gpus, gpus)] = checked(traffic)
    return found


def of_cluster(cluster: ClusterView) -> Matrix:
    """What each GPU is expected to send to each other in bit/s: ``cluster.traffic`` as a matrix."""
    count = len(cluster.shape.gpus)
    found = np.zeros((count, count))
    for (source, sink), rate_bps in cluster.traffic.items():
        found[source, sink] = rate_bps
    return found


def fitted(guess: ArrayLike, sent: ArrayLike, received: ArrayLike) -> Matrix:
    """The matrix nearest to a guess whose rows and columns sum up to what ports have counted.

    Kruithof's iteration (De Ingenieur, 1937), which minimises the relative entropy; with the
    gravity model as the guess, tomogravity without link loads (Zhang et al., SIGMETRICS 2003). Of
    what all received, each column has its part of what all sent. What the guess rules out (0) stays
    so. ``BadInput`` where counters are not as many as rows.
    """
    found = checked(guess).copy()
    rows, columns = np.asarray(sent, np.float64), np.asarray(received, np.float64)
    if rows.shape != (len(found),) or columns.shape != (len(found),):
        raise BadInput(
            f"{rows.size} and {columns.size} counters of {len(found)} ports: expected one of "
            "what was sent and one of what was received for each"
        )
    columns = columns * (rows.sum() / columns.sum()) if columns.sum() else columns
    for _ in range(_ROUNDS):
        before = found.copy()
        found *= _factors(rows, found.sum(axis=1))[:, None]
        found *= _factors(columns, found.sum(axis=0))
        if np.allclose(found, before, rtol=1e-9, atol=0):
            break
    return found


def gravity(sent: ArrayLike, received: ArrayLike) -> Matrix:
    """The guess of who knows counters alone: in proportion to what both ends count."""
    guess = np.outer(np.asarray(sent, np.float64), np.asarray(received, np.float64))
    np.fill_diagonal(guess, 0.0)
    return fitted(guess, sent, received)


def _factors(wanted: Matrix, present: Matrix) -> Matrix:
    return np.divide(wanted, present, out=np.zeros_like(present), where=present > 0)


@dataclass(frozen=True, slots=True)
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
            ports.setdefault(end.device if is_switch else str(end), []).append((ocs, number))
    gpus: dict[str, list[int]] = {}
    for number, host in enumerate(host for host in lab.hosts if host.gpu is not None):
        if (fibre := lab.fibre_ends.get(host.endpoint)) is not None:
            device = fibre[0].device
            at_ocs = device in lab.circuit_ends
            gpus.setdefault(str(host.endpoint) if at_ocs else device, []).append(number)
    names = [*(str(host.endpoint) for host in lab.hosts), *(s.name for s in lab.packet_switches)]
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
    at = {gpu: number for number, site in enumerate(sites) for gpu in site.gpus}
    return list(dict.fromkeys(at[gpu] for gpu in ring if gpu in at))
