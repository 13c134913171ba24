"""Predicts quickly what an option means for running and waiting jobs.

Jobs that share links are played together for some iterations (``prediction.completion``);
``policies.cheapest`` plays them to their ends. Waiting jobs start in turn when enough GPUs are
free. It ignores that links are shared again at each end, and which GPUs a placement policy would
choose.
"""

import heapq
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

from patchlight.controller.policies.cheapest import HORIZON_S, placed
from patchlight.controller.policies.contract import (
    ClusterView,
    ElasticJob,
    JobView,
    QueuedJob,
)
from patchlight.controller.policies.degrees import lost_s
from patchlight.controller.policies.sets import joined, lowest, members
from patchlight.controller.prediction.completion import PhasedJob, set_paces
from patchlight.controller.prediction.network import (
    UNLIMITED_BPS,
    Demand,
    LabNetwork,
    Load,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

_KEPT = 4
_MOST_RINGS = 10_000
_NO_SHARES: Demand = {}

_LOOKED_AT = 16  # of those that wait


class SharedWiring(NamedTuple):
    """A lab's links; for cached rings the NICs' rate, and the edges on other links."""

    network: LabNetwork
    rings: dict[tuple[int, ...], tuple[float, Demand]]


class Networks:
    """The links of a lab with its circuits, cached for the last few maps."""

    def __init__(self) -> None:
        self._known: list[tuple[Lab, dict[str, PortMap], SharedWiring]] = []

    def of(self, cluster: ClusterView) -> SharedWiring | None:
        """The links of a cluster; ``None`` without a lab."""
        lab = cluster.lab
        if lab is None:
            return None
        circuits = dict(cluster.circuits)
        for number, (of_lab, maps, wiring) in enumerate(self._known):
            if of_lab is lab and maps == circuits:
                self._known.insert(0, self._known.pop(number))
                return wiring
        before = next(
            (each for of_lab, _, each in self._known if of_lab is lab), None
        )
        if before is None:
            network = LabNetwork(lab, trace_links(lab, circuits))
        else:
            # Only changed links are examined.
            network = before.network.after(
                *before.network.links.after(circuits)
            )
        wiring = SharedWiring(network, {})
        self._known = [(lab, circuits, wiring), *self._known[: _KEPT - 1]]
        return wiring


class Prospect(NamedTuple):
    """The effect of an answer, in seconds; ``nan`` if the job's work is unknown.

    The job ``lasts_s``, ``alone_s`` on unshared links, after ``dark_s`` for its circuits; running
    jobs end and waiting ones start later by ``delays_s`` and ``queue_s`` in total. ``stuck``: its
    ring has no route.
    """

    lasts_s: float = math.nan
    alone_s: float = math.nan
    delays_s: float = 0.0
    dark_s: float = 0.0
    stuck: bool = False
    queue_s: float = 0.0

    @property
    def cost_s(self) -> float:
        """The total increase of all times to the ends of jobs."""
        return self.lasts_s + self.delays_s + self.dark_s + self.queue_s


class _Going(NamedTuple):
    """A job with its ring: its part on links that it may share, and what is left of it."""

    phased: PhasedJob
    left_s: float
    workers: int


class Outlook:
    """A cluster's running jobs on their links, at one moment, and their remaining times."""

    def __init__(
        self, cluster: ClusterView, wiring: SharedWiring | None
    ) -> None:
        self.cluster = cluster
        self.network = None if wiring is None else wiring.network
        self.edges: dict[Hashable, int] = {}
        """The edges of rings on each link between switches."""
        self._on: dict[Hashable, list[_Going]] = {}
        self._paces_s: dict[PhasedJob, float] = {}
        self._capacity_bps: dict[Hashable, float] = {}
        # The job being decided waits too: it stands for the next one to arrive.
        self._behind = max(1, len(cluster.queue))
        self.left_by_job: dict[str, float] = {
            job.name: job.ends_s - cluster.now_s for job in cluster.running
        }
        if wiring is not None:
            self._look(*wiring)

    def _look(
        self,
        network: LabNetwork,
        rings: dict[tuple[int, ...], tuple[float, Demand]],
    ) -> None:
        if len(rings) > _MOST_RINGS:
            rings.clear()
        self._capacity_bps.update(network.capacity_bps)
        unknown: list[tuple[str, _Going]] = []
        for job in self.cluster.rings:
            if job.load is None or job.waits:
                continue
            if job.ring not in rings:
                rings[job.ring] = self._split(
                    network, network.demand(job.ring)
                )
            own_bps, shares = rings[job.ring]
            for link, edges in shares.items():
                self.edges[link] = self.edges.get(link, 0) + edges
            phased = self._phased(job.load, own_bps, shares)
            going = _Going(
                phased, job.ends_s - self.cluster.now_s, len(job.ring)
            )
            if going.left_s == math.inf and job.load.units < math.inf:
                unknown.append((job.name, going))
            for link in shares:
                self._on.setdefault(link, []).append(going)
        set_paces([going.phased for _, going in unknown], self._capacity_bps)
        for name, going in unknown:
            # A lab knows the remaining iterations, not their end.
            if going.phased.pace_s < math.inf:
                self.left_by_job[name] = (
                    max(0.0, going.phased.left) * going.phased.pace_s
                )

    @staticmethod
    def _split(
        network: LabNetwork, demand: Demand | None
    ) -> tuple[float, Demand]:
        """The rate of the NICs, which a ring has to itself, and its edges on other links."""
        if demand is None:
            return 0.0, {}
        own_bps = UNLIMITED_BPS
        shares: dict[Hashable, int] = {}
        for link, edges in demand.items():
            if isinstance(link, tuple) and isinstance(link[0], int):
                own_bps = min(own_bps, network.capacity_bps[link] / edges)
            else:
                shares[link] = edges
        return own_bps, shares

    def _phased(
        self,
        load: Load,
        own_bps: float,
        shares: Demand,
    ) -> PhasedJob:
        """A job on links that it may share, and one that stands for its own."""
        assert self.network is not None
        own = object()
        self._capacity_bps[own] = own_bps
        bits = load.ring_bits * self.network.wire
        return PhasedJob(
            {**shares, own: 1},
            load.compute_s,
            bits,
            load.units,
        )

    def load_of(self, job: JobView, ring: Sequence[int]) -> Load | None:
        """A job's work on these GPUs; ``None`` if unknown."""
        nic_bps = (
            UNLIMITED_BPS if self.network is None else self.network.nic_bps
        )
        try:
            return placed(
                self.cluster,
                job,
                ring,
                nic_bps,
            ).load
        except BadInput:  # Its compute time on one of these models is unknown.
            return None

    def of(
        self,
        load: Load | None,
        ring: Sequence[int],
        dark_s: float | None = None,
    ) -> Prospect:
        """The outlook of a job on these GPUs, under one switch after ``dark_s`` if given."""
        network = self.network
        own_bps = UNLIMITED_BPS
        shares = _NO_SHARES
        if network is not None and len(ring) > 1:
            own_bps = network.nic_bps * network.wire
            if dark_s is None:
                demand = network.demand(ring)
                if demand is None:
                    return Prospect(stuck=True)
                own_bps, shares = self._split(network, demand)
        if load is None:
            return Prospect(dark_s=dark_s or 0.0)
        alone_unit_s, units = _alone(
            load, own_bps / (1.0 if network is None else network.wire)
        )
        lasts_s = units * alone_unit_s
        delays_s = 0.0
        held_gpu_s = 0.0
        if network is not None and shares and load.ring_bits:
            lasts_s, delays_s, held_gpu_s = self._beside(
                load,
                units,
                own_bps,
                shares,
            )
        held_gpu_s += self._held_gpu_s(ring, lasts_s)
        return Prospect(
            lasts_s,
            units * alone_unit_s,
            delays_s,
            dark_s or 0.0,
            queue_s=self._behind * held_gpu_s / self._speeds_sum,
        )

    def later(
        self,
        load: Load,
        ring: Sequence[int],
        wait_s: float,
        held_up: int,
    ) -> Prospect:
        """The outlook of a job that waits for that time, and then has such GPUs on unshared links.

        Other waiting jobs get nothing until then: the ``held_up`` that could start now, and those
        that arrive meanwhile, are delayed by that time.
        """
        own_bps = (
            UNLIMITED_BPS if self.network is None else self.network.nic_bps
        )
        alone_unit_s, units = _alone(load, own_bps)
        alone_s = units * alone_unit_s
        idle_gpu_s = self._held_gpu_s(members(self.cluster.free), wait_s)
        held_gpu_s = idle_gpu_s + self._held_gpu_s(ring, alone_s)
        queue_s = self._behind * held_gpu_s / self._speeds_sum
        recent = self.cluster.recent
        span_s = self.cluster.now_s - recent[0].arrived_s if recent else 0.0
        jobs_per_s = len(recent) / span_s if span_s > 0 else 0.0
        queue_s += (held_up + jobs_per_s * wait_s) * wait_s
        return Prospect(wait_s + alone_s, alone_s, queue_s=queue_s)

    def _held_gpu_s(self, ring: Sequence[int], lasts_s: float) -> float:
        """What these GPUs could do meanwhile, in seconds of a GPU of the fastest model."""
        sites = self.cluster.shape.gpus
        speeds = self._speeds
        if not speeds:
            return len(ring) * lasts_s
        return lasts_s * math.fsum(
            speeds.get(sites[gpu].model, 1.0) for gpu in ring
        )

    @cached_property
    def _speeds(self) -> Mapping[str, float]:
        models = self.cluster.shape.model_gpus
        if len(models) < 2:
            return {}
        summed = dict.fromkeys(models, 0.0)
        count = 0
        for job in self.cluster.recent:
            times_s = {} if job.training is None else job.training.compute_s
            if all(times_s.get(model, 0.0) > 0 for model in models):
                count += 1
                quickest_s = min(times_s[model] for model in models)
                for model in models:
                    summed[model] += quickest_s / times_s[model]
        return (
            {model: total / count for model, total in summed.items()}
            if count
            else {}
        )

    @cached_property
    def _speeds_sum(self) -> float:
        shape = self.cluster.shape
        each = (
            n.bit_count() * self._speeds.get(m, 1.0)
            for m, n in shape.model_gpus.items()
        )
        return math.fsum(each)

    def _beside(
        self,
        load: Load,
        units: float,
        own_bps: float,
        shares: Demand,
    ) -> tuple[float, float, float]:
        """How long a job takes on links with others, and how much later those end; in GPU-seconds.

        All jobs that share links with it, directly or through others, go on meanwhile.
        """
        found: dict[PhasedJob, _Going] = {}
        links = list(shares)
        for link in links:
            for going in self._on.get(link, ()):
                if going.phased not in found:
                    found[going.phased] = going
                    links += going.phased.demand
        others = list(found)
        if unknown := [job for job in others if job not in self._paces_s]:
            set_paces(others, self._capacity_bps)
            self._paces_s.update({job: job.pace_s for job in unknown})
        new = self._phased(load, own_bps, shares)
        set_paces([new, *others], self._capacity_bps)
        lasts_s = units * new.pace_s
        later_s = 0.0
        held_gpu_s = 0.0
        for job, going in found.items():
            before_s = self._paces_s[job]
            after_s = job.pace_s
            if before_s < after_s:
                left_s = (
                    job.left * before_s
                    if going.left_s == math.inf
                    else going.left_s
                )
                left_s = left_s if left_s < math.inf else HORIZON_S
                each_s = min(
                    left_s * (after_s / before_s - 1),
                    lasts_s * (1 - before_s / after_s),
                )
                later_s += each_s
                held_gpu_s += going.workers * each_s
        return lasts_s, later_s, held_gpu_s


def _alone(load: Load, own_bps: float) -> tuple[float, float]:
    """A unit's seconds on unshared links, and the number of remaining units."""
    unit_s = load.unit_s(own_bps)
    return unit_s, load.units if load.units < math.inf else HORIZON_S / max(
        unit_s, 1e-9
    )


class Resizing:
    """A cluster's running jobs and the ``queue`` of waiting ones, at one moment."""

    def __init__(
        self,
        cluster: ClusterView,
        jobs: Sequence[ElasticJob],
        queue: Sequence[QueuedJob],
    ) -> None:
        self._cluster = cluster
        self._queue = queue[:_LOOKED_AT]
        self._jobs = {job.name: _known(job) for job in jobs}
        self._gpus = {
            running.name: running.gpus for running in cluster.running
        }
        self._present_s = self._begin_s(cluster.free, {}, {})

    def single(self, most: int) -> Iterator[dict[str, int]]:
        """Resizes of one job: up to ``most`` larger and smaller numbers with the lowest cost."""
        free = self._cluster.free.bit_count()
        grow: list[tuple[float, str, int]] = []
        shrink: list[tuple[float, str, int]] = []
        for job in self._jobs.values():
            for degree in job.iteration_s:
                if degree != job.degree and degree - job.degree <= free:
                    found = shrink if degree < job.degree else grow
                    found.append((_for_good_s(job, degree), job.name, degree))
        for found in (grow, shrink):
            for _, name, degree in sorted(found, key=lambda each: each[0])[
                :most
            ]:
                yield {name: degree}

    def of(self, answer: Mapping[str, int]) -> Prospect:
        """The effect of these degrees.

        ``queue_s`` includes the next job to arrive: the part of the cluster that is held longer,
        because more workers communicate more, times the duration. A job that gives up GPUs may get
        them back after the jobs that then start have ended.
        """
        free, gpus = self._after(answer)
        at_once = [
            job.lasts_s
            for job, begins_s in self._turns(free, [])
            if not begins_s
        ]
        again_s = max(at_once, default=math.inf)
        later_s = {}
        held_gpu_s = 0.0
        for name, degree in answer.items():
            job = self._jobs[name]
            later_s[name] = _for_good_s(job, degree)
            if degree < job.degree and later_s[name] > job.cost_s:
                later_s[name] = lost_s(job, degree, again_s)
            left_s = job.left * job.iteration_s[job.degree]
            held_gpu_s += (
                degree * (left_s + later_s[name]) - job.degree * left_s
            )
        queue_s = self._begin_s(free, gpus, later_s) - self._present_s
        queue_s += held_gpu_s / max(1, len(self._cluster.shape.gpus))
        return Prospect(
            0.0,
            0.0,
            math.fsum(later_s.values()),
            queue_s=queue_s,
        )

    def _after(self, answer: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """The free GPUs then, and those of resized jobs; shrinking jobs come first."""
        free = self._cluster.free
        gpus = {}
        more = {
            name: degree - self._jobs[name].degree
            for name, degree in answer.items()
        }
        for name in sorted(more, key=more.__getitem__):
            held = self._gpus.get(name, 0)
            kept = held & joined(lowest(held, answer[name]))
            taken = joined(lowest(free, more[name]))
            free = (free | held) & ~(kept | taken)
            gpus[name] = kept | taken
        return free, gpus

    def _begin_s(
        self,
        free: int,
        gpus: Mapping[str, int],
        later_s: Mapping[str, float],
    ) -> float:
        """The total delay of waiting jobs if running ones end this much later than expected."""
        if not self._queue:
            return 0.0
        ends = []
        for running in self._cluster.running:
            left_s = running.ends_s - self._cluster.now_s
            left_s = (
                left_s if left_s < math.inf else HORIZON_S
            ) + later_s.get(running.name, 0.0)
            ends.append(
                (max(0.0, left_s), gpus.get(running.name, running.gpus))
            )
        return math.fsum(begins_s for _, begins_s in self._turns(free, ends))

    def _turns(
        self, free: int, ends: list[tuple[float, int]]
    ) -> Iterator[tuple[QueuedJob, float]]:
        """The jobs that can start with GPUs free at these times, and when."""
        heapq.heapify(ends)
        now_s = 0.0
        for job in self._queue:
            able = self._cluster.gpus_of_models(job.gpu_models)
            while (free & able).bit_count() < job.workers and ends:
                end_s, gpus = heapq.heappop(ends)
                now_s = max(now_s, end_s)
                free = free | gpus
            if (free & able).bit_count() >= job.workers:
                gpus = joined(lowest(free & able, job.workers))
                free &= ~gpus
                lasts_s = job.lasts_s if job.lasts_s < math.inf else HORIZON_S
                heapq.heappush(ends, (now_s + lasts_s, gpus))
                yield job, now_s


def _known(job: ElasticJob) -> ElasticJob:
    """The job; if its remaining work is unknown, with what it does until the horizon."""
    known = job.left < math.inf
    return (
        job
        if known
        else job._replace(left=HORIZON_S / job.iteration_s[job.degree])
    )


def _for_good_s(job: ElasticJob, degree: int) -> float:
    """How much later a job ends with that many workers from now on."""
    return job.cost_s + job.left * (
        job.iteration_s[degree] - job.iteration_s[job.degree]
    )
