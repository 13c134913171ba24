"""The pace of running jobs whose rings share links, max-min fair."""

import math
from collections.abc import Hashable, Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from patchlight.controller.prediction.network import Demand, Load, fair_rates


class Capacities(Protocol):
    """The links that rings share."""

    @property
    def edge_bps(self) -> float:
        """The most that an edge of a ring can have on any links."""

    @property
    def capacity_bps(self) -> Mapping[Hashable, float]:
        """The rate of each directed link that rings share."""


class RingShare(Protocol):
    """A running job: its number, what it has to do, its links, and its seconds for a unit."""

    index: int
    load: Load
    demand: Demand
    unit_s: float


R = TypeVar("R", bound=RingShare)


class RingNetwork(Generic[R]):
    """The running jobs by the links that they share."""

    def __init__(self, network: Capacities) -> None:
        self._network = network
        self._sharing: dict[int, R] = {}
        self._rings_on: dict[Hashable, int] = {}

    def route(self, job: R, demand: Demand | None) -> bool:
        """Put a job's ring on these links; whether it shares them, or those that it had.

        A job that shares links stands still until ``new_paces``, one without a circuit (``None``)
        until its next route.
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
        """Take a job's ring off its links; whether it shared any."""
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
        """Share the links; the jobs whose pace changes, each with its seconds for a unit."""
        jobs, network = list(self._sharing.values()), self._network
        rates = fair_rates([job.demand for job in jobs], network.capacity_bps, network.edge_bps)
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps)
            if unit_s != job.unit_s:
                yield job, unit_s
