"""``patchlight/Topology-v0``: which circuits are lit for the job that begins?"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from patchlight.controller.policies.contract import PlacementPolicy
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.emulation.learning.envs.queued import JOB_FEATURES, Observation, QueuedEnv, unit
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.cluster import LabCluster, Settings
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Lab
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.portmap import PortMap

# As in the training for labs: the median is Philly's, and the logarithm spreads by 1.3.
_JOBS = SyntheticJobs(load=0.7, mean_s=2663.0, sizes={1: 0.25, 2: 0.25, 3: 0.2, 4: 0.2, 6: 0.1})


def fewest_moves(env: "TopologyEnv", seen: Observation) -> int:
    """Onto the packet switch under which most of its GPUs are: the policy *regroup*."""
    return _best(seen, seen["under"])


def emptiest_switch(env: "TopologyEnv", seen: Observation) -> int:
    """Onto the packet switch with the fewest GPUs of other jobs."""
    return _best(seen, -(seen["at"] * seen["occupied"][:, None]).sum(axis=0))


def _best(seen: Observation, scores: Any) -> int:
    allowed = seen["action_mask"][1:-1] > 0
    if not allowed.any():
        return int(seen["action_mask"].argmax())
    return 1 + int(np.where(allowed, scores, -np.inf).argmax())


class TopologyEnv(QueuedEnv):
    """Jobs come to a lab with an OCS; the action says which circuits the next one begins with.

    Action 0 leaves the light as it is, action k brings all its NICs under the k-th packet switch,
    and the last one waits. Jobs begin first in, first out, where a placement policy says; those of
    one GPU need no circuits. Allowed is what does not take the light of a job that runs and
    leaves none of the job's NICs dark; its NICs are dark for the switching time. ``at`` says
    which switch each GPU is under, ``ring`` which GPUs the job gets, ``under`` the part of these
    that is under each switch, ``shared`` the edges of rings on the links between switches, for each
    NIC that these have the rate of.
    """

    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "keep": first_allowed,
        "regroup": fewest_moves,
        "emptiest-switch": emptiest_switch,
    }

    def __init__(
        self,
        lab: Lab | str = "ofc2022",
        jobs: SyntheticJobs | None = None,
        settings: Settings | None = None,
        placement: PlacementPolicy | None = None,
    ) -> None:
        lab = load_lab(lab) if isinstance(lab, str) else lab
        if not lab.circuit_switches or not lab.packet_switches:
            raise BadInput(
                f"lab {lab.name} has no circuits to choose: expected an OCS and packet switches",
                hint="choose a lab like ofc2022",
            )
        cluster = LabCluster(lab)
        gpus, self._switches = len(cluster.shape.gpus), cluster.shape.racks
        count = len(self._switches)
        extra = {
            "job": unit(JOB_FEATURES),
            "at": unit(gpus, count),
            "ring": unit(gpus),
            "under": unit(count),
            "shared": unit(1),
        }
        super().__init__(count + 2, cluster, jobs or _JOBS, settings, extra)
        self._placement = placement or FirstFit()

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None
        self._ring: tuple[int, ...] = ()
        self._maps: list[Mapping[str, PortMap] | None] = []

    def _choices(self) -> bool:
        simulation = self._running()
        while True:
            self._head, self._ring = next(iter(simulation.waiting.values()), None), ()
            head = self._head
            if head is None or simulation.occupancy.free < head.workers:
                return False
            ring = self._placement.place(simulation.view(), head.spec.view, head.workers)
            if ring is None:
                return False
            self._ring = tuple(ring)
            if head.workers > 1 or not simulation.start(head, ring):
                break
        if len(self._ring) > 1:
            self._mask[0] = simulation.cluster.demand(self._ring) is not None
            self._maps = [self._lit_onto(switch) for switch in self._switches]
            self._mask[1:-1] = [maps is not None for maps in self._maps]
        return bool(self._mask.any())

    def _lit_onto(self, switch: str) -> Mapping[str, PortMap] | None:
        """The maps that change so that its NICs are under a switch; ``None`` if they cannot be."""
        view = self._running().view()
        assert view.lab is not None  # It is a LabCluster's.
        names = [[view.shape.gpus[gpu].name for gpu in self._ring]]
        try:
            maps = regroup(view.lab, view.circuits, names, locked=view.barred, switches=(switch,))
        except CannotRegroup:
            return None
        return {ocs: each for ocs, each in maps.items() if each != view.circuits[ocs]}

    def _act(self, action: int) -> bool:
        simulation, head, dark_s = self._running(), self._head, 0.0
        assert head is not None
        if action and (maps := self._maps[action - 1]):
            dark_s = simulation.rewire(maps).dark_s
        return simulation.start(head, self._ring, dark_s)

    def _features(self) -> Observation:
        simulation = self._running()
        sites, count = simulation.cluster.shape.gpus, len(self._switches)
        at, ring = np.zeros((self.size, count), np.float32), np.zeros(self.size, np.float32)
        for number, site in enumerate(sites):
            if site.rack >= 0:
                at[number, site.rack] = 1.0
        ring[list(self._ring)] = 1.0
        under = (ring @ at) / max(1, len(self._ring))
        job = [0.0] * JOB_FEATURES if self._head is None else self._job(self._head)
        shared = 0.0
        for running in simulation.running.values():
            for link, edges in running.demand.items():
                if not isinstance(link, tuple) or not isinstance(link[0], str):
                    continue  # A NIC's own.
                nics = simulation.cluster.capacity_bps[link] / simulation.cluster.nic_bps
                shared += edges / nics
        return {
            "job": np.array(job, np.float32),
            "at": at,
            "ring": ring,
            "under": under.astype(np.float32),
            "shared": np.array([shared / (shared + 1)], np.float32),
        }
