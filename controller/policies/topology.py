"""Topology policies: which circuits are lit while some jobs run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from patchlight.controller.policies.contract import ClusterView
from patchlight.controller.policies.regroup import regroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.portmap import PortMap


class Keep:
    """The circuits stay as they are."""

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]]
    ) -> Mapping[str, PortMap]:
        """No map changes."""
        return {}


class Regroup:
    """Each job's GPUs are lit onto one packet switch, with as few moves as possible.

    Yan et al., OFC 2022. See ``patchlight.controller.policies.regroup``.
    """

    def circuits(
        self, cluster: ClusterView, groups: Sequence[Sequence[int]]
    ) -> Mapping[str, PortMap]:
        """The maps that change; ``CannotRegroup`` where a group fits under no switch."""
        if cluster.lab is None:
            raise BadInput("cannot regroup: this cluster has no circuit switches")
        names = [[cluster.shape.gpus[gpu].name for gpu in group] for group in groups]
        failed = cluster.failed
        locked = {ocs: p - failed.get(ocs, frozenset()) for ocs, p in cluster.barred.items()}
        maps = regroup(cluster.lab, cluster.circuits, names, locked=locked, failed=failed)
        return {ocs: m for ocs, m in maps.items() if m != cluster.circuits[ocs]}
