"""The environments that place a model's operations on a RAMP, and put them in order."""

import numpy as np
import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

import patchlight.emulation.learning  # noqa: F401 - registers the environments
from patchlight.emulation.learning.envs.operations import (
    OperationOrderEnv,
    OperationPlacementEnv,
    longest_path,
    near_parents,
    ramp_first_fit,
)
from patchlight.emulation.learning.envs.registry import Heuristic
from patchlight.emulation.simulator.ramp.ramp import place_one_by_one
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import (
    ComputationGraph,
    Operation,
    builtin_graph,
)


@pytest.fixture(scope="module")
def env() -> OperationPlacementEnv:
    return OperationPlacementEnv(
        Workloads([builtin_graph("alexnet")]), degrees=(2, 4)
    )


def play(
    env: OperationPlacementEnv, rule: Heuristic, seed: int, degree: int
) -> list[float]:
    seen, _ = env.reset(seed=seed, options={"degree": degree})
    rewards = []
    over = False
    while not over:
        seen, reward, over, _, info = env.step(np.int64(rule(env, seen)))
        rewards.append(reward)
    assert info["step_over_sequential"] == -rewards[-1]
    return rewards


def test_first_fit_is_that_of_the_placer(env: OperationPlacementEnv) -> None:
    for seed in range(3):
        rewards = play(env, ramp_first_fit, seed, 4)
        ramp = env.workloads.ramp
        memory_bytes = env.workloads.device.memory_bytes
        expected = place_one_by_one(
            ramp, env.graph, env.occupied, memory_bytes
        )
        assert env.servers is not None
        assert [tuple(each) for each in env.servers] == expected
        sequential_s = env.graph.training.sequential_ms * 1e-3
        assert rewards[-1] * sequential_s == pytest.approx(-env.step_s())
        assert not any(rewards[:-1])
        assert len(rewards) == sum(env.graph.splits[: env.graph.training.half])


def test_parts_are_on_free_servers_each_on_another(
    env: OperationPlacementEnv,
) -> None:
    play(env, near_parents, 5, 4)
    assert env.servers is not None
    assert env.occupied
    for each in env.servers:
        assert len(set(each)) == len(each)
        assert not any(env.occupied >> server & 1 for server in each)


def test_a_server_that_is_not_allowed_is_another(
    env: OperationPlacementEnv,
) -> None:
    env.reset(seed=5, options={"degree": 4})
    taken = int((~env.action_masks()).argmax())
    *_, info = env.step(np.int64(taken))
    assert info["illegal"]
    assert env.servers is not None
    assert [taken] not in env.servers


def fork() -> ComputationGraph:
    """After a come b (1 s) and c (2 s) on its server, and after c comes d (4 s) on another."""
    operations = tuple(
        Operation(name, "Test", ms, 0.0, 0, 0)
        for name, ms in [
            ("a", 1e3),
            ("b", 1e3),
            ("c", 2e3),
            ("d", 4e3),
            ("e", 0.0),
        ]
    )
    return ComputationGraph(
        "fork", operations, ((0, 1), (0, 2), (2, 3), (1, 4), (3, 4))
    )


def test_the_first_in_the_list_goes_first() -> None:
    env = OperationOrderEnv(Workloads([fork()]), degrees=(1,))

    def took(first: int, seed: int) -> tuple[bool, float]:
        """Whether d alone is on the other server, and the time of a step."""
        env.reset(seed=seed)
        assert env.action_masks().nonzero()[0].tolist() == [0]
        env.step(np.int64(0))
        assert env.action_masks().nonzero()[0].tolist() == [1, 2]
        # It is in the list already: taken for 1.
        *_, info = env.step(np.int64(0))
        assert info["illegal"]
        env.reset(seed=seed)
        env.step(np.int64(0))
        seen, _, over, _, info = env.step(np.int64(first))
        while not over:
            seen, _, over, _, info = env.step(
                np.int64(longest_path(env, seen))
            )
        a, b, c, d, _ = (each[0] for each in env.servers[:5])
        return a == b == c != d, info["step_over_sequential"] * 8

    seed = next(seed for seed in range(100) if took(1, seed)[0])
    # b 1–2, c 2–4, d 4–8; or c 1–3, d 3–7 while b is 3–4.
    assert took(1, seed)[1] == pytest.approx(8.0)
    assert took(2, seed)[1] == pytest.approx(7.0)
    with pytest.raises(BadInput, match="a model with branches"):
        OperationOrderEnv(Workloads([builtin_graph("vgg16")]))


def test_settings_without_sense_are_refused(
    env: OperationPlacementEnv,
) -> None:
    with pytest.raises(BadInput, match="expected 0 to 1"):
        OperationPlacementEnv(env.workloads, most_busy=2)
    with pytest.raises(BadInput, match="no model can be split into 7"):
        OperationPlacementEnv(env.workloads, degrees=(7,))
    with pytest.raises(BadInput, match="no model is"):
        env.reset(options={"model": "lenet"})
