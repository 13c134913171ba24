"""Computes two bounds of the blocking rate: with all arrivals known, and with none known.

**In hindsight** (``hindsight_bound``). The problem is relaxed: of the cluster only the number of
servers is kept (no shapes, no fragmentation), jobs may be accepted in part, and nothing is sent.
What is left is a linear programme: for each job and degree a share, at each arrival no more servers
held than there are. By weak duality any prices of server time (one for each arrival, 0 or more)
bound it, however well they were found; a subgradient descent finds good ones.

**Online** (``online_bound``), for policies that do not know the jobs to come. The bound is that of
a Markov decision process with a value function of few numbers (the
approximate linear programme of Schweitzer and Seidmann, 1985, and de Farias and Van Roy, 2003),
here solved as a smaller decision process. Why no policy is below it:

- Of the cluster only the number of servers is kept: no shapes, no fragmentation; jobs hold the
  fewest servers for the shortest time (``shortest_s``). A job that would run on past the
  episode's end does not count, and is refused here. What any policy does can so be done here.
- Let x be who is busy for how long as a job comes, and h any function of it. A decision leads from
  x to x' and brings r, 1 or 0. Over an episode r + h(x') − h(x) adds up to what r does, as it
  begins and ends with nothing running. Who knows all that came before, but not the next job, can
  expect of each such term no more than the maximum over x of E[max over decisions of r + h(x')] −
  h(x), E over the next job. The bound is the sum of these maxima.
- Servers are counted in units: 16 or so are the cluster, and a job holds no more units than servers
  of it make whole. h is g(how many units end after 0, 1, … arrivals, how many later), less a price
  for each further arrival that the latter are still busy. These may be at any arrival from their
  ends; so the maximum over x is one over g's arguments and over how many of the latter come among
  the former next. Any g and any price bound. Value iteration finds a good g, a search the price.
- Models that are drawn without putting back come more often the fewer of them came. Where that has
  changed by much, another g is taken from there on; that costs the maximum of the new less the old.

Who bounds is told the law of the episode's requirements, and how often each model is still to come:
the bound holds for a policy that learns these, or is told. It is a bound of means: in one episode a
policy may be below it, by luck; in the mean over episodes none is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from patchlight.emulation.simulator.ramp.scenario import (
    Counting,
    FixedArrivals,
    Job,
    Scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads

ROUNDS = 600
# More than an episode's own tolerance: where times are equal but for rounding, the bound gives way.
_TOLERANCE_S = 1e-6
_Requests = NDArray[np.float64]


@dataclass(
    frozen=True,
    slots=True,
)
class HindsightBound:
    """No policy has a lower ``blocking_rate`` or accepts more than ``accepted`` jobs."""

    accepted: int
    blocking_rate: float


def hindsight_bound(
    scenario: Scenario,
    seed: int,
    counting: Counting | str = Counting.FAITHFUL,
    rounds: int = ROUNDS,
) -> HindsightBound:
    """The bound for the episode with this seed; more ``rounds`` tighten it.

    ``blocking_rate`` is ``nan`` without jobs.
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


def shortest_s(workloads: Workloads) -> tuple[_Requests, _Requests]:
    """For each model (row) and degree (column): the shortest time, and the fewest servers held.

    The time is the compute of the busiest server: operations split the same number of ways
    have the same servers under both placement rules, and a server runs one part at a time. It
    is infinite if the model may not fit into a server's memory.
    """
    rows = len(workloads.names)
    columns = len(workloads.degrees)
    times = np.full((rows, columns), np.inf)
    held = np.ones((rows, columns))
    for row, plans in enumerate(workloads.plans):
        for column, degree in enumerate(workloads.degrees):
            plan = plans[degree]
            splits = np.array(plan.graph.splits)
            part_ms = plan.graph.part_ms
            busiest = max(
                float(part_ms[splits == count].sum()) for count in plan.splits
            )
            held[row, column] = plan.max_split
            if plan.fits_memory:
                times[row, column] = busiest * (
                    workloads.device.seconds_per_ms * workloads.steps
                )
    return times, held


@dataclass(
    frozen=True,
    slots=True,
)
class _Choices:
    """Each job (row) at each degree (column): the servers held from its arrival until ``past``.

    ``past`` is the first arrival after the job's end. ``possible``: it would be in time, and count.
    """

    past: NDArray[np.intp]
    held: _Requests
    possible: NDArray[np.bool_]


def _choices(
    scenario: Scenario,
    jobs: list[Job],
    faithful: bool,
) -> _Choices:
    times, held = shortest_s(scenario.workloads)
    arrived = np.array([job.arrived_s for job in jobs])
    graphs = np.array([job.graph for job in jobs])
    limits = np.array([job.limit_s for job in jobs])
    ends = arrived[:, None] + times[graphs]
    possible = times[graphs] <= limits[:, None] * (1 + 1e-9)
    if faithful:
        possible &= ends <= scenario.horizon_s + _TOLERANCE_S
    past = np.searchsorted(arrived, ends - _TOLERANCE_S)
    return _Choices(
        np.maximum(past, np.arange(1, len(jobs) + 1)[:, None]),
        held[graphs],
        possible,
    )


def _least(
    choices: _Choices,
    size: int,
    rounds: int,
) -> float:
    """The lowest value of the dual that was found; prices rise where servers are short."""
    past = choices.past
    held = choices.held
    possible = choices.possible
    count = len(past)
    rows = np.arange(count)

    def value(prices: _Requests) -> tuple[float, NDArray[np.float64]]:
        """The dual, and the shortage of servers at each arrival at these prices."""
        until = np.concatenate(([0.0], np.cumsum(prices)))
        gain = np.where(
            possible, 1.0 - held * (until[past] - until[:-1, None]), -1.0
        )
        choice = np.argmax(gain, axis=1)
        most = gain[rows, choice]
        kept = rows[most > 0]
        change = np.zeros(count + 1)
        np.add.at(change, kept, held[kept, choice[kept]])
        np.add.at(change, past[kept, choice[kept]], -held[kept, choice[kept]])
        bound = size * float(until[-1]) + float(most[kept].sum())
        return bound, np.cumsum(change)[:-1] - size

    # At the start, the time of all servers together costs one typical job per arrival.
    typical = np.median(np.min(held * (past - rows[:, None]), axis=1))
    price = np.full(count, 1.0 / max(float(typical), float(size)))
    scale = float(price[0])
    best = math.inf
    mean_price = np.zeros(count)
    for turn in range(1, rounds + 1):
        found, lacking = value(price)
        best = min(best, found)
        price = np.maximum(
            0.0, price + scale / math.sqrt(turn) * lacking / size
        )
        # The mean of the prices settles where they themselves keep swinging.
        mean_price += (price - mean_price) * 2 / (turn + 1)
        if turn % 10 == 0:
            best = min(best, value(mean_price)[0])
    return best


EXACT = 5
"""The number of arrivals ahead for which the units that end are known exactly."""
_UNITS = 16
_SWEEPS = 120
_CLOSE = 2e-4
_NEAR = 2e-3
_LEAST_PRICE = 0.1
_MOST_PRICE = 0.9
_PRICES = 5
_GOLDEN = (math.sqrt(5) - 1) / 2
_CHANGED = 0.04
_AT_LEAST = 20
_AT_ONCE = 64

_Floats = NDArray[np.float64]
_Ints = NDArray[np.intp]
_Table = tuple[tuple[float, ...], ...]


def online_bound(
    scenario: Scenario,
    seed: int,
    exact: int = EXACT,
) -> float:
    """The mean of this over episodes is a (faithful) blocking rate that no policy's mean is below.

    A larger ``exact`` tightens it; time and memory grow with about its fifth power: with 5, each
    law takes 100 MB and some seconds. ``nan`` without jobs, or unless they arrive at fixed
    times.
    """
    drawn = scenario.jobs(seed)
    jobs = [job for job in drawn if job.arrived_s < scenario.horizon_s]
    if not jobs or not isinstance(scenario.arrivals, FixedArrivals):
        return math.nan
    usual, before = _models_to_come(scenario, [job.graph for job in jobs])
    chances = _chances(scenario, seed)
    decisions = _decisions(_jobs(scenario), exact)
    g, price = _solution(
        decisions, tuple(map(tuple, chances.tolist())), tuple(usual.tolist())
    )
    accepted = 0.0
    begin = 0
    expected = usual
    while begin < len(jobs):
        changed = np.abs(before[begin:] - expected).sum(axis=1) > _CHANGED
        changed[:_AT_LEAST] = False
        end = begin + int(changed.argmax()) if changed.any() else len(jobs)
        accepted += decisions.most(
            g,
            price,
            chances,
            before[begin:end],
        )
        if end < len(jobs):
            expected = before[end]
            old = g
            g, _ = decisions.improved(
                g,
                price,
                chances,
                expected,
                _NEAR,
            )
            accepted += float((g - old).max())
        begin = end
    return max(0.0, len(jobs) - accepted) / len(drawn)


def _models_to_come(
    scenario: Scenario, graphs: Sequence[int]
) -> tuple[_Floats, _Floats]:
    """The probability of each model to be next: on average, and before each job (jobs × models)."""
    kinds = len(scenario.workloads.names)
    shares = np.array(scenario.mix or [1.0] * kinds)
    usual = shares / shares.sum()
    if scenario.replication is None:
        return usual, np.tile(usual, (len(graphs), 1))
    pool = kinds * scenario.replication
    left = np.zeros(kinds)
    found = np.zeros((len(graphs), kinds))
    for number, graph in enumerate(graphs):
        if number % pool == 0:
            left[:] = scenario.replication
        found[number] = left / left.sum()
        left[graph] -= 1
    return usual, found


def _chances(scenario: Scenario, seed: int) -> _Floats:
    """For each model the probability that each degree is the lowest in time; last, that none is.

    Higher degrees are assumed to be in time as well.
    """
    times, _ = shortest_s(scenario.workloads)
    least = times / np.array(scenario.workloads.sequential_s)[:, None]
    requirements, shares = scenario.requirements(seed)
    in_time = requirements[:, None, None] * (1 + 1e-9) >= least
    first = np.where(
        in_time.any(axis=2), in_time.argmax(axis=2), least.shape[1]
    )
    found = [np.bincount(row, shares, least.shape[1] + 1) for row in first.T]
    return np.array(found)


@dataclass(
    frozen=True,
    slots=True,
)
class _Jobs:
    """For each model and degree the units that it holds, and the arrivals after which these end.

    ``None`` if a server's memory may not hold it.
    """

    units: int
    options: tuple[tuple[tuple[int, int] | None, ...], ...]


def _jobs(scenario: Scenario) -> _Jobs:
    assert isinstance(scenario.arrivals, FixedArrivals)
    times, held = shortest_s(scenario.workloads)
    size = scenario.workloads.ramp.shape.size
    interval_s = scenario.arrivals.interval_s
    each = -(-size // _UNITS)

    def option(time_s: float, servers: float) -> tuple[int, int] | None:
        if not math.isfinite(time_s):
            return None
        arrivals = math.ceil((time_s - _TOLERANCE_S) / interval_s)
        return int(servers) // each, max(arrivals, 1) - 1

    rows = zip(times.tolist(), held.tolist(), strict=True)
    return _Jobs(
        -(-size // each), tuple(tuple(map(option, *row)) for row in rows)
    )


class _Decisions:
    """The smaller decision process, with S states and R rows: a state and what it may stand for.

    A state has, for 0, 1, … ``exact`` − 1, the number of units that end after at most so many
    arrivals.
    """

    def __init__(self, jobs: _Jobs, exact: int) -> None:
        units = self._units = jobs.units
        self._places = np.arange(exact)
        self._table = np.array(
            [
                [math.comb(n, k + 1) for k in range(exact)]
                for n in range(units + exact)
            ]
        )
        listed = np.array(
            list(combinations_with_replacement(range(units + 1), exact))
        )
        states = listed[np.argsort(self._number(listed))]
        self._empty = len(states) - 1
        later = units - states[:, -1]
        self._begins = np.cumsum(later + 1) - (later + 1)
        self._of = np.repeat(np.arange(len(states)), later + 1)
        # How many of the later units move to the others.
        come = np.arange(len(self._of)) - self._begins[self._of]
        now = states[self._of]
        then = np.concatenate(
            [now[:, 1:], (now[:, -1] + come)[:, None]], axis=1
        )
        self._refused = self._number(then)
        # In prices: the refund for units not used, and what jobs that become such units pay.
        self._back = later[self._of] + come * (exact - 1.0)
        kinds = list(
            dict.fromkeys(each for row in jobs.options for each in row if each)
        )
        self._column = [
            [each and kinds.index(each) for each in row]
            for row in jobs.options
        ]
        self._pays = np.array(
            [[count * after * (after >= exact)] for count, after in kinds]
        )
        # Where there are too few units, the place after the last.
        self._placed = np.full((len(kinds), len(now)), len(states))
        for column, (count, after) in enumerate(kinds):
            fits = now[:, 0] >= count
            left = then[fits] - count * (self._places < after)
            self._placed[column, fits] = self._number(left)

    def _number(self, states: _Ints) -> _Ints:
        """The place of states in the list: combinations, counted."""
        found: _Ints = self._table[states + self._places, self._places].sum(
            axis=1
        )
        return found

    def solved(
        self, chances: _Floats, models: _Floats
    ) -> tuple[_Floats, float]:
        """A good g and a good price. ``chances``: ``_chances``; ``models``: their probabilities."""
        g = np.zeros(self._empty + 1)

        def bound(price: float) -> float:
            nonlocal g
            g, found = self.improved(
                g,
                price,
                chances,
                models,
                _NEAR,
            )
            return found

        # Golden section: the bound is convex in the price.
        low = _LEAST_PRICE / self._units
        high = _MOST_PRICE / self._units
        left = high - _GOLDEN * (high - low)
        right = low + _GOLDEN * (high - low)
        at_left = bound(left)
        at_right = bound(right)
        for _ in range(_PRICES):
            if at_left <= at_right:
                high = right
                right = left
                at_right = at_left
                left = high - _GOLDEN * (high - low)
                at_left = bound(left)
            else:
                low = left
                left = right
                at_left = at_right
                right = low + _GOLDEN * (high - low)
                at_right = bound(right)
        price = left if at_left <= at_right else right
        return self.improved(
            g,
            price,
            chances,
            models,
            _CLOSE,
        )[0], price

    def improved(
        self,
        g: _Floats,
        price: float,
        chances: _Floats,
        models: _Floats,
        close: float,
    ) -> tuple[_Floats, float]:
        """A better g for a price, 0 for the empty cluster, and its bound for one job."""
        for _ in range(_SWEEPS):
            better = np.maximum.reduceat(
                self._values(g, price, chances) @ models, self._begins
            )
            change = better - g
            g = better - better[self._empty]
            if np.ptp(change) < close:
                break
        return g, float(change.max())

    def most(
        self,
        g: _Floats,
        price: float,
        chances: _Floats,
        models: _Floats,
    ) -> float:
        """The sum over jobs of the maximum of E[r + h(x')] − h(x). ``models``: jobs × models."""
        gains = self._values(g, price, chances) - g[self._of, None]
        different, counts = np.unique(
            models,
            axis=0,
            return_counts=True,
        )
        parts = (
            different[k : k + _AT_ONCE]
            for k in range(0, len(different), _AT_ONCE)
        )
        return float(
            np.concatenate([(gains @ each.T).max(axis=0) for each in parts])
            @ counts
        )

    def _values(
        self,
        g: _Floats,
        price: float,
        chances: _Floats,
    ) -> _Floats:
        """The expectation of r + h(x') for each row and model, R × models."""
        refused = g[self._refused]
        back = price * self._back
        placed = np.append(g, -np.inf)[self._placed] + (
            1.0 - price * self._pays
        )
        found = np.empty((len(back), len(chances)))
        for model, (columns, chance) in enumerate(
            zip(self._column, chances, strict=True)
        ):
            best = refused
            total = back + chance[-1] * refused
            for column, part in zip(
                columns[::-1], chance[-2::-1], strict=True
            ):
                if column is not None:
                    best = np.maximum(best, placed[column])
                if part:
                    total += part * best
            found[:, model] = total
        return found


@lru_cache(maxsize=2)
def _decisions(jobs: _Jobs, exact: int) -> _Decisions:
    return _Decisions(jobs, exact)


@lru_cache(maxsize=4)
def _solution(
    decisions: _Decisions,
    chances: _Table,
    models: tuple[float, ...],
) -> tuple[_Floats, float]:
    """The bound; with a fixed law it is the same for all episodes."""
    return decisions.solved(np.array(chances), np.array(models))
