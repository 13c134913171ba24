"""The rings of running jobs on the cluster's links, and the pace that the links allow."""

from __future__ import annotations

import math
from collections.abc import Iterator

from patchlight.emulation.simulator.cluster.cluster import Cluster
from patchlight.emulation.simulator.cluster.sharing import Demand, fair_rates
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob


class RingNetwork:
    """Which running jobs share links. A job that shares none has the pace of its own links."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._sharing: dict[int, SimulatedJob] = {}

    def route(self, job: SimulatedJob, demand: Demand | None) -> bool:
        """The job's ring goes over these links; whether it shares them.

        One that shares links stands still until they are shared out anew, one without light
        (``None``) until it is routed again.
        """
        self._sharing.pop(job.index, None)
        job.demand = demand or {}
        shares = bool(demand and job.load.ring_bits)
        if shares:
            self._sharing[job.index] = job
        dark = demand is None or shares
        job.unit_s = math.inf if dark else job.load.unit_s(self._cluster.edge_bps)
        return shares

    def remove(self, job: SimulatedJob) -> bool:
        """The job's ring is gone; whether it shared links."""
        return self._sharing.pop(job.index, None) is not None

    def new_paces(self) -> Iterator[tuple[SimulatedJob, float]]:
        """Share the links out: the jobs whose pace changes, each with its seconds for a unit."""
        jobs, cluster = list(self._sharing.values()), self._cluster
        rates = fair_rates([job.demand for job in jobs], cluster.capacity_bps, cluster.edge_bps)
        for job, rate_bps in zip(jobs, rates, strict=True):
            unit_s = job.load.unit_s(rate_bps)
            if unit_s != job.unit_s:
                yield job, unit_s
