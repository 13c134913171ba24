"""Models, cluster, arrivals and requests of an episode, and its result: blocking and times.

Jobs are drawn before an episode begins, so that all policies see the same.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.outages import Outage, Outages
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.workloads import (
    RequirementLaw,
    Workloads,
    law,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph


class Job(NamedTuple):
    """A job as it arrives.

    ``graph`` is its place in the workloads, ``requirement`` the fraction β of
    ``sequential_s``, its time on one device, that it may take: ``limit_s``.
    """

    number: int
    graph: int
    requirement: float
    sequential_s: float
    limit_s: float
    arrived_s: float


class Arrivals(Protocol):
    """When jobs come."""

    @property
    def mean_interval_s(self) -> float:
        """How long after one the next comes, in the mean."""

    def times(self, rng: np.random.Generator, horizon_s: float) -> list[float]:
        """Arrival times, ascending, none after ``horizon_s``."""


@dataclass(
    frozen=True,
    slots=True,
)
class FixedArrivals:
    """A job at 0 and then one each ``interval_s``, the last at the horizon if it falls there."""

    interval_s: float = 1000.0

    def __post_init__(self) -> None:
        _check(self.interval_s)

    @property
    def mean_interval_s(self) -> float:
        """The same after each."""
        return self.interval_s

    def times(self, rng: np.random.Generator, horizon_s: float) -> list[float]:
        """Every ``interval_s`` from 0 s on."""
        return [
            k * self.interval_s
            for k in range(math.floor(horizon_s / self.interval_s) + 1)
        ]


@dataclass(
    frozen=True,
    slots=True,
)
class PoissonArrivals:
    """Jobs at random, ``mean_interval_s`` apart in the mean."""

    mean_interval_s: float = 1000.0

    def __post_init__(self) -> None:
        _check(self.mean_interval_s)

    def times(self, rng: np.random.Generator, horizon_s: float) -> list[float]:
        """Exponential times apart."""
        found: list[float] = []
        now = 0.0
        while (
            now := now + rng.exponential(self.mean_interval_s)
        ) <= horizon_s:
            found.append(now)
        return found


def _check(interval_s: float) -> None:
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise BadInput(
            f"jobs cannot arrive {interval_s} s apart: expected more than 0 s"
        )


PAC_ML_HORIZON_S = 1e6
PAC_ML_REPLICATION = 201
MAX_ERROR = 3.0
# What episodes are drawn from, and what policies may draw from.
_EPISODES = ()
_POLICIES = (0x504F4C49,)


@dataclass(frozen=True)
class Scenario:
    """An experiment of a loss network; an episode of it is one seed.

    With ``reuse_first_time`` a model at a degree takes, all through an episode, as long as it
    did on the first servers it got, as PAC-ML's simulator has it; else as long as its own
    servers let it. With ``replication`` r, models are drawn without putting back from a pool of r
    jobs of each model, which is filled again when empty (as PAC-ML's simulator does); with
    ``None``, each job's model is drawn by itself, in proportion to ``mix`` if there is one.
    Policies are told the remaining time of each running job times a log-normal number of its own,
    whose logarithm has the standard deviation ``remaining_error``. ``stream`` keeps the episodes of
    equal seeds apart, see ``for_policies``.
    """

    workloads: Workloads
    law: RequirementLaw
    rule: PlacementRule
    horizon_s: float = PAC_ML_HORIZON_S
    arrivals: Arrivals = field(default_factory=FixedArrivals)
    replication: int | None = PAC_ML_REPLICATION
    reuse_first_time: bool = True
    mix: tuple[float, ...] | None = None
    failures: Outages | None = None
    remaining_error: float = 0.0
    stream: tuple[int, ...] = _EPISODES

    def __post_init__(self) -> None:
        if not 0 <= self.remaining_error <= MAX_ERROR:
            raise BadInput(
                f"remaining times cannot have an error of {self.remaining_error}: expected 0 to "
                f"{MAX_ERROR:g}, like 0.3"
            )
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise BadInput(
                f"cannot simulate {self.horizon_s} s: expected more than 0 s"
            )
        if self.replication is not None and self.replication < 1:
            raise BadInput(
                f"replication is {self.replication}: expected 1 or more"
            )
        if self.mix is not None:
            models = len(self.workloads.names)
            if (
                self.replication is not None
                or len(self.mix) != models
                or not (min(self.mix) >= 0 and 0 < sum(self.mix) < math.inf)
            ):
                raise BadInput(
                    f"the job mix is {self.mix}: expected a share of 0 or more for each of "
                    f"{models} models, not all 0, and no replication"
                )

    def jobs(self, seed: int) -> list[Job]:
        """The jobs of the episode with this seed."""
        when, models, needs = (
            np.random.default_rng(each) for each in self._spawn(seed, 3)
        )
        times = self.arrivals.times(when, self.horizon_s)
        kinds = len(self.workloads.names)
        if self.replication is None:
            shares = (
                None
                if self.mix is None
                else np.array(self.mix, dtype=float) / sum(self.mix)
            )
            drawn = models.choice(
                kinds,
                size=len(times),
                p=shares,
            )
        else:
            rounds = -(-len(times) // (kinds * self.replication))
            pool = np.repeat(np.arange(kinds), self.replication)
            drawn = np.concatenate(
                [pool[:0], *(models.permutation(pool) for _ in range(rounds))]
            )
        requirements = self.law.sample(needs, len(times)).tolist()
        alone = self.workloads.sequential_s
        columns = zip(
            drawn.tolist(),
            requirements,
            times,
            strict=False,
        )
        return [
            Job(
                number,
                graph,
                beta,
                alone[graph],
                beta * alone[graph],
                time,
            )
            for number, (graph, beta, time) in enumerate(columns)
        ]

    def requirements(
        self, seed: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The law of the episode with this seed: each requirement β, and how likely it is."""
        return self.law.shares(np.random.default_rng(self._spawn(seed, 3)[2]))

    def views(self, jobs: Sequence[Job]) -> tuple[JobView, ...]:
        """The jobs as policies see them; each is called by its number."""
        graphs = self.workloads.graphs
        expected = self.workloads.expected(self.rule)
        return tuple(
            JobView(
                str(number),
                0,
                graphs[graph],
                arrived_s,
                alone_s,
                beta,
                limit_s,
                expected[graph],
            )
            for number, graph, beta, alone_s, limit_s, arrived_s in jobs
        )

    def told_over_true(
        self, seed: int, jobs: int
    ) -> NDArray[np.float64] | None:
        """What policies are told of each job's remaining time, as a share of it; ``None`` if that
        is what it is.
        """
        if not self.remaining_error:
            return None
        # Spawned after those of jobs and failures, so that it does not change these.
        rng = np.random.default_rng(self._spawn(seed, 5)[4])
        return rng.lognormal(0.0, self.remaining_error, jobs)

    def server_events(self, seed: int) -> tuple[Outage, ...]:
        """Which servers break and are mended in the episode with this seed."""
        if self.failures is None:
            return ()
        # Spawned after the three of the jobs, so that failures do not change these.
        rng = np.random.default_rng(self._spawn(seed, 4)[3])
        return self.failures.events_until(
            self.horizon_s, self.workloads.ramp.shape.size, rng
        )

    def salted(self, salt: int) -> Scenario:
        """The same laws with jobs that cannot be drawn without this number; 0 changes nothing."""
        return replace(self, stream=(salt,)) if salt else self

    def for_policies(self) -> Scenario:
        """The same laws with other jobs, for policies that plan with the scenario.

        An episode that is not salted can still be found by trying seeds of another stream.
        """
        return replace(self, stream=_POLICIES)

    def _spawn(self, seed: int, count: int) -> list[np.random.SeedSequence]:
        return np.random.SeedSequence(seed, spawn_key=self.stream).spawn(count)


def pac_ml_scenario(
    graphs: Sequence[ComputationGraph] | Workloads,
    law_name: str = "A",
    rule: PlacementRule | str = PlacementRule.RAMP_FIRST_FIT,
    horizon_s: float = PAC_ML_HORIZON_S,
    law_instance: int | None = None,
) -> Scenario:
    """PAC-ML's experiment: 32 servers, a job every 1,000 s until ``horizon_s``.

    Each episode has new laws B, C and D, as PAC-ML's simulator makes them, or all the
    ``law_instance``: see ``requirements.SkewNormal``.

    ``BadInput`` for an unknown law or rule.
    """
    try:
        rule = PlacementRule(rule)
    except ValueError:
        known = ", ".join(PlacementRule)
        raise BadInput(
            f"no placement rule {rule!r}: expected one of {known}"
        ) from None
    workloads = graphs if isinstance(graphs, Workloads) else Workloads(graphs)
    reuse = rule == PlacementRule.RAMP_FIRST_FIT
    return Scenario(
        workloads,
        law(law_name, law_instance),
        rule,
        horizon_s,
        reuse_first_time=reuse,
    )


class Counting(StrEnum):
    """Which jobs count as blocked.

    ``faithful`` as PAC-ML's simulator counts: over all arrivals, jobs that still run at the end
    are blocked, the one that comes at the very end is not. ``corrected``: of the jobs that were
    decided on, those that were not accepted. Jobs lost to a broken server count in both.
    """

    FAITHFUL = "faithful"
    CORRECTED = "corrected"


class Accepted(NamedTuple):
    """A job that was accepted: its degree, how long it takes, which servers it has.

    ``servers`` has a bit for each; ``lost_s`` is when one of them broke, if it did.
    """

    job: Job
    degree: int
    completion_s: float
    servers: int
    lost_s: float = math.inf


@dataclass(frozen=True)
class EpisodeResult:
    """The figures of one episode. Times are seconds, ``nan`` where no job was completed.

    ``blocked`` counts by cause; ``unfinished`` are the accepted jobs that ran at the end,
    ``lost`` those whose server broke. ``no_block`` among the causes tells of fragmentation:
    there were free servers enough, but not in the shapes needed.
    ``jct_*`` and ``mean_degree`` are of completed jobs. ``allocated`` is the share of all
    servers' time that jobs held, ``busy`` the share in which they computed.
    ``throughput_bytes_per_s`` is what the paper calls demand throughput: the information of
    accepted jobs (memory and edges of the unsplit training step, once for each job) by the share
    of each that was done, over the whole time.
    """

    arrivals: int
    decisions: int
    blocked: Mapping[str, int]
    unfinished: int
    lost: int
    completed: int
    jct_mean_s: float
    jct_p50_s: float
    jct_p99_s: float
    slowdown_mean: float
    mean_degree: float
    degrees: Mapping[int, int]
    allocated: float
    busy: float
    throughput_bytes_per_s: float

    @classmethod
    def of(
        cls,
        arrivals: int,
        causes: Mapping[str, int],
        accepted: Sequence[Accepted],
        workloads: Workloads,
        horizon_s: float,
    ) -> EpisodeResult:
        """Made from what an episode kept. Splitting a model shares its work out and adds none."""
        servers = workloads.ramp.shape.size
        demand_bytes = workloads.demand_bytes
        compute_s = workloads.sequential_s
        kept = [a for a in accepted if a.lost_s == math.inf]
        done = [
            a for a in kept if a.job.arrived_s + a.completion_s <= horizon_s
        ]
        times = (
            np.array([a.completion_s for a in done])
            if done
            else np.array([math.nan])
        )
        alone = (
            np.array([a.job.sequential_s for a in done])
            if done
            else np.array([math.nan])
        )
        held = moved = worked = 0.0
        for a in accepted:
            lasted = min(
                a.completion_s, min(horizon_s, a.lost_s) - a.job.arrived_s
            )
            held += lasted * a.servers.bit_count()
            moved += demand_bytes[a.job.graph] * lasted / a.completion_s
            worked += compute_s[a.job.graph] * lasted / a.completion_s
        degrees = Counter(a.degree for a in accepted)
        return cls(
            arrivals=arrivals,
            decisions=len(accepted) + sum(causes.values()),
            blocked=dict(causes),
            unfinished=len(kept) - len(done),
            lost=len(accepted) - len(kept),
            completed=len(done),
            jct_mean_s=float(times.mean()),
            jct_p50_s=float(np.percentile(times, 50)),
            jct_p99_s=float(np.percentile(times, 99)),
            slowdown_mean=float((times / alone).mean()),
            mean_degree=sum(a.degree for a in done) / len(done)
            if done
            else math.nan,
            degrees=dict(sorted(degrees.items())),
            allocated=held / (servers * horizon_s),
            busy=worked / (servers * horizon_s),
            throughput_bytes_per_s=moved / horizon_s,
        )

    def blocking_rate(
        self, counting: Counting | str = Counting.FAITHFUL
    ) -> float:
        """The share of jobs that count as blocked; ``nan`` if there were none."""
        blocked = sum(self.blocked.values()) + self.lost
        if Counting(counting) is Counting.FAITHFUL:
            return (
                (blocked + self.unfinished) / self.arrivals
                if self.arrivals
                else math.nan
            )
        return blocked / self.decisions if self.decisions else math.nan


class Interval(NamedTuple):
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float


def mean_and_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % confidence half-width (Student's t); infinite for a single value."""
    if not values:
        raise BadInput("cannot take the mean of no values")
    mean = math.fsum(values) / len(values)
    count = len(values)
    if count == 1:
        return Interval(mean, math.inf)
    spread = math.sqrt(
        math.fsum((v - mean) ** 2 for v in values) / (count - 1)
    )
    return Interval(
        mean, _student(0.025, count - 1) * spread / math.sqrt(count)
    )


def _student(tail: float, freedom: int) -> float:
    """The value that Student's t exceeds with this probability."""
    # Not above: importing it takes longer than --help should.
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, tail))


class Ratio(NamedTuple):
    """A geometric mean of ratios, its 95 % confidence interval, and the share of them above 1."""

    mean: float
    low: float
    high: float
    worse: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        """By their logarithms: a ratio of 2 and one of 1/2 have the mean 1."""
        log = mean_and_interval([math.log(each) for each in ratios])
        mean, low, high = (
            math.exp(log.mean + sign * log.half_width) for sign in (0, -1, 1)
        )
        return cls(
            mean,
            low,
            high,
            sum(each > 1 for each in ratios) / len(ratios),
        )


def paired_difference(
    first: Sequence[float], second: Sequence[float]
) -> Interval:
    """How much ``first`` is above ``second`` in the mean, pair by pair, as in episodes of one seed.

    What the pairs have in common, which jobs came, is not in the interval.
    """
    return mean_and_interval(
        [a - b for a, b in zip(first, second, strict=True)]
    )


def p_value(differences: Sequence[float]) -> float:
    """How likely a mean at least as far from 0 is by chance (Student's t, two-sided)."""
    from scipy.special import stdtr

    count = len(differences)
    mean, half_width = mean_and_interval(differences)
    if not mean or half_width == math.inf:
        return 1.0
    if not half_width:
        return 0.0
    return 2 * float(
        stdtr(count - 1, -abs(mean) / half_width * _student(0.025, count - 1))
    )


def significant(p_values: Sequence[float], level: float = 0.05) -> list[bool]:
    """Which of several comparisons are significant together, by Holm's method (1979)."""
    found = [False] * len(p_values)
    held = True
    for rank, place in enumerate(
        sorted(range(len(p_values)), key=p_values.__getitem__)
    ):
        held = held and p_values[place] <= level / (len(p_values) - rank)
        found[place] = held
    return found
