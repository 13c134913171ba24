"""Runs many episodes, on one process or several: the results are equal, seed for seed."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import NamedTuple

from emulation.experiments.pac_ml.policies import make_policy
from emulation.flow.counting import EpisodeResult
from emulation.flow.hindsight import HindsightBound, hindsight_bound
from emulation.flow.lossnetwork import run_episode
from emulation.flow.rollout import LookAhead, candidates, tuned
from emulation.flow.scenario import Scenario, pac_ml_scenario
from emulation.flow.workloads import Workloads
from testbed.errors import PatchlightError
from testbed.graphs import ComputationGraph

ATTEMPTS = 3


class Place(NamedTuple):
    """A placement rule and a law: the column of the table that an episode counts for."""

    rule: str
    law: str


class Run(NamedTuple):
    """One episode to run."""

    place: Place
    policy: str
    seed: int
    look: LookAhead | None = None


class Tuning(NamedTuple):
    """One choice of how to look ahead to make."""

    place: Place
    futures: int
    arrivals: int


class Bound(NamedTuple):
    """One hindsight bound to compute."""

    place: Place
    seed: int


class Ran(NamedTuple):
    """An episode's result, and the processor's time it took."""

    result: EpisodeResult
    cpu_s: float


Task = Run | Tuning | Bound
Done = Ran | LookAhead | HindsightBound


@dataclass
class Bench:
    """The models and the horizon that all episodes share; keeps what was computed for them."""

    graphs: Sequence[ComputationGraph]
    horizon_s: float
    _workloads: Workloads | None = None
    _scenarios: dict[Place, Scenario] = field(default_factory=dict)

    def scenario(self, place: Place) -> Scenario:
        """The scenario of a rule and a law."""
        if self._workloads is None:
            self._workloads = Workloads(self.graphs)
        if place not in self._scenarios:
            self._scenarios[place] = pac_ml_scenario(
                self._workloads, place.law, place.rule, self.horizon_s
            )
        return self._scenarios[place]

    def do(self, task: Task) -> Done:
        """Run one task."""
        scenario = self.scenario(task.place)
        match task:
            case Run(_, name, seed, look):
                policy = make_policy(name, scenario, seed, look)
                started = time.process_time()
                result = run_episode(scenario, policy, seed)
                return Ran(result, time.process_time() - started)
            case Tuning(_, futures, arrivals):
                return tuned(scenario, candidates(scenario, futures, arrivals))
            case Bound(_, seed):
                return hindsight_bound(scenario, seed)


_bench: Bench | None = None


def _enter(bench: Bench) -> None:
    global _bench
    _bench = bench


def _do(task: Task) -> Done:
    assert _bench is not None
    return _bench.do(task)


def do_all(
    bench: Bench, tasks: Sequence[Task], processes: int, tell: Callable[[], None]
) -> list[Done]:
    """Do all tasks; the results in the tasks' order, whoever did them. ``tell`` after each.

    What a process that died leaves undone is done again by others; ``PatchlightError`` if they
    die too.
    """
    found: dict[int, Done] = {}
    if processes == 1 or len(tasks) == 1:
        for number, task in enumerate(tasks):
            found[number] = bench.do(task)
            tell()
    for _ in range(ATTEMPTS):
        left = [number for number in range(len(tasks)) if number not in found]
        if not left:
            return [found[number] for number in range(len(tasks))]
        try:
            for number, done in _in_pool(bench, tasks, left, processes):
                found[number] = done
                tell()
        except BrokenProcessPool:
            continue
    if len(found) == len(tasks):
        return [found[number] for number in range(len(tasks))]
    raise PatchlightError(
        f"running {len(tasks)} episodes on {processes} processes: processes died {ATTEMPTS} times",
        hint="the kernel may have stopped them for want of memory: try --processes 1",
    )


def _in_pool(
    bench: Bench, tasks: Sequence[Task], left: Sequence[int], processes: int
) -> Iterator[tuple[int, Done]]:
    # Spawned, not forked: a fork of a process with threads (a progress bar's) may hang.
    context = multiprocessing.get_context("spawn")
    count = min(processes, len(left))
    with ProcessPoolExecutor(count, context, _enter, (bench,)) as pool:
        futures = {pool.submit(_do, tasks[number]): number for number in left}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # Before the with block waits: what has not begun is not wanted any more.
            pool.shutdown(wait=True, cancel_futures=True)
