"""Simulates a cluster with a job queue: jobs wait for GPUs, train at the speed of the network, and
end."""

from patchlight.emulation.simulator.cluster.cluster import LabCluster, TwoLevel
from patchlight.emulation.simulator.cluster.jobs import QueueJob, queue_jobs
from patchlight.emulation.simulator.cluster.networkcluster import (
    NetworkCluster,
)
from patchlight.emulation.simulator.cluster.results import QueueResult
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.site import Policies
from patchlight.emulation.simulator.cluster.state import Settings
from patchlight.emulation.simulator.cluster.sweep import simulate

__all__ = [
    "LabCluster",
    "NetworkCluster",
    "Policies",
    "QueueJob",
    "QueueResult",
    "Settings",
    "Simulation",
    "TwoLevel",
    "queue_jobs",
    "simulate",
]
