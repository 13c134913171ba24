"""A cluster with a queue: jobs wait for GPUs, run as fast as the network lets them, and end.

``jobs`` says what a job is, ``cluster`` and ``labcluster`` where it runs, ``sharing`` how fast;
``simulation`` is the cluster in time, ``scheduling`` lets policies decide on it, and
``results`` says what came of it.
"""

from emulation.flow.queues.cluster import TwoLevel
from emulation.flow.queues.jobs import QueueJob, Training, queue_jobs
from emulation.flow.queues.labcluster import LabCluster
from emulation.flow.queues.outages import Outages
from emulation.flow.queues.results import JobRecord, QueueResult
from emulation.flow.queues.scheduling import Policies, Scheduler, simulate
from emulation.flow.queues.settings import Settings
from emulation.flow.queues.simulation import Simulation

__all__ = [
    "JobRecord",
    "LabCluster",
    "Outages",
    "Policies",
    "QueueJob",
    "QueueResult",
    "Scheduler",
    "Settings",
    "Simulation",
    "Training",
    "TwoLevel",
    "queue_jobs",
    "simulate",
]
