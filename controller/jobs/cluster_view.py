"""The lab as policies see it: its GPUs, racks and jobs as they are wired and run now. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Self

from patchlight.controller.changes.device_maps import circuits_in
from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    Frozen,
    GpuSite,
    JobView,
    RingOfJob,
    Running,
)
from patchlight.controller.policies.ring_order import NO_PORTS, Ports
from patchlight.controller.prediction.sharing import Training, training_load
from patchlight.testbed.graphs import ComputationGraph, builtin_graph
from patchlight.testbed.graphs.files import graph_from_json
from patchlight.testbed.jobs import JobState, JobStatus
from patchlight.testbed.lab.labmaps import with_spectra
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.wiring import trace_links


@dataclass(frozen=True)
class WiredLab:
    """A lab under the present maps of its circuit switches."""

    lab: Lab
    maps: Mapping[str, PortMap]

    @classmethod
    def now(cls, lab: Lab, maps: Mapping[str, AnyMap]) -> Self:
        """The lab as it is: light goes through its wavelength switches as they are, too."""
        return cls(with_spectra(lab, maps), circuits_in(maps))

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
        """A rack is a packet switch; a host that no circuit joins to one is in no rack."""
        links = trace_links(self.lab, self.maps)
        servers = {server.name: number for number, server in enumerate(self.lab.servers)}
        racks = {switch.name: number for number, switch in enumerate(self.lab.packet_switches)}
        sites = []
        for name in self.names:
            host = self.lab.host(name)
            rack = racks.get(links.switch_of(self.lab, host.endpoint) or "", -1)
            model = host.gpu.model if host.gpu else ""
            sites.append(GpuSite(name, servers[host.server.name], rack, model))
        return ClusterShape(tuple(sites), tuple(servers), tuple(racks))

    def as_set(self, hosts: Iterable[str]) -> int:
        """The GPUs of these hosts."""
        gpus = 0
        for name in hosts:
            if (number := self.numbers.get(name)) is not None:
                gpus |= 1 << number
        return gpus

    def hosts(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The hosts of these GPUs, in their order."""
        return tuple(self.names[gpu] for gpu in gpus)

    def view(
        self,
        now_s: float,
        running: Mapping[str, Collection[str]],
        broken: Collection[str] = (),
        recent: Sequence[JobView] = (),
        locked: Ports = NO_PORTS,
        failed: Ports = NO_PORTS,
        jobs: Mapping[str, JobStatus] = MappingProxyType({}),
        waiting: Collection[str] = (),
    ) -> ClusterView:
        """The cluster now. ``running`` has each job's hosts; when jobs end is not known.

        Circuits of ``locked`` OCS ports are to stay; ``failed`` ports can carry none. ``jobs`` say
        what those that run, by id, have still to do. ``waiting`` names those of ``recent`` that
        wait for GPUs.
        """
        out_of_use = self.as_set(broken)
        at_work = [Running(float("inf"), self.as_set(hosts), job) for job, hosts in running.items()]
        occupied = out_of_use
        for job in at_work:
            occupied |= job.gpus
        return ClusterView(
            now_s=now_s,
            shape=self.shape,
            occupied=occupied,
            broken=out_of_use,
            running=tuple(at_work),
            recent=tuple(recent)[-64:],
            lab=self.lab,
            circuits=Frozen(self.maps),
            barred=Frozen({ocs: _ports(ocs, locked, failed) for ocs in {*locked, *failed}}),
            failed=Frozen({ocs: _ports(ocs, failed) - _ports(ocs, locked) for ocs in failed}),
            rings=tuple(self.ring(job, hosts, jobs.get(job)) for job, hosts in running.items()),
            queue=tuple(job for job in recent if job.name in waiting),
        )

    def ring(self, job: str, hosts: Collection[str], status: JobStatus | None) -> RingOfJob:
        """A job's ring, and the iterations that it has still to do where its status is known."""
        ring = tuple(self.numbers[name] for name in hosts)
        if status is None:
            return RingOfJob(job, ring)
        training = training_of(status)
        models = {self.shape.gpus[gpu].model for gpu in ring}
        if training is None or not models <= training.compute_s.keys():
            return RingOfJob(job, ring)
        load = training_load(job, training, len(ring), models)
        waits = status.state not in (JobState.RUNNING, JobState.PAUSED)
        return RingOfJob(job, ring, load, waits=waits)


def training_of(status: JobStatus) -> Training | None:
    """What a job trains, of which what it has done is left out; ``None`` if that is not known."""
    spec = status.spec
    if not (spec.iterations and spec.gradient_bytes and spec.compute_s):
        return None
    left = spec.iterations - status.iterations_done
    return Training(left, spec.gradient_bytes, spec.compute_s, split=spec.is_split)


def alone_s(status: JobStatus, nic_bps: float) -> float:
    """How long a job still takes on GPUs whose links it shares with nobody, NaN if not known.

    Of the models that it may run on the slowest sets its pace. While it has no hosts, the lowest
    number of workers counts that a policy may choose. What nobody knows of its gradient takes no
    time.
    """
    spec = status.spec
    if not (spec.iterations and spec.compute_s):
        return math.nan
    models = [model for model in spec.compute_s if spec.runs_on(model)] or spec.compute_s
    left = spec.iterations - status.iterations_done
    training = Training(left, spec.gradient_bytes, spec.compute_s, split=spec.is_split)
    workers = len(status.hosts) or spec.size or min(spec.degrees, default=1)
    load = training_load(status.id, training, workers, models)
    return max(0.0, left) * load.unit_s(nic_bps)


def _ports(ocs: str, *sets: Ports) -> frozenset[int]:
    return frozenset().union(*(ports.get(ocs, ()) for ports in sets))


def view_of(status: JobStatus, workers: int | None = None) -> JobView:
    """A job as policies see it, of so many workers. Its expected time is that of computing alone.

    Each worker computes as long as one alone would, so it is the same for any number of them,
    unless an iteration is split over them. Of a foreign command that does not say how long it
    computes, no time is known.
    """
    spec = status.spec
    known = bool(spec.compute_s and spec.iterations)
    slowest_s = max(spec.compute_s.values()) * spec.iterations if known else math.nan
    workers = spec.size if workers is None else workers
    limit_s = math.inf if spec.deadline_s is None else spec.deadline_s
    requirement = math.inf if spec.requirement is None else spec.requirement
    if known and slowest_s > 0:
        limit_s = min(limit_s, requirement * slowest_s)
        requirement = limit_s / slowest_s
    return JobView(
        name=status.id,
        workers=workers,
        graph=graph_of(spec.graph) if spec.graph else None,
        arrived_s=status.submitted_at,
        sequential_s=slowest_s,
        requirement=requirement,
        limit_s=limit_s,
        expected_s=Frozen(
            {workers: slowest_s / (workers if spec.is_split else 1)} if workers and known else None
        ),
        gpu_models=frozenset(spec.gpu_models or spec.compute_s),
        user=status.by,
        training=training_of(status),
        degrees=tuple(sorted(spec.degrees)),
    )


@lru_cache(maxsize=64)
def graph_of(source: str) -> ComputationGraph:
    """The built-in computation graph of that name, or the one that is written there as JSON."""
    if source.lstrip().startswith("{"):
        return graph_from_json(source, "the job's graph")
    return builtin_graph(source)
