"""A cluster with a queue: jobs wait for GPUs, run as fast as the network lets them, and end."""

from patchlight.controller.prediction.network import Training
from patchlight.emulation.simulator.cluster.cluster import LabCluster, TwoLevel
from patchlight.emulation.simulator.cluster.jobs import QueueJob, queue_jobs
from patchlight.emulation.simulator.cluster.networkcluster import NetworkCluster
from patchlight.emulation.simulator.cluster.results import JobRecord, QueueResult
from patchlight.emulation.simulator.cluster.simulation import Simulation
from patchlight.emulation.simulator.cluster.site import Policies
from patchlight.emulation.simulator.cluster.state import Settings
from patchlight.emulation.simulator.cluster.sweep import QueueScheduler, simulate
from patchlight.emulation.simulator.outages import Outages

__all__ = [
    "JobRecord",
    "LabCluster",
    "NetworkCluster",
    "Outages",
    "Policies",
    "QueueJob",
    "QueueResult",
    "QueueScheduler",
    "Settings",
    "Simulation",
    "Training",
    "TwoLevel",
    "queue_jobs",
    "simulate",
]
