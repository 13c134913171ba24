"""The environments over the queue simulator."""

from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import patchlight.emulation.learning  # noqa: E402, F401 - registers the environments
from patchlight.controller.policies.contract import JobView  # noqa: E402
from patchlight.emulation.learning.envs.queued import QueuedEnv, ScheduleEnv  # noqa: E402
from patchlight.emulation.learning.envs.topology import PlacementEnv  # noqa: E402
from patchlight.emulation.simulator.cluster import QueueJob, Settings, TwoLevel  # noqa: E402
from patchlight.emulation.simulator.cluster.jobs import SyntheticJobs  # noqa: E402
from patchlight.emulation.simulator.outages import Outages  # noqa: E402

NAMES = ("patchlight/Placement-v0", "patchlight/Schedule-v0")
KINDS = (PlacementEnv, ScheduleEnv)


def play(env: QueuedEnv, seed: int, options: Any = None) -> tuple[list[Any], list[float], Any]:
    """An episode under any allowed actions."""
    rng = np.random.default_rng(seed)
    seen, rewards = [env.reset(seed=seed, options=options)[0]], []
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    env = gymnasium.make(name)
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_fixes_the_episode(kind: type[PlacementEnv | ScheduleEnv]) -> None:
    jobs = SyntheticJobs(count=60)
    one, other = (play(kind(jobs=jobs), 3) for _ in range(2))
    assert one[1] == other[1]
    for first, second in zip(one[0], other[0], strict=True):
        assert all(np.array_equal(first[key], second[key]) for key in first)
    assert play(kind(jobs=jobs), 4)[1] != one[1]


@pytest.mark.parametrize("kind", KINDS)
def test_rewards_add_up_to_completion_times(kind: type[PlacementEnv | ScheduleEnv]) -> None:
    env = kind(jobs=SyntheticJobs(count=80))
    _, rewards, info = play(env, 1)
    assert env.simulation is not None
    mean_s = np.mean([job.spec.duration_s for job in env.simulation.jobs])
    assert -sum(rewards) * mean_s / 80 == pytest.approx(info["jct_mean_s"], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_any_action_at_all_comes_to_an_end(kind: type[PlacementEnv | ScheduleEnv]) -> None:
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
    assert env.action_masks().tolist() == [True, True, *[False] * 15]  # b, then a, or a, then b
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
    jobs = [QueueJob(JobView("a", 2), 100.0), QueueJob(JobView("b", 4), 100.0, communication=0.5)]

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


@pytest.mark.parametrize("name", NAMES)
def test_many_at_once(name: str) -> None:
    envs = gymnasium.make_vec(name, num_envs=3, vectorization_mode="sync", jobs=SyntheticJobs(20))
    observation, _ = envs.reset(seed=5)
    first = observation["action_mask"].copy()
    assert first.shape[0] == 3
    overs = 0
    for _ in range(200):
        masks = np.stack(envs.call("action_masks"))
        observation, rewards, over, *_ = envs.step(masks.argmax(axis=1))
        assert rewards.shape == (3,)
        overs += int(over.sum())
    assert overs >= 3
    envs.close()
