"""The environment that places a model's operations on a RAMP."""

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="Gymnasium is not installed: extra 'learn'")

import patchlight.emulation.learning  # noqa: F401 - registers the environments
from patchlight.emulation.learning.envs.operation_placement import (
    OperationPlacementEnv,
    near_parents,
    ramp_first_fit,
)
from patchlight.emulation.learning.envs.registry import Heuristic, find_environment
from patchlight.emulation.learning.envs.testing import check_environment
from patchlight.emulation.simulator.ramp import Workloads
from patchlight.emulation.simulator.ramp.ramp import place_one_by_one
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph


@pytest.fixture(scope="module")
def env() -> OperationPlacementEnv:
    return OperationPlacementEnv(Workloads([builtin_graph("alexnet")]), degrees=(2, 4))


def play(env: OperationPlacementEnv, rule: Heuristic, seed: int, degree: int) -> list[float]:
    seen, _ = env.reset(seed=seed, options={"degree": degree})
    rewards, over = [], False
    while not over:
        seen, reward, over, _, info = env.step(np.int64(rule(env, seen)))
        rewards.append(reward)
    assert info["step_over_sequential"] == -rewards[-1]
    return rewards


def test_nothing_is_wrong_with_it() -> None:
    checked = check_environment(find_environment("OperationPlacement"), steps=200)
    assert checked.is_good, checked.checks


def test_first_fit_is_that_of_the_placer(env: OperationPlacementEnv) -> None:
    for seed in range(3):
        rewards = play(env, ramp_first_fit, seed, 4)
        ramp, memory_bytes = env.workloads.ramp, env.workloads.device.memory_bytes
        expected = place_one_by_one(ramp, env.graph, env.occupied, memory_bytes)
        assert env.servers is not None
        assert [tuple(each) for each in env.servers] == expected
        sequential_s = env.graph.training.sequential_ms * 1e-3
        assert rewards[-1] * sequential_s == pytest.approx(-env.step_s())
        assert not any(rewards[:-1])
        assert len(rewards) == sum(env.graph.splits[: env.graph.training.half])


def test_parts_are_on_free_servers_each_on_another(env: OperationPlacementEnv) -> None:
    play(env, near_parents, 5, 4)
    assert env.servers is not None
    assert env.occupied
    for each in env.servers:
        assert len(set(each)) == len(each)
        assert not any(env.occupied >> server & 1 for server in each)


def test_a_server_that_is_not_allowed_is_another(env: OperationPlacementEnv) -> None:
    env.reset(seed=5, options={"degree": 4})
    taken = int((~env.action_masks()).argmax())
    *_, info = env.step(np.int64(taken))
    assert info["illegal"]
    assert env.servers is not None
    assert [taken] not in env.servers


def test_settings_without_sense_are_refused(env: OperationPlacementEnv) -> None:
    with pytest.raises(BadInput, match="expected 0 to 1"):
        OperationPlacementEnv(env.workloads, most_busy=2)
    with pytest.raises(BadInput, match="no model is split into 7"):
        OperationPlacementEnv(env.workloads, degrees=(7,))
    with pytest.raises(BadInput, match="no model is"):
        env.reset(options={"model": "lenet"})
