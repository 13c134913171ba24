"""The environments over paths of light."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip(
    "gymnasium", reason="Gymnasium is not installed: extra 'learn'"
)

import patchlight.emulation.learning  # noqa: F401 - registers the environments
from patchlight.emulation.learning.envs.flows import (
    FlowChannelEnv,
    FlowScheduleEnv,
    FlowsEnv,
    longest_free,
    shortest,
)
from patchlight.emulation.learning.envs.light_jobs import LightJobs
from patchlight.emulation.learning.envs.registry import first_allowed
from patchlight.testbed.errors import BadInput
from patchlight.testbed.paths.schedulers import in_time, path_scheduler
from patchlight.testbed.paths.scheduling import PathNetwork

FEW = LightJobs(jobs=4, iterations=2)
COUPLER = PathNetwork(8, 4, 100e9, 1e-3, transmitters=2, receivers=2)


def play(
    env: Any, rule: Callable[[Any, Any], int], seed: int = 1
) -> tuple[float, float]:
    """The rewards of an episode, and the mean time of a collective."""
    seen, _ = env.reset(seed=seed)
    rewards = 0.0
    over = False
    info = {}
    while not over:
        seen, reward, over, _, info = env.step(np.int64(rule(env, seen)))
        rewards += reward
        assert not info.get("illegal")
    return rewards, info["collective_mean_s"]


@pytest.mark.parametrize(
    ("env", "rule", "name"),
    [
        (
            FlowScheduleEnv(COUPLER, FEW, shown=200),
            first_allowed,
            "first-come",
        ),
        (FlowScheduleEnv(COUPLER, FEW, shown=200), shortest, "shortest-first"),
        (FlowChannelEnv(COUPLER, FEW), longest_free, "first-come"),
    ],
)
def test_paths_are_those_of_the_scheduler_of_that_order(
    env: FlowsEnv, rule: Callable[[Any, Any], int], name: str
) -> None:
    play(env, rule)
    assert env.run is not None
    granted = list(in_time(path_scheduler(name, COUPLER), env.run.arrivals))
    assert len(granted) == len(env.run.arrivals)
    assert env.run.grants == granted


def test_rewards_add_up_to_the_time_of_collectives() -> None:
    env = FlowScheduleEnv(COUPLER, FEW)
    rewards, mean_s = play(env, first_allowed)
    assert env.run is not None
    assert len(env.run.collectives_s) == 4 * 2
    assert -rewards * env.unit_s / 8 == pytest.approx(mean_s, rel=1e-9)


def test_a_job_alone_takes_the_least_time_and_the_tuning() -> None:
    alone = LightJobs(jobs=1, iterations=3, collectives=("ring",))
    env = FlowScheduleEnv(PathNetwork(2, 2, 100e9, 1e-3), alone)
    play(env, first_allowed)
    assert env.run is not None
    (job,) = env.run.jobs
    took_s = env.run.collectives_s
    assert took_s == pytest.approx(
        [job.least_s + 1e-3, job.least_s, job.least_s]
    )


def test_an_action_that_is_not_allowed_is_taken_for_the_first_that_is() -> (
    None
):
    env = FlowChannelEnv(COUPLER, FEW)
    seen, _ = env.reset(seed=0)
    while env.action_masks().all():
        seen, *_ = env.step(np.int64(0))
    taken = int((~env.action_masks()).argmax())
    assert seen["channels"][taken, 0] == 1
    *_, info = env.step(np.int64(taken))
    assert info["illegal"]
    assert env.run is not None
    assert env.run.grants[-1].channel != taken


def test_settings_without_sense_are_refused() -> None:
    for wrong in (
        {"jobs": 0},
        {"collectives": ()},
        {"least_bytes": 9e9},
        {"most_computing": -1},
    ):
        with pytest.raises(BadInput, match="expected"):
            LightJobs(**wrong)
    with pytest.raises(BadInput, match="no collective"):
        LightJobs(collectives=("rings",))
    dark = PathNetwork(2, 1, routes=np.array([[-1, 0], [-1, -1]]))
    with pytest.raises(
        BadInput, match="there is no path from node 1 to node 0"
    ):
        play(
            FlowScheduleEnv(dark, LightJobs(collectives=("ring",))),
            first_allowed,
        )
    with pytest.raises(BadInput, match="1 or more"):
        FlowScheduleEnv(shown=0)
    with pytest.raises(BadInput, match="no choice"):
        FlowChannelEnv(dark)
