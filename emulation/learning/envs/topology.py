"""``patchlight/Topology-v0``: which circuits are lit for the job that begins?"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from patchlight.controller.policies.contract import ClusterShape, PlacementPolicy
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.sets import joined
from patchlight.controller.policies.topology import (
    NO_PORTS,
    CannotRegroup,
    Ports,
    lit_onto,
    regroup,
    survey,
    with_other_ends,
)
from patchlight.emulation.learning.envs.queued import (
    JOB_FEATURES,
    SHORT_MEAN_S,
    Observation,
    QueuedEnv,
    unit,
)
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.cluster import LabCluster, Settings
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab

SWITCH_FEATURES = 3
"""The job's NICs under it, others' GPUs under it, whether light moves."""
_JOBS = SyntheticJobs(
    load=0.7, mean_s=SHORT_MEAN_S, sizes={1: 0.25, 2: 0.25, 3: 0.2, 4: 0.2, 6: 0.1}
)


def fewest_moves(env: "TopologyEnv", seen: Observation) -> int:
    """Onto the packet switch under which most of its GPUs are: the policy *regroup*."""
    return _best(seen, seen["switches"][1:, 0])


def emptiest_switch(env: "TopologyEnv", seen: Observation) -> int:
    """Onto the packet switch with the fewest GPUs of other jobs."""
    return _best(seen, -seen["switches"][1:, 1])


def _best(seen: Observation, scores: Any) -> int:
    allowed = seen["action_mask"][1:-1] > 0
    if not allowed.any():
        return int(seen["action_mask"].argmax())
    return 1 + int(np.where(allowed, scores, -np.inf).argmax())


class OneGroup:
    """The packet switches onto any of which ``regroup`` can light a group of hosts, and how.

    Maps are made only when somebody asks, but in labs where light goes over several OCSs.
    """

    def __init__(
        self, lab: Lab, maps: Mapping[str, PortMap], group: Sequence[str], *, locked: Ports
    ) -> None:
        self._lab, self._maps, self._found = lab, maps, dict[str, dict[str, PortMap]]()
        self._names = group
        names = lab.switch_names
        self.switches: tuple[str, ...] = ()
        if lab.has_trunks:
            for switch in names:
                with suppress(CannotRegroup):
                    found = regroup(lab, maps, [group], locked=locked, switches=(switch,))
                    self._found[switch] = found
            self.switches = tuple(self._found)
            return
        self._group, self._locked = tuple([lab.host(name).endpoint for name in group]), locked
        shut, stays, need = with_other_ends(maps, locked), False, dict[str, int]()
        for nic in self._group:
            ocs, port = lab.host_plugs.get(nic, ("", 0))
            if ocs not in maps:
                return
            stays = stays or port in shut.get(ocs, ())
            need[ocs] = need.get(ocs, 0) + 1
        if stays:
            site = survey(lab, maps, locked, NO_PORTS)
            self.switches = tuple(s for s in names if site.takes(self._group, s, site.room))
            return
        # Nobody has to stay where he is: only ports count.
        for ocs, count in need.items():
            closed, ports_of = shut.get(ocs, set()), lab.facing_ports[ocs]
            names = tuple(
                [
                    switch
                    for switch in names
                    if len(ports := ports_of.get(switch, ())) - len(closed.intersection(ports))
                    >= count
                ]
            )
        self.switches = names

    def onto(self, switch: str) -> dict[str, PortMap]:
        """The maps that change so that the group is lit onto one of ``switches``."""
        found = self._found.get(switch)
        if found is None:
            lab = self._lab
            lit = [lit_onto(lab, self._maps, lab.host_plugs[nic]) for nic in self._group]
            if all(at is not None and at[0] == switch for at in lit):
                return {}
            to = (switch,)
            found = regroup(lab, self._maps, [self._names], locked=self._locked, switches=to)
        return {ocs: each for ocs, each in found.items() if each != self._maps.get(ocs)}


class TopologyEnv(QueuedEnv):
    """Jobs come to a lab with an OCS; the action says which circuits the next one begins with.

    Action 0 leaves the light as it is, action k brings all its NICs under the k-th packet switch,
    and the last one waits. Jobs begin first in, first out, where a placement policy says; those of
    one GPU need no circuits. Allowed is what does not take the light of a job that runs and
    leaves none of the job's NICs dark; its NICs are dark for the switching time. ``at`` says
    which switch each GPU is under, ``ring`` which GPUs the job gets, ``switches`` for each of the
    first actions the part of these that is under that switch (of leaving the light: the largest
    such part), the part of all GPUs that other jobs have there, and whether light moves; ``shared``
    the edges of rings on the links between switches, for each NIC that these have the rate of.
    """

    per_action: ClassVar[tuple[str, ...]] = ("switches",)
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
            "switches": unit(count + 1, SWITCH_FEATURES),
            "shared": unit(1),
        }
        super().__init__(count + 2, cluster, jobs or _JOBS, settings, extra)
        self._placement = placement or FirstFit()

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None
        self._ring: tuple[int, ...] = ()
        self._shape: ClusterShape | None = None

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
            view = simulation.view()
            assert view.lab is not None  # It is a LabCluster's.
            gpus = view.shape.gpus
            names = [gpus[gpu].name for gpu in self._ring]
            self._lit = OneGroup(view.lab, view.circuits, names, locked=view.barred)
            switches = self._lit.switches
            self._mask[1:-1] = [switch in switches for switch in self._switches]
            return bool(self._mask[0] or switches)
        return False

    def _act(self, action: int) -> bool:
        simulation, head, dark_s = self._running(), self._head, 0.0
        assert head is not None
        if action and (maps := self._lit.onto(self._switches[action - 1])):
            dark_s = simulation.rewire(maps).dark_s
        return simulation.start(head, self._ring, dark_s)

    def _features(self) -> Observation:
        simulation = self._running()
        if simulation.cluster.shape is not self._shape:
            self._shape = simulation.cluster.shape
            capacity_bps, nic_bps = simulation.cluster.capacity_bps, simulation.cluster.nic_bps
            self._between = [  # Links that are no NIC's own, and how many NICs have their rate.
                (link, rate_bps / nic_bps)
                for link, rate_bps in capacity_bps.items()
                if isinstance(link, tuple) and isinstance(link[0], str)
            ]
            self._racks = self._shape.rack_gpus
            self._at = np.zeros((self.size, len(self._switches)), np.float32)
            for number, site in enumerate(self._shape.gpus):
                if site.rack >= 0:
                    self._at[number, site.rack] = 1.0
        ring = [0.0] * self.size
        switches = [(0.0, 0.0, 0.0)] * (len(self._switches) + 1)
        if self._ring:
            for gpu in self._ring:
                ring[gpu] = 1.0
            own, wanted = joined(self._ring), len(self._ring)
            counts = [(own & gpus).bit_count() for gpus in self._racks]
            occupied = simulation.occupancy.occupied
            switches = [
                (max(counts) / wanted, 0.0, 0.0),
                *(
                    (
                        count / wanted,
                        (occupied & gpus).bit_count() / self.size,
                        float(count < wanted),
                    )
                    for count, gpus in zip(counts, self._racks, strict=True)
                ),
            ]
        job = [0.0] * JOB_FEATURES if self._head is None else self._job(self._head)
        shared = 0.0
        for running in simulation.running.values():
            for link, nics in self._between:
                if link in running.demand:
                    shared += running.demand[link] / nics
        return {
            "job": np.array(job, np.float32),
            "at": self._at.copy(),
            "ring": np.array(ring, np.float32),
            "switches": np.array(switches, np.float32),
            "shared": np.array([shared / (shared + 1)], np.float32),
        }
