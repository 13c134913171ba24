"""The settings of a simulation, its busy and failed GPUs, and its pending events."""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from heapq import heappop, heappush

from patchlight.controller.policies.cheapest import MINIMUM_GAIN_S
from patchlight.controller.policies.contract import ClusterShape
from patchlight.controller.policies.sets import members
from patchlight.emulation.simulator.cluster.cluster import Rewiring
from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob
from patchlight.emulation.simulator.outages import Outage, Outages
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.rules import Discipline


@dataclass(
    frozen=True,
    slots=True,
)
class Settings(Discipline):
    """How the queue is run, and what happens to preempted and failed jobs.

    A job needs ``start_s`` to begin its first iteration, in addition to the time for its circuits;
    a change of circuits keeps jobs waiting for ``wiring_s`` in addition to its outage.
    Jobs that were preempted or lost their GPUs need ``restart_s`` to start again; those that lost
    GPUs also repeat the work since their last checkpoint, made every ``checkpoint_s`` of running
    time.

    With ``defragment_s`` running jobs are moved to other circuits if that gains more than it costs
    (``patchlight.controller.policies.cheapest``): when a job has ended, and at this interval;
    infinity: only when one has ended. Gains below ``minimum_gain_s`` over all jobs do not count.
    Only for clusters with circuits.

    ``known``: policies know the durations of jobs. ``seed`` draws outages.
    """

    start_s: float = 0.0
    wiring_s: float = 0.0
    restart_s: float = 60.0
    checkpoint_s: float = 3600.0
    defragment_s: float | None = None
    minimum_gain_s: float = MINIMUM_GAIN_S
    known: bool = True
    outages: Outages | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        Discipline.__post_init__(self)
        least_s = {
            "start_s": 0.0,
            "wiring_s": 0.0,
            "restart_s": 0.0,
            "checkpoint_s": 1e-3,
            "minimum_gain_s": 0.0,
        }
        for name, least in least_s.items():
            value = getattr(self, name)
            if not value >= least or (
                math.isinf(value) and name != "checkpoint_s"
            ):
                raise BadInput(
                    f"{name} cannot be {value} s: expected at least {least:g} s"
                )
        if self.defragment_s is not None and not self.defragment_s > 0:
            raise BadInput(
                f"circuits cannot be checked every {self.defragment_s} s: expected more than 0"
            )
        if self.backfill and not self.known:
            raise BadInput("backfilling needs job durations")

    @property
    def words(self) -> dict[str, object]:
        """As JSON, infinity as ``None``."""
        found = asdict(self)
        found["users"] = dict(found.pop("users"))
        found["outages"] = found.pop("outages")
        return {k: None if v == math.inf else v for k, v in found.items()}


class Occupancy:
    """Held and broken GPUs. A GPU can be broken more than once, by itself and with its server."""

    def __init__(self, shape: ClusterShape) -> None:
        self._server = [gpu.server for gpu in shape.gpus]
        # A set of GPUs for each server would need memory with the square of the servers.
        counted = Counter(self._server)
        self._size_of = [
            counted[server] for server in range(len(shape.servers))
        ]
        self._taken = [0] * len(self._size_of)
        self._broken_by: dict[int, int] = {}
        self.allocated = self.broken = self.held = 0
        self.free = self._whole = len(self._server)

    @property
    def occupied(self) -> int:
        """GPUs that are held or broken, as a set."""
        return self.allocated | self.broken

    @property
    def fragmentation(self) -> float:
        """The share of the free GPUs that are on servers with held or broken GPUs.

        0 if no GPU is free.
        """
        return 1 - self._whole / self.free if self.free else 0.0

    def take(self, gpus: int, ring: Sequence[int]) -> None:
        """Hold these free GPUs, given as a set and one by one."""
        self.allocated |= gpus
        self.held += len(ring)
        self._cover(ring)

    def give_back(self, gpus: int, ring: Sequence[int]) -> None:
        """Give back GPUs that are held."""
        self.allocated &= ~gpus
        self.held -= len(ring)
        self._uncover(ring)

    def break_down(self, gpus: int) -> None:
        """Break GPUs that no job holds."""
        for gpu in members(gpus):
            self._broken_by[gpu] = self._broken_by.get(gpu, 0) + 1
        fresh = gpus & ~self.broken
        self.broken |= fresh
        self._cover(members(fresh))

    def mend(self, gpus: int) -> None:
        """Mend broken GPUs; each is usable once it is mended as often as it was broken."""
        whole = 0
        for gpu in members(gpus):
            self._broken_by[gpu] -= 1
            if not self._broken_by[gpu]:
                del self._broken_by[gpu]
                whole |= 1 << gpu
        self.broken &= ~whole
        self._uncover(members(whole))

    def _cover(self, each: Sequence[int]) -> None:
        self.free -= len(each)
        for gpu in each:
            server = self._server[gpu]
            if not self._taken[server]:
                self._whole -= self._size_of[server]
            self._taken[server] += 1

    def _uncover(self, each: Sequence[int]) -> None:
        self.free += len(each)
        for gpu in each:
            server = self._server[gpu]
            self._taken[server] -= 1
            if not self._taken[server]:
                self._whole += self._size_of[server]


class Accounts:
    """``series`` has the end of each interval in seconds, and the values in it: waiting jobs, GPUs
    held, fragmentation.
    """

    def __init__(self) -> None:
        self.series = tuple(array("d") for _ in range(4))
        self.held_up_s = 0.0
        self.reconfigurations = self.cross_connects = self.regroups_refused = 0
        self.dark_s = self.dark_gpu_s = 0.0

    def span(
        self,
        length_s: float,
        end_s: float,
        waiting: int,
        occupancy: Occupancy,
        held_up: bool,
    ) -> None:
        """Nothing changed for ``length_s`` seconds, until ``end_s``."""
        ends, queue, held, pieces = self.series
        ends.append(end_s)
        queue.append(waiting)
        held.append(occupancy.held)
        pieces.append(occupancy.fragmentation)
        if held_up:
            self.held_up_s += length_s

    def rewired(self, change: Rewiring) -> None:
        """Count a change of circuits."""
        self.reconfigurations += 1
        self.cross_connects += change.cross_connects
        self.dark_s += change.dark_s
        self.dark_gpu_s += change.dark_s * change.gpus.bit_count()


class EventQueue:
    """The future events. ``arrived`` counts the jobs that have arrived.

    Methods that take events take those up to ``limit_s``, in order.
    """

    def __init__(
        self, arrivals_s: Sequence[float], outages: Iterator[Outage]
    ) -> None:
        if any(
            later < earlier
            for earlier, later in itertools.pairwise(arrivals_s)
        ):
            raise BadInput(
                "the jobs are not in the order of their arrival times"
            )
        self._arrivals_s = [*arrivals_s, math.inf]
        self.arrived = 0
        self._ends: list[tuple[float, int, SimulatedJob]] = []
        self._wake_s = math.inf
        self._outages = outages
        self._outage = next(outages, None)

    @property
    def all_arrived(self) -> bool:
        """Whether the last job has arrived."""
        return self.arrived == len(self._arrivals_s) - 1

    def next_s(self, outages_matter: bool) -> float:
        """The time of the next event; an outage alone counts only if ``outages_matter``."""
        ends = self._ends
        while ends and ends[0][0] != ends[0][2].ends_s:
            heappop(ends)  # The job's pace has changed since.
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
        """Stop at that time, even without an event."""
        self._wake_s = min(self._wake_s, at_s)

    def wake_up(self, limit_s: float) -> None:
        """Remove a wake-up that is over."""
        if self._wake_s <= limit_s:
            self._wake_s = math.inf

    def ends(self, limit_s: float) -> Iterator[SimulatedJob]:
        """Take the jobs that end."""
        while self._ends and self._ends[0][0] <= limit_s:
            ends_s, _, job = heappop(self._ends)
            if job.ends_s == ends_s:
                yield job

    def outages(self, limit_s: float) -> Iterator[Outage]:
        """Take the failures and repairs of GPUs."""
        while self._outage is not None and self._outage.at_s <= limit_s:
            yield self._outage
            self._outage = next(self._outages, None)

    def arrivals(self, limit_s: float) -> range:
        """Take the numbers of the jobs that arrive."""
        first = self.arrived
        while self._arrivals_s[self.arrived] <= limit_s:
            self.arrived += 1
        return range(first, self.arrived)
