"""How few jobs could be blocked if all arrivals were known: a bound that no policy can beat.

The problem is relaxed: of the cluster only the number of servers is kept (no shapes, no
fragmentation), jobs may be accepted in part, and nothing is sent. What is left is a linear
programme: for each job and degree a share, at each arrival no more servers held than there
are. By weak duality any prices of server time (one for each arrival, 0 or more) bound it, so
the bound holds however well the prices were found; a subgradient descent finds good ones.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from patchlight.emulation.simulator.ramp.episode_result import Counting
from patchlight.emulation.simulator.ramp.scenario import Job, Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads

ROUNDS = 600
# More than an episode's own tolerance: where times are equal but for rounding, the bound gives way.
_TOLERANCE_S = 1e-6
_Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class HindsightBound:
    """No policy blocks less than ``blocking_rate`` nor takes more than ``accepted`` jobs."""

    accepted: int
    blocking_rate: float


def hindsight_bound(
    scenario: Scenario,
    seed: int,
    counting: Counting | str = Counting.FAITHFUL,
    rounds: int = ROUNDS,
) -> HindsightBound:
    """The bound for the episode with this seed; more ``rounds`` tighten it.

    ``blocking_rate`` is ``nan`` if there are no jobs.
    """
    drawn = scenario.jobs(seed)
    jobs = [job for job in drawn if job.arrived_s < scenario.horizon_s]
    faithful = Counting(counting) is Counting.FAITHFUL
    total = len(drawn) if faithful else len(jobs)
    if not jobs:
        return HindsightBound(0, math.nan)
    choices = _choices(scenario, jobs, faithful)
    size = scenario.workloads.ramp.shape.size
    found = min(len(jobs), math.floor(_least(choices, size, rounds) + 1e-6))
    return HindsightBound(found, (len(jobs) - found) / total)


def shortest_s(workloads: Workloads) -> tuple[_Table, _Table]:
    """For each model (row) and degree (column): the least time, and servers held at least.

    The time is the compute of the busiest server: operations split the same number of ways
    have the same servers under both placement rules, and a server runs one part at a time. It
    is infinite where the model may not fit into a server's memory.
    """
    rows, columns = len(workloads.names), len(workloads.degrees)
    times, held = np.full((rows, columns), np.inf), np.ones((rows, columns))
    for row, plans in enumerate(workloads.plans):
        for column, degree in enumerate(workloads.degrees):
            plan = plans[degree]
            splits, part_ms = np.array(plan.graph.splits), plan.graph.part_ms
            busiest = max(float(part_ms[splits == count].sum()) for count in plan.splits)
            held[row, column] = plan.max_split
            if plan.fits_memory:
                times[row, column] = busiest * (workloads.device.seconds_per_ms * workloads.steps)
    return times, held


@dataclass(frozen=True, slots=True)
class _Choices:
    """Each job (row) at each degree (column): servers held from its own arrival until ``past``.

    ``past`` is the first arrival that the job is gone at. ``possible`` says whether it would
    be in time, and count.
    """

    past: NDArray[np.intp]
    held: _Table
    possible: NDArray[np.bool_]


def _choices(scenario: Scenario, jobs: list[Job], faithful: bool) -> _Choices:
    times, held = shortest_s(scenario.workloads)
    arrived = np.array([job.arrived_s for job in jobs])
    graphs = np.array([job.graph for job in jobs])
    limits = np.array([job.limit_s for job in jobs])
    ends = arrived[:, None] + times[graphs]
    possible = times[graphs] <= limits[:, None] * (1 + 1e-9)
    if faithful:
        possible &= ends <= scenario.horizon_s + _TOLERANCE_S
    past = np.searchsorted(arrived, ends - _TOLERANCE_S)
    return _Choices(np.maximum(past, np.arange(1, len(jobs) + 1)[:, None]), held[graphs], possible)


def _least(choices: _Choices, size: int, rounds: int) -> float:
    """The least value of the dual that was found: prices go up where servers lack."""
    past, held, possible = choices.past, choices.held, choices.possible
    count = len(past)
    rows = np.arange(count)

    def value(prices: _Table) -> tuple[float, NDArray[np.float64]]:
        """The dual, and how many servers lack at each arrival at these prices."""
        until = np.concatenate(([0.0], np.cumsum(prices)))
        gain = np.where(possible, 1.0 - held * (until[past] - until[:-1, None]), -1.0)
        choice = np.argmax(gain, axis=1)
        most = gain[rows, choice]
        kept = rows[most > 0]
        change = np.zeros(count + 1)
        np.add.at(change, kept, held[kept, choice[kept]])
        np.add.at(change, past[kept, choice[kept]], -held[kept, choice[kept]])
        bound = size * float(until[-1]) + float(most[kept].sum())
        return bound, np.cumsum(change)[:-1] - size

    # To begin with, all servers' time together costs as much as a typical job each arrival.
    typical = np.median(np.min(held * (past - rows[:, None]), axis=1))
    price = np.full(count, 1.0 / max(float(typical), float(size)))
    scale, best, mean_price = float(price[0]), math.inf, np.zeros(count)
    for turn in range(1, rounds + 1):
        found, lacking = value(price)
        best = min(best, found)
        price = np.maximum(0.0, price + scale / math.sqrt(turn) * lacking / size)
        # The mean of the prices settles where they themselves keep swinging.
        mean_price += (price - mean_price) * 2 / (turn + 1)
        if turn % 10 == 0:
            best = min(best, value(mean_price)[0])
    return best
