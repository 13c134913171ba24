"""How fast the flow-level simulator decides on jobs, on one core.

A constant degree of 8 on law A at the paper's horizon, under both placement rules: whole
episodes, drawing the jobs, making the views and counting included. The first episodes, in which
completion times are simulated, are measured apart. PipeDream's profiles are used where they are
at hand (``PATCHLIGHT_DATA``), else the built-in computed ones.
"""

import resource
import statistics
import time
from typing import Any

from benchmarks import figure
from patchlight.controller.policies.degrees import Constant
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import (
    ComputationGraph,
    builtin_graph,
    read_graph,
)
from tests.support.data import data_set

NAMES = ("alexnet", "resnet18", "squeezenet1_0", "vgg16", "gnmt")
ROUNDS = 5
EPISODES = 10
_ASKED = {
    PlacementRule.RAMP_BLOCK: 25_000,
    PlacementRule.RAMP_FIRST_FIT: 5_000,
}


def run() -> list[dict[str, Any]]:
    """The figures. The peer's are too slow to measure in the same run: 0.07 to 2.3 s a job."""
    graphs, source = profiled_graphs()
    found: list[dict[str, Any]] = []
    unit = "decisions/CPU s"
    started = time.process_time()
    table = Workloads(graphs)
    for graph in range(len(graphs)):
        for degree in table.degrees:
            table.expected_s(graph, degree, PlacementRule.RAMP_FIRST_FIT)
    name = (
        f"simulator: the table of completion times, {len(graphs)} models × "
        f"{len(table.degrees)} degrees, each step simulated ({source})"
    )
    found.append(figure(name, time.process_time() - started, "CPU s"))
    for rule, asked in _ASKED.items():
        scenario = pac_ml_scenario(Workloads(graphs), "A", rule)
        policy = Constant(8)
        first = _rate(scenario, policy, range(1))
        rates = []
        for turn in range(ROUNDS):
            seeds = range(1 + turn * EPISODES, 1 + (turn + 1) * EPISODES)
            rates.append(_rate(scenario, policy, seeds))
        name = (
            f"simulator: job decisions, constant degree 8, {rule} ({source})"
        )
        found.append(
            figure(name, statistics.median(rates), unit, f"at least {asked}")
        )
        name = f"simulator: the same, first episode with nothing known, {rule}"
        found.append(figure(name, first, unit))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = "simulator: peak memory of the benchmarking process"
    return [*found, figure(name, peak_mib, "MiB", "at most 500")]


def _rate(scenario: Scenario, policy: Constant, seeds: range) -> float:
    started = time.process_time()
    done = sum(run_episode(scenario, policy, seed).decisions for seed in seeds)
    return done / (time.process_time() - started)


def profiled_graphs() -> tuple[list[ComputationGraph], str]:
    folder = data_set("pipedream")
    if folder is not None:
        return [
            read_graph(folder / f"{name}.txt") for name in NAMES
        ], "PipeDream's profiles"
    return [
        builtin_graph(name) for name in NAMES
    ], "built-in computed profiles"
