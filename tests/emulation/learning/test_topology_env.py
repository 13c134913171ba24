"""``patchlight/Topology-v0``: circuits as actions."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from patchlight.controller.policies.contract import JobView
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.placement import FirstFit
from patchlight.controller.policies.topology import CannotRegroup, Regroup, regroup
from patchlight.emulation.learning.envs.topology import OneGroup, TopologyEnv, fewest_moves
from patchlight.emulation.simulator.cluster import LabCluster, Policies, QueueJob, simulate
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import random_lab
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import load_lab


def test_jobs_run_as_under_the_policy_regroup() -> None:
    lab = load_lab("ofc2022")
    jobs = SyntheticJobs(40, sizes={1: 0.3, 2: 0.4, 3: 0.3}).draw(np.random.default_rng(1), 6)
    env = TopologyEnv(lab)
    seen, _ = env.reset(seed=0, options={"jobs": jobs})
    over, info = False, dict[str, float]()
    while not over:
        assert env.observation_space.contains(seen)
        seen, _, over, _, info = env.step(np.int64(fewest_moves(env, seen)))
    found = simulate(LabCluster(lab), jobs, Policies(Fifo(), FirstFit(), Regroup()))
    assert info["jct_mean_s"] == pytest.approx(float(np.mean(found.jobs["jct_s"])), rel=1e-3)


def test_light_of_running_jobs_is_not_taken() -> None:
    env = TopologyEnv()
    jobs = [QueueJob(JobView(name, 3), 100.0, 0.5) for name in "ab"]
    seen, _ = env.reset(seed=0, options={"jobs": jobs})
    assert env.action_masks().tolist() == [True, True, True, False]  # Nothing else happens.
    seen, *_ = env.step(np.int64(1))
    assert seen["at"][:3, 0].tolist() == [1, 1, 1]
    assert seen["switches"][1:, 0].sum() == 1
    before = env.simulation
    assert before is not None
    ring = next(iter(before.running.values())).ring
    seen, *_ = env.step(np.int64(2))  # The other job goes under tor2, the first keeps its light.
    at = {gpu: site.rack for gpu, site in enumerate(before.cluster.shape.gpus)}
    assert {at[gpu] for gpu in ring} == {0}


def test_only_the_switches_that_are_named_are_taken() -> None:
    lab = load_lab("ofc2022")
    hosts = [host.name for host in lab.hosts[:3]]
    for number, switch in enumerate(("tor1", "tor2")):
        cluster = LabCluster(lab)
        cluster.rewire(regroup(lab, cluster.circuits, [hosts], switches=[switch]))
        assert {cluster.shape.gpus[gpu].rack for gpu in range(3)} == {number}
    with pytest.raises(CannotRegroup):
        regroup(lab, lab.initial_maps, [hosts], switches=["tor3"])


@pytest.mark.parametrize("lab", [load_lab("ofc2022"), random_lab(4, 16)], ids=lambda lab: lab.name)
def test_those_that_fit_are_those_that_can_be_regrouped_onto(lab: Lab) -> None:
    rng = np.random.default_rng(3)
    names = [host.name for host in lab.hosts if host.gpu]
    ports = {ocs: sorted(fibres) for ocs, fibres in lab.circuit_fibres.items()}
    answers = set()
    for _ in range(6):
        group = rng.permutation(names)[: rng.integers(2, 7)].tolist()
        locked = {
            ocs: set(rng.permutation(each)[: rng.integers(len(each) // 2)].tolist())
            for ocs, each in ports.items()
        }
        fitting = OneGroup(lab, lab.initial_maps, group, locked=locked)
        for switch in (each.name for each in lab.packet_switches):
            answers.add(switch in fitting.switches)
            try:
                maps = regroup(lab, lab.initial_maps, [group], locked=locked, switches=[switch])
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
    over, info = False, dict[str, float]()
    while not over:
        seen, _, over, _, info = env.step(np.int64(fewest_moves(env, seen)))
    assert info["jct_mean_s"] > 0
