"""Defines what a policy of each kind sees and returns.

A policy is a small object with one method. It sees frozen values and returns one, without I/O and
clock, so the same object works in the lab, in its emulation and in the simulator.

GPUs are numbered from 0 in the order of ``ClusterShape.gpus``; a set of GPUs is an integer with a
bit for each, so that sets of thousands of GPUs are combined in one step.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from patchlight.controller.prediction.network import (
    UNLIMITED_BPS,
    Load,
    Training,
)
from patchlight.testbed.graphs.model import ComputationGraph
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import KINDS as KINDS
from patchlight.testbed.lab.rules import PolicyKind as PolicyKind

Groups = Sequence[Sequence[int]]
"""The GPUs of some jobs, each job's in ring order."""

K = TypeVar("K")
V = TypeVar("V")


class Frozen(Mapping[K, V]):
    """An immutable mapping that can be pickled, unlike ``MappingProxyType``."""

    __slots__ = ("_known",)

    def __init__(self, known: Mapping[K, V] | None = None) -> None:
        self._known = dict(known or {})

    def __getitem__(self, key: K) -> V:
        return self._known[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"Frozen({self._known})"


class GpuSite(NamedTuple):
    """One GPU and its places in the shape's ``servers`` and ``racks``.

    A rack is the hosts of one packet switch: behind an OCS, the switch that the NIC is connected to
    now, −1 for none.
    """

    name: str
    server: int
    rack: int
    model: str = ""


@dataclass(frozen=True)
class ClusterShape:
    """The cluster with its present circuits. ``ramp``: groups × racks × servers of a RAMP."""

    gpus: tuple[GpuSite, ...]
    servers: tuple[str, ...]
    racks: tuple[str, ...]
    ramp: tuple[int, int, int] | None = None

    @cached_property
    def everything(self) -> int:
        """All GPUs as a set."""
        return (1 << len(self.gpus)) - 1

    @cached_property
    def server_gpus(self) -> tuple[int, ...]:
        """For each server the set of its GPUs."""
        return self._sets(len(self.servers), [gpu.server for gpu in self.gpus])

    @cached_property
    def rack_gpus(self) -> tuple[int, ...]:
        """For each rack the set of its GPUs."""
        return self._sets(len(self.racks), [gpu.rack for gpu in self.gpus])

    @cached_property
    def model_gpus(self) -> Mapping[str, int]:
        """For each GPU model the set of its GPUs."""
        found: dict[str, int] = {}
        for number, gpu in enumerate(self.gpus):
            found[gpu.model] = found.get(gpu.model, 0) | 1 << number
        return Frozen(found)

    def relit(self, racks: Mapping[int, int]) -> "ClusterShape":
        """The same with these GPUs in other racks, −1 for none."""
        gpus = list(self.gpus)
        sets = list(self.rack_gpus)
        for gpu, rack in racks.items():
            if (before := gpus[gpu].rack) >= 0:
                sets[before] &= ~(1 << gpu)
            if rack >= 0:
                sets[rack] |= 1 << gpu
            gpus[gpu] = gpus[gpu]._replace(rack=rack)
        found = replace(self, gpus=tuple(gpus))
        # The cached properties are copied.
        same = {
            "everything",
            "server_gpus",
            "model_gpus",
        } & self.__dict__.keys()
        found.__dict__.update(
            {name: self.__dict__[name] for name in same}, rack_gpus=tuple(sets)
        )
        return found

    @staticmethod
    def _sets(count: int, places: Sequence[int]) -> tuple[int, ...]:
        found = [0] * count
        for gpu, place in enumerate(places):
            if place >= 0:
                found[place] |= 1 << gpu
        return tuple(found)


class JobView(NamedTuple):
    """A job's request. It is constant while the job waits or runs.

    ``workers`` is how many GPUs it wants, 0 if the partition policy decides: any number, or one of
    ``degrees`` (ascending) if given. ``requirement`` is the part of ``sequential_s``, its time on
    one GPU, within which it must complete, ``limit_s`` the same in seconds. ``expected_s``:
    approximate duration by degree, if known. ``gpu_models``: those it can use, empty for any.
    ``training`` describes an iteration, if known. For a job known by its time only,
    ``communication`` is the part that only moves gradients.
    """

    name: str
    workers: int = 0
    graph: ComputationGraph | None = None
    arrived_s: float = 0.0
    sequential_s: float = math.nan
    requirement: float = math.inf
    limit_s: float = math.inf
    expected_s: Mapping[int, float] = Frozen()
    gpu_models: frozenset[str] = frozenset()
    user: str = ""
    training: Training | None = None
    communication: float = 0.0
    degrees: tuple[int, ...] = ()


class Running(NamedTuple):
    """A running job's expected end by the view's clock, infinity if unknown, and its GPU set."""

    ends_s: float
    gpus: int
    name: str = ""


class RingOfJob(NamedTuple):
    """The ring of a job that has GPUs, in order, and its remaining work, if known.

    The load's units are those to come if ``ends_s``, on the view's clock, is infinity. ``waits``:
    it has not started, because its circuits are not decided yet.
    """

    name: str
    ring: tuple[int, ...]
    load: Load | None = None
    ends_s: float = math.inf
    waits: bool = False


Preview = Callable[[JobView, int], int | None]
"""Where the cluster would put a job at a degree now: a set of GPUs, or ``None``."""


def nowhere(job: JobView, degree: int) -> int | None:
    """The ``Preview`` of a cluster without a place."""
    return None


IfOccupied = Callable[[int, JobView, int], int | None]
"""As ``Preview``, if this set of GPUs were occupied and no other."""

Places = Callable[[JobView, int], Sequence[int]]
"""The possible blocks of a job at a degree now, as sets of GPUs, that of ``Preview`` first."""


def no_choice(job: JobView, degree: int) -> Sequence[int]:
    """The ``Places`` of a cluster in which partition policies choose no block."""
    return ()


class PlacedDegree(int):
    """A partition policy's answer with the block: one of ``ClusterView.places``."""

    gpus: int

    def __new__(cls, degree: int, gpus: int) -> "PlacedDegree":
        """``gpus`` is the block as a set."""
        found = super().__new__(cls, degree)
        found.gpus = gpus
        return found

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.gpus


class ClusterView(NamedTuple):
    """The cluster at one moment.

    ``occupied`` are the GPUs that are busy or broken, ``broken`` the latter. ``running`` has the
    job that ends next first. ``recent`` are the last 64 jobs, latest last, ``queue`` those of them
    that wait for GPUs. A network that can be rewired has ``lab``, ``circuits`` (the present map of
    each OCS), ``barred`` (OCS ports that must not change; circuits of the ``failed`` ones may be
    broken) and ``rings`` of the jobs that have GPUs. ``usage``: each user's decayed GPU-seconds
    over the user's share, if counted. ``measured``: what GPUs' NICs sent and received recently in
    bit/s, if counted. ``places`` are the free blocks if a partition policy may choose one
    (``PlacedDegree``). ``if_occupied`` is there where places depend on no more than the job.
    """

    now_s: float
    shape: ClusterShape
    occupied: int
    broken: int = 0
    running: Sequence[Running] = ()
    recent: Sequence[JobView] = ()
    preview: Preview = nowhere
    lab: Lab | None = None
    circuits: Mapping[str, PortMap] = Frozen()
    barred: Mapping[str, frozenset[int]] = Frozen()
    failed: Mapping[str, frozenset[int]] = Frozen()
    usage: Mapping[str, float] = Frozen()
    rings: Sequence[RingOfJob] = ()
    measured: Mapping[int, tuple[float, float]] = Frozen()
    queue: Sequence[JobView] = ()
    places: Places = no_choice
    if_occupied: IfOccupied | None = None

    @property
    def traffic(self) -> Mapping[tuple[int, int], float]:
        """The traffic matrix in bit/s: what the rings are expected to send from GPU to GPU.

        The mean over an iteration on unshared links; for a job with unknown load, as much as its
        NICs can send.
        """
        hosts = () if self.lab is None else self.lab.hosts
        nics = [host.nic.rate_bps for host in hosts if host.gpu is not None]
        found: dict[tuple[int, int], float] = {}
        for job in self.rings:
            limits = [nics[gpu] for gpu in job.ring if gpu < len(nics)]
            nic_bps = float(
                min(
                    (limit for limit in limits if limit), default=UNLIMITED_BPS
                )
            )
            rate_bps = (
                nic_bps if job.load is None else job.load.mean_bps(nic_bps)
            )
            if rate_bps and len(job.ring) > 1:
                for edge in zip(
                    job.ring, (*job.ring[1:], job.ring[0]), strict=True
                ):
                    found[edge] = found.get(edge, 0.0) + rate_bps
        return Frozen(found)

    @property
    def free(self) -> int:
        """The GPUs that a job can have, as a set."""
        return self.shape.everything & ~self.occupied

    @property
    def locked(self) -> Mapping[str, frozenset[int]]:
        """The ports whose circuits may be neither broken nor made."""
        failed = self.failed
        return {
            ocs: ports - failed.get(ocs, frozenset())
            for ocs, ports in self.barred.items()
        }

    def free_for(self, job: JobView) -> int:
        """The GPUs available to this job: free, and of a suitable model."""
        return (
            self.free & self.gpus_of_models(job.gpu_models)
            if job.gpu_models
            else self.free
        )

    def gpus_of_models(self, models: Collection[str]) -> int:
        """The GPUs of these models as a set, all if none is named."""
        of_models = 0
        for model in models:
            of_models |= self.shape.model_gpus.get(model, 0)
        return of_models if models else self.shape.everything


class Progress(NamedTuple):
    """The progress of a job: GPU-seconds used, and seconds left on unshared links."""

    attained_gpu_s: float = 0.0
    remaining_s: float = math.nan


class ElasticJob(NamedTuple):
    """A running job whose number of workers may change: it has ``degree`` since ``since_s``.

    ``iteration_s``: the predicted seconds of an iteration by legal degree, including its own, if
    there is room for it. ``left`` iterations remain, infinity if unknown. A change of degree
    interrupts it for ``cost_s``.
    """

    name: str
    degree: int
    iteration_s: Mapping[int, float]
    left: float = math.inf
    cost_s: float = 0.0
    since_s: float = 0.0
    user: str = ""


class QueuedJob(NamedTuple):
    """A job or gang that waits for that many GPUs; it then ``lasts_s``, infinity if unknown."""

    name: str
    workers: int
    gpu_models: frozenset[str] = frozenset()
    lasts_s: float = math.inf
    user: str = ""


@runtime_checkable
class PartitionPolicy(Protocol):
    """Decides into how many parts a job is split."""

    def degree(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> int | None:
        """One of ``legal`` (ascending, 0 first), or ``PlacedDegree``; 0 refuses the job.

        ``None`` makes it wait for other GPUs; on a RAMP, where jobs do not wait, it is invalid.
        """


@runtime_checkable
class PlacementPolicy(Protocol):
    """Decides which GPUs a job gets."""

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        """``workers`` different free GPUs in ring order; ``None`` lets the job wait."""


@runtime_checkable
class OrderPolicy(Protocol):
    """Decides which waiting job is next."""

    def priority(
        self,
        cluster: ClusterView,
        job: JobView,
        progress: Progress,
    ) -> float:
        """The lowest is next; in a tie the one that arrived first."""


@runtime_checkable
class TopologyPolicy(Protocol):
    """Decides which circuits are up while jobs run."""

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The wanted map of each OCS that changes, for these jobs' GPUs; empty changes none."""


@runtime_checkable
class ElasticityPolicy(Protocol):
    """Decides which running jobs are resized."""

    def resize(
        self,
        cluster: ClusterView,
        jobs: Sequence[ElasticJob],
        queue: Sequence[QueuedJob],
    ) -> Mapping[str, int]:
        """The new degree of each resized job, by name; ``queue`` has the next one first.

        Jobs grow into GPUs that are free now. GPUs of shrinking jobs become free after those have
        stopped. ``cluster.running`` has ends here, if they can be known.
        """


Policy = (
    PartitionPolicy
    | PlacementPolicy
    | OrderPolicy
    | TopologyPolicy
    | ElasticityPolicy
)
METHODS: Mapping[PolicyKind, str] = {
    "partition": "degree",
    "placement": "place",
    "order": "priority",
    "topology": "circuits",
    "elasticity": "resize",
}


def kind_of(policy: object) -> PolicyKind | None:
    """The kind of a policy object, by its method; ``None`` for other objects."""
    found = [
        kind
        for kind, method in METHODS.items()
        if callable(getattr(policy, method, None))
    ]
    return found[0] if len(found) == 1 else None
