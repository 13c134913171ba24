"""An abstract topology on a cluster's present circuits, with as little rewiring as it takes."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from patchlight.controller.policies.contract import ClusterView
from patchlight.controller.policies.engineering.abstract import ring_of
from patchlight.controller.policies.engineering.paths import Wish, plan_paths
from patchlight.controller.policies.engineering.sites import Site, order_of, sites_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.portmap import PortMap

_WORTH = 20.0
"""So many circuits are made for the ring of a job that nobody asks about rather than lose it."""


def sites_to_join(cluster: ClusterView) -> tuple[Site, ...]:
    """The sites of the cluster's lab; ``BadInput`` where it has no circuit switches."""
    if cluster.lab is None or not cluster.lab.circuit_switches:
        raise BadInput(
            "cannot engineer a topology: this cluster has no circuit switches",
            hint="use topology 'keep', or a lab with an OCS",
        )
    return sites_of(cluster.lab)


def circuits_for(
    cluster: ClusterView, wanted: ArrayLike, groups: Sequence[Sequence[int]]
) -> Mapping[str, PortMap]:
    """The maps that change for a topology between the sites, by number of ``sites_of``.

    ``wanted`` is symmetric and counts the circuits between each two sites. Those that are there
    stay; circuits that nobody wants are broken only where their ports are needed. Of other jobs
    than the ``groups``, the light of their rings stays as long as it can. ``NoLight`` where ports
    or trunks do not do, ``BadInput`` for a matrix that is no topology of these sites.
    """
    sites, topology = sites_to_join(cluster), np.asarray(wanted)
    shape = (len(sites), len(sites))
    if topology.shape != shape or (topology < 0).any() or (topology != topology.T).any():
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
            ring = ring_of(order_of(job.ring, sites), len(sites))
            wishes += [
                Wish(sites[a].name, (sites[b].name,), worth=_WORTH)
                for a, b in np.argwhere(np.triu(np.where(topology > 0, 0, ring))).tolist()
            ]
    assert cluster.lab is not None  # or there were no sites
    failed = cluster.failed
    staying = {ocs: ports - failed.get(ocs, frozenset()) for ocs, ports in cluster.barred.items()}
    return plan_paths(cluster.lab, cluster.circuits, wishes, locked=staying, failed=failed)
