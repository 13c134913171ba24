"""What is left to win in labs: the best built-in policies beside hindsight and a proven bound.

    python -m benchmarks.lab_bounds [--labs 60] [--first-seed 40000] [--jobs 40] [--plays 0]

Jobs leave their number of workers open and may change it while they run. Each lab's jobs are played
with ``BUILT_IN``; the best mean completion time of them is the lab's unit. *Hindsight* plays the
same jobs again and again, changes decisions of the best at random, and keeps what ended sooner: a
figure that a policy that knows the future reaches. The *bound* is below what any policy reaches.
"""

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_array

from patchlight.controller.policies.contract import (
    ClusterView,
    JobView,
    Progress,
)
from patchlight.controller.policies.degrees import Constant
from patchlight.controller.prediction.network import ring_bits
from patchlight.emulation.simulator.randomlabs import (
    Drawn,
    Episode,
    PlayedPolicies,
    played_jct_s,
)

BUILT_IN = tuple(
    PlayedPolicies(
        "least-delay", "least-delay", "srpt", "least-delay", partition
    )
    for partition in ("least-delay", "constant:4")
)
_SLOW = 0.5  # GPUs of the slow model, as random labs have it, in those of the fast one
_STEPS = 12  # of time in a mean completion time


class Work(NamedTuple):
    """A job as no lab can do it faster: alone on the fastest GPUs, its links unshared.

    ``takes_s`` by the number of workers.
    """

    arrived_s: float
    takes_s: dict[int, float]

    @property
    def least_s(self) -> float:
        """Its time with the best number of workers."""
        return min(self.takes_s.values())


def works_of(episode: Episode) -> tuple[list[Work], float]:
    """The jobs, and how many of the fastest GPUs the lab's are worth.

    A ring runs as fast as its slowest GPU, so n slow GPUs do no more than n / 2 fast ones: they
    compute as long and send at least as much.
    """
    lab = episode.lab
    models = [gpu.model for server in lab.servers for gpu in server.gpus]
    nic_bps = max(
        nic.rate_bps or math.inf
        for server in lab.servers
        for nic in server.nics
    )
    found = []
    for job in episode.opened().jobs:
        training = job.view.training
        assert training is not None  # Random jobs are trainings.
        compute_s = min(training.compute_s.values())
        takes_s = {
            workers: training.iterations
            * (
                compute_s / workers
                + ring_bits(workers, training.gradient_bytes) / nic_bps
            )
            for workers in job.view.degrees
        }
        found.append(Work(job.view.arrived_s, takes_s))
    return found, sum(_SLOW if model == "slow" else 1.0 for model in models)


def bound_s(works: Sequence[Work], gpus: float, step_s: float) -> float:
    """A mean completion time that no schedule goes below, even if changes of workers take no time.

    A job ends at C ≥ M + p/2: M is the mean time of its progress and p its least time, as it never
    progresses faster than 1/p (mean busy times: Goemans et al., SIAM J. Discrete Math., 2002).
    A linear program over intervals bounds the sum of M. It counts progress at an interval's begin;
    a job that progresses by y needs p·y of the interval, so the mean is p·y/2 later (a tangent).
    """
    edges = _edges(works, step_s)
    lengths = np.diff([*edges, math.inf])
    costs: list[float] = []
    # Row, column, factor of the inequalities.
    entries: list[tuple[int, int, float]] = []
    limits: list[float] = [gpus * length for length in lengths[:-1]]
    done: list[tuple[int, int, float]] = []
    for number, work in enumerate(works):
        for at in range(edges.index(work.arrived_s), len(edges)):
            length = lengths[at]
            late = len(costs)
            costs.append(1.0)
            busy = len(limits)
            tangent = len(limits) + 1
            if length < math.inf:
                limits += [length, length**2 / (2 * work.least_s)]
                entries.append((tangent, late, -1.0))
            for workers, takes_s in work.takes_s.items():
                column = len(costs)
                costs.append(edges[at] / takes_s)
                done.append((number, column, 1 / takes_s))
                if length < math.inf:
                    entries += [(at, column, workers), (busy, column, 1.0)]
                    entries.append((tangent, column, length / takes_s))
    upper = _matrix(entries, (len(limits), len(costs)))
    whole = _matrix(done, (len(works), len(costs)))
    solved = linprog(
        costs, upper, limits, whole, np.ones(len(works)), method="highs"
    )
    assert solved.status == 0, solved.message
    assert solved.fun is not None
    begun_s = sum(work.arrived_s - work.least_s / 2 for work in works)
    alone_s = sum(work.least_s for work in works)
    return max(solved.fun - begun_s, alone_s) / len(works)


def _edges(works: Sequence[Work], step_s: float) -> list[float]:
    """The begins of intervals; the last one never ends."""
    arrivals = sorted({work.arrived_s for work in works})
    last_s = arrivals[-1] + 2 * max(work.least_s for work in works)
    found = []
    for begin_s, end_s in zip(arrivals, [*arrivals[1:], last_s], strict=True):
        pieces = max(1, math.ceil((end_s - begin_s) / step_s))
        found += [
            begin_s + (end_s - begin_s) * piece / pieces
            for piece in range(pieces)
        ]
    return [*found, last_s]


def _matrix(
    entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]
) -> Any:
    rows, columns, factors = zip(*entries, strict=True)
    return csr_array((factors, (rows, columns)), shape)


@dataclass
class Hindsight:
    """Partition and order with some jobs decided beforehand: their workers and factors of rank."""

    base: PlayedPolicies
    workers: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, float] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _, _, self._order, _, self._partition = self.base.load()
        self.stable = True
        self.rises_at = ()

    def changed(
        self, draw: random.Random, jobs: Sequence[JobView]
    ) -> "Hindsight":
        """Another one: a job gets twice or half its workers, or its turn sooner or later."""
        found = Hindsight(self.base, dict(self.workers), dict(self.ranks))
        job = draw.choice(jobs)
        if draw.random() < 0.5:
            got = self.given.get(job.name, 1)
            found.workers[job.name] = draw.choice(
                [each for each in (2 * got, got // 2) if each]
            )
        else:
            found.ranks[job.name] = self.ranks.get(
                job.name, 1.0
            ) * 4 ** draw.uniform(-1, 1)
        return found

    def degree(
        self, cluster: ClusterView, job: JobView, legal: tuple[int, ...]
    ) -> int | None:
        """As decided beforehand, if so, else by the base."""
        base: int | None = self._partition.degree(cluster, job, legal)
        workers = self.workers.get(job.name)
        answer = (
            base
            if workers is None
            else Constant(workers).degree(cluster, job, legal)
        )
        if answer:
            self.given[job.name] = answer
        return answer

    def priority(
        self, cluster: ClusterView, job: JobView, progress: Progress
    ) -> float:
        """The base's rank times the job's factor."""
        rank: float = self._order.priority(cluster, job, progress)
        return rank * self.ranks.get(job.name, 1.0)

    def mean_s(self, episode: Episode) -> float:
        """The mean completion time of an episode's jobs."""
        placement, topology, _, elasticity, _ = self.base.load()
        played = episode.play(placement, topology, self, elasticity, self)
        return float(np.mean(played.jobs["jct_s"]))


def measured(drawn: Drawn, seed: int, plays: int) -> dict[str, float]:
    """A lab's figures: the best of the built-in policies in seconds, others over it."""
    episode = drawn.episode(seed)
    means_s = {
        each: float(np.mean(played_jct_s(episode, each))) for each in BUILT_IN
    }
    base = min(means_s, key=means_s.__getitem__)
    works, gpus = works_of(episode)
    bound = bound_s(works, gpus, means_s[base] / _STEPS)
    found = {"seed": seed, "gpus": gpus, "best_s": means_s[base]}
    found |= {
        each.partition: mean_s / means_s[base]
        for each, mean_s in means_s.items()
    }
    found |= {"bound": bound / means_s[base]}
    found |= {
        "alone": float(np.mean([work.least_s for work in works]))
        / means_s[base]
    }
    if plays:
        opened = episode.opened()
        draw = random.Random(seed)
        best = Hindsight(base)
        best_s = means_s[base]
        best.mean_s(opened)  # so that it knows what each job gets
        for _ in range(plays):
            other = best.changed(draw, [job.view for job in opened.jobs])
            if (mean_s := other.mean_s(opened)) < best_s:
                best = other
                best_s = mean_s
        found["hindsight"] = best_s / means_s[base]
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labs", type=int, default=60)
    parser.add_argument("--first-seed", type=int, default=40_000)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--largest", type=int, default=32)
    parser.add_argument("--load", type=float, default=1.1)
    parser.add_argument("--plays", type=int, default=0)
    parser.add_argument(
        "--part", default="0/1", help="of the labs: 0/2 every other one"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("results/lab-bounds.jsonl")
    )
    given = parser.parse_args()
    part, parts = map(int, given.part.split("/"))
    drawn = Drawn(given.jobs, given.load, given.largest)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    for seed in range(
        given.first_seed + part, given.first_seed + given.labs, parts
    ):
        line = json.dumps(measured(drawn, seed, given.plays))
        with given.output.open("a") as file:
            print(line, file=file)
        print(line, flush=True)


if __name__ == "__main__":
    main()
