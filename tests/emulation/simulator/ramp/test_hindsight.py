"""The bound holds against every policy, and is exact where it can be checked by hand."""

import itertools
import math
from dataclasses import replace

import pytest

from patchlight.controller.policies.degrees import RandomDegree
from patchlight.emulation.simulator.ramp.bounds import hindsight_bound, shortest_s
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import PlacementRule, RampShape
from patchlight.emulation.simulator.ramp.scenario import PoissonArrivals, Scenario, pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads, fixed
from patchlight.testbed.graphs import ComputationGraph, Operation


def tiny(seconds: tuple[float, ...], betas: tuple[float, ...], jobs: int) -> Scenario:
    graphs = [
        ComputationGraph(f"m{k}", (Operation("op", "Test", s / 50, 0.0, 0, 0),), ())
        for k, s in enumerate(seconds)
    ]
    workloads = Workloads(graphs, RampShape(2, 1, 1))
    return Scenario(
        workloads, fixed(betas), PlacementRule.RAMP_BLOCK, 1000.0 * jobs, replication=None
    )


def best_possible(scenario: Scenario, seed: int, counting: str) -> float:
    degrees_there = scenario.workloads.degrees
    jobs = len(scenario.jobs(seed)) - 1
    rates = []
    for degrees in itertools.product((0, *degrees_there), repeat=jobs):
        episode = Episode(scenario, seed)
        for degree in degrees:
            episode.decide(degree)
        rates.append(episode.result().blocking_rate(counting))
    return min(rates)


@pytest.mark.parametrize("counting", ["faithful", "corrected"])
@pytest.mark.parametrize("seed", range(6))
def test_no_sequence_of_decisions_is_below_it(seed: int, counting: str) -> None:
    scenario = tiny((2500.0, 4200.0), (0.6, 1.0), jobs=6)
    bound = hindsight_bound(scenario, seed, counting)
    best = best_possible(scenario, seed, counting)
    assert bound.blocking_rate <= best + 1e-12
    # It is no empty bound either: at most one job of six away from the truth.
    assert best - bound.blocking_rate <= 1 / 6 + 1e-12


def test_it_is_zero_where_all_fit_and_all_where_none_can() -> None:
    easy = tiny((500.0,), (1.0,), jobs=5)
    assert hindsight_bound(easy, 0, "corrected").blocking_rate == 0.0
    hopeless = tiny((500.0,), (0.25,), jobs=5)  # Two servers make it half as long, not less.
    assert hindsight_bound(hopeless, 0, "corrected").blocking_rate == 1.0
    assert hindsight_bound(hopeless, 0).accepted == 0


def test_more_rounds_never_loosen_it(computed: Workloads) -> None:
    scenario = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=3e5)
    found = [hindsight_bound(scenario, 0, rounds=rounds).accepted for rounds in (10, 100, 1000)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("rule", list(PlacementRule))
def test_no_job_is_shorter_than_the_shortest(computed: Workloads, rule: PlacementRule) -> None:
    times, held = shortest_s(computed)
    episode = Episode(pac_ml_scenario(computed, "A", rule, horizon_s=2e5), 0)
    policy = RandomDegree(1)
    while episode.job is not None:
        if episode.decide(policy.degree(*episode.question())) is JobOutcome.ACCEPTED:
            last = episode.accepted[-1]
            column = computed.degrees.index(last.degree)
            assert last.completion_s >= times[last.job.graph, column] * (1 - 1e-9)
            assert last.servers.bit_count() >= held[last.job.graph, column]
    assert len(episode.accepted) > 50


def test_no_jobs_at_all(computed: Workloads) -> None:
    base = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=1.0)
    nobody = replace(base, arrivals=PoissonArrivals(1e9), replication=None)
    assert math.isnan(hindsight_bound(nobody, 0).blocking_rate)
