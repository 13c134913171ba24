"""``patchlight/Topology-v0`` and ``Placement-v0``: circuits and servers for a starting job."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np

from patchlight.controller.policies.contract import (
    ClusterShape,
    PlacementPolicy,
)
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.sets import joined, lowest
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
from patchlight.emulation.learning.envs.registry import (
    Heuristic,
    first_allowed,
)
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Settings,
    TwoLevel,
)
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.labfile.reader import load_lab

SWITCH_FEATURES = 3
"""The job's NICs under it, others' GPUs under it, whether light moves."""
_JOBS = SyntheticJobs(
    load=0.7,
    mean_s=SHORT_MEAN_S,
    sizes={
        1: 0.25,
        2: 0.25,
        3: 0.2,
        4: 0.2,
        6: 0.1,
    },
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
        self,
        lab: Lab,
        maps: Mapping[str, PortMap],
        group: Sequence[str],
        *,
        locked: Ports,
    ) -> None:
        self._lab = lab
        self._maps = maps
        self._found = dict[str, dict[str, PortMap]]()
        self._names = group
        names = lab.switch_names
        self.switches: tuple[str, ...] = ()
        if lab.has_trunks:
            for switch in names:
                with suppress(CannotRegroup):
                    found = regroup(
                        lab,
                        maps,
                        [group],
                        locked=locked,
                        switches=(switch,),
                    )
                    self._found[switch] = found
            self.switches = tuple(self._found)
            return
        self._group = tuple([lab.host(name).endpoint for name in group])
        self._locked = locked
        shut = with_other_ends(maps, locked)
        stays = False
        need = dict[str, int]()
        for nic in self._group:
            ocs, port = lab.host_plugs.get(nic, ("", 0))
            if ocs not in maps:
                return
            stays = stays or port in shut.get(ocs, ())
            need[ocs] = need.get(ocs, 0) + 1
        if stays:
            site = survey(
                lab,
                maps,
                locked,
                NO_PORTS,
            )
            self.switches = tuple(
                s for s in names if site.takes(self._group, s, site.room)
            )
            return
        # Nobody has to stay where he is: only ports count.
        for ocs, count in need.items():
            closed = shut.get(ocs, set())
            ports_of = lab.facing_ports[ocs]
            names = tuple(
                [
                    switch
                    for switch in names
                    if len(ports := ports_of.get(switch, ()))
                    - len(closed.intersection(ports))
                    >= count
                ]
            )
        self.switches = names

    def onto(self, switch: str) -> dict[str, PortMap]:
        """The maps that change so that the group is lit onto one of ``switches``."""
        found = self._found.get(switch)
        if found is None:
            lab = self._lab
            lit = [
                lit_onto(lab, self._maps, lab.host_plugs[nic])
                for nic in self._group
            ]
            if all(at is not None and at[0] == switch for at in lit):
                return {}
            to = (switch,)
            found = regroup(
                lab,
                self._maps,
                [self._names],
                locked=self._locked,
                switches=to,
            )
        return {
            ocs: each
            for ocs, each in found.items()
            if each != self._maps.get(ocs)
        }


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
        gpus = len(cluster.shape.gpus)
        self._switches = cluster.shape.racks
        count = len(self._switches)
        extra = {
            "job": unit(JOB_FEATURES),
            "at": unit(gpus, count),
            "ring": unit(gpus),
            "switches": unit(count + 1, SWITCH_FEATURES),
            "shared": unit(1),
        }
        super().__init__(
            count + 2,
            cluster,
            jobs or _JOBS,
            settings,
            extra,
        )
        self._placement = placement or FirstFit()

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None
        self._ring: tuple[int, ...] = ()
        self._shape: ClusterShape | None = None

    def _choices(self) -> bool:
        simulation = self._running()
        while True:
            self._head = next(iter(simulation.waiting.values()), None)
            self._ring = ()
            head = self._head
            if head is None or simulation.occupancy.free < head.workers:
                return False
            ring = self._placement.place(
                simulation.view(), head.spec.view, head.workers
            )
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
            self._lit = OneGroup(
                view.lab,
                view.circuits,
                names,
                locked=view.barred,
            )
            switches = self._lit.switches
            self._mask[1:-1] = [
                switch in switches for switch in self._switches
            ]
            return bool(self._mask[0] or switches)
        return False

    def _act(self, action: int) -> bool:
        simulation = self._running()
        head = self._head
        dark_s = 0.0
        assert head is not None
        if action and (maps := self._lit.onto(self._switches[action - 1])):
            dark_s = simulation.rewire(maps).dark_s
        return simulation.start(head, self._ring, dark_s)

    def _features(self) -> Observation:
        simulation = self._running()
        if simulation.cluster.shape is not self._shape:
            self._shape = simulation.cluster.shape
            capacity_bps = simulation.cluster.capacity_bps
            nic_bps = simulation.cluster.nic_bps
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
            own = joined(self._ring)
            wanted = len(self._ring)
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
        job = (
            [0.0] * JOB_FEATURES
            if self._head is None
            else self._job(self._head)
        )
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


SERVER_FEATURES = 5
"""Free GPUs in it and in its rack, whether the job fits in it and in its rack, its uplink."""


def consolidated(env: "PlacementEnv", seen: Observation) -> int:
    """The fullest server that has room for all of the job, else in the fullest such rack."""
    return env.tightest()


def emptiest(env: "PlacementEnv", seen: Observation) -> int:
    """The server with the most free GPUs."""
    free = [
        (gpus.bit_count(), -server)
        for server, gpus in enumerate(env.free_gpus())
    ]
    return -max(free)[1]


class PlacementEnv(QueuedEnv):
    """Jobs come first in, first out; the action is a server, and the last one waits.

    The job gets the free GPUs of that server, then of the servers beside it in the same rack,
    then of other racks, in each step those with the most free GPUs first. A server is allowed
    if it has a free GPU. ``uplinks`` are how many edges of rings leave each rack, for each NIC
    that its uplink has the rate of; ``servers`` are for each server the part of its GPUs and of its
    rack's that are free, whether the job fits in it and in its rack, and its rack's of ``uplinks``.
    """

    per_action: ClassVar[tuple[str, ...]] = ("servers",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "first-fit": first_allowed,
        "consolidated": consolidated,
        "emptiest": emptiest,
    }

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: SyntheticJobs | None = None,
        settings: Settings | None = None,
    ) -> None:
        # Uplinks of an eighth, and jobs that send half of the time: it matters where they are.
        cluster = cluster or TwoLevel(
            4,
            4,
            4,
            oversubscription=8.0,
        )
        jobs = jobs or SyntheticJobs(
            load=0.9,
            mean_s=SHORT_MEAN_S,
            communication=0.5,
        )
        shape = cluster.shape
        extra = {
            "job": unit(JOB_FEATURES),
            "uplinks": unit(len(shape.racks)),
            "servers": unit(len(shape.servers), SERVER_FEATURES),
        }
        super().__init__(
            len(shape.servers) + 1,
            cluster,
            jobs,
            settings,
            extra,
        )
        self._sets = shape.server_gpus
        rack_of = {gpu.server: gpu.rack for gpu in reversed(shape.gpus)}
        # One more, of servers that are in no rack.
        self._in_rack = [
            *(max(1, gpus.bit_count()) for gpus in shape.rack_gpus),
            1,
        ]
        self._sizes = np.array(
            [max(1, gpus.bit_count()) for gpus in self._sets]
        )
        self._racks = [
            rack_of.get(server, -1) for server in range(len(self._sets))
        ]
        self._rack_at = np.array(self._racks)

    def free_gpus(self) -> list[int]:
        """The free GPUs of each server, as sets."""
        free = ~self._running().occupancy.occupied
        return [gpus & free for gpus in self._sets]

    def tightest(self) -> int:
        """The allowed server with the least room that does, in the rack with the least that does.

        Where no rack does, the emptiest server of the emptiest rack.
        """
        wanted = 0 if self._head is None else self._head.workers
        servers = [gpus.bit_count() for gpus in self.free_gpus()]
        racks: dict[int, int] = {}
        for rack, count in zip(self._racks, servers, strict=True):
            racks[rack] = racks.get(rack, 0) + count

        def tightness(server: int) -> tuple[int, int, int, int, int]:
            here = servers[server]
            around = racks[self._racks[server]]
            whole = here >= wanted
            in_rack = around >= wanted
            return (
                2 - whole - in_rack,
                here if whole else 0,
                around if in_rack else -around,
                -here,
                server,
            )

        return min(
            (s for s, count in enumerate(servers) if count),
            key=tightness,
            default=self.wait,
        )

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None

    def _choices(self) -> bool:
        simulation = self._running()
        self._head = next(iter(simulation.waiting.values()), None)
        if (
            self._head is None
            or simulation.occupancy.free < self._head.workers
        ):
            return False
        occupied = simulation.occupancy.occupied
        self._mask[:-1] = [gpus & ~occupied != 0 for gpus in self._sets]
        return True

    def _act(self, action: int) -> bool:
        simulation = self._running()
        head = self._head
        assert head is not None
        free = self.free_gpus()
        ring = lowest(free[action], head.workers)
        if len(ring) < head.workers:
            for server in self._around(action, free):
                ring += lowest(free[server], head.workers - len(ring))
                if len(ring) == head.workers:
                    break
        return simulation.start(head, ring)

    def _around(self, action: int, free: list[int]) -> list[int]:
        """The other servers with free GPUs, in the order in which a job gets theirs."""
        here = self._racks[action]
        others = [
            (self._racks[s] != here, -f.bit_count(), s)
            for s, f in enumerate(free)
            if f
        ]
        return [server for _, _, server in sorted(others) if server != action]

    def _features(self) -> Observation:
        head = self._head
        simulation = self._running()
        uplinks = np.zeros(len(self.cluster.shape.racks), np.float32)
        capacity_bps = simulation.cluster.capacity_bps
        nic_bps = simulation.cluster.nic_bps
        for job in simulation.running.values():
            for link, edges in job.demand.items():
                if isinstance(link, int):
                    uplinks[link] += edges / (capacity_bps[link] / nic_bps)
        uplinks = uplinks / (uplinks + 1)
        features = [0.0] * JOB_FEATURES if head is None else self._job(head)
        free = [gpus.bit_count() for gpus in self.free_gpus()]
        wanted = 0 if head is None else head.workers
        around = [0] * len(self._in_rack)
        for rack, count in zip(self._racks, free, strict=True):
            around[rack] += count
        racks = [
            (min(1.0, count / size), count >= wanted, uplink)
            for count, size, uplink in zip(
                around,
                self._in_rack,
                [*uplinks.tolist(), 0.0],
                strict=True,
            )
        ]
        counts = np.array(free)
        in_rack = np.array(racks)[self._rack_at]
        servers = np.empty((len(free), SERVER_FEATURES), np.float32)
        servers[:, 0] = counts / self._sizes
        servers[:, 1] = in_rack[:, 0]
        servers[:, 2] = counts >= wanted
        servers[:, 3:] = in_rack[:, 1:]
        return {
            "job": np.array(features, np.float32),
            "uplinks": uplinks,
            "servers": servers,
        }
