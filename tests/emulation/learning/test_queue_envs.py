"""The environments over the queue simulator."""

import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

from typing import Any

import numpy as np

from patchlight.controller.policies.contract import JobView
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.topology import (
    CannotRegroup,
    Regroup,
    regroup,
)
from patchlight.emulation.learning.envs.queued import QueuedEnv, ScheduleEnv
from patchlight.emulation.learning.envs.ramp_servers import (
    ElasticityEnv,
    give_and_take,
    rigid,
)
from patchlight.emulation.learning.envs.registry import Heuristic
from patchlight.emulation.learning.envs.topology import (
    OneGroup,
    PlacementEnv,
    TopologyEnv,
    fewest_moves,
)
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    Settings,
    TwoLevel,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.emulation.simulator.outages import Outages
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import random_lab
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab

KINDS = (PlacementEnv, ScheduleEnv)


def play(
    env: QueuedEnv, seed: int, options: Any = None
) -> tuple[list[Any], list[float], Any]:
    """An episode under any allowed actions."""
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed, options=options)[0]]
    rewards = []
    while True:
        assert np.array_equal(seen[-1]["action_mask"], env.action_masks())
        assert env.observation_space.contains(seen[-1])
        observation, reward, over, cut, info = env.step(
            rng.choice(np.flatnonzero(env.action_masks()))
        )
        seen.append(observation)
        rewards.append(reward)
        assert "illegal" not in info
        if over:
            assert not cut
            return seen, rewards, info


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_add_up_to_completion_times(
    kind: type[PlacementEnv | ScheduleEnv],
) -> None:
    env = kind(jobs=SyntheticJobs(count=80))
    _, rewards, info = play(env, 1)
    assert env.simulation is not None
    mean_s = np.mean([job.spec.duration_s for job in env.simulation.jobs])
    assert -sum(rewards) * mean_s / 80 == pytest.approx(
        info["jct_mean_s"], rel=1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
def test_any_action_at_all_comes_to_an_end(
    kind: type[PlacementEnv | ScheduleEnv],
) -> None:
    env = kind(TwoLevel(2, 2, 2), SyntheticJobs(count=30, load=1.5))
    env.reset(seed=0)
    env.action_space.seed(0)
    illegal = over = 0
    for _ in range(5000):
        _, _, over, _, info = env.step(env.action_space.sample())
        illegal += info.get("illegal", False)
        if over:
            break
    assert over
    assert illegal


def test_waiting_for_ever_is_not_allowed() -> None:
    env = ScheduleEnv(TwoLevel(1, 1, 2))
    jobs = [QueueJob(JobView("a", 2), 10.0), QueueJob(JobView("b", 1), 5.0)]
    env.reset(seed=0, options={"jobs": jobs})
    # b, then a, or a, then b.
    assert env.action_masks().tolist() == [
        True,
        True,
        *[False] * 15,
    ]
    _, reward, over, _, _ = env.step(np.int64(1))
    # a does not fit beside b: two jobs for 5 s, in units of 7.5 s.
    assert reward == pytest.approx(-2 * 5 / 7.5)
    assert not over
    _, reward, over, _, info = env.step(np.int64(0))
    assert reward == pytest.approx(-10 / 7.5)
    assert over
    assert info["jct_mean_s"] == pytest.approx((15 + 5) / 2)


def test_placing_over_two_racks_costs_time() -> None:
    cluster = TwoLevel(2, 2, 2, oversubscription=8.0)
    jobs = [
        QueueJob(JobView("a", 2), 100.0),
        QueueJob(JobView("b", 4), 100.0, communication=0.5),
    ]

    def mean_jct(second: int) -> float:
        env = PlacementEnv(cluster)
        env.reset(seed=0, options={"jobs": jobs})
        # Two GPUs of rack 1 for a; then b in rack 2, or on what is left of rack 1 and rack 2.
        env.step(np.int64(0))
        *_, over, _, info = env.step(np.int64(second))
        assert over
        return float(info["jct_mean_s"])

    # Over the uplink of half a NIC's rate, one edge each way: communicating takes twice as long.
    assert mean_jct(2) == pytest.approx(100)
    assert mean_jct(1) == pytest.approx((100 + 150) / 2)


def test_broken_gpus_are_seen_as_taken_for_long() -> None:
    env = PlacementEnv(settings=Settings(outages=Outages("server", 5e3, 1e4)))
    seen, _, _ = play(env, 0)
    lengthy = [(o["occupied"] == 1) & (o["remaining"] == 1) for o in seen]
    assert max(each.sum() for each in lengthy) >= 4


def elastic(
    name: str, gpus: int, lasts_s: float, arrived_s: float = 0.0
) -> QueueJob:
    view = JobView(name, gpus, arrived_s=arrived_s)
    return QueueJob(view, lasts_s, degrees=(gpus // 2, gpus, 2 * gpus))


def test_a_job_grows_and_ends_sooner() -> None:
    env = ElasticityEnv(
        TwoLevel(1, 1, 8), settings=Settings(restart_s=10.0), shown=2
    )
    env.reset(seed=0, options={"jobs": [elastic("a", 4, 100.0)]})
    # It could shrink to 2, grow to 8, or stay; there is no second elastic.
    assert env.action_masks().tolist() == [True, False, True, False, True]
    *_, over, _, info = env.step(np.int64(2))
    assert over
    assert info["jct_mean_s"] == pytest.approx(10 + 100 / 2)


def test_a_job_shrinks_and_another_begins_at_once() -> None:
    env = ElasticityEnv(
        TwoLevel(1, 1, 8), settings=Settings(restart_s=0.0), shown=2
    )
    seen, _ = env.reset(
        seed=0,
        options={"jobs": [elastic("a", 8, 100.0), elastic("b", 4, 50.0)]},
    )
    assert env.action_masks().tolist() == [True, False, False, False, True]
    assert seen["waits"][0] == 0.5
    seen, _, over, _, _ = env.step(np.int64(0))
    assert not over
    assert seen["changes"][:2, 5].tolist() == [0.5, 0.5]
    assert seen["waits"].tolist() == [0.0] * 5


def played(env: ElasticityEnv, rule: Heuristic) -> tuple[float, float]:
    """The mean completion time of an episode, and the sum of its rewards."""
    seen, _ = env.reset(seed=5)
    total = 0.0
    while True:
        seen, reward, over, _, info = env.step(np.int64(rule(env, seen)))
        assert "illegal" not in info
        total += reward
        if over:
            return info["jct_mean_s"], total


def test_give_and_take_does_better_than_rigid_and_rewards_add_up() -> None:
    env = ElasticityEnv(jobs=SyntheticJobs(40, load=0.5, elastic=True))
    fixed_s, _ = played(env, rigid)
    changed_s, total = played(env, give_and_take)
    assert changed_s < fixed_s
    assert env.simulation is not None
    mean_s = np.mean([each.spec.duration_s for each in env.simulation.jobs])
    assert -total * mean_s / 40 == pytest.approx(changed_s, rel=1e-9)


def test_jobs_that_cannot_change_are_never_asked_about() -> None:
    env = ElasticityEnv(jobs=SyntheticJobs(10))
    env.reset(seed=0)
    assert env.action_masks().tolist() == [*[False] * 16, True]


def test_jobs_run_as_under_the_policy_regroup() -> None:
    lab = load_lab("ofc2022")
    jobs = SyntheticJobs(40, sizes={1: 0.3, 2: 0.4, 3: 0.3}).draw(
        np.random.default_rng(1), 6
    )
    env = TopologyEnv(lab)
    seen, _ = env.reset(seed=0, options={"jobs": jobs})
    over = False
    info = dict[str, float]()
    while not over:
        assert env.observation_space.contains(seen)
        seen, _, over, _, info = env.step(np.int64(fewest_moves(env, seen)))
    found = simulate(
        LabCluster(lab), jobs, Policies(Fifo(), FirstFit(), Regroup())
    )
    assert info["jct_mean_s"] == pytest.approx(
        float(np.mean(found.jobs["jct_s"])), rel=1e-3
    )


def test_light_of_running_jobs_is_not_taken() -> None:
    env = TopologyEnv()
    jobs = [QueueJob(JobView(name, 3), 100.0, 0.5) for name in "ab"]
    seen, _ = env.reset(seed=0, options={"jobs": jobs})
    # Nothing else happens.
    assert env.action_masks().tolist() == [
        True,
        True,
        True,
        False,
    ]
    seen, *_ = env.step(np.int64(1))
    assert seen["at"][:3, 0].tolist() == [1, 1, 1]
    assert seen["switches"][1:, 0].sum() == 1
    before = env.simulation
    assert before is not None
    ring = next(iter(before.running.values())).ring
    # The other job goes under tor2, the first keeps its light.
    seen, *_ = env.step(np.int64(2))
    at = {gpu: site.rack for gpu, site in enumerate(before.cluster.shape.gpus)}
    assert {at[gpu] for gpu in ring} == {0}


def test_only_the_switches_that_are_named_are_taken() -> None:
    lab = load_lab("ofc2022")
    hosts = [host.name for host in lab.hosts[:3]]
    for number, switch in enumerate(("tor1", "tor2")):
        cluster = LabCluster(lab)
        cluster.rewire(
            regroup(lab, cluster.circuits, [hosts], switches=[switch])
        )
        assert {cluster.shape.gpus[gpu].rack for gpu in range(3)} == {number}
    with pytest.raises(CannotRegroup):
        regroup(lab, lab.initial_maps, [hosts], switches=["tor3"])


@pytest.mark.parametrize(
    "lab", [load_lab("ofc2022"), random_lab(4, 16)], ids=lambda lab: lab.name
)
def test_those_that_fit_are_those_that_can_be_regrouped_onto(lab: Lab) -> None:
    rng = np.random.default_rng(3)
    names = [host.name for host in lab.hosts if host.gpu]
    ports = {ocs: sorted(fibres) for ocs, fibres in lab.circuit_fibres.items()}
    answers = set()
    for _ in range(6):
        group = rng.permutation(names)[: rng.integers(2, 7)].tolist()
        locked = {
            ocs: set(
                rng.permutation(each)[: rng.integers(len(each) // 2)].tolist()
            )
            for ocs, each in ports.items()
        }
        fitting = OneGroup(lab, lab.initial_maps, group, locked=locked)
        for switch in (each.name for each in lab.packet_switches):
            answers.add(switch in fitting.switches)
            try:
                maps = regroup(
                    lab,
                    lab.initial_maps,
                    [group],
                    locked=locked,
                    switches=[switch],
                )
            except CannotRegroup:
                assert switch not in fitting.switches
            else:
                assert {**lab.initial_maps, **fitting.onto(switch)} == maps
    assert answers == {True, False}


def test_a_lab_without_circuits_is_refused() -> None:
    from patchlight.testbed.generate.generate import tree

    with pytest.raises(BadInput, match="no circuits to choose"):
        TopologyEnv(tree(8))


def test_labs_with_several_ocs_play() -> None:
    env = TopologyEnv(random_lab(4, 16), SyntheticJobs(12, sizes={2: 1.0}))
    seen, _ = env.reset(seed=0)
    over = False
    info = dict[str, float]()
    while not over:
        seen, _, over, _, info = env.step(np.int64(fewest_moves(env, seen)))
    assert info["jct_mean_s"] > 0
