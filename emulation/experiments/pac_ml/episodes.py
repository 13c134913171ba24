"""The tasks that the experiment consists of. A result depends on nothing but its task."""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from patchlight.emulation.experiments.pac_ml.policies import Faults, make_policy
from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.ramp.episode_result import EpisodeResult
from patchlight.emulation.simulator.ramp.hindsight import HindsightBound, hindsight_bound
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.rollout import LookAhead, candidates, tuned
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import ComputationGraph


class Cell(NamedTuple):
    """A placement rule and a law: the column of the table that an episode counts for."""

    rule: str
    law: str


class EpisodeTask(NamedTuple):
    """One episode to run."""

    cell: Cell
    policy: str
    seed: int
    look: LookAhead | None = None


class TuningTask(NamedTuple):
    """One choice of how to look ahead to make."""

    cell: Cell
    futures: int
    arrivals: int


class BoundTask(NamedTuple):
    """One hindsight bound to compute."""

    cell: Cell
    seed: int


class EpisodeOutcome(NamedTuple):
    """An episode's result, the processor's time it took, and what the policy did wrong.

    ``faults`` is how often it did, ``first_fault`` says how at first. ``latencies_s`` are how long
    each decision took, measured.
    """

    result: EpisodeResult
    cpu_s: float
    faults: int = 0
    first_fault: str = ""
    latencies_s: Sequence[float] = ()


Task = EpisodeTask | TuningTask | BoundTask
Done = EpisodeOutcome | LookAhead | HindsightBound


@dataclass
class TaskRunner:
    """The models and the horizon that all episodes share; keeps what was computed for them.

    ``variation`` is what else is other than in the paper.
    """

    graphs: Sequence[ComputationGraph]
    horizon_s: float
    variation: Variation = field(default_factory=Variation)
    _workloads: Workloads | None = None
    _scenarios: dict[Cell, Scenario] = field(default_factory=dict)

    def scenario(self, cell: Cell) -> Scenario:
        """The scenario of a rule and a law."""
        if self._workloads is None:
            self._workloads = self.variation.workloads(self.graphs)
        if cell not in self._scenarios:
            varied = replace(self.variation, horizon_s=self.horizon_s)
            self._scenarios[cell] = varied.scenario(self._workloads, cell.law, cell.rule)
        return self._scenarios[cell]

    def run(self, task: Task) -> Done:
        """EpisodeTask one task."""
        scenario = self.scenario(task.cell)
        match task:
            case EpisodeTask(_, name, seed, look):
                faults = Faults()
                policy = make_policy(name, scenario, seed, look, faults)
                started = time.process_time()
                latencies_s = array("d")
                result = run_episode(scenario, policy, seed, latencies_s)
                cpu_s = time.process_time() - started
                return EpisodeOutcome(result, cpu_s, faults.count, faults.first, latencies_s)
            case TuningTask(_, futures, arrivals):
                return tuned(scenario, candidates(scenario, futures, arrivals))
            case BoundTask(_, seed):
                return hindsight_bound(scenario, seed)
