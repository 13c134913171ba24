"""What came of an episode: blocking by cause, completion times, and how servers were used."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from patchlight.emulation.simulator.ramp.scenario import Job
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput


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
        servers, demand_bytes = workloads.ramp.shape.size, workloads.demand_bytes
        compute_s = workloads.sequential_s
        kept = [a for a in accepted if a.lost_s == math.inf]
        done = [a for a in kept if a.job.arrived_s + a.completion_s <= horizon_s]
        times = np.array([a.completion_s for a in done]) if done else np.array([math.nan])
        alone = np.array([a.job.sequential_s for a in done]) if done else np.array([math.nan])
        held = moved = worked = 0.0
        for a in accepted:
            lasted = min(a.completion_s, min(horizon_s, a.lost_s) - a.job.arrived_s)
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
            mean_degree=sum(a.degree for a in done) / len(done) if done else math.nan,
            degrees=dict(sorted(degrees.items())),
            allocated=held / (servers * horizon_s),
            busy=worked / (servers * horizon_s),
            throughput_bytes_per_s=moved / horizon_s,
        )

    def blocking_rate(self, counting: Counting | str = Counting.FAITHFUL) -> float:
        """The share of jobs that count as blocked; ``nan`` if there were none."""
        blocked = sum(self.blocked.values()) + self.lost
        if Counting(counting) is Counting.FAITHFUL:
            return (blocked + self.unfinished) / self.arrivals if self.arrivals else math.nan
        return blocked / self.decisions if self.decisions else math.nan


class Interval(NamedTuple):
    """A mean and the half-width of its 95 % confidence interval."""

    mean: float
    half_width: float


# Student's t, 97.5 %, for 1 to 30 degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
            2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
            2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


def mean_and_interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % confidence half-width (Student's t); infinite for a single value."""
    if not values:
        raise BadInput("cannot take the mean of no values")
    mean, count = math.fsum(values) / len(values), len(values)
    if count == 1:
        return Interval(mean, math.inf)
    spread = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    return Interval(mean, _student(count - 1) * spread / math.sqrt(count))


def _student(freedom: int) -> float:
    """Student's t, 97.5 %; past the table by Fisher's expansion about the normal quantile."""
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def paired_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """How much ``first`` is above ``second`` in the mean, pair by pair, as in episodes of one seed.

    What the pairs have in common, which jobs came, is not in the interval.
    """
    return mean_and_interval([a - b for a, b in zip(first, second, strict=True)])


def blocking_rates(
    results: Sequence[EpisodeResult], counting: Counting | str = Counting.FAITHFUL
) -> Interval:
    """The blocking rate over several episodes."""
    return mean_and_interval([result.blocking_rate(counting) for result in results])
