"""How rings share links: max-min fair, each ring as fast as its slowest edge.

A ring all-reduce moves in step, so all edges of a job's ring go at one rate, and a job that
sends several edges over a link takes as many shares of it. Rates of all jobs rise together
until a link is full; its jobs stay there and the others go on (progressive filling, Bertsekas
and Gallager, *Data Networks*, 1992, §6.5.2, with a job's edges as one session).
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from patchlight.controller.prediction.load import Load

Demand = Mapping[Hashable, int]
"""For each directed link that a ring uses, how many of its edges are on it."""


def fair_rates(
    demands: Sequence[Demand], capacity_bps: Mapping[Hashable, float], most_bps: float = math.inf
) -> list[float]:
    """The rate in bit/s of an edge of each ring, ``most_bps`` where no link holds it up more."""
    rates = [most_bps] * len(demands)
    settled = [False] * len(demands)
    left = {link: capacity_bps[link] for demand in demands for link in demand}
    weight = dict.fromkeys(left, 0)
    rings_on: dict[Hashable, list[int]] = {link: [] for link in left}
    for ring, demand in enumerate(demands):
        for link, edges in demand.items():
            weight[link] += edges
            rings_on[link].append(ring)
    while weight:
        full = min(weight, key=lambda link: left[link] / weight[link])
        rate = left[full] / weight[full]
        if rate >= most_bps:
            break
        for ring in rings_on[full]:
            if settled[ring]:
                continue
            rates[ring], settled[ring] = rate, True
            for link, edges in demands[ring].items():
                left[link] = max(0.0, left[link] - edges * rate)
                weight[link] -= edges
                if not weight[link]:
                    del weight[link]
    return rates


class Capacities(Protocol):
    """The links that rings share."""

    @property
    def edge_bps(self) -> float:
        """The most that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""


class Ring(Protocol):
    """A running job: its number, what it has to do, its links, and its seconds for a unit."""

    index: int
    load: Load
    demand: Demand
    unit_s: float


R = TypeVar("R", bound=Ring)


class RingNetwork(Generic[R]):
    """Which running jobs share links. A job that shares none has the pace of its own links."""

    def __init__(self, network: Capacities) -> None:
        self._network = network
        self._sharing: dict[int, R] = {}
        self._rings_on: dict[Hashable, int] = {}

    def route(self, job: R, demand: Demand | None) -> bool:
        """The job's ring goes over these links; whether it shares them, or those that it had.

        One that shares links stands still until they are shared out anew, one without light
        (``None``) until it is routed again.
        """
        shared = self.remove(job)
        job.demand = demand or {}
        if not demand or not job.load.ring_bits:
            dark = demand is None
            job.unit_s = math.inf if dark else job.load.unit_s(self._network.edge_bps)
            return shared
        self._sharing[job.index] = job
        shares, rings_on = False, self._rings_on
        for link in demand:
            before = rings_on.get(link, 0)
            rings_on[link] = before + 1
            shares = shares or before > 0
        if shares or shared:
            job.unit_s = math.inf
            return True
        # What ``fair_rates`` says of a ring that has all its links to itself.
        capacity_bps, rate_bps = self._network.capacity_bps, self._network.edge_bps
        for link, edges in demand.items():
            rate_bps = min(rate_bps, capacity_bps[link] / edges)
        job.unit_s = job.load.unit_s(rate_bps)
        return False

    def remove(self, job: R) -> bool:
        """The job's ring is gone; whether it shared links."""
        if self._sharing.pop(job.index, None) is None:
            return False
        shared, rings_on = False, self._rings_on
        for link in job.demand:
            left = rings_on[link] - 1
            if left:
                rings_on[link], shared = left, True
            else:
                del rings_on[link]
        return shared

    def new_paces(self) -> Iterator[tuple[R, float]]:
        """Share the links out: the jobs whose pace changes, each with its seconds for a unit."""
        jobs, network = list(self._sharing.values()), self._network
        rates = fair_rates([job.demand for job in jobs], network.capacity_bps, network.edge_bps)
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps)
            if unit_s != job.unit_s:
                yield job, unit_s
