"""No policy is below the bounds, which are beside the best one where that can be worked out."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import pytest

from patchlight.controller.policies.degrees import Constant, RandomDegree
from patchlight.emulation.simulator.ramp.bounds import (
    hindsight_bound,
    online_bound,
    shortest_s,
)
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    run_episode,
)
from patchlight.emulation.simulator.ramp.ramp import PlacementRule, RampShape
from patchlight.emulation.simulator.ramp.scenario import (
    FixedArrivals,
    PoissonArrivals,
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads, fixed
from patchlight.testbed.graphs import ComputationGraph, Operation


def tiny(
    seconds: tuple[float, ...], betas: tuple[float, ...], jobs: int
) -> Scenario:
    graphs = [
        ComputationGraph(
            f"m{k}", (Operation("op", "Test", s / 50, 0.0, 0, 0),), ()
        )
        for k, s in enumerate(seconds)
    ]
    workloads = Workloads(graphs, RampShape(2, 1, 1))
    return Scenario(
        workloads,
        fixed(betas),
        PlacementRule.RAMP_BLOCK,
        1000.0 * jobs,
        replication=None,
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
def test_no_sequence_of_decisions_is_below_it(
    seed: int, counting: str
) -> None:
    scenario = tiny((2500.0, 4200.0), (0.6, 1.0), jobs=6)
    bound = hindsight_bound(scenario, seed, counting)
    best = best_possible(scenario, seed, counting)
    assert bound.blocking_rate <= best + 1e-12
    # It is no empty bound either: at most one job of six away from the truth.
    assert best - bound.blocking_rate <= 1 / 6 + 1e-12


def test_it_is_zero_where_all_fit_and_all_where_none_can() -> None:
    easy = tiny((500.0,), (1.0,), jobs=5)
    assert hindsight_bound(easy, 0, "corrected").blocking_rate == 0.0
    # Two servers make it half as long, not less.
    hopeless = tiny((500.0,), (0.25,), jobs=5)
    assert hindsight_bound(hopeless, 0, "corrected").blocking_rate == 1.0
    assert hindsight_bound(hopeless, 0).accepted == 0


def test_more_rounds_never_loosen_it(computed: Workloads) -> None:
    scenario = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=3e5)
    found = [
        hindsight_bound(scenario, 0, rounds=rounds).accepted
        for rounds in (10, 100, 1000)
    ]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("rule", list(PlacementRule))
def test_no_job_is_shorter_than_the_shortest(
    computed: Workloads, rule: PlacementRule
) -> None:
    times, held = shortest_s(computed)
    episode = Episode(pac_ml_scenario(computed, "A", rule, horizon_s=2e5), 0)
    policy = RandomDegree(1)
    while episode.job is not None:
        if (
            episode.decide(policy.degree(*episode.question()))
            is JobOutcome.ACCEPTED
        ):
            last = episode.accepted[-1]
            column = computed.degrees.index(last.degree)
            assert last.completion_s >= times[last.job.graph, column] * (
                1 - 1e-9
            )
            assert last.servers.bit_count() >= held[last.job.graph, column]
    assert len(episode.accepted) > 50


def test_without_jobs_there_is_none(computed: Workloads) -> None:
    base = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=1.0)
    nobody = replace(base, arrivals=PoissonArrivals(1e9), replication=None)
    assert math.isnan(hindsight_bound(nobody, 0).blocking_rate)


BETAS = (0.6, 1.0)
# On one server and on two, in arrivals.
SLOTS = ((3, 2), (5, 3))


def two_servers(jobs: int, replication: int | None = None) -> Scenario:
    """Jobs of 2,500 and 4,200 s, that come every 1,000 s to two servers."""
    graphs = [
        ComputationGraph(
            f"m{s}", (Operation("op", "Test", s / 50, 0.0, 0, 0),), ()
        )
        for s in (2500.0, 4200.0)
    ]
    workloads = Workloads(graphs, RampShape(1, 1, 2))
    rule = PlacementRule.RAMP_BLOCK
    return Scenario(
        workloads, fixed(BETAS), rule, 1000.0 * jobs, replication=replication
    )


def best(jobs: int, replication: int | None) -> float:
    """The expected blocking rate of the best policy on ``two_servers``, worked out backwards."""

    @cache
    def accepted(
        to_come: int, busy: tuple[int, ...], pool: tuple[int, ...]
    ) -> float:
        if to_come == 0:
            return 0.0
        left = pool if sum(pool) else (replication or 1,) * len(SLOTS)
        found = 0.0
        for model, count in enumerate(left):
            after = (
                left if replication is None else tuple(taken_from(left, model))
            )
            for beta in BETAS:
                values = [accepted(to_come - 1, passed(busy), after)]
                for degree, lasts in enumerate(SLOTS[model], start=1):
                    # Two servers halve the time; on one it takes all of it.
                    in_time = degree == 2 or beta == 1.0
                    if (
                        in_time
                        and lasts <= to_come
                        and busy.count(0) >= degree
                    ):
                        then = passed(sorted(busy)[degree:] + [lasts] * degree)
                        values.append(1 + accepted(to_come - 1, then, after))
                found += count / sum(left) / len(BETAS) * max(values)
        return found

    return (jobs - accepted(jobs, (0, 0), (0, 0))) / (jobs + 1)


def passed(busy: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted(max(each - 1, 0) for each in busy))


def taken_from(pool: tuple[int, ...], model: int) -> list[int]:
    return [count - (number == model) for number, count in enumerate(pool)]


def mean_bound(scenario: Scenario, seeds: int, exact: int = 5) -> float:
    return (
        sum(online_bound(scenario, seed, exact) for seed in range(seeds))
        / seeds
    )


def test_it_is_next_to_the_best_policy_where_ends_are_known() -> None:
    found = mean_bound(two_servers(200), 1)
    optimum = best(200, None)
    assert optimum - 0.02 < found <= optimum


def test_it_bounds_where_ends_are_not_known() -> None:
    optimum = best(200, None)
    coarse, fine = (mean_bound(two_servers(200), 1, exact) for exact in (2, 4))
    assert 0.5 * optimum < coarse
    assert fine <= optimum


def test_it_bounds_where_models_are_drawn_without_putting_back() -> None:
    # Two of each: what came says much of what comes.
    optimum = best(40, 2)
    assert (
        0.5 * optimum
        < mean_bound(two_servers(40, replication=2), 20)
        <= optimum
    )


@pytest.mark.parametrize("rule", list(PlacementRule))
def test_no_policy_of_the_experiment_is_below_it(
    computed: Workloads, rule: str
) -> None:
    plain = pac_ml_scenario(computed, "B", rule, 2e5, law_instance=0)
    scenario = replace(plain, arrivals=FixedArrivals(700.0), replication=None)
    bound = mean_bound(scenario, 1, exact=3)
    assert bound > 0.02  # The cluster is offered more than it can do.
    for policy in (Constant(4), Constant(8), RandomDegree(0)):
        rates = [
            run_episode(scenario, policy, seed).blocking_rate()
            for seed in range(3)
        ]
        assert bound < sum(rates) / 3


def test_requirements_that_an_episode_is_told_are_those_it_draws_from(
    computed: Workloads,
) -> None:
    scenario = pac_ml_scenario(computed, "C", "ramp-block", horizon_s=1e5)
    values, shares = scenario.requirements(7)
    assert shares.sum() == pytest.approx(1.0)
    assert {job.requirement for job in scenario.jobs(7)} <= set(
        values.tolist()
    )
    _, other = scenario.requirements(8)  # Each episode has a law of its own.
    assert shares.tolist() != other.tolist()


def test_it_is_none_without_a_rhythm_or_jobs(computed: Workloads) -> None:
    scenario = pac_ml_scenario(computed, "A", "ramp-block", horizon_s=1e4)
    assert math.isnan(
        online_bound(replace(scenario, arrivals=PoissonArrivals(1000.0)), 0)
    )
