"""The best constant degree, found while jobs come: beside all constants, and behind a model."""

from dataclasses import replace
from functools import partial

import pytest

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
    Running,
)
from patchlight.controller.policies.degrees import BestConstant, Constant
from patchlight.controller.policies.sets import joined
from patchlight.emulation.simulator.ramp.lossnetwork import run_episode
from patchlight.emulation.simulator.ramp.scenario import (
    FixedArrivals,
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs import builtin_graph

SEEDS = range(7100, 7103)


@pytest.fixture(scope="module")
def workloads() -> Workloads:
    return Workloads([builtin_graph(name) for name in ("alexnet", "vgg16")])


def scenario(workloads: Workloads, law: str, gap_s: float) -> Scenario:
    plain = pac_ml_scenario(workloads, law, "ramp-first-fit", 800 * gap_s)
    return replace(plain, arrivals=FixedArrivals(gap_s))


def blocked(
    which: Scenario, policy: partial[Constant] | type[BestConstant]
) -> float:
    return sum(
        run_episode(which, policy(), seed).blocking_rate() for seed in SEEDS
    ) / len(SEEDS)


@pytest.mark.parametrize("law", ["A", "B", "D"])
@pytest.mark.parametrize("load", [0.8, 1.1, 1.6])
def test_it_blocks_hardly_more_than_the_constant_that_is_best_afterwards(
    workloads: Workloads, law: str, load: float
) -> None:
    mean_s = sum(workloads.sequential_s) / len(workloads.sequential_s)
    which = scenario(workloads, law, mean_s / 32 / load)
    rates = {d: blocked(which, partial(Constant, d)) for d in (2, 4, 8, 16)}
    # There is something to find.
    assert max(rates.values()) > min(rates.values()) + 0.05
    assert blocked(which, BestConstant) < min(rates.values()) + 0.03


def test_it_stays_with_the_largest_while_that_blocks_nothing(
    workloads: Workloads,
) -> None:
    which = scenario(workloads, "A", 1e6)
    seed, *_ = SEEDS
    found = BestConstant()
    result = run_episode(which, found, seed)
    assert result.blocking_rate("corrected") == 0
    assert result.degrees == run_episode(which, Constant(32), seed).degrees


def test_before_it_changes_the_degree_the_cluster_becomes_empty() -> None:
    shape = ClusterShape(
        tuple(GpuSite(f"g{n}", n, 0) for n in range(4)), ("s",), ("r",)
    )
    policy = BestConstant()
    running = list[Running]()
    used = list[int]()
    for number in range(200):
        now_s = 10.0 * number
        running = [each for each in running if each.ends_s > now_s]
        free = [
            gpu
            for gpu in range(4)
            if not any(each.gpus >> gpu & 1 for each in running)
        ]
        # With 1 there are four side by side and none is blocked, with 4 two of three are.
        job = JobView(
            str(number),
            arrived_s=now_s,
            limit_s=50.0,
            expected_s={1: 35.0, 4: 30.0},
        )
        occupied = 0b1111 & ~joined(free)
        cluster = ClusterView(now_s, shape, occupied, running=tuple(running))
        legal = (0, *(degree for degree in (1, 4) if degree <= len(free)))
        if degree := policy.degree(cluster, job, legal):
            assert (
                used[-1:] == [degree]
                or not running
                or not used
                or legal[-1] < used[-1]
            )
            running.append(
                Running(now_s + job.expected_s[degree], joined(free[:degree]))
            )
            used.append(degree)
    assert used[0] == 4
    assert set(used[10:]) == {1}
