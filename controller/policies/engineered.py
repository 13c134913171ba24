"""Topology policies that engineer circuits from traffic, between NICs or packet switches.

What is joined are *sites* (``engineering.sites``): NICs at an OCS, or packet switches with ports
there. All of them keep what can be kept: circuits that are wanted and there stay, and those of
others are broken only where their ports are needed.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module

import numpy as np

from patchlight.controller.policies.contract import ClusterView
from patchlight.controller.policies.engineering import abstract
from patchlight.controller.policies.engineering.abstract import Topology
from patchlight.controller.policies.engineering.circuits import circuits_for, sites_to_join
from patchlight.controller.policies.engineering.sites import Site, between_sites, order_of
from patchlight.controller.policies.engineering.traffic import Matrix, fitted, of_cluster
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

Groups = Sequence[Sequence[int]]


class _Engineered:
    def __init__(self) -> None:
        import_module("scipy.optimize")  # now, and not in a decision, which has a deadline


class Ring(_Engineered):
    """Each job's ring is closed through the OCS: every site is joined to the next one.

    Sites are the NICs at an OCS, or the packet switches with ports there; a ring over three or more
    needs two ports of each. Yan et al. and TopoOpt (NSDI 2023) call it a direct-connect ring.
    """

    def circuits(self, cluster: ClusterView, groups: Groups) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        wanted = _nothing(sites)
        for group in groups:
            wanted += abstract.ring_of(_order(cluster, sites, group), len(sites))
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

    def circuits(self, cluster: ClusterView, groups: Groups) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        traffic = of_cluster(cluster)
        if self._measured and cluster.measured:
            traffic = _as_counted(cluster, traffic)
        among = _among(sites, groups)
        demand = np.where(among, between_sites(traffic, sites), 0.0)
        wanted = abstract.degree_constrained(demand, _degrees(cluster, sites))
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

    def circuits(self, cluster: ClusterView, groups: Groups) -> Mapping[str, PortMap]:
        """The maps that change; ``NoLight`` where ports do not do."""
        sites = sites_to_join(cluster)
        traffic = between_sites(of_cluster(cluster), sites)
        wanted, degrees = _nothing(sites), _degrees(cluster, sites)
        for group in groups:
            order = _order(cluster, sites, group)
            left = np.asarray(degrees) - wanted.sum(axis=1)
            wanted += abstract.totient(order, traffic, left.tolist(), self._rings)
        return circuits_for(cluster, wanted, groups)


def _nothing(sites: Sequence[Site]) -> Topology:
    return np.zeros((len(sites), len(sites)), np.int64)


def _order(cluster: ClusterView, sites: Sequence[Site], group: Sequence[int]) -> list[int]:
    """The sites of a job in the order of its ring; ``BadInput`` for a GPU that is at none."""
    there = {gpu for site in sites for gpu in site.gpus}
    for gpu in group:
        if gpu not in there:
            raise BadInput(
                f"no light reaches {cluster.shape.gpus[gpu].name}: neither its NIC nor the packet "
                "switch that it is plugged into has a fibre to a circuit switch"
            )
    return order_of(group, sites)


def _degrees(cluster: ClusterView, sites: Sequence[Site]) -> list[int]:
    """How many ports of each site can be used."""
    barred = cluster.barred
    return [sum(port not in barred.get(ocs, ()) for ocs, port in site.ports) for site in sites]


def _among(
    sites: Sequence[Site], groups: Groups
) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Which pairs of sites have GPUs of one and the same group."""
    found = np.zeros((len(sites), len(sites)), np.bool_)
    for group in groups:
        numbers = order_of(group, sites)
        found[np.ix_(numbers, numbers)] = True
    return found


def _as_counted(cluster: ClusterView, traffic: Matrix) -> Matrix:
    """The traffic fitted to what was counted, of the GPUs whose ports were."""
    numbers = sorted(cluster.measured)
    sent, received = np.asarray([cluster.measured[gpu] for gpu in numbers]).T
    found = traffic.copy()
    inside = traffic[np.ix_(numbers, numbers)]
    # What has not been sent yet is still to come: jobs that begin keep what is expected of them.
    counted = fitted(inside, sent, received)
    found[np.ix_(numbers, numbers)] = np.where(counted > 0, counted, inside)
    return found
