"""Which jobs come, and when: drawn before an episode begins, so that all policies see the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from patchlight.emulation.simulator.ramp.requirements import RequirementLaw
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput


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

    def times(self, rng: np.random.Generator, horizon_s: float) -> list[float]:
        """Arrival times, ascending, none after ``horizon_s``."""


@dataclass(frozen=True, slots=True)
class FixedArrivals:
    """A job at 0 and then one each ``interval_s``, the last at the horizon if it falls there."""

    interval_s: float = 1000.0

    def __post_init__(self) -> None:
        _check(self.interval_s)

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


def draw_jobs(
    workloads: Workloads,
    law: RequirementLaw,
    arrivals: Arrivals,
    horizon_s: float,
    replication: int | None,
    seed: int,
    mix: Sequence[float] | None = None,
) -> list[Job]:
    """The jobs of one episode.

    With ``replication`` r, models are drawn without putting back from a pool of r jobs of each
    model, which is filled again when empty (as PAC-ML's simulator does); with ``None``, each
    job's model is drawn by itself, in proportion to ``mix`` if there is one.
    """
    when, models, needs = (
        np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(3)
    )
    times = arrivals.times(when, horizon_s)
    kinds = len(workloads.names)
    if replication is None:
        shares = None if mix is None else np.array(mix, dtype=float) / sum(mix)
        drawn = models.choice(kinds, size=len(times), p=shares)
    else:
        rounds = -(-len(times) // (kinds * replication))
        pool = np.repeat(np.arange(kinds), replication)
        drawn = np.concatenate([pool[:0], *(models.permutation(pool) for _ in range(rounds))])
    requirements = law.sample(needs, len(times)).tolist()
    alone = workloads.sequential_s
    return [
        Job(number, graph, beta, alone[graph], beta * alone[graph], time)
        for number, (graph, beta, time) in enumerate(
            zip(drawn.tolist(), requirements, times, strict=False)
        )
    ]
