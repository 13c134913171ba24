"""``patchlight/RampPartition-v0``: how many ways the arriving job is partitioned.

One environment, or many at once that are simulated and observed as arrays.
"""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from patchlight.controller.policies.contract import PartitionPolicy
from patchlight.controller.policies.degrees import (
    Constant,
    Maximum,
    Sufficient,
)
from patchlight.controller.policies.files import shipped_models
from patchlight.controller.policies.learned import load_learned
from patchlight.controller.policies.observation import (
    LONGEST,
    MAX_NODES,
    Observation,
    ObservationLayout,
    RampObserver,
)
from patchlight.emulation.experiments.pac_ml.run import find_profiles
from patchlight.emulation.learning.envs.registry import Heuristic
from patchlight.emulation.learning.vector_episodes import (
    VectorEpisodes,
    layout_of,
)
from patchlight.emulation.simulator.ramp.lossnetwork import Episode, JobOutcome
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import (
    Scenario,
    pac_ml_scenario,
)
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES, Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import ComputationGraph

REWARDS = {"signed": (-1.0, 1.0), "accepted": (0.0, 1.0)}
"""For each kind of reward that of a blocked job and of an accepted one."""
# Below are the seeds that evaluations use.
FIRST_SEED = 1000
LAST_SEED = 2**31


def observation_space(layout: ObservationLayout) -> spaces.Dict:
    """The space of the arrays of a layout."""
    most = {"mask": 1.0, "nodes": 1.0, "edges": float(MAX_NODES)}
    return spaces.Dict(
        {
            name: spaces.Box(
                0.0,
                most.get(name, LONGEST),
                shape,
                np.float32,
            )
            for name, shape in layout.shapes.items()
        }
    )


def scenarios(
    laws: Sequence[str],
    rule: PlacementRule | str,
    horizon_s: float,
    profiles: Path | None = None,
    graphs: Sequence[ComputationGraph] | None = None,
) -> list[Scenario]:
    """PAC-ML's experiment under each law, of the same models (by default those at hand)."""
    if not laws:
        raise BadInput("an environment needs at least one law of requirements")
    workloads = _workloads(tuple(graphs or find_profiles(profiles).graphs))
    return [
        pac_ml_scenario(
            workloads,
            law,
            rule,
            horizon_s,
        )
        for law in laws
    ]


@lru_cache(maxsize=4)
def _workloads(graphs: tuple[ComputationGraph, ...]) -> Workloads:
    """Once for all environments of the same models: what they take is simulated once, too."""
    return Workloads(graphs)


def ruled(policy: PartitionPolicy) -> Heuristic:
    """The action of a partition policy."""

    def act(env: "RampPartitionEnv", seen: Observation) -> int:
        assert env.episode is not None
        return env.layout.actions.index(
            policy.degree(*env.episode.question()) or 0
        )

    act.__doc__ = type(policy).__doc__
    return act


def new_episode(
    random: np.random.Generator,
    laws: Sequence[Scenario],
    options: Mapping[str, Any] | None,
) -> Episode:
    """One drawn at random, as far as ``options`` do not say its ``episode_seed`` and ``law``."""
    given = options or {}
    drawn = int(random.integers(FIRST_SEED, LAST_SEED))
    law = int(random.integers(len(laws)))
    return Episode(
        laws[int(given.get("law", law))], int(given.get("episode_seed", drawn))
    )


@cache
def _shipped(name: str) -> PartitionPolicy:
    return load_learned(shipped_models()[name])


def learned_first_fit_any(env: "RampPartitionEnv", seen: Observation) -> int:
    """The shipped model for this placement rule."""
    return ruled(_shipped("learned-first-fit-any"))(env, seen)


class RampPartitionEnv(gymnasium.Env[Observation, np.int64]):
    """Jobs come to a RAMP cluster; an action is a degree, or 0 to refuse.

    Action i stands for the i-th of ``layout.actions``; an episode is one of a drawn law of
    ``laws``. An action that cannot succeed blocks the job. ``reward``, ``signed``: +1 for an
    accepted job, −1 for a blocked one; ``accepted``: 1 and 0. With ``warm_up``, up to
    that many jobs of each episode come before the first decision and get any degree that they can
    have, so that episodes begin with clusters in any state. ``scenario`` gives other ones than
    PAC-ML's.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name
    figure: ClassVar[str] = "blocking_rate"
    per_action: ClassVar[tuple[str, ...]] = ("options", "remaining")
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "constant:4": ruled(Constant(4)),
        "constant:8": ruled(Constant(8)),
        "maximum": ruled(Maximum()),
        "sufficient": ruled(Sufficient()),
    }
    trained: ClassVar[Mapping[str, Heuristic]] = {
        "learned-first-fit-any": learned_first_fit_any
    }

    def __init__(
        self,
        laws: Sequence[str] = LAW_NAMES,
        rule: PlacementRule | str = PlacementRule.RAMP_FIRST_FIT,
        horizon_s: float = 1e6,
        reward: str = "signed",
        warm_up: int = 0,
        profiles: Path | None = None,
        scenario: Sequence[Scenario] | None = None,
    ) -> None:
        if reward not in REWARDS:
            raise BadInput(
                f"no reward {reward!r}: expected one of {', '.join(REWARDS)}"
            )
        if warm_up < 0:
            raise BadInput(f"warm_up is {warm_up}: expected 0 or more jobs")
        self.scenarios = tuple(
            scenario
            or scenarios(
                laws,
                rule,
                horizon_s,
                profiles,
            )
        )
        self.layout = layout_of(self.scenarios[0])
        space: spaces.Space[Any] = observation_space(self.layout)
        self.observation_space = space
        self.action_space = spaces.Discrete(len(self.layout.actions))
        self._rewards = REWARDS[reward]
        self._warm_up = warm_up
        self._observer = RampObserver(self.layout)
        self.episode: Episode | None = None
        self._mask: NDArray[np.bool_] = np.ones(len(self.layout.actions), bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """A new episode; ``options`` may have ``episode_seed`` and ``law``, a place in the laws."""
        super().reset(seed=seed)
        self.episode = episode = new_episode(
            self.np_random, self.scenarios, options
        )
        found = self._observe()
        for _ in range(int(self.np_random.integers(self._warm_up + 1))):
            before = episode.fork()
            choices = np.flatnonzero(self._mask[1:]) + 1
            action = int(self.np_random.choice(choices)) if len(choices) else 0
            episode.decide(self.layout.actions[action])
            if (
                episode.job is None
            ):  # It would be over: the last job is left to decide on.
                self.episode = episode = before
                break
            found = self._observe()
        return found, {
            "law": episode.scenario.law.name,
            "episode_seed": episode.seed,
        }

    def step(
        self, action: np.int64 | SupportsInt
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """One decision."""
        if self.episode is None:
            raise BadInput("the environment has no episode: call reset first")
        outcome = self.episode.decide(self.layout.actions[int(action)])
        over = self.episode.job is None
        info: dict[str, Any] = {"outcome": outcome.name.lower()}
        if over:
            info["blocking_rate"] = self.episode.result().blocking_rate()
        reward = self._rewards[outcome is JobOutcome.ACCEPTED]
        return self._observe(), reward, over, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions can succeed now; refusing always does."""
        return self._mask.copy()

    def _observe(self) -> Observation:
        assert self.episode is not None
        if self.episode.job is None:
            found = self.layout.empty()
            found["mask"][0] = 1.0
        else:
            seen = self._observer.observe(*self.episode.question())
            found = {name: array.copy() for name, array in seen.items()}
        self._mask = found["mask"] > 0
        return found


class RampPartitionVectorEnv(
    VectorEnv[Observation, NDArray[np.intp], NDArray[np.bool_]]
):
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
            raise BadInput(
                f"no reward {reward!r}: expected one of {', '.join(REWARDS)}"
            )
        self.scenarios = tuple(
            scenario
            or scenarios(
                laws,
                rule,
                horizon_s,
                profiles,
            )
        )
        self.layout = layout_of(self.scenarios[0])
        self.num_envs = num_envs
        self.metadata = {
            "render_modes": [],
            "autoreset_mode": AutoresetMode.SAME_STEP,
        }
        self.single_observation_space = observation_space(self.layout)
        self.single_action_space = spaces.Discrete(len(self.layout.actions))
        self.observation_space = batch_space(
            self.single_observation_space, num_envs
        )
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rewards = REWARDS[reward]
        self._staggered = staggered
        self._arrays = self.layout.empty(num_envs)
        self.episodes: VectorEpisodes | None = None

    def reset(
        self,
        *,
        seed: int | list[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """New episodes. ``seed`` is the first episode's; each has the one after that before it."""
        if isinstance(seed, list):
            raise BadInput("these environments take one common seed")
        first = FIRST_SEED if seed is None else seed
        self.episodes = VectorEpisodes(
            self.scenarios,
            self.num_envs,
            first,
            self._staggered,
        )
        return self.episodes.observe(self._arrays), {}

    def step(
        self, actions: NDArray[np.intp]
    ) -> tuple[
        Observation, NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]
    ]:
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
        over = episodes.episode_start.copy()
        cut = np.zeros(self.num_envs, bool)
        return episodes.observe(self._arrays), rewards, over, cut, information

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions can succeed now, environments × actions."""
        return self._running().mask.copy()

    def _running(self) -> VectorEpisodes:
        if self.episodes is None:
            raise BadInput(
                "the environments have no episodes: call reset first"
            )
        return self.episodes
