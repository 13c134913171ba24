"""``patchlight/Elasticity-v0``: other numbers of GPUs as actions."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from patchlight.controller.policies.contract import JobView
from patchlight.emulation.learning.envs.ramp_servers import ElasticityEnv, give_and_take, rigid
from patchlight.emulation.learning.envs.registry import Heuristic
from patchlight.emulation.simulator.cluster import QueueJob, Settings, TwoLevel
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs


def job(name: str, gpus: int, lasts_s: float, arrived_s: float = 0.0) -> QueueJob:
    view = JobView(name, gpus, arrived_s=arrived_s)
    return QueueJob(view, lasts_s, degrees=(gpus // 2, gpus, 2 * gpus))


def test_a_job_grows_and_ends_sooner() -> None:
    env = ElasticityEnv(TwoLevel(1, 1, 8), settings=Settings(restart_s=10.0), shown=2)
    env.reset(seed=0, options={"jobs": [job("a", 4, 100.0)]})
    # It could shrink to 2, grow to 8, or stay; there is no second job.
    assert env.action_masks().tolist() == [True, False, True, False, True]
    *_, over, _, info = env.step(np.int64(2))
    assert over
    assert info["jct_mean_s"] == pytest.approx(10 + 100 / 2)


def test_a_job_shrinks_and_another_begins_at_once() -> None:
    env = ElasticityEnv(TwoLevel(1, 1, 8), settings=Settings(restart_s=0.0), shown=2)
    seen, _ = env.reset(seed=0, options={"jobs": [job("a", 8, 100.0), job("b", 4, 50.0)]})
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
