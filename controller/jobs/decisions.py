"""What policies decided of a job, and all that they saw: kept with it, and asked again offline."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, TypeVar

from patchlight.controller.jobs.cluster_view import WiredLab, graph_of
from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    Frozen,
    JobView,
    PolicyKind,
    QueuedJob,
    RingOfJob,
    Running,
)
from patchlight.controller.prediction.sharing import Load, Training
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

A = TypeVar("A")

OWN_GRAPH = "of the job"
"""What a decision has for the name of a graph that is in the job's spec."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One answer of a policy, as JSON, after so many ``seconds``; ``saw`` gives what it saw.

    Its ``kind`` is the policy's, or ``defragment``. ``weighed`` is what the policy itself tells of
    it, as JSON: a learned one its options and their scores.
    """

    kind: str
    policy: str
    answer: Any
    seconds: float
    saw: Callable[[], Mapping[str, Any]]
    weighed: Any = None

    @property
    def record(self) -> dict[str, Any]:
        """For the ledger, with a digest of what was seen."""
        saw = self.saw()
        return {
            "kind": self.kind,
            "policy": self.policy,
            "answer": self.answer,
            "seconds": round(self.seconds, 6),
            "digest": digest(saw),
            "saw": saw,
            **({} if self.weighed is None else {"weighed": self.weighed}),
        }


class Decides(Protocol):
    """A policy of a lab: its name, and what it tells of the answer that this thread had last."""

    name: str

    @property
    def explanation(self) -> Any:
        """As JSON; ``None`` where it tells nothing."""


def decided(
    kind: PolicyKind, policy: Decides, ask: Callable[[], A], saw: Callable[[], Mapping[str, Any]]
) -> tuple[A, Decision]:
    """What a policy answers, and that as a decision."""
    began = perf_counter()
    answer = ask()
    took_s = perf_counter() - began
    return answer, Decision(kind, policy.name, _plain(answer), took_s, saw, policy.explanation)


def digest(saw: Mapping[str, Any]) -> str:
    """The first half of the SHA-256 of what was seen: equal where a policy saw the same."""
    text = json.dumps(saw, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def seen(
    view: ClusterView,
    job: JobView | None = None,
    legal: Sequence[int] = (),
    groups: Sequence[Sequence[int]] = (),
    graph: str | None = None,
    elastic: Sequence[ElasticJob] = (),
    queue: Sequence[QueuedJob] = (),
) -> dict[str, Any]:
    """All that a policy is shown but the lab itself, as JSON: GPU sets in hexadecimal digits.

    ``graph`` names the job's computation graph; ``elastic`` and ``queue`` are for *elasticity*.
    """
    found: dict[str, Any] = {
        "now_s": view.now_s,
        "occupied": f"{view.occupied:x}",
        "broken": f"{view.broken:x}",
        "running": [[_number(r.ends_s), f"{r.gpus:x}", r.name] for r in view.running],
        "recent": [_job_record(each) for each in view.recent],
        "circuits": _maps(view.circuits),
        "barred": {ocs: sorted(ports) for ocs, ports in view.barred.items()},
        "failed": {ocs: sorted(ports) for ocs, ports in view.failed.items()},
        "usage": dict(view.usage),
        "rings": [
            [
                ring.name,
                list(ring.ring),
                ring.load and list(ring.load),
                _number(ring.ends_s),
                ring.waits,
            ]
            for ring in view.rings
        ],
    }
    if view.queue:
        found["waiting"] = [each.name for each in view.queue]
    if view.measured:
        found["measured"] = {str(gpu): list(rates) for gpu, rates in view.measured.items()}
    if job is not None:
        found["job"] = {**_job_record(job), "graph": graph}
    if legal:
        found["legal"] = list(legal)
    if groups:
        found["groups"] = [list(group) for group in groups]
    if elastic:
        found["elastic"] = [_elastic_record(each) for each in elastic]
        found["queue"] = [_queued_record(each) for each in queue]
    return found


def arguments(
    kind: PolicyKind, saw: Mapping[str, Any], lab: Lab, own_graph: str | None = None
) -> tuple[Any, ...]:
    """What the method of a policy of this kind is called with, to see the same again.

    ``own_graph`` is the computation graph in the job's spec.
    """
    maps = {ocs: PortMap.parse(pairs) for ocs, pairs in saw["circuits"].items()}
    recent, waiting = tuple(map(_job, saw["recent"])), frozenset(saw.get("waiting", ()))
    view = ClusterView(
        now_s=saw["now_s"],
        shape=WiredLab(lab, maps).shape,
        occupied=int(saw["occupied"], 16),
        broken=int(saw["broken"], 16),
        running=tuple(
            Running(math.inf if ends_s is None else ends_s, int(gpus, 16), name)
            for ends_s, gpus, name in saw["running"]
        ),
        recent=recent,
        lab=lab,
        circuits=Frozen(maps),
        barred=Frozen({ocs: frozenset(ports) for ocs, ports in saw["barred"].items()}),
        failed=Frozen({ocs: frozenset(ports) for ocs, ports in saw["failed"].items()}),
        usage=Frozen(saw["usage"]),
        rings=tuple(map(_ring, saw["rings"])),
        measured=Frozen(
            {int(gpu): (sent, got) for gpu, (sent, got) in saw.get("measured", {}).items()}
        ),
        queue=tuple(job for job in recent if job.name in waiting),
    )
    if kind == "topology":
        return view, saw["groups"]
    if kind == "elasticity":
        return view, [*map(_elastic, saw["elastic"])], [*map(_queued, saw["queue"])]
    record = saw["job"]
    if record["graph"] == OWN_GRAPH:
        record = {**record, "graph": own_graph}
    job = _job(record)
    return (view, job, tuple(saw["legal"])) if kind == "partition" else (view, job, job.workers)


def plain_answer(answer: Any) -> Any:
    """An answer as decisions keep it."""
    return _plain(answer)


def _plain(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        is_maps = any(isinstance(each, PortMap) for each in answer.values())
        return _maps(answer) if is_maps else dict(answer)
    return list(answer) if isinstance(answer, Sequence) else answer


def _maps(maps: Mapping[str, PortMap]) -> dict[str, list[str]]:
    return {ocs: list(circuits.texts) for ocs, circuits in maps.items()}


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _job_record(job: JobView) -> dict[str, Any]:
    return {
        "name": job.name,
        "workers": job.workers,
        "arrived_s": job.arrived_s,
        "sequential_s": _number(job.sequential_s),
        "requirement": _number(job.requirement),
        "limit_s": _number(job.limit_s),
        "expected_s": {str(degree): seconds for degree, seconds in job.expected_s.items()},
        "gpu_models": sorted(job.gpu_models),
        "user": job.user,
        "training": job.training and {**job.training._asdict()},
        "communication": job.communication,
        **({"degrees": list(job.degrees)} if job.degrees else {}),
    }


def _ring(record: Sequence[Any]) -> RingOfJob:
    name, gpus, load, ends_s, waits = record
    known = None if load is None else Load(*load)
    return RingOfJob(name, tuple(gpus), known, math.inf if ends_s is None else ends_s, waits)


def _elastic_record(job: ElasticJob) -> dict[str, Any]:
    times = {str(degree): seconds for degree, seconds in job.iteration_s.items()}
    return {**job._asdict(), "iteration_s": times, "left": _number(job.left)}


def _elastic(record: Mapping[str, Any]) -> ElasticJob:
    times = {int(degree): seconds for degree, seconds in record["iteration_s"].items()}
    left = math.inf if record["left"] is None else record["left"]
    return ElasticJob(**{**record, "iteration_s": Frozen(times), "left": left})


def _queued_record(job: QueuedJob) -> dict[str, Any]:
    return {**job._asdict(), "gpu_models": sorted(job.gpu_models), "lasts_s": _number(job.lasts_s)}


def _queued(record: Mapping[str, Any]) -> QueuedJob:
    lasts_s = math.inf if record["lasts_s"] is None else record["lasts_s"]
    models = frozenset(record["gpu_models"])
    return QueuedJob(**{**record, "gpu_models": models, "lasts_s": lasts_s})


def _job(record: Mapping[str, Any]) -> JobView:
    graph = record.get("graph")

    def number(name: str, otherwise: float) -> float:
        return otherwise if record[name] is None else float(record[name])

    return JobView(
        name=record["name"],
        workers=record["workers"],
        graph=graph_of(graph) if graph else None,
        arrived_s=record["arrived_s"],
        sequential_s=number("sequential_s", math.nan),
        requirement=number("requirement", math.inf),
        limit_s=number("limit_s", math.inf),
        expected_s=Frozen({int(n): seconds for n, seconds in record["expected_s"].items()}),
        gpu_models=frozenset(record["gpu_models"]),
        user=record["user"],
        training=Training(**record["training"]) if record["training"] else None,
        communication=record["communication"],
        degrees=tuple(record.get("degrees", ())),
    )
