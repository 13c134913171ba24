"""Which running jobs are the furthest behind in order: those that others may take GPUs from."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, Protocol

from patchlight.emulation.simulator.cluster.simulated_job import SimulatedJob, State
from patchlight.emulation.simulator.cluster.simulation import EPSILON_S, Simulation
from patchlight.testbed.errors import BadInput

Priority = Callable[[SimulatedJob], float]
"""What the order policy says of a job now."""

# A rise is looked for a little early: sums of GPU-seconds are rounded.
_EARLY_S = 1e-3


class Victims(Protocol):
    """Running jobs, the one that is furthest behind first."""

    def started(self, job: SimulatedJob) -> None:
        """A job has begun to run."""

    def behind(self, priority: float) -> Iterator[SimulatedJob]:
        """The jobs of a higher priority than that which have run for the quantum.

        The highest first, of equals the one that came last.
        """


def victims_of(
    simulation: Simulation, priority: Priority, rises_at: Sequence[float] | None
) -> Victims:
    """Those of a simulation; ``rises_at`` is the order policy's, ``None`` if it says nothing."""
    if rises_at is None:
        return _AskedAboutAll(simulation, priority)
    return _AskedAboutFew(simulation, priority, rises_at)


class _AskedAboutAll:
    def __init__(self, simulation: Simulation, priority: Priority) -> None:
        self._simulation, self._priority = simulation, priority

    def started(self, job: SimulatedJob) -> None:
        pass

    def behind(self, priority: float) -> Iterator[SimulatedJob]:
        latest_s = _latest_s(self._simulation)
        running = self._simulation.running.values()
        asked = [
            (self._priority(job), job.index, job) for job in running if job.began_s <= latest_s
        ]
        found = sorted((each for each in asked if each[0] > priority), reverse=True)
        return (job for _, _, job in found)


class _Bound(NamedTuple):
    """A job that runs since ``began_s`` is not further behind than this; the highest sorts first.

    ``asked_s`` is when the policy was asked.
    """

    minus_priority: float
    minus_index: int
    asked_s: float
    began_s: float
    job: SimulatedJob


class _AskedAboutFew:
    """Keeps for each job the priority that it had when it was last asked about.

    Until the job passes one of ``rises_at`` that is the most that it can be, so nobody needs to be
    asked about who was not behind far enough then.
    """

    def __init__(
        self, simulation: Simulation, priority: Priority, rises_at: Sequence[float]
    ) -> None:
        self._simulation, self._priority = simulation, priority
        self._rises_at = _ascending(rises_at)
        self._fresh: deque[tuple[float, SimulatedJob]] = deque()
        self._bounds: list[_Bound] = []
        self._rising: list[tuple[float, int, _Bound]] = []
        self._latest: dict[int, _Bound] = {}
        self._given: list[_Bound] = []

    def started(self, job: SimulatedJob) -> None:
        self._fresh.append((job.began_s, job))

    def behind(self, priority: float) -> Iterator[SimulatedJob]:
        now_s, bounds = self._simulation.now_s, self._bounds
        self._catch_up(now_s)
        while bounds and -bounds[0].minus_priority > priority:
            bound = heappop(bounds)
            if not self._holds(bound):
                continue
            if bound.asked_s < now_s:
                self._ask(bound.job)
                continue
            self._given.append(bound)
            yield bound.job

    def _catch_up(self, now_s: float) -> None:
        """Look at who has run for the quantum now, or may be further behind than before."""
        for bound in self._given:
            heappush(self._bounds, bound)
        self._given.clear()
        again: list[SimulatedJob] = []
        while self._rising and self._rising[0][0] <= now_s:
            bound = heappop(self._rising)[2]
            if self._holds(bound):
                again.append(bound.job)
        latest_s = _latest_s(self._simulation)
        while self._fresh and self._fresh[0][0] <= latest_s:
            began_s, job = self._fresh.popleft()
            if job.state is State.RUNNING and job.began_s == began_s:
                again.append(job)
        for job in again:
            self._ask(job)

    def _holds(self, bound: _Bound) -> bool:
        job = bound.job
        if self._latest.get(job.index) is not bound:
            return False
        if job.state is State.RUNNING and job.began_s == bound.began_s:
            return True
        del self._latest[job.index]
        return False

    def _ask(self, job: SimulatedJob) -> None:
        now_s = self._simulation.now_s
        bound = _Bound(-self._priority(job), -job.index, now_s, job.began_s, job)
        self._latest[job.index] = bound
        heappush(self._bounds, bound)
        attained_gpu_s = job.progress(now_s, known=False).attained_gpu_s
        passed = bisect_right(self._rises_at, attained_gpu_s)
        if passed < len(self._rises_at):
            away_s = (self._rises_at[passed] - attained_gpu_s) / job.workers
            heappush(self._rising, (now_s + away_s - _EARLY_S, job.index, bound))


def _latest_s(simulation: Simulation) -> float:
    """Who began until then has run for the quantum."""
    return simulation.now_s - simulation.settings.quantum_s + EPSILON_S


def _ascending(amounts: Sequence[float]) -> list[float]:
    try:
        found = [float(amount) for amount in amounts]
    except (TypeError, ValueError):
        found = [math.nan]
    if found != sorted(found) or any(math.isnan(amount) for amount in found):
        raise BadInput(
            f"an order policy's rises_at cannot be {amounts!r}: expected GPU-seconds, ascending"
        )
    return found
