"""What happens by itself on a simulated cluster: jobs come and end, GPUs break and are mended."""

import itertools
import math
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.outages import Outage
from patchlight.testbed.errors import BadInput


class EventQueue:
    """The events to come. ``arrived`` is how many jobs have come.

    Each method that takes events out takes those up to ``limit_s``, in order.
    """

    def __init__(self, arrivals_s: Sequence[float], outages: Iterator[Outage]) -> None:
        if any(later < earlier for earlier, later in itertools.pairwise(arrivals_s)):
            raise BadInput("the jobs do not come in the order of their arrival times")
        self._arrivals_s = [*arrivals_s, math.inf]
        self.arrived = 0
        self._ends: list[tuple[float, int, SimulatedJob]] = []
        self._wake_s = math.inf
        self._outages = outages
        self._outage = next(outages, None)

    @property
    def all_arrived(self) -> bool:
        """Whether the last job has come."""
        return self.arrived == len(self._arrivals_s) - 1

    def next_s(self, outages_matter: bool) -> float:
        """When the next event is; an outage alone is one only where ``outages_matter``."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].ends_s:
            heappop(ends)  # The job has another pace since.
        next_s = min(self._wake_s, self._arrivals_s[self.arrived])
        if ends and ends[0][0] < next_s:
            next_s = ends[0][0]
        if self._outage is not None and (next_s < math.inf or outages_matter):
            next_s = min(next_s, self._outage.at_s)
        return next_s

    def expect_end(self, job: SimulatedJob) -> None:
        """The job ends at its ``ends_s`` unless that changes."""
        heappush(self._ends, (job.ends_s, job.index, job))

    def wake_at(self, at_s: float) -> None:
        """Be an event then, whatever happens."""
        self._wake_s = min(self._wake_s, at_s)

    def wake_up(self, limit_s: float) -> None:
        """Forget a wake-up that has come."""
        if self._wake_s <= limit_s:
            self._wake_s = math.inf

    def ends(self, limit_s: float) -> Iterator[SimulatedJob]:
        """The jobs that end."""
        while self._ends and self._ends[0][0] <= limit_s:
            ends_s, _, job = heappop(self._ends)
            if job.ends_s == ends_s:
                yield job

    def outages(self, limit_s: float) -> Iterator[Outage]:
        """GPUs that break or are mended."""
        while self._outage is not None and self._outage.at_s <= limit_s:
            yield self._outage
            self._outage = next(self._outages, None)

    def arrivals(self, limit_s: float) -> range:
        """The numbers of the jobs that come."""
        first = self.arrived
        while self._arrivals_s[self.arrived] <= limit_s:
            self.arrived += 1
        return range(first, self.arrived)
