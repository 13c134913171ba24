"""The environments of the loss network."""

import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

from typing import Any

import numpy as np

import patchlight.emulation.learning  # noqa: F401 - registers the environments
from patchlight.controller.policies.degrees import Sufficient
from patchlight.emulation.learning.envs.ramp_partition import (
    RampPartitionEnv,
    RampPartitionVectorEnv,
)
from patchlight.emulation.learning.envs.ramp_servers import (
    RampServersEnv,
    first_fit,
    least_harm,
)
from patchlight.emulation.simulator.ramp.lossnetwork import (
    Episode,
    JobOutcome,
    run_episode,
)
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph


@pytest.fixture(scope="module")
def scenarios() -> list[Scenario]:
    workloads = Workloads([builtin_graph("alexnet"), builtin_graph("vgg16")])
    return [pac_ml_scenario(workloads, law, horizon_s=5e4) for law in "AB"]


def play(
    env: RampPartitionEnv, seed: int
) -> tuple[list[Any], list[float], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    seen = [env.reset(seed=seed)[0]]
    rewards = []
    over = False
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


def test_rewards_count_accepted_jobs(scenarios: list[Scenario]) -> None:
    signed = RampPartitionEnv(scenario=scenarios)
    counted = RampPartitionEnv(scenario=scenarios, reward="accepted")
    plus_minus = play(signed, 4)[1]
    ones = play(counted, 4)[1]
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


def test_with_a_warm_up_clusters_are_met_in_any_state(
    scenarios: list[Scenario],
) -> None:
    env = RampPartitionEnv(scenario=scenarios, warm_up=30)
    busy = [
        bool((env.reset(seed=seed)[0]["remaining"][0] > 0).any())
        for seed in range(12)
    ]
    assert any(busy)


@pytest.mark.parametrize(
    "wrong", [{"reward": "gold"}, {"warm_up": -1}, {"laws": ()}]
)
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
    law = int(many.episodes.scenario_of[env])
    seed = int(many.episodes.seed_of[env])
    alone, _ = one.reset(options={"law": law, "episode_seed": seed})
    over = False
    while not over:
        for name, array in alone.items():
            assert np.allclose(array, seen[name][env], atol=2e-4), name
        actions = (
            many.action_masks().shape[1]
            - 1
            - many.action_masks()[:, ::-1].argmax(axis=1)
        )
        seen, rewards, ended, _, several = many.step(actions)
        alone, reward, over, _, single = one.step(actions[env])
        assert rewards[env] == reward
        assert ended[env] == over
    assert several["blocking_rate"][env] == pytest.approx(
        single["blocking_rate"]
    )


@pytest.fixture(scope="module")
def alone() -> Scenario:
    return pac_ml_scenario(
        Workloads([builtin_graph("alexnet")]), "A", "ramp-block", 6e4
    )


def test_first_fit_is_what_the_loss_network_does_by_itself(
    alone: Scenario,
) -> None:
    env = RampServersEnv(scenario=[alone])
    seen, _ = env.reset(seed=0, options={"episode_seed": 7})
    over = False
    info = dict[str, float]()
    while not over:
        seen, _, over, _, info = env.step(first_fit(env, seen))
    assert (
        info["blocking_rate"]
        == run_episode(alone, Sufficient(), 7).blocking_rate()
    )


def test_allowed_blocks_are_accepted_and_the_others_block(
    alone: Scenario,
) -> None:
    env = RampServersEnv(scenario=[alone], any_degree=True)
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=3)
    over = False
    sizes = set()
    while not over:
        assert np.array_equal(
            seen["action_mask"].astype(bool), env.action_masks()
        )
        allowed = np.flatnonzero(env.action_masks())
        action = int(rng.choice(allowed[1:])) if len(allowed) > 1 else 0
        if action:
            sizes.add(len(env.blocks[action - 1].servers))
        seen, reward, over, _, info = env.step(action)
        assert (reward == 1.0) == (action > 0)
        assert info["outcome"] == ("accepted" if action else "refused")
    assert len(sizes) > 1
    env.reset(seed=3)
    forbidden = int(np.flatnonzero(~env.action_masks())[0])
    assert env.step(forbidden)[1] == -1.0


def test_least_harm_leaves_the_most_room(alone: Scenario) -> None:
    env = RampServersEnv(scenario=[alone])
    seen, _ = env.reset(seed=0)
    compared = over = 0
    while not over:
        action = least_harm(env, seen)
        allowed = env.action_masks()[1:]
        if action:
            harm = env.harm()
            assert harm[action - 1] == harm[allowed].min()
            compared += harm[allowed].min() < harm[allowed].max()
        seen, _, over, _, _ = env.step(action)
    assert compared


def test_a_block_that_is_taken_or_of_another_size_is_refused(
    alone: Scenario,
) -> None:
    episode = Episode(alone, 0)
    ramp = alone.workloads.ramp
    assert episode.decide(2, ramp.blocks(2)[5]) is JobOutcome.ACCEPTED
    assert episode.busy == ramp.blocks(2)[5].mask
    assert episode.fork().decide(2, ramp.blocks(4)[0]) is JobOutcome.NO_BLOCK
    other = pac_ml_scenario(alone.workloads, "A", "ramp-first-fit", 6e4)
    with pytest.raises(BadInput, match="ramp-block"):
        Episode(other, 0).decide(2, ramp.blocks(2)[0])
    with pytest.raises(BadInput, match="ramp-block"):
        RampServersEnv(scenario=[other])
    with pytest.raises(BadInput, match="any_degree"):
        RampServersEnv(
            scenario=[alone], partition=Sufficient(), any_degree=True
        )
