"""The environments of the loss network."""

import time
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from gymnasium.utils.env_checker import check_env  # noqa: E402

import patchlight.emulation.learning  # noqa: E402, F401 - registers the environments
from patchlight.emulation.learning.envs.ramp_partition import (  # noqa: E402
    RampPartitionEnv,
    RampPartitionVectorEnv,
)
from patchlight.emulation.simulator.ramp.scenario import Scenario, pac_ml_scenario  # noqa: E402
from patchlight.emulation.simulator.ramp.workloads import Workloads  # noqa: E402
from patchlight.testbed.errors import BadInput  # noqa: E402
from patchlight.testbed.graphs import builtin_graph  # noqa: E402


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    workloads = Workloads([builtin_graph("alexnet"), builtin_graph("vgg16")])
    return [pac_ml_scenario(workloads, law, horizon_s=5e4) for law in "AB"]


def play(env: RampPartitionEnv, seed: int) -> tuple[list[Any], list[float], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    seen, rewards, over = [env.reset(seed=seed)[0]], [], False
    information: dict[str, Any] = {}
    while not over:
        assert env.observation_space.contains(seen[-1])
        assert np.array_equal(seen[-1]["mask"] > 0, env.action_masks())
        action = rng.choice(np.flatnonzero(env.action_masks()))
        observation, reward, over, cut, information = env.step(action)
        assert not cut
        seen.append(observation)
        rewards.append(reward)
    return seen, rewards, information


def test_gymnasium_finds_nothing_wrong(scenarios: list[Scenario]) -> None:
    check_env(RampPartitionEnv(scenario=scenarios, warm_up=5), skip_render_check=True)


def test_it_is_made_by_name() -> None:
    env = gymnasium.make("patchlight/RampPartition-v0", laws=("C",), horizon_s=2e4)
    seen, information = env.reset(seed=3)
    assert information["law"] == "C"
    assert env.observation_space.contains(seen)


def test_a_seed_fixes_everything(scenarios: list[Scenario]) -> None:
    env = RampPartitionEnv(scenario=scenarios, warm_up=20)
    first, again, other = play(env, 7), play(env, 7), play(env, 8)
    assert first[1] == again[1]
    assert all(
        np.array_equal(a[name], b[name])
        for a, b in zip(first[0], again[0], strict=True)
        for name in a
    )
    assert first[2] == again[2]
    assert first[1] != other[1]


def test_rewards_count_accepted_jobs(scenarios: list[Scenario]) -> None:
    signed, counted = (
        RampPartitionEnv(scenario=scenarios),
        RampPartitionEnv(scenario=scenarios, reward="accepted"),
    )
    plus_minus, ones = play(signed, 4)[1], play(counted, 4)[1]
    assert set(plus_minus) == {-1.0, 1.0}
    assert [(r + 1) / 2 for r in plus_minus] == ones
    assert len(ones) == 50


def test_what_cannot_succeed_blocks_the_job(scenarios: list[Scenario]) -> None:
    env = RampPartitionEnv(scenario=scenarios)
    env.reset(seed=1, options={"law": 1})
    impossible = int(np.flatnonzero(~env.action_masks())[0])
    _, reward, _, _, information = env.step(impossible)
    assert reward == -1.0
    assert information["outcome"] != "accepted"


def test_with_a_warm_up_clusters_are_met_in_any_state(scenarios: list[Scenario]) -> None:
    env = RampPartitionEnv(scenario=scenarios, warm_up=30)
    busy = [bool((env.reset(seed=seed)[0]["remaining"][0] > 0).any()) for seed in range(12)]
    assert any(busy)


@pytest.mark.parametrize("wrong", [{"reward": "gold"}, {"warm_up": -1}, {"laws": ()}])
def test_settings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        RampPartitionEnv(**wrong)


def test_many_at_once_do_what_one_does(scenarios: list[Scenario]) -> None:
    many = RampPartitionVectorEnv(4, scenario=scenarios)
    seen, _ = many.reset(seed=2000)
    one = RampPartitionEnv(scenario=scenarios)
    assert many.single_observation_space == one.observation_space
    assert many.episodes is not None
    env = 3
    law, seed = int(many.episodes.scenario_of[env]), int(many.episodes.seed_of[env])
    alone, _ = one.reset(options={"law": law, "episode_seed": seed})
    over = False
    while not over:
        for name, array in alone.items():
            assert np.allclose(array, seen[name][env], atol=2e-4), name
        actions = many.action_masks().shape[1] - 1 - many.action_masks()[:, ::-1].argmax(axis=1)
        seen, rewards, ended, _, several = many.step(actions)
        alone, reward, over, _, single = one.step(actions[env])
        assert rewards[env] == reward
        assert ended[env] == over
    assert several["blocking_rate"][env] == pytest.approx(single["blocking_rate"])


def test_many_at_once_are_fast(scenarios: list[Scenario]) -> None:
    # The benchmark asks for 5,000 a second; this only sees that nothing went badly wrong.
    many = RampPartitionVectorEnv(128, scenario=scenarios, staggered=True)
    many.reset(seed=1)
    started = time.process_time()
    for _ in range(20):
        many.step(np.zeros(128, int))
    assert 128 * 20 / (time.process_time() - started) > 5000
