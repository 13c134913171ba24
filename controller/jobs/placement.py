"""Asks the policies: which gang is next, how many workers its jobs get, and where they run."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from patchlight.controller.changes.record import Reconfiguration
from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.cluster_view import WiredLab, view_of
from patchlight.controller.jobs.policy_set import PolicySet
from patchlight.controller.jobs.running_job import JobFailed
from patchlight.controller.policies.contract import ClusterView, JobView, Progress
from patchlight.controller.policies.guard import GuardedOrder
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.policies.topology import NO_PORTS
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobStatus
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.queueing import Waiting, WaitReason

HostsOfJobs = Mapping[str, Collection[str]]
"""The hosts of each job that runs, by the job's id."""


class LabView(NamedTuple):
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

    def priority(self, lab: LabView, status: JobStatus, progress: Progress) -> float:
        """What the order policy says of a job; the lowest is next."""
        return self._policies.order.priority(lab.view, view_of(status), progress)

    @property
    def order(self) -> GuardedOrder:
        """The order policy that there is now."""
        return self._policies.order

    def gpus_of(self, hosts: Collection[str]) -> int:
        """The GPUs of these hosts, as a set."""
        return WiredLab(self._lab, {}).as_set(hosts)

    @staticmethod
    def named(lab: LabView, statuses: Sequence[JobStatus]) -> dict[str, int]:
        """Of the jobs that name their hosts the GPUs of these, by the job's id."""
        named = {s.id: [lab.cluster.lab.host(h).name for h in s.spec.hosts] for s in statuses}
        return {job_id: lab.cluster.as_set(hosts) for job_id, hosts in named.items() if hosts}

    @staticmethod
    def free_for(lab: LabView, statuses: Sequence[JobStatus]) -> int:
        """How many free GPUs these jobs can run on, each counted once."""
        able = 0
        for status in statuses:
            able |= lab.view.free_for(view_of(status))
        return able.bit_count()

    def place(self, lab: LabView, status: JobStatus, occupied: int) -> tuple[str, ...] | Waiting:
        """Hosts for a job, the ring in their order, or why it has to wait.

        ``occupied`` are the GPUs that it cannot have. ``JobFailed`` if the partition policy
        refuses it. Policies may take until their deadline: not for an event loop.
        """
        if status.spec.hosts:
            return self._as_named(lab, status, occupied)
        job = view_of(status)
        if (unreached := self.out_of_reach(lab, [status])) is not None:
            return unreached
        if _is_unreachable(job):
            words = (
                f"it is to end within {job.limit_s:g} s, and computes for {job.sequential_s:g} s"
            )
            return Waiting(WaitReason.UNREACHABLE, words, is_blocked=True)
        placement = self._policies.placement
        if status.spec.placement is not None:
            placement = self._policies.placement_named(status.spec.placement)
        # Hosts that it failed on are left alone as long as there are others.
        for avoided in dict.fromkeys((lab.cluster.as_set(status.avoid), 0)):
            view = lab.view._replace(occupied=occupied | avoided)
            workers = job.workers or self._degree(view, job, status.spec.degrees)
            if not workers:
                continue
            sized = job if job.workers else view_of(status, workers)
            gpus = placement.place(view, sized, workers)
            if gpus is not None:
                return lab.cluster.hosts(gpus)
        free = lab.view._replace(occupied=occupied).free_for(job).bit_count()
        words = f"the placement policy finds no place for it on the {free} GPUs that are free"
        return Waiting(WaitReason.NO_PLACE, words)

    @staticmethod
    def out_of_reach(lab: LabView, statuses: Sequence[JobStatus]) -> Waiting | None:
        """Why jobs wait where too few of the hosts that they can run on can be reached."""
        if not lab.unseen:
            return None
        for job in map(view_of, statuses):
            able = [
                number
                for number, gpu in enumerate(lab.view.shape.gpus)
                if not job.gpu_models or gpu.model in job.gpu_models
            ]
            if max(1, job.workers) > sum(not lab.view.broken >> number & 1 for number in able):
                why = "; ".join(sorted(set(lab.unseen.values())))
                return Waiting(WaitReason.OUT_OF_REACH, f"too many hosts are out of reach: {why}")
        return None

    @staticmethod
    def _as_named(lab: LabView, status: JobStatus, occupied: int) -> tuple[str, ...] | Waiting:
        names = tuple(lab.cluster.lab.host(host).name for host in status.spec.hosts)
        busy = [name for name in names if lab.cluster.as_set([name]) & occupied]
        if not busy:
            return names
        silent = [lab.unseen[name] for name in busy if name in lab.unseen]
        if silent:
            return Waiting(WaitReason.OUT_OF_REACH, "; ".join(sorted(set(silent))))
        verb = "is" if len(busy) == 1 else "are"
        return Waiting(WaitReason.NO_GPUS, f"{', '.join(busy[:3])} {verb} busy")

    def _degree(self, view: ClusterView, job: JobView, degrees: Sequence[int]) -> int:
        """How many workers the partition policy gives a job; 0 while too few GPUs are free."""
        partition = self._policies.partition
        free = view.free_for(job).bit_count()
        legal = (0, *sorted(n for n in degrees or range(1, free + 1) if n <= free))
        if partition is None or len(legal) == 1:
            return 0
        workers = partition.degree(view, job, legal)
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


def _is_unreachable(job: JobView) -> bool:
    return job.limit_s < min(job.expected_s.values(), default=0.0)
