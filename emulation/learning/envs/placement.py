"""``patchlight/Placement-v0``: on which server does the next job begin?"""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from patchlight.controller.policies.sets import lowest
from patchlight.emulation.learning.envs.queued import (
    JOB_FEATURES,
    SHORT_MEAN_S,
    Observation,
    QueuedEnv,
    unit,
)
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.cluster import Settings, TwoLevel
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob

SERVER_FEATURES = 5
"""Free GPUs in it and in its rack, whether the job fits in it and in its rack, its uplink."""


def consolidated(env: "PlacementEnv", seen: Observation) -> int:
    """The fullest server that has room for all of the job, else in the fullest such rack."""
    return env.tightest()


def emptiest(env: "PlacementEnv", seen: Observation) -> int:
    """The server with the most free GPUs."""
    free = [(gpus.bit_count(), -server) for server, gpus in enumerate(env.free_gpus())]
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
        cluster = cluster or TwoLevel(4, 4, 4, oversubscription=8.0)
        jobs = jobs or SyntheticJobs(load=0.9, mean_s=SHORT_MEAN_S, communication=0.5)
        shape = cluster.shape
        extra = {
            "job": unit(JOB_FEATURES),
            "uplinks": unit(len(shape.racks)),
            "servers": unit(len(shape.servers), SERVER_FEATURES),
        }
        super().__init__(len(shape.servers) + 1, cluster, jobs, settings, extra)
        self._sets = shape.server_gpus
        rack_of = {gpu.server: gpu.rack for gpu in reversed(shape.gpus)}
        # One more, of servers that are in no rack.
        self._in_rack = [*(max(1, gpus.bit_count()) for gpus in shape.rack_gpus), 1]
        self._sizes = np.array([max(1, gpus.bit_count()) for gpus in self._sets])
        self._racks = [rack_of.get(server, -1) for server in range(len(self._sets))]
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
            here, around = servers[server], racks[self._racks[server]]
            whole, in_rack = here >= wanted, around >= wanted
            return (
                2 - whole - in_rack,
                here if whole else 0,
                around if in_rack else -around,
                -here,
                server,
            )

        return min(
            (s for s, count in enumerate(servers) if count), key=tightness, default=self.wait
        )

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None

    def _choices(self) -> bool:
        simulation = self._running()
        self._head = next(iter(simulation.waiting.values()), None)
        if self._head is None or simulation.occupancy.free < self._head.workers:
            return False
        occupied = simulation.occupancy.occupied
        self._mask[:-1] = [gpus & ~occupied != 0 for gpus in self._sets]
        return True

    def _act(self, action: int) -> bool:
        simulation, head = self._running(), self._head
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
        others = [(self._racks[s] != here, -f.bit_count(), s) for s, f in enumerate(free) if f]
        return [server for _, _, server in sorted(others) if server != action]

    def _features(self) -> Observation:
        head = self._head
        simulation = self._running()
        uplinks = np.zeros(len(self.cluster.shape.racks), np.float32)
        capacity_bps, nic_bps = simulation.cluster.capacity_bps, simulation.cluster.nic_bps
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
                around, self._in_rack, [*uplinks.tolist(), 0.0], strict=True
            )
        ]
        counts, in_rack = np.array(free), np.array(racks)[self._rack_at]
        servers = np.empty((len(free), SERVER_FEATURES), np.float32)
        servers[:, 0], servers[:, 1] = counts / self._sizes, in_rack[:, 0]
        servers[:, 2], servers[:, 3:] = counts >= wanted, in_rack[:, 1:]
        return {"job": np.array(features, np.float32), "uplinks": uplinks, "servers": servers}
