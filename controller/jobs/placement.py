"""Asks the policies: which gang is next, how many workers its jobs get, and where they run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from patchlight.controller.changes.transaction import Transactions
from patchlight.controller.jobs.policy_set import PolicySet
from patchlight.controller.jobs.running_job import JobFailed
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    Frozen,
    GpuSite,
    JobView,
    Progress,
    Running,
)
from patchlight.controller.policies.registry import DEFAULTS
from patchlight.controller.policies.regroup import Ports
from patchlight.testbed.jobs import JobSpec, JobStatus
from patchlight.testbed.lab import Lab
from patchlight.testbed.portmap import PortMap
from patchlight.testbed.wiring import Links, trace_links

NO_PORTS: Mapping[str, frozenset[int]] = {}


@dataclass(frozen=True)
class WiredLab:
    """A lab as it is wired now: the numbers of its hosts, and its shape."""

    lab: Lab
    links: Links

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The host behind each GPU number: those that have a GPU and a NIC."""
        return tuple(host.name for host in self.lab.hosts if host.gpu is not None)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Each host's number."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def shape(self) -> ClusterShape:
        """A rack is a packet switch; a host whose NIC is lit onto none is in no rack."""
        servers = tuple(server.name for server in self.lab.servers)
        racks = tuple(switch.name for switch in self.lab.packet_switches)
        server_numbers = {name: number for number, name in enumerate(servers)}
        rack_numbers = {name: number for number, name in enumerate(racks)}
        sites = []
        for name in self.names:
            host = self.lab.host(name)
            switch = self.links.switch_of(self.lab, host.endpoint)
            model = host.gpu.model if host.gpu else ""
            sites.append(
                GpuSite(
                    name,
                    server_numbers[host.server.name],
                    rack_numbers.get(switch or "", -1),
                    model,
                )
            )
        return ClusterShape(tuple(sites), servers, racks)

    def as_set(self, hosts: Iterable[str]) -> int:
        """The GPUs of these hosts."""
        found = 0
        for name in hosts:
            if (number := self.numbers.get(name)) is not None:
                found |= 1 << number
        return found

    def hosts(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The hosts of these GPUs, in their order."""
        return tuple(self.names[gpu] for gpu in gpus)

    def view(
        self,
        now_s: float,
        busy: Collection[str],
        broken: Collection[str],
        running: Iterable[tuple[str, Collection[str]]],
        recent: Sequence[JobView],
        maps: Mapping[str, PortMap],
        barred: Mapping[str, frozenset[int]] = NO_PORTS,
    ) -> ClusterView:
        """The cluster now. ``running`` are jobs and their hosts; when they end is not known."""
        out_of_use = self.as_set(broken)
        return ClusterView(
            now_s=now_s,
            shape=self.shape,
            occupied=self.as_set(busy) | out_of_use,
            broken=out_of_use,
            running=tuple(
                Running(float("inf"), self.as_set(hosts), name) for name, hosts in running
            ),
            recent=tuple(recent)[-64:],
            lab=self.lab,
            circuits=Frozen(maps),
            barred=Frozen(barred),
        )


def view_of(job_id: str, spec: JobSpec, arrived_s: float) -> JobView:
    """A job as policies see it. Its expected time is that of computing alone.

    Each worker computes as long as one alone would, so it is the same for any number of them.
    """
    slowest_s = max(spec.compute_s.values(), default=0.0) * spec.iterations
    workers = len(spec.hosts) or spec.workers
    return JobView(
        name=job_id,
        workers=workers,
        arrived_s=arrived_s,
        sequential_s=slowest_s,
        expected_s=Frozen({workers: slowest_s} if workers else None),
        gpu_models=frozenset(spec.compute_s),
    )


def progress_of(job: JobView) -> Progress:
    """Of a job that waits: it has had nothing, and all is left."""
    return Progress(remaining_s=job.sequential_s)


@dataclass(frozen=True)
class LabView:
    """The lab as policies are shown it, and the hosts whose light nobody knows (and why)."""

    cluster: WiredLab
    view: ClusterView
    unseen: Mapping[str, str] = field(default_factory=dict)


class Placement:
    """Gives gangs their turn and jobs their hosts, as the lab's policies say."""

    def __init__(self, lab: Lab, deciders: PolicySet) -> None:
        self._lab, self._deciders = lab, deciders

    async def look(
        self,
        reconfigurer: Transactions,
        running: Sequence[tuple[str, Collection[str]]],
        recent: Sequence[JobStatus],
    ) -> LabView:
        """The lab now. ``running`` are jobs and their hosts, ``recent`` all jobs that came."""
        maps = await reconfigurer.read_maps()
        # Where nobody knows the light, a job would wait for its ring for ever.
        unseen = reconfigurer.unseen_hosts()
        barred: Mapping[str, frozenset[int]] = {}
        if self._deciders.choice.placement != DEFAULTS["placement"] and maps:
            barred = either(*await reconfigurer.closed_ports())
        cluster = WiredLab(self._lab, trace_links(self._lab, maps))
        busy = [name for _, hosts in running for name in hosts]
        seen = [view_of(each.id, each.spec, each.submitted_at) for each in recent]
        view = cluster.view(time.time(), busy, tuple(unseen), running, seen, maps, barred)
        return LabView(cluster, view, unseen)

    @property
    def in_turn(self) -> bool:
        """Whether gangs simply come in the order in which they were submitted."""
        return self._deciders.choice.order == DEFAULTS["order"]

    async def next(self, situation: LabView, gangs: Sequence[Sequence[JobStatus]]) -> int:
        """Which gang is next: the one with the job that is next."""
        view, order = situation.view, self._deciders.order

        def ranks() -> list[float]:
            jobs = [[view_of(j.id, j.spec, j.submitted_at) for j in gang] for gang in gangs]
            return [min(order.priority(view, j, progress_of(j)) for j in gang) for gang in jobs]

        # In a thread: a policy may take until its deadline.
        found = await asyncio.to_thread(ranks)
        return found.index(min(found))

    async def place(
        self, situation: LabView, status: JobStatus, taken: Collection[str]
    ) -> tuple[JobSpec, tuple[str, ...]] | None:
        """A job with its number of workers, and their hosts; ``None`` if it has to wait.

        ``taken`` are hosts that it cannot have though nobody runs there yet. ``JobFailed`` if
        it can never run, or the partition policy refuses it.
        """
        cluster, view = situation.cluster, situation.view
        view = view._replace(occupied=view.occupied | cluster.as_set(taken))
        job = view_of(status.id, status.spec, status.submitted_at)
        self._check_light(situation, job)
        workers = job.workers or await self._degree(view, job)
        if not workers:
            return None
        spec = replace(status.spec, workers=workers)
        job = view_of(status.id, spec, status.submitted_at)
        gpus = await asyncio.to_thread(self._deciders.placement.place, view, job, workers)
        return None if gpus is None else (spec, cluster.hosts(gpus))

    def _check_light(self, situation: LabView, job: JobView) -> None:
        if not situation.unseen:
            return
        shape, broken = situation.view.shape, situation.view.broken
        able = [n for n, gpu in enumerate(shape.gpus) if gpu.model in job.gpu_models]
        if max(1, job.workers) > sum(not broken >> number & 1 for number in able):
            why = "; ".join(sorted(set(situation.unseen.values())))
            raise JobFailed(f"the light of too many hosts is not known: {why}")

    async def _degree(self, view: ClusterView, job: JobView) -> int:
        """How many workers the partition policy gives a job; 0 while there is no free GPU."""
        partition = self._deciders.partition
        free = view.free_for(job).bit_count()
        if partition is None or not free:
            return 0
        legal = tuple(range(free + 1))
        workers = await asyncio.to_thread(partition.degree, view, job, legal)
        if not workers:
            raise JobFailed(f"the partition policy {partition.name} refuses it")
        return workers

    def rewiring(
        self,
        reconfigurer: Transactions,
        groups: Sequence[Sequence[str]],
        barred: Ports,
        running: Sequence[tuple[str, Collection[str]]] = (),
    ) -> Callable[[Mapping[str, PortMap]], Mapping[str, PortMap]]:
        """What the topology policy makes of the present maps, for a reconfiguration.

        ``running`` are all jobs that have hosts, also those whose circuits nobody asks about.
        """
        unseen = tuple(reconfigurer.unseen_hosts())
        closed = {ocs: frozenset(ports) for ocs, ports in barred.items()}

        def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
            cluster = WiredLab(self._lab, trace_links(self._lab, maps))
            busy = [name for _, hosts in running for name in hosts]
            busy += [name for group in groups for name in group]
            view = cluster.view(time.time(), busy, unseen, running, (), maps, closed)
            numbers = [[cluster.numbers[name] for name in group] for group in groups]
            return self._deciders.topology.circuits(view, numbers)

        return decide


def either(locked: Ports, failed: Ports) -> Mapping[str, frozenset[int]]:
    """The ports of both, by OCS."""
    return {
        ocs: frozenset(locked.get(ocs, ())) | frozenset(failed.get(ocs, ()))
        for ocs in {*locked, *failed}
    }
