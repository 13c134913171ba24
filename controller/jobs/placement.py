"""Asks the policies: which gang is next, how many workers its jobs get, and where they run."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.cluster_view import WiredLab, view_of
from patchlight.controller.jobs.policy_set import PolicySet
from patchlight.controller.jobs.running_job import JobFailed
from patchlight.controller.policies.contract import ClusterView, JobView, Progress
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.policies.topology import NO_PORTS
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobSpec, JobStatus
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap

HostsOfJobs = Mapping[str, Collection[str]]
"""The hosts of each job that runs, by the job's id."""


@dataclass(frozen=True)
class LabView:
    """The lab as policies are shown it, and the hosts whose links nobody knows (and why)."""

    cluster: WiredLab
    view: ClusterView
    unseen: Mapping[str, str]


class Placement:
    """Gives gangs their turn, and jobs their hosts and circuits, as the lab's policies say."""

    def __init__(self, lab: Lab, policies: PolicySet, transactions: Transactions) -> None:
        self._lab, self._policies, self._transactions = lab, policies, transactions
        self._circuits = transactions.parts
        self._seen: Mapping[str, JobStatus] = {}

    async def look(self, running: HostsOfJobs, recent: Sequence[JobStatus]) -> LabView:
        """The lab now. ``recent`` are all jobs that came, the latest last."""
        maps = await self._circuits.maps.read()
        # On hosts whose links nobody knows, a job would wait for its ring for ever.
        unseen = self._circuits.devices.unseen_hosts()
        locked = failed = NO_PORTS
        if self._policies.choice.placement != DEFAULTS["placement"] and maps:
            locked, failed = await self._circuits.closed_ports()
        cluster = WiredLab(self._lab, maps)
        jobs = [view_of(status) for status in recent[-64:]]
        self._seen = {status.id: status for status in recent}
        view = cluster.view(time.time(), running, tuple(unseen), jobs, locked, failed, self._seen)
        return LabView(cluster, view, unseen)

    @property
    def in_turn(self) -> bool:
        """Whether gangs simply come in the order in which they were submitted."""
        return self._policies.choice.order == DEFAULTS["order"]

    async def next(self, lab: LabView, gangs: Sequence[Sequence[JobStatus]]) -> int:
        """Which gang is next: the one with the job that is next."""

        def priority(status: JobStatus) -> float:
            # A job that waits has had nothing, and all of it is left.
            job = view_of(status)
            return self._policies.order.priority(lab.view, job, Progress(0.0, job.sequential_s))

        # In a thread: a policy may take until its deadline.
        ranks = await asyncio.to_thread(lambda: [min(map(priority, gang)) for gang in gangs])
        return ranks.index(min(ranks))

    async def place(
        self, lab: LabView, status: JobStatus, taken: Collection[str]
    ) -> tuple[JobSpec, tuple[str, ...]] | None:
        """A job with its number of workers, and their hosts; ``None`` if it has to wait.

        ``taken`` are hosts that it cannot have though nobody runs there yet. ``JobFailed`` if
        it can never run, or the partition policy refuses it.
        """
        view = lab.view._replace(occupied=lab.view.occupied | lab.cluster.as_set(taken))
        job = view_of(status)
        _check_links(lab, job)
        workers = job.workers or await self._degree(view, job)
        if not workers:
            return None
        spec = replace(status.spec, workers=workers)
        job = view_of(replace(status, spec=spec))
        gpus = await asyncio.to_thread(self._policies.placement.place, view, job, workers)
        return None if gpus is None else (spec, lab.cluster.hosts(gpus))

    async def _degree(self, view: ClusterView, job: JobView) -> int:
        """How many workers the partition policy gives a job; 0 while there is no free GPU."""
        partition = self._policies.partition
        free = view.free_for(job).bit_count()
        if partition is None or not free:
            return 0
        legal = tuple(range(free + 1))
        workers = await asyncio.to_thread(partition.degree, view, job, legal)
        if not workers:
            raise JobFailed(f"the partition policy {partition.name} refuses it")
        return workers

    async def rewire(
        self, topology: str, groups: HostsOfJobs, running: HostsOfJobs, why: str
    ) -> Reconfiguration:
        """Change the circuits as the topology policy of that name has it for these jobs.

        ``running`` are all jobs that have hosts, also those whose circuits nobody asks about.
        """
        policy = self._policies.topology(topology)
        locked, failed = await self._circuits.closed_ports()
        unseen = tuple(self._circuits.devices.unseen_hosts())

        def ask(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            cluster = WiredLab(self._lab, maps)
            view = cluster.view(time.time(), running, unseen, (), locked, failed, self._seen)
            gpus = [[cluster.numbers[name] for name in hosts] for hosts in groups.values()]
            return policy.circuits(view, gpus)

        # A change plans in the event loop, and a policy may take until its deadline: so it is asked
        # first. Its answer holds if the maps are still those.
        asked_of = self._circuits.maps.last or await self._circuits.maps.read()
        answer: Mapping[str, PortMap] | None = None
        with contextlib.suppress(PatchlightError):  # the change asks again, and is told
            answer = await asyncio.to_thread(ask, asked_of)

        def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            return answer if answer is not None and maps == asked_of else ask(maps)

        return await self._transactions.change(decide, why)


def _check_links(lab: LabView, job: JobView) -> None:
    """``JobFailed`` if too few hosts of the job's GPU models have links that are known."""
    if not lab.unseen:
        return
    shape, broken = lab.view.shape, lab.view.broken
    able = [n for n, gpu in enumerate(shape.gpus) if gpu.model in job.gpu_models]
    if max(1, job.workers) > sum(not broken >> number & 1 for number in able):
        why = "; ".join(sorted(set(lab.unseen.values())))
        raise JobFailed(f"the light of too many hosts is not known: {why}")
