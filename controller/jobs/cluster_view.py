"""Shows the lab and its jobs to policies, and records what they saw. Pure functions."""

import hashlib
import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar

from patchlight.controller.changes.device_maps import circuits_in
from patchlight.controller.jobs.lives import AT_WORK
from patchlight.controller.policies import contract
from patchlight.controller.policies.contract import (
    ClusterView,
    Frozen,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.topology import NO_PORTS, Ports
from patchlight.controller.prediction.network import (
    Load,
    Training,
    training_load,
)
from patchlight.testbed.graphs import ComputationGraph, builtin_graph
from patchlight.testbed.graphs.files import graph_from_json
from patchlight.testbed.jobs import JobStatus
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import AnyMap, PortMap
from patchlight.testbed.lab.wiring import trace_links, with_spectra


@dataclass(frozen=True)
class WiredLab:
    """A lab with the present maps of its circuit switches."""

    lab: Lab
    maps: Mapping[str, PortMap]

    @classmethod
    def now(cls, lab: Lab, maps: Mapping[str, AnyMap]) -> Self:
        """The lab with its present circuits, including wavelength switches."""
        return cls(with_spectra(lab, maps), circuits_in(maps))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The host of each GPU number: hosts with a GPU and a NIC."""
        return tuple(
            host.name for host in self.lab.hosts if host.gpu is not None
        )

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Each host's number."""
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def shape(self) -> contract.ClusterShape:
        """A rack is a packet switch; hosts without a circuit to one have no rack."""
        links = trace_links(self.lab, self.maps)
        servers = {
            server.name: number
            for number, server in enumerate(self.lab.servers)
        }
        racks = {
            switch.name: number
            for number, switch in enumerate(self.lab.packet_switches)
        }
        sites = []
        for name in self.names:
            host = self.lab.host(name)
            rack = racks.get(
                links.switch_of(self.lab, host.endpoint) or "", -1
            )
            model = host.gpu.model if host.gpu else ""
            sites.append(
                contract.GpuSite(
                    name,
                    servers[host.server.name],
                    rack,
                    model,
                )
            )
        return contract.ClusterShape(
            tuple(sites), tuple(servers), tuple(racks)
        )

    def as_set(self, hosts: Iterable[str]) -> int:
        """The GPUs of these hosts."""
        return sum(
            1 << self.numbers[name] for name in {*hosts} & self.numbers.keys()
        )

    def hosts(self, gpus: Sequence[int]) -> tuple[str, ...]:
        """The hosts of these GPUs, in order."""
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
        """The cluster now, with each job's hosts in ``running``. Circuits of ``locked`` OCS ports
        stay; ``failed`` ports cannot have any. ``waiting`` are those of ``recent`` that wait."""
        out_of_use = self.as_set(broken)
        at_work = [
            contract.Running(float("inf"), self.as_set(hosts), job)
            for job, hosts in running.items()
        ]
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
            barred=Frozen(
                {
                    ocs: _ports(ocs, locked, failed)
                    for ocs in {*locked, *failed}
                }
            ),
            failed=Frozen(
                {
                    ocs: _ports(ocs, failed) - _ports(ocs, locked)
                    for ocs in failed
                }
            ),
            rings=tuple(
                self.ring(job, hosts, jobs.get(job))
                for job, hosts in running.items()
            ),
            queue=tuple(job for job in recent if job.name in waiting),
        )

    def ring(
        self,
        job: str,
        hosts: Collection[str],
        status: JobStatus | None,
    ) -> RingOfJob:
        """A job's ring, with the remaining iterations if its status is given."""
        ring = tuple(self.numbers[name] for name in hosts)
        if status is None:
            return RingOfJob(job, ring)
        training = training_of(status)
        models = {self.shape.gpus[gpu].model for gpu in ring}
        if training is None or not models <= training.compute_s.keys():
            return RingOfJob(job, ring)
        load = training_load(
            job,
            training,
            len(ring),
            models,
        )
        waits = status.state not in AT_WORK
        return RingOfJob(
            job,
            ring,
            load,
            waits=waits,
        )


def training_of(status: JobStatus) -> Training | None:
    """The rest of a job's training; ``None`` if unknown. Without a number of iterations as many are
    expected as are done."""
    spec = status.spec
    done = status.iterations_done
    expected = spec.iterations or 2 * done
    if not (expected and spec.gradient_bytes and spec.compute_s):
        return None
    left = expected - done
    return Training(
        left,
        spec.gradient_bytes,
        spec.compute_s,
        split=spec.is_split,
    )


def _ports(ocs: str, *sets: Ports) -> frozenset[int]:
    return frozenset().union(*(ports.get(ocs, ()) for ports in sets))


def view_of(status: JobStatus, workers: int | None = None) -> JobView:
    """A job as policies see it, with that many workers and its compute time if known. The time is
    independent of the number unless an iteration is split."""
    spec = status.spec
    known = bool(spec.compute_s and spec.iterations)
    slowest_s = (
        max(spec.compute_s.values()) * spec.iterations if known else math.nan
    )
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
            {workers: slowest_s / (workers if spec.is_split else 1)}
            if workers and known
            else None
        ),
        gpu_models=frozenset(spec.gpu_models or spec.compute_s),
        user=status.by,
        training=training_of(status),
        degrees=tuple(sorted(spec.degrees)),
    )


def alone_s(status: JobStatus, nic_bps: float) -> float:
    """The remaining seconds of a job on links of its own, on its slowest allowed model; NaN if
    unknown. Without hosts, it has its least number of workers."""
    spec = status.spec
    if not (spec.iterations and spec.compute_s):
        return math.nan
    models = [
        model for model in spec.compute_s if spec.runs_on(model)
    ] or spec.compute_s
    left = spec.iterations - status.iterations_done
    training = Training(
        left,
        spec.gradient_bytes,
        spec.compute_s,
        split=spec.is_split,
    )
    workers = len(status.hosts) or status.spec.least_workers
    load = training_load(
        status.id,
        training,
        workers,
        models,
    )
    return max(0.0, left) * load.unit_s(nic_bps)


@lru_cache(maxsize=64)
def graph_of(source: str) -> ComputationGraph:
    """The built-in computation graph of that name, or the graph in the text (JSON)."""
    if source.lstrip().startswith("{"):
        return graph_from_json(source, "the job's graph")
    return builtin_graph(source)


A = TypeVar("A")

OWN_GRAPH = "of the job"
"""The name, in decisions, of a graph that is in the job's spec."""


@dataclass(
    frozen=True,
    slots=True,
)
class Decision:
    """One answer of a policy, as JSON. ``saw`` returns its input; ``weighed`` is its explanation:
    for a learned policy the options and scores; ``fault``: why the default decided."""

    kind: str
    policy: str
    answer: Any
    seconds: float
    saw: Callable[[], Mapping[str, Any]]
    weighed: Any = None
    fault: str = ""

    @property
    def record(self) -> dict[str, Any]:
        """For the ledger, with a digest of the input."""
        saw = self.saw()
        took_s = round(self.seconds, 6)
        record = {
            "kind": self.kind,
            "policy": self.policy,
            "answer": self.answer,
        }
        record |= {"seconds": took_s, "digest": digest(saw), "saw": saw}
        record |= {"fault": self.fault} if self.fault else {}
        return (
            record
            if self.weighed is None
            else {**record, "weighed": self.weighed}
        )


class Decides(Protocol):
    """A policy of a lab: its name, and the explanation of this thread's last answer."""

    name: str

    @property
    def explanation(self) -> Any:
        """As JSON, or ``None``."""

    @property
    def fault(self) -> str:
        """Why the default decided instead, if it did."""


def decided(
    kind: contract.PolicyKind,
    policy: Decides,
    ask: Callable[[], A],
    saw: Callable[[], Mapping[str, Any]],
) -> tuple[A, Decision]:
    """A policy's answer, also as a decision."""
    began = time.perf_counter()
    answer = ask()
    took_s = time.perf_counter() - began
    told = policy.explanation, policy.fault
    return answer, Decision(
        kind,
        policy.name,
        plain(answer),
        took_s,
        saw,
        *told,
    )


def digest(saw: Mapping[str, Any]) -> str:
    """The first half of the SHA-256 of a policy's input: equal inputs give equal digests."""
    text = json.dumps(
        saw,
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def seen(
    view: ClusterView,
    job: JobView | None = None,
    legal: Sequence[int] = (),
    groups: Sequence[Sequence[int]] = (),
    graph: str | None = None,
    elastic: Sequence[contract.ElasticJob] = (),
    queue: Sequence[contract.QueuedJob] = (),
) -> dict[str, Any]:
    """A policy's input without the lab, as JSON: GPU sets are hexadecimal numbers."""
    found: dict[str, Any] = {
        "now_s": view.now_s,
        "occupied": f"{view.occupied:x}",
        "broken": f"{view.broken:x}",
        "running": [
            [plain(r.ends_s), f"{r.gpus:x}", r.name] for r in view.running
        ],
        "recent": [_job_record(each) for each in view.recent],
        "circuits": plain(view.circuits),
        "barred": plain(view.barred),
        "failed": plain(view.failed),
        "usage": dict(view.usage),
        "rings": [
            [
                r.name,
                list(r.ring),
                r.load and list(r.load),
                plain(r.ends_s),
                r.waits,
            ]
            for r in view.rings
        ],
    }
    if view.queue:
        found["waiting"] = [each.name for each in view.queue]
    if view.measured:
        found["measured"] = plain(view.measured)
    if job is not None:
        found["job"] = {**_job_record(job), "graph": graph}
    if legal:
        found["legal"] = list(legal)
    if groups:
        found["groups"] = [list(group) for group in groups]
    if elastic:
        found["elastic"] = plain(list(elastic))
        found["queue"] = plain(list(queue))
    return found


def arguments(
    kind: contract.PolicyKind,
    saw: Mapping[str, Any],
    lab: Lab,
    own_graph: str | None = None,
) -> tuple[Any, ...]:
    """The arguments that show a policy the same input, with ``own_graph`` of the job's spec."""
    maps = {
        ocs: PortMap.parse(pairs) for ocs, pairs in saw["circuits"].items()
    }
    recent = tuple(map(_job, saw["recent"]))
    waiting = frozenset(saw.get("waiting", ()))
    view = ClusterView(
        now_s=saw["now_s"],
        shape=WiredLab(lab, maps).shape,
        occupied=int(saw["occupied"], 16),
        broken=int(saw["broken"], 16),
        running=tuple(
            contract.Running(_seconds(ends_s), int(gpus, 16), name)
            for ends_s, gpus, name in saw["running"]
        ),
        recent=recent,
        lab=lab,
        circuits=Frozen(maps),
        barred=Frozen(
            {ocs: frozenset(ports) for ocs, ports in saw["barred"].items()}
        ),
        failed=Frozen(
            {ocs: frozenset(ports) for ocs, ports in saw["failed"].items()}
        ),
        usage=Frozen(saw["usage"]),
        rings=tuple(map(_ring, saw["rings"])),
        measured=Frozen(
            {
                int(gpu): (sent, got)
                for gpu, (sent, got) in saw.get("measured", {}).items()
            }
        ),
        queue=tuple(job for job in recent if job.name in waiting),
    )
    if kind == "topology":
        return view, saw["groups"]
    if kind == "elasticity":
        return (
            view,
            [*map(_elastic, saw["elastic"])],
            [*map(_queued, saw["queue"])],
        )
    record = saw["job"]
    if record["graph"] == OWN_GRAPH:
        record = {**record, "graph": own_graph}
    job = _job(record)
    return (
        (view, job, tuple(saw["legal"]))
        if kind == "partition"
        else (view, job, job.workers)
    )


def plain(value: Any) -> Any:
    """A policy's input or answer as JSON; infinity and NaN become ``None``."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, PortMap):
        return list(value.texts)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [*map(plain, value)]
    return value


def _job_record(job: JobView) -> dict[str, Any]:
    absent = {"graph"} if job.degrees else {"graph", "degrees"}
    return {
        name: plain(each)
        for name, each in job._asdict().items()
        if name not in absent
    }


def _job(record: Mapping[str, Any]) -> JobView:
    known = {name: each for name, each in record.items() if each is not None}
    known["expected_s"] = Frozen(
        {int(n): seconds for n, seconds in record["expected_s"].items()}
    )
    known["gpu_models"] = frozenset(record["gpu_models"])
    known["degrees"] = tuple(record.get("degrees", ()))
    if "training" in known:
        known["training"] = Training(**known["training"])
    if "graph" in known:
        known["graph"] = graph_of(known["graph"])
    return JobView(**known)


def _ring(record: Sequence[Any]) -> RingOfJob:
    name, gpus, load, ends_s, waits = record
    known = None if load is None else Load(*load)
    return RingOfJob(
        name,
        tuple(gpus),
        known,
        _seconds(ends_s),
        waits,
    )


def _elastic(record: Mapping[str, Any]) -> contract.ElasticJob:
    times = Frozen(
        {
            int(degree): seconds
            for degree, seconds in record["iteration_s"].items()
        }
    )
    return contract.ElasticJob(
        **{**record, "iteration_s": times, "left": _seconds(record["left"])}
    )


def _queued(record: Mapping[str, Any]) -> contract.QueuedJob:
    models = frozenset(record["gpu_models"])
    lasts_s = _seconds(record["lasts_s"])
    return contract.QueuedJob(
        **{**record, "gpu_models": models, "lasts_s": lasts_s}
    )


def _seconds(value: float | None) -> float:
    return math.inf if value is None else value
