"""Asks the policies: which gang is next, how many workers its jobs get, and where they run."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.cluster_view import WiredLab, view_of
from patchlight.controller.jobs.policy_set import PolicySet
from patchlight.controller.jobs.running_job import JobFailed
from patchlight.controller.policies.contract import ClusterView, JobView, Progress
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.policies.topology import NO_PORTS
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobStatus
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

    async def look(
        self, running: HostsOfJobs, recent: Sequence[JobStatus], without_agent: Mapping[str, str]
    ) -> LabView:
        """The lab now. ``recent`` are the jobs that came last, the latest of them last.

        ``without_agent`` are hosts whose agents do not answer, and that in words.
        """
        maps = await self._circuits.maps.read()
        # On hosts whose links nobody knows, a job would wait for its ring for ever.
        unseen = {**self._circuits.devices.unseen_hosts(), **without_agent}
        locked = failed = NO_PORTS
        if self._policies.choice.placement != DEFAULTS["placement"] and maps:
            locked, failed = await self._circuits.closed_ports()
        cluster = WiredLab(self._lab, maps)
        jobs = [view_of(status) for status in recent]
        view = cluster.view(time.time(), running, tuple(unseen), jobs, locked, failed)
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
    ) -> tuple[str, ...] | None:
        """Hosts for a job, the ring in their order; ``None`` if it has to wait.

        ``taken`` are hosts that it cannot have though nobody runs there yet. ``JobFailed`` if
        it can never run, or the partition policy refuses it.
        """
        job = view_of(status)
        _check_links(lab, job)
        placement = self._policies.placement
        if status.spec.placement is not None:
            placement = self._policies.placement_named(status.spec.placement)
        # Hosts that it failed on are left alone as long as there are others.
        for barred in dict.fromkeys(((*taken, *status.avoid), tuple(taken))):
            view = lab.view._replace(occupied=lab.view.occupied | lab.cluster.as_set(barred))
            workers = job.workers or await self._degree(view, job, status.spec.degrees)
            if not workers:
                continue
            sized = job if job.workers else view_of(status, workers)
            gpus = await asyncio.to_thread(placement.place, view, sized, workers)
            if gpus is not None:
                return lab.cluster.hosts(gpus)
        return None

    @staticmethod
    def why_not(lab: LabView, status: JobStatus, taken: Collection[str]) -> str:
        """Why a job that found no hosts waits, in words."""
        view = lab.view._replace(occupied=lab.view.occupied | lab.cluster.as_set(taken))
        free, wanted = view.free_for(view_of(status)).bit_count(), max(1, status.spec.size)
        if free < wanted:
            models = ", ".join(status.spec.gpu_models or tuple(status.spec.compute_s))
            return f"{wanted} GPUs{f' of {models}' if models else ''} wanted, {free} free"
        return f"{wanted} GPUs wanted: the placement policy takes none of the {free} free ones"

    async def _degree(self, view: ClusterView, job: JobView, degrees: Sequence[int]) -> int:
        """How many workers the partition policy gives a job; 0 while too few GPUs are free."""
        partition = self._policies.partition
        free = view.free_for(job).bit_count()
        legal = (0, *sorted(n for n in degrees or range(1, free + 1) if n <= free))
        if partition is None or len(legal) == 1:
            return 0
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
            view = cluster.view(time.time(), running, unseen, (), locked, failed)
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
