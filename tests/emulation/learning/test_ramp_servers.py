"""``patchlight/RampServers-v0``: blocks of a RAMP as actions."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

from patchlight.controller.policies.degrees import Sufficient
from patchlight.emulation.learning.envs.ramp_servers import RampServersEnv, first_fit, least_harm
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome, run_episode
from patchlight.emulation.simulator.ramp.scenario import Scenario, pac_ml_scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return pac_ml_scenario(Workloads([builtin_graph("alexnet")]), "A", "ramp-block", 6e4)


def test_first_fit_is_what_the_loss_network_does_by_itself(scenario: Scenario) -> None:
    env = RampServersEnv(scenario=[scenario])
    seen, _ = env.reset(seed=0, options={"episode_seed": 7})
    over, info = False, dict[str, float]()
    while not over:
        seen, _, over, _, info = env.step(first_fit(env, seen))
    assert info["blocking_rate"] == run_episode(scenario, Sufficient(), 7).blocking_rate()


def test_allowed_blocks_are_accepted_and_the_others_block(scenario: Scenario) -> None:
    env = RampServersEnv(scenario=[scenario], any_degree=True)
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=3)
    over, sizes = False, set()
    while not over:
        assert np.array_equal(seen["action_mask"].astype(bool), env.action_masks())
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


def test_least_harm_leaves_the_most_room(scenario: Scenario) -> None:
    env = RampServersEnv(scenario=[scenario])
    seen, _ = env.reset(seed=0)
    compared = over = 0
    while not over:
        action, allowed = least_harm(env, seen), env.action_masks()[1:]
        if action:
            harm = env.harm()
            assert harm[action - 1] == harm[allowed].min()
            compared += harm[allowed].min() < harm[allowed].max()
        seen, _, over, _, _ = env.step(action)
    assert compared


def test_a_block_that_is_taken_or_of_another_size_is_refused(scenario: Scenario) -> None:
    episode = Episode(scenario, 0)
    ramp = scenario.workloads.ramp
    assert episode.decide(2, ramp.blocks(2)[5]) is JobOutcome.ACCEPTED
    assert episode.busy == ramp.blocks(2)[5].mask
    assert episode.fork().decide(2, ramp.blocks(4)[0]) is JobOutcome.NO_BLOCK
    other = pac_ml_scenario(scenario.workloads, "A", "ramp-first-fit", 6e4)
    with pytest.raises(BadInput, match="ramp-block"):
        Episode(other, 0).decide(2, ramp.blocks(2)[0])
    with pytest.raises(BadInput, match="ramp-block"):
        RampServersEnv(scenario=[other])
    with pytest.raises(BadInput, match="any_degree"):
        RampServersEnv(scenario=[scenario], partition=Sufficient(), any_degree=True)
