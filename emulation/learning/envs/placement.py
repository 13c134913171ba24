"""``patchlight/Placement-v0``: on which server does the next job begin?"""

from __future__ import annotations

import numpy as np

from patchlight.emulation.learning.envs.queued import (
    JOB_FEATURES,
    Observation,
    QueuedEnv,
    default_cluster,
    unit,
)
from patchlight.emulation.simulator.cluster import Settings
from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.cluster.synthetic_jobs import SyntheticJobs


class PlacementEnv(QueuedEnv):
    """Jobs come first in, first out; the action is a server, and the last one waits.

    The job gets the free GPUs of that server, then of the servers beside it in the same rack,
    then of other racks, in each step those with the most free GPUs first. A server is allowed
    if it has a free GPU. ``uplinks`` are how many edges of rings leave each rack, for each NIC
    that its uplink has the rate of.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        jobs: SyntheticJobs | None = None,
        settings: Settings | None = None,
    ) -> None:
        cluster = cluster or default_cluster()
        shape = cluster.shape
        super().__init__(
            len(shape.servers) + 1,
            cluster,
            jobs,
            settings,
            {"job": unit(JOB_FEATURES), "uplinks": unit(len(shape.racks))},
        )
        self._sets = self.cluster.shape.server_gpus
        self._racks = [
            next((g.rack for g in self.cluster.shape.gpus if g.server == server), -1)
            for server in range(len(self._sets))
        ]

    def _begin(self) -> None:
        self._head: SimulatedJob | None = None

    def _choices(self) -> bool:
        simulation = self._running()
        self._head = next(iter(simulation.waiting.values()), None)
        if self._head is None or simulation.occupancy.free < self._head.workers:
            return False
        occupied = simulation.occupancy.occupied
        for server, gpus in enumerate(self._sets):
            self._mask[server] = gpus & ~occupied != 0
        return True

    def _act(self, action: int) -> bool:
        simulation, head = self._running(), self._head
        assert head is not None
        free = ~simulation.occupancy.occupied
        here = self._racks[action]

        def nearness(server: int) -> tuple[bool, bool, int, int]:
            count = (self._sets[server] & free).bit_count()
            return server != action, self._racks[server] != here, -count, server

        ring: list[int] = []
        for server in sorted(range(len(self._sets)), key=nearness):
            gpus = self._sets[server] & free
            while gpus and len(ring) < head.workers:
                lowest = gpus & -gpus
                ring.append(lowest.bit_length() - 1)
                gpus ^= lowest
        return simulation.start(head, ring)

    def _features(self) -> Observation:
        head = self._head
        simulation = self._running()
        uplinks = np.zeros(len(self.cluster.shape.racks), np.float32)
        for job in simulation.running.values():
            for link, edges in job.demand.items():
                if isinstance(link, int):
                    nics = simulation.cluster.capacity_bps[link] / simulation.cluster.nic_bps
                    uplinks[link] += edges / nics
        features = [0.0] * JOB_FEATURES if head is None else self._job(head)
        return {"job": np.array(features, np.float32), "uplinks": uplinks / (uplinks + 1)}
