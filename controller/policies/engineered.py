"""Topology policies that engineer circuits from traffic, between NICs or packet switches.

They join *sites* (``engineering.traffic``): NICs at an OCS, or packet switches with ports there.
Circuits that are wanted and exist stay; those of others are broken only where their ports are
needed.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

import numpy as np
from numpy.typing import ArrayLike

from patchlight.controller.policies.contract import ClusterView, Groups
from patchlight.controller.policies.engineering import traffic
from patchlight.controller.policies.engineering.paths import Wish, plan_paths
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

_WORTH = 20.0
"""So many circuits are made for the ring of a job that nobody asks about rather than lose it."""


def sites_to_join(cluster: ClusterView) -> tuple[traffic.CircuitSite, ...]:
    """The sites of the cluster's lab; ``BadInput`` where it has no circuit switches."""
    if cluster.lab is None or not cluster.lab.circuit_switches:
        raise BadInput(
            "cannot engineer a topology: this cluster has no circuit switches",
            hint="use topology 'keep', or a lab with an OCS",
        )
    return traffic.sites_of(cluster.lab)


def circuits_for(
    cluster: ClusterView,
    wanted: ArrayLike,
    groups: Groups,
) -> Mapping[str, PortMap]:
    """The maps that change for a topology between the sites, by number of ``sites_of``.

    ``wanted`` is symmetric and counts the circuits between each two sites. Circuits that nobody
    wants are broken only where their ports are needed, those of other jobs' rings if there is no
    other way. ``NoLight`` where ports or trunks do not do, ``BadInput`` for a matrix that is no
    topology of these sites.
    """
    sites = sites_to_join(cluster)
    topology = np.asarray(wanted)
    shape = (len(sites), len(sites))
    if (
        topology.shape != shape
        or (topology < 0).any()
        or (topology != topology.T).any()
    ):
        raise BadInput(
            f"a topology of shape {topology.shape}: expected a symmetric matrix of {shape[0]} × "
            f"{shape[1]} counts of circuits, one row for each site"
        )
    wishes = [
        Wish(sites[a].name, (sites[b].name,))
        for a, b in np.argwhere(np.triu(topology, 1)).tolist()
        for _ in range(int(topology[a, b]))
    ]
    ours = {frozenset(group) for group in groups}
    for job in cluster.rings:
        if frozenset(job.ring) not in ours:
            ring = traffic.ring_of(
                traffic.order_of(job.ring, sites), len(sites)
            )
            wishes += [
                Wish(sites[a].name, (sites[b].name,), worth=_WORTH)
                for a, b in np.argwhere(
                    np.triu(np.where(topology > 0, 0, ring))
                ).tolist()
            ]
    assert cluster.lab is not None  # or there were no sites
    locked = cluster.locked
    failed = cluster.failed
    return plan_paths(
        cluster.lab,
        cluster.circuits,
        wishes,
        locked=locked,
        failed=failed,
    )


class _Engineered:
    def __init__(self) -> None:
        # Now, and not in a decision, which has a deadline.
        import_module("scipy.optimize")


class Ring(_Engineered):
    """Each job's ring is closed through the OCS: every site is joined to the next one.

    Sites are the NICs at an OCS, or the packet switches with ports there; a ring over three or more
    needs two ports of each. Yan et al. and TopoOpt (NSDI 2023) call it a direct-connect ring.
    """

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        wanted = np.zeros((len(sites), len(sites)), np.int64)
        for group in groups:
            wanted += traffic.ring_of(
                _order(cluster, sites, group), len(sites)
            )
        return circuits_for(cluster, wanted, groups)


class Matching(_Engineered):
    """Circuits for the heaviest traffic, as many at each site as it has ports.

    A maximum-weight matching for each port, what a pair has already counting less (Helios, SIGCOMM
    2010; TopoOpt, NSDI 2023). The traffic is what the jobs' rings are expected to send; with
    ``measured`` it is fitted to what the ports counted.
    """

    def __init__(self, measured: bool = False) -> None:
        super().__init__()
        self._measured = measured

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        rates = traffic.of_cluster(cluster)
        if self._measured and cluster.measured:
            rates = _as_counted(cluster, rates)
        among = np.zeros((len(sites), len(sites)), np.bool_)
        for group in groups:
            numbers = traffic.order_of(group, sites)
            among[np.ix_(numbers, numbers)] = True
        demand = np.where(among, traffic.between_sites(rates, sites), 0.0)
        wanted = traffic.degree_constrained(demand, _degrees(cluster, sites))
        return circuits_for(cluster, wanted, groups)


class Totient(_Engineered):
    """TopoOpt: each job has ``rings`` that visit all its sites, far apart, the rest by matching.

    Wang et al., NSDI 2023: TotientPerms, then matchings for the traffic that no ring joins.
    """

    def __init__(self, rings: int = 2) -> None:
        if rings < 1:
            raise BadInput(f"{rings} rings: expected 1 or more")
        super().__init__()
        self._rings = rings

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        rates = traffic.between_sites(traffic.of_cluster(cluster), sites)
        wanted = np.zeros((len(sites), len(sites)), np.int64)
        degrees = _degrees(cluster, sites)
        for group in groups:
            order = _order(cluster, sites, group)
            left = np.asarray(degrees) - wanted.sum(axis=1)
            wanted += traffic.totient(
                order,
                rates,
                left.tolist(),
                self._rings,
            )
        return circuits_for(cluster, wanted, groups)


def _order(
    cluster: ClusterView,
    sites: Sequence[traffic.CircuitSite],
    group: Sequence[int],
) -> list[int]:
    """The sites of a job in the order of its ring; ``BadInput`` for a GPU that is at none."""
    there = {gpu for site in sites for gpu in site.gpus}
    for gpu in group:
        if gpu not in there:
            raise BadInput(
                f"no optical path leads to {cluster.shape.gpus[gpu].name}: its NIC and its "
                f"packet switch have no fibre to a circuit switch"
            )
    return traffic.order_of(group, sites)


def _degrees(
    cluster: ClusterView, sites: Sequence[traffic.CircuitSite]
) -> list[int]:
    barred = cluster.barred
    return [
        sum(port not in barred.get(ocs, ()) for ocs, port in site.ports)
        for site in sites
    ]


def _as_counted(cluster: ClusterView, rates: traffic.Matrix) -> traffic.Matrix:
    numbers = sorted(cluster.measured)
    sent, received = np.asarray([cluster.measured[gpu] for gpu in numbers]).T
    found = rates.copy()
    inside = rates[np.ix_(numbers, numbers)]
    # What has not been sent yet is still to come: jobs that begin keep what is expected of them.
    counted = traffic.fitted(inside, sent, received)
    found[np.ix_(numbers, numbers)] = np.where(counted > 0, counted, inside)
    return found
