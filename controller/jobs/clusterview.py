"""The lab and its jobs as policies see them. Pure: GPUs with a NIC in the lab file's order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from controller.policies.contract import (
    ClusterShape,
    ClusterView,
    Frozen,
    GpuSite,
    JobView,
    Progress,
    Running,
)
from testbed.jobs import JobSpec
from testbed.lab import Lab
from testbed.portmap import PortMap
from testbed.wiring import Links

NO_PORTS: Mapping[str, frozenset[int]] = {}


@dataclass(frozen=True)
class LabCluster:
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
