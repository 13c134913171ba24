"""Where a job finds its nodes in a cluster that other jobs come to and leave, and who is beside it.

Jobs come, wait and go as in the Philly trace; the one that is looked at arrives among them and is
next as soon as so many nodes are free.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.cluster import NetworkCluster, QueueJob, Settings
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs, queue_jobs
from patchlight.emulation.simulator.cluster.scheduling import QueueScheduler
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.sweep import load_policies
from patchlight.emulation.simulator.network import network_of
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.traces import TraceJob, read_trace
from patchlight.testbed.errors import BadInput, PatchlightError

# How many jobs of the Philly trace want so many GPUs; the 90 other ones are left out.
PHILLY_SIZES = {1: 76627, 2: 1818, 4: 1870, 8: 1643, 16: 199}
# So many jobs for each node come before: few are then left of how it began.
_LOAD, _BEFORE = 0.9, 10
_LOOKED_AT = "looked-at"


class Surroundings(NamedTuple):
    """The nodes of a job in the order of its ranks, and those of each job beside it."""

    nodes: Ints
    neighbours: tuple[Ints, ...]


@dataclass(frozen=True)
class Arrivals:
    """Jobs of a ``trace``, or without one of a law with the Philly trace's published statistics.

    They come to the cluster that ``network`` names so fast that they would hold 90 % of it, and
    are placed by the policy ``placement``. ``seed`` says which of them come first.
    """

    network: str
    trace: Path | None = None
    placement: str = "first-fit"
    seed: int = 0

    @property
    def source(self) -> str:
        """What jobs come by, in words."""
        if self.trace is None:
            return "drawn by a law with the Philly trace's sizes, median and mean duration"
        return str(self.trace)

    def around(self, size: int) -> Surroundings:
        """What a job of so many nodes finds when its turn comes."""
        cluster = NetworkCluster(network_of(self.network))
        jobs = self._jobs(cluster.network.nodes)
        arrives_s = jobs[-1].view.arrived_s
        jobs.append(QueueJob(JobView(_LOOKED_AT, size, arrived_s=arrives_s), 1.0))
        simulation = Simulation(cluster, jobs, Settings())
        policies = load_policies("fifo", self.placement, "keep", self.seed, _raise)
        scheduler = QueueScheduler(simulation, policies)
        looked_at = simulation.jobs[-1]
        while simulation.advance():
            scheduler.decide()
            if looked_at.ring:
                rings = [job.ring for job in simulation.running.values() if job is not looked_at]
                beside = [np.array(ring, np.int64) for ring in rings if len(ring) > 1]
                return Surroundings(np.array(looked_at.ring, np.int64), tuple(beside))
        raise PatchlightError(
            f"the placement policy {self.placement} finds no {size} nodes in {self.network}",
            hint="choose another with --placement",
        )

    def _jobs(self, nodes: int) -> list[QueueJob]:
        """The jobs that come before the one that is looked at."""
        rng = np.random.default_rng(self.seed)
        if self.trace is None:
            law = SyntheticJobs(_BEFORE * nodes, _LOAD, communication=0.0, sizes=PHILLY_SIZES)
            return law.draw(rng, nodes)
        known = [job for job in _read(self.trace) if job.gpus <= nodes]
        if not known:
            raise BadInput(f"no job of {self.trace} fits on {nodes} nodes")
        count = min(_BEFORE * nodes, len(known))
        first = int(rng.integers(len(known) - count + 1))
        chosen = known[first : first + count]
        lasts_s = max(1.0, chosen[-1].submitted_s - chosen[0].submitted_s)
        held = sum(job.gpus * job.duration_s for job in chosen) / lasts_s
        return queue_jobs(chosen, speed=_LOAD * nodes / held)


@cache
def _read(trace: Path) -> Sequence[TraceJob]:
    return read_trace(trace)


def _raise(fault: object) -> None:
    raise PatchlightError(f"the placement policy failed: {fault}")
