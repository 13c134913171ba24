"""Many ``RampPartition`` environments at once, simulated and observed as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from patchlight.controller.policies.observation import Observation
from patchlight.emulation.learning.envs.ramp_partition import REWARDS, observation_space, scenarios
from patchlight.emulation.learning.vector_episodes import VectorEpisodes, layout_of
from patchlight.emulation.simulator.ramp.placement import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput

_FIRST_SEED = 1000


class RampPartitionVectorEnv(VectorEnv[Observation, NDArray[np.intp], NDArray[np.bool_]]):
    """``RampPartitionEnv`` ``num_envs`` times: the same clusters, jobs, rewards, observations.

    The observation's arrays are always the same ones, written over by each step: copy what is to
    be kept. An environment whose episode ended is at the start of its next one when ``step``
    returns; the information then has ``blocking_rate`` for it (``nan`` for others). Laws take turns
    from episode to episode. With ``staggered``, first episodes begin anywhere in their middle.
    """

    def __init__(
        self,
        num_envs: int,
        laws: Sequence[str] = LAW_NAMES,
        rule: PlacementRule | str = PlacementRule.RAMP_FIRST_FIT,
        horizon_s: float = 1e6,
        reward: str = "signed",
        staggered: bool = False,
        profiles: Path | None = None,
        scenario: Sequence[Scenario] | None = None,
    ) -> None:
        if reward not in REWARDS:
            raise BadInput(f"no reward {reward!r}: expected one of {', '.join(REWARDS)}")
        self.scenarios = tuple(scenario or scenarios(laws, rule, horizon_s, profiles))
        self.layout = layout_of(self.scenarios[0])
        self.num_envs = num_envs
        self.metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = observation_space(self.layout)
        self.single_action_space = spaces.Discrete(len(self.layout.actions))
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rewards, self._staggered = REWARDS[reward], staggered
        self._arrays = self.layout.empty(num_envs)
        self.episodes: VectorEpisodes | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """New episodes. ``seed`` is the first episode's; each has the one after that before it."""
        if isinstance(seed, list):
            raise BadInput("these environments take one seed for all, not one for each")
        first = _FIRST_SEED if seed is None else seed
        self.episodes = VectorEpisodes(self.scenarios, self.num_envs, first, self._staggered)
        return self.episodes.observe(self._arrays), {}

    def step(
        self, actions: NDArray[np.intp]
    ) -> tuple[Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        """One decision in each environment."""
        episodes = self._running()
        accepted, finished = episodes.step(np.asarray(actions))
        rewards = np.where(accepted, self._rewards[1], self._rewards[0])
        information: dict[str, Any] = {}
        if finished:
            rates = np.full(self.num_envs, np.nan)
            for each in finished:
                rates[each.env] = each.blocking_rate
            information["blocking_rate"] = rates
        over, cut = episodes.episode_start.copy(), np.zeros(self.num_envs, bool)
        return episodes.observe(self._arrays), rewards, over, cut, information

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions can succeed now, environments × actions."""
        return self._running().mask.copy()

    def _running(self) -> VectorEpisodes:
        if self.episodes is None:
            raise BadInput("the environments have no episodes: call reset first")
        return self.episodes
