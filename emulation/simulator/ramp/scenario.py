"""What is simulated: the models, the cluster, who comes when, and what they ask for.

Jobs are drawn before an episode begins, so that all policies see the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.simulator.outages import Outage, Outages
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.workloads import RequirementLaw, Workloads, law
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


@dataclass(frozen=True, slots=True)
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
        return [k * self.interval_s for k in range(math.floor(horizon_s / self.interval_s) + 1)]


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Jobs at random, ``mean_interval_s`` apart in the mean."""

    mean_interval_s: float = 1000.0

    def __post_init__(self) -> None:
        _check(self.mean_interval_s)

    def times(self, rng: np.random.Generator, horizon_s: float) -> list[float]:
        """Exponential times apart."""
        found: list[float] = []
        now = 0.0
        while (now := now + rng.exponential(self.mean_interval_s)) <= horizon_s:
            found.append(now)
        return found


def _check(interval_s: float) -> None:
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise BadInput(f"jobs cannot come {interval_s} s apart: expected more than 0 s")


PAC_ML_HORIZON_S = 1e6
PAC_ML_REPLICATION = 201
MAX_ERROR = 3.0
# What episodes are drawn from, and what policies may draw from.
_EPISODES, _POLICIES = (), (0x504F4C49,)


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
                f"remaining times cannot be off by {self.remaining_error}: expected 0 to "
                f"{MAX_ERROR:g}, like 0.3"
            )
        if not (math.isfinite(self.horizon_s) and self.horizon_s > 0):
            raise BadInput(f"cannot simulate {self.horizon_s} s: expected more than 0 s")
        if self.replication is not None and self.replication < 1:
            raise BadInput(f"replication is {self.replication}: expected 1 or more")
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
        when, models, needs = (np.random.default_rng(each) for each in self._spawn(seed, 3))
        times = self.arrivals.times(when, self.horizon_s)
        kinds = len(self.workloads.names)
        if self.replication is None:
            shares = None if self.mix is None else np.array(self.mix, dtype=float) / sum(self.mix)
            drawn = models.choice(kinds, size=len(times), p=shares)
        else:
            rounds = -(-len(times) // (kinds * self.replication))
            pool = np.repeat(np.arange(kinds), self.replication)
            drawn = np.concatenate([pool[:0], *(models.permutation(pool) for _ in range(rounds))])
        requirements = self.law.sample(needs, len(times)).tolist()
        alone = self.workloads.sequential_s
        columns = zip(drawn.tolist(), requirements, times, strict=False)
        return [
            Job(number, graph, beta, alone[graph], beta * alone[graph], time)
            for number, (graph, beta, time) in enumerate(columns)
        ]

    def requirements(self, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The law of the episode with this seed: each requirement β, and how likely it is."""
        return self.law.shares(np.random.default_rng(self._spawn(seed, 3)[2]))

    def views(self, jobs: Sequence[Job]) -> tuple[JobView, ...]:
        """The jobs as policies see them; each is called by its number."""
        graphs, expected = self.workloads.graphs, self.workloads.expected(self.rule)
        return tuple(
            JobView(
                str(number), 0, graphs[graph], arrived_s, alone_s, beta, limit_s, expected[graph]
            )
            for number, graph, beta, alone_s, limit_s, arrived_s in jobs
        )

    def told_over_true(self, seed: int, jobs: int) -> NDArray[np.float64] | None:
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
        return self.failures.events_until(self.horizon_s, self.workloads.ramp.shape.size, rng)

    def for_policies(self) -> Scenario:
        """The same laws with other jobs: no seed of it gives an episode that this one has.

        For policies that plan with the scenario; they would know the jobs to come of the very
        episode that they run in.
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

    Each episode has laws B, C and D made anew, as PAC-ML's simulator makes them, or all the
    ``law_instance``: see ``requirements.SkewNormal``.

    ``BadInput`` for an unknown law or rule.
    """
    try:
        rule = PlacementRule(rule)
    except ValueError:
        known = ", ".join(PlacementRule)
        raise BadInput(f"no placement rule {rule!r}: expected one of {known}") from None
    workloads = graphs if isinstance(graphs, Workloads) else Workloads(graphs)
    reuse = rule == PlacementRule.RAMP_FIRST_FIT
    return Scenario(workloads, law(law_name, law_instance), rule, horizon_s, reuse_first_time=reuse)
