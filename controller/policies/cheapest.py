"""Prices circuits: the cheapest placement with its circuits, and jobs worth regrouping.

A price is when jobs end, and the outage before. Links are shared max-min fair, again at each end
(``patchlight.controller.prediction``). Placement and topology use the same ``Prices``, so the
topology makes the circuits for which the placement was chosen.

Jobs that were spread over switches stay so after others have made room: ``defragment`` finds those
worth regrouping. Their GPUs stay.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from patchlight.controller.policies import placement
from patchlight.controller.policies.contract import (
    ClusterView,
    Groups,
    JobView,
    RingOfJob,
)
from patchlight.controller.policies.topology import CannotRegroup, regroup
from patchlight.controller.prediction.completion import (
    RingWork,
    completions_s,
    units_s,
)
from patchlight.controller.prediction.network import (
    LabNetwork,
    Load,
    training_load,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.ocs_drivers import outage_s
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links

HORIZON_S = 3600.0
"""For a job with an unknown end, its progress in this time counts."""

LOOKED_AT_EVERY_S = 600.0
"""How often circuits are reviewed, in addition to each end of a job."""

MINIMUM_GAIN_S = 10.0
"""A smaller total gain is ignored: predictions are not that exact."""

# Up to this many spread jobs, every set is tried; beyond, each alone, all, and all but one.
_EVERY_SET_OF = 4

Maps = Mapping[str, PortMap]

_KEEP: Maps = {}


class WiringPrice(NamedTuple):
    """The price of circuits; the cheaper one is smaller.

    ``stuck`` counts the jobs whose rings have no route; ``total_s`` sums up the times to the ends
    of the others, ``completions_s`` has each job's, infinity for a stuck one. Changed circuits are
    down for ``dark_s``, and ``cross_connects`` of them are made.
    """

    stuck: int
    total_s: float
    cross_connects: int
    dark_s: float
    completions_s: tuple[float, ...]


class Prices:
    """Prices of circuits for a lab's cluster with its running jobs.

    Only those of ``jobs`` with known rings and loads count. A change keeps running jobs waiting for
    ``overhead_s`` in addition to the outage. ``network`` has the present links, if known.
    """

    def __init__(
        self,
        cluster: ClusterView,
        lab: Lab,
        jobs: Sequence[RingOfJob],
        overhead_s: float = 0.0,
        network: LabNetwork | None = None,
    ) -> None:
        self._overhead_s = overhead_s
        self._cluster = cluster
        self._lab = lab
        self._all = tuple(jobs)
        self.jobs = tuple(
            job for job in jobs if job.ring and job.load is not None
        )
        self.network = network or LabNetwork(
            lab, trace_links(lab, cluster.circuits)
        )
        self._links = self.network.links

    @cached_property
    def _present_unit_s(self) -> tuple[float, ...]:
        going = [job for job in self.jobs if not job.waits]
        works = [RingWork(job.ring, _load(job)) for job in going]
        found = dict(zip(going, units_s(self.network, works), strict=True))
        return tuple(found.get(job, math.nan) for job in self.jobs)

    @cached_property
    def _left(self) -> tuple[Load, ...]:
        found = []
        for job, unit_s in zip(self.jobs, self._present_unit_s, strict=True):
            load = _load(job)
            known_s = job.ends_s - self._cluster.now_s
            units = load.units
            if not job.waits and known_s < math.inf and 0 < unit_s < math.inf:
                units = max(0.0, known_s) / unit_s
            if units == math.inf:
                pace_s = unit_s if 0 < unit_s < math.inf else load.compute_s
                units = HORIZON_S / pace_s if pace_s else 0.0
            found.append(load._replace(units=units))
        return tuple(found)

    def of(self, maps: Maps) -> WiringPrice:
        """The price of these changed maps; empty means the present circuits.

        A running job whose circuits change finishes its iteration first, which is included.
        """
        network = self.network
        moved: Collection[Endpoint] = ()
        changes = {
            name: self._cluster.circuits.get(name, PortMap()).diff(wanted)
            for name, wanted in maps.items()
        }
        makes = {name: len(each.makes) for name, each in changes.items()}
        dark_s = outage_s(self._lab, makes)
        if any(changes.values()):
            links, moved = self._links.after(
                {**self._cluster.circuits, **maps}
            )
            network = network.after(links, moved)
        works = []
        for job, load in zip(self.jobs, self._left, strict=True):
            nics = (self.network.hosts[gpu].endpoint for gpu in job.ring)
            concerned = job.waits or any(nic in moved for nic in nics)
            pause_s = self.pause_s(job, dark_s) if concerned else 0.0
            works.append(RingWork(job.ring, load, pause_s))
        ends_s = tuple(completions_s(network, works))
        total_s = math.fsum(each for each in ends_s if each < math.inf)
        return WiringPrice(
            ends_s.count(math.inf),
            total_s,
            sum(makes.values()),
            dark_s,
            ends_s,
        )

    def pause_s(self, job: RingOfJob, dark_s: float) -> float:
        """The time that a job loses to a change of its circuits with this outage.

        A running job finishes its iteration first; a waiting one starts after the change.
        """
        if job.waits:
            return dark_s
        unit_s = self._present_unit_s[self.jobs.index(job)]
        return (
            dark_s + self._overhead_s + (unit_s if unit_s < math.inf else 0.0)
        )

    def regrouped(self, groups: Sequence[RingOfJob]) -> Maps | None:
        """The changed maps if each of these jobs gets one switch; ``None`` if that is not possible.

        Circuits of all other jobs stay.
        """
        cluster = self._cluster
        locked = self._ports_of(
            [job for job in self._all if job not in groups]
        )
        for ocs, ports in cluster.locked.items():
            locked.setdefault(ocs, set()).update(ports)
        names = [
            [cluster.shape.gpus[gpu].name for gpu in group.ring]
            for group in groups
        ]
        try:
            wanted = regroup(
                self._lab,
                cluster.circuits,
                names,
                locked=locked,
                failed=cluster.failed,
            )
        except CannotRegroup:
            return None
        return {
            ocs: each
            for ocs, each in wanted.items()
            if each != cluster.circuits[ocs]
        }

    def _ports_of(self, jobs: Sequence[RingOfJob]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for job in jobs:
            for gpu in job.ring:
                path = self._links.paths.get(self.network.hosts[gpu].endpoint)
                back = (
                    None if path is None else self._links.paths.get(path.sink)
                )
                for each in (path, back):
                    for ocs, hop in each.hops if each is not None else ():
                        found.setdefault(ocs, set()).update((hop.inp, hop.out))
        return found


def placed(
    cluster: ClusterView,
    job: JobView,
    ring: Sequence[int],
    nic_bps: float,
) -> RingOfJob:
    """A job that would get these GPUs, in this order.

    ``nic_bps`` is the rate at which its communication was measured, if that is part of its time.
    """
    load: Load | None = None
    workers = len(ring)
    if job.training is not None:
        models = {cluster.shape.gpus[gpu].model for gpu in ring}
        load = training_load(
            job.name,
            job.training,
            workers,
            models,
        )
    elif job.sequential_s < math.inf:
        share = job.communication if workers > 1 else 0.0
        load = Load(job.sequential_s / workers, 1.0 - share, share * nic_bps)
    return RingOfJob(
        job.name,
        tuple(ring),
        load,
        waits=True,
    )


def jobs_to_light(cluster: ClusterView, groups: Groups) -> list[RingOfJob]:
    """The jobs with these rings that still wait for their circuits; all if none does."""
    known = {job.ring: job for job in cluster.rings}
    asked = [
        known.get(tuple(ring), RingOfJob("", tuple(ring), waits=True))
        for ring in groups
    ]
    return [job for job in asked if job.waits] or asked


def _load(job: RingOfJob) -> Load:
    assert job.load is not None  # Others are not among the jobs that count.
    return job.load


def _wirings(
    groups: Sequence[RingOfJob], prices: Prices
) -> Iterator[tuple[WiringPrice, Maps]]:
    yield prices.of(_KEEP), _KEEP
    wanted = prices.regrouped(groups)
    if wanted:
        yield prices.of(wanted), wanted


class CheapestPlacement:
    """GPUs where all jobs together end soonest, including circuit changes and outages.

    Use it with the topology policy *cheapest*. Of the placements of *regroup*, *consolidated* and
    *first-fit* it takes the one with the lowest price: the predicted times to the ends of this job
    and all running ones, with the present circuits or with this job under one switch. Circuits of
    running jobs stay. If the job's work is unknown, it is *regroup*; without a lab *consolidated*.
    """

    def __init__(self) -> None:
        self._places = (
            placement.RegroupPlacement(),
            placement.Consolidated(),
            placement.FirstFit(),
        )

    def place(
        self,
        cluster: ClusterView,
        job: JobView,
        workers: int,
    ) -> Sequence[int] | None:
        """As the contract says."""
        lab = cluster.lab
        found = [
            policy.place(cluster, job, workers) for policy in self._places
        ]
        rings = [
            placement.ring_order(cluster, ring)
            for ring in found
            if ring is not None
        ]
        if lab is None or not lab.circuit_switches or not rings:
            return None if not rings else rings[0]
        by_gpus: dict[frozenset[int], list[int]] = {}
        for ring in rings:
            by_gpus.setdefault(frozenset(ring), ring)
        nic_bps = Prices(cluster, lab, cluster.rings).network.nic_bps
        priced = []
        for ring in by_gpus.values():
            here = placed(
                cluster,
                job,
                ring,
                nic_bps,
            )
            if here.load is None:
                return rings[0]
            prices = Prices(cluster, lab, [*cluster.rings, here])
            priced.append(
                (min(price for price, _ in _wirings([here], prices)), ring)
            )
        return min(priced, key=lambda each: each[0])[1]


class CheapestTopology:
    """The present circuits, or the new jobs under one packet switch each, whichever is cheaper.

    Use it with the placement policy *cheapest*. Circuits of running jobs stay. If the jobs' work is
    unknown, they are regrouped if possible.
    """

    def circuits(
        self, cluster: ClusterView, groups: Groups
    ) -> Mapping[str, PortMap]:
        """The maps that change; empty to keep them."""
        lab = cluster.lab
        if lab is None:
            raise BadInput(
                "cannot choose circuits: this cluster has no circuit switches"
            )
        new = jobs_to_light(cluster, groups)
        prices = Prices(cluster, lab, cluster.rings)
        if any(job.load is None for job in new):
            return prices.regrouped(new) or _KEEP
        return min(_wirings(new, prices), key=lambda found: found[0])[1]


@dataclass(frozen=True)
class Proposal:
    """A rewiring under running jobs that regroups ``jobs``.

    ``gains_s`` has for every job how much sooner it is predicted to end (negative: later),
    including each regrouped job's cost ``costs_s``: the iteration that it ends first, the outage,
    and the overhead of a change.
    """

    maps: Maps
    jobs: tuple[str, ...]
    gains_s: Mapping[str, float]
    costs_s: Mapping[str, float]
    cross_connects: int
    dark_s: float

    @property
    def gain_s(self) -> float:
        """The total gain of all jobs."""
        return sum(self.gains_s.values())


def defragment(
    cluster: ClusterView,
    minimum_gain_s: float = MINIMUM_GAIN_S,
    overhead_s: float = 0.0,
) -> Proposal | None:
    """The set of running jobs whose regrouping gains most; ``None`` if it gains too little.

    Circuits of ``cluster.barred`` ports, and of jobs with unknown loads, stay. A change keeps jobs
    waiting for ``overhead_s`` in addition to the outage of their circuits.
    """
    lab = cluster.lab
    if lab is None:
        return None
    prices = Prices(
        cluster,
        lab,
        cluster.rings,
        overhead_s,
    )
    sites = cluster.shape.gpus
    spread = [
        job
        for job in prices.jobs
        if not job.waits and len({sites[gpu].rack for gpu in job.ring}) > 1
    ]
    if not spread:
        return None
    keep = prices.of({})
    count = len(spread)
    proposals = []
    sizes = (
        range(1, count + 1)
        if count <= _EVERY_SET_OF
        else (1, count - 1, count)
    )
    for groups in (
        group
        for size in sizes
        for group in itertools.combinations(spread, size)
    ):
        if maps := prices.regrouped(groups):
            proposals.append(
                _proposal(
                    prices,
                    groups,
                    maps,
                    keep,
                    prices.of(maps),
                )
            )
    best = max(
        filter(None, proposals),
        key=lambda each: each.gain_s,
        default=None,
    )
    return best if best is not None and best.gain_s > minimum_gain_s else None


def _proposal(
    prices: Prices,
    groups: Sequence[RingOfJob],
    maps: Maps,
    keep: WiringPrice,
    price: WiringPrice,
) -> Proposal | None:
    """``None`` if another ring would lose its route; a ring without a route gains nothing here."""
    if price.stuck > keep.stuck:
        return None
    ends = zip(
        prices.jobs,
        keep.completions_s,
        price.completions_s,
        strict=True,
    )
    gains_s = {
        job.name: before_s - after_s
        for job, before_s, after_s in ends
        if before_s < math.inf and after_s < math.inf
    }
    return Proposal(
        maps=maps,
        jobs=tuple(job.name for job in groups),
        gains_s=gains_s,
        costs_s={
            job.name: prices.pause_s(job, price.dark_s) for job in groups
        },
        cross_connects=price.cross_connects,
        dark_s=price.dark_s,
    )
