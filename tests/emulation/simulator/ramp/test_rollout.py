"""Looking ahead: the plan agrees with the simulator, never peeks, and pays."""

from dataclasses import replace

import pytest

from patchlight.controller.policies.contract import (
    PartitionPolicy,
    no_choice,
    nowhere,
)
from patchlight.controller.policies.degrees import Constant
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    Question,
    run_episode,
)
from patchlight.emulation.simulator.ramp.rollout import (
    LookAhead,
    RollOut,
    Rule,
    candidates,
    constant_rules,
    tuned,
)
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    mean_and_interval,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput

FEW = LookAhead(futures=6, arrivals=30)


def short(
    workloads: Workloads, law: str = "D", rule: str = "ramp-block"
) -> Scenario:
    return pac_ml_scenario(workloads, law, rule, horizon_s=1.5e5)


@pytest.mark.parametrize("rule", ["ramp-block", "ramp-first-fit"])
def test_a_future_goes_as_the_simulator_goes(
    workloads: Workloads, rule: str
) -> None:
    scenario = short(workloads, "A", rule)
    planner = RollOut(scenario, 0, FEW)
    episode = Episode(scenario, 3)
    for _ in range(40):
        episode.decide(Constant(4).degree(*episode.question()))
    view = episode.question().cluster
    twin = episode.fork()
    jobs = [
        job
        for job in scenario.jobs(3)
        if view.now_s < job.arrived_s < scenario.horizon_s
    ]
    eight = Rule((8,))
    future = [
        (
            job.arrived_s - view.now_s,
            planner.options(job.graph, job.limit_s, eight),
        )
        for job in jobs
    ]
    twin.decide(0)  # The job that waits is not part of the future.
    while twin.job is not None:
        job = twin.job
        in_time = planner.options(job.graph, job.limit_s, eight)
        twin.decide(8 if in_time and 8 in twin.question().legal else 0)
    accepted, left = planner.accepted(
        [(end, servers) for end, servers, _ in view.running],
        view.occupied,
        future,
        view.now_s,
    )
    assert (
        accepted
        == twin.causes[JobOutcome.ACCEPTED]
        - episode.causes[JobOutcome.ACCEPTED]
    )
    assert accepted > 60
    assert left > 0


def test_the_seed_fixes_all(workloads: Workloads) -> None:
    scenario = short(workloads, "A")
    first = run_episode(scenario, RollOut(scenario, 1, FEW), 5)
    assert first == run_episode(scenario, RollOut(scenario, 1, FEW), 5)
    policy = RollOut(scenario, 1, FEW)
    # What a policy saw before does not matter.
    run_episode(scenario, policy, 4)
    assert first == run_episode(scenario, policy, 5)


def _without_functions(question: Question) -> Question:
    """What it can ask for are functions: two of them are never equal."""
    cluster = question.cluster._replace(
        preview=nowhere, places=no_choice, if_occupied=None
    )
    return question._replace(cluster=cluster)


def test_it_decides_by_the_view_alone(workloads: Workloads) -> None:
    """Two episodes with the same past and another future: the same decisions until they part."""
    scenario = short(workloads, "A")
    longer = replace(scenario, horizon_s=3e5)
    seen: list[list[tuple[Question, int]]] = []
    for each in (scenario, longer):
        policy = RollOut(scenario, 1, FEW)
        episode = Episode(each, 5)
        taken = []
        while episode.job is not None:
            question = episode.question()
            taken.append(
                (_without_functions(question), policy.degree(*question))
            )
            episode.decide(taken[-1][1])
        seen.append(taken)
    same = next(
        (
            k
            for k, (a, b) in enumerate(zip(*seen, strict=False))
            if a[0] != b[0]
        ),
        150,
    )
    assert [d for _, d in seen[0][:same]] == [d for _, d in seen[1][:same]]
    assert same > 100


def test_whatever_it_chooses_is_accepted(workloads: Workloads) -> None:
    """It refuses on purpose, or is right: no job is blocked for a degree that could not be."""
    scenario = short(workloads, "B", "ramp-block")
    result = run_episode(scenario, RollOut(scenario, 0, FEW), 2)
    assert {k for k, n in result.blocked.items() if n} <= {"refused"}
    assert result.completed > 100


def test_looking_ahead_blocks_fewer_than_any_Constant(
    workloads: Workloads,
) -> None:
    scenario = replace(
        pac_ml_scenario(workloads, "C", "ramp-block"), horizon_s=4e5
    )
    look = LookAhead(futures=12, arrivals=40)

    def blocked(policies: list[PartitionPolicy]) -> float:
        results = [
            run_episode(scenario, each, seed)
            for seed, each in enumerate(policies)
        ]
        return mean_and_interval(
            [each.blocking_rate("corrected") for each in results]
        ).mean

    constants = [
        blocked([Constant(degree)] * 2) for degree in workloads.degrees
    ]
    planned = blocked([RollOut(scenario, seed, look) for seed in range(2)])
    assert planned < min(constants) - 0.005


def test_tuning_takes_the_better_way_to_look(workloads: Workloads) -> None:
    scenario = short(workloads, "A", "ramp-first-fit")
    # What runs at the end costs all: refuses most.
    bad = LookAhead(1, 1, 100.0, (Rule((16,)),))
    assert tuned(scenario, (bad, FEW), jobs=60) is FEW
    assert len(candidates(scenario)) == 2


def test_rules_of_other_clusters() -> None:
    assert constant_rules((1, 2, 4, 6, 8, 16)) == tuple(
        Rule((d,)) for d in (2, 4, 8, 16)
    )
    assert constant_rules((1,)) == (Rule((1,)),)


def test_ways_to_look_that_make_no_sense() -> None:
    with pytest.raises(BadInput, match="at least 1 of each"):
        LookAhead(futures=0)
    with pytest.raises(BadInput, match="expected 0 or more"):
        LookAhead(unfinished=float("nan"))
