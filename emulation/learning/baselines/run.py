"""A baseline's training: a heuristic imitated, then sb3-contrib's ``MaskablePPO`` from there."""

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from patchlight.emulation.learning.baseline_files import as_arrays
from patchlight.emulation.learning.baselines.config import BaselineConfig
from patchlight.emulation.learning.baselines.export import export_baseline
from patchlight.emulation.learning.baselines.imitation import best_action, imitate
from patchlight.emulation.learning.baselines.scorer import ActionScorer, inputs_of
from patchlight.emulation.learning.envs.registry import (
    Environment,
    Recipe,
    find_environment,
    heuristics_of,
)
from patchlight.emulation.learning.envs.testing import figure_of
from patchlight.emulation.learning.ppo import ScoringPolicy
from patchlight.testbed.errors import BadInput

CONFIG, PROGRESS = "config.json", "progress.csv"


class _Shown(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment that shows only what the network is shown, by name."""

    def __init__(self, env: Environment, inputs: dict[str, tuple[int, ...]]) -> None:
        super().__init__(env)
        self._inputs, whole = inputs, env.observation_space
        parts = whole if isinstance(whole, spaces.Dict) else dict.fromkeys(inputs, whole)
        self.observation_space = spaces.Dict({name: parts[name] for name in inputs})

    def observation(self, observation: Any) -> dict[str, Any]:
        arrays = as_arrays(observation)
        return {name: arrays[name] for name in self._inputs}


class _Scores(BaseFeaturesExtractor):
    """The scorer as what ``ScoringPolicy`` wants."""

    def __init__(self, observation_space: spaces.Dict, scorer: ActionScorer) -> None:
        super().__init__(observation_space, scorer.actions + 1)
        self.scorer = scorer

    def forward(self, seen: dict[str, torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.scorer(seen)
        return found


class BaselineRun:
    """A training run in a folder. ``say`` hears of its progress, a line at a time.

    The policy that is kept is the one with the best figure on the evaluation's seeds. Interrupted,
    the best so far is kept.
    """

    def __init__(
        self, config: BaselineConfig, folder: Path, say: Callable[[str], None] = lambda line: None
    ) -> None:
        self.config, self.folder, self._say = config, folder, say
        self.recipe: Recipe = find_environment(config.environment)
        self._env = env = self.recipe.make()
        if not isinstance(env.action_space, spaces.Discrete):
            raise BadInput(
                f"its actions are {env.action_space}: expected Discrete, so that masks fit"
            )
        self.figure = getattr(env, "figure", "")
        if not self.figure:
            raise BadInput(
                f"{self.recipe.name} does not say what counts",
                hint="give it 'figure', the key of the last step's info that does; less is better",
            )
        rules, rule = heuristics_of(env), config.teacher.rule
        if rule and rule not in rules:
            raise BadInput(
                f"{self.recipe.name} has no heuristic {rule!r}",
                hint=f"those that it has: {', '.join(rules) or 'none'}",
            )
        torch.manual_seed(config.seed)
        self.inputs = inputs_of(env.observation_space, config.network.inputs)
        per_action = getattr(env, "per_action", ())
        self.scorer = ActionScorer(
            self.inputs, int(env.action_space.n), per_action, config.network.hidden
        )
        self._best: tuple[float, dict[str, torch.Tensor]] | None = None
        self._rows: list[dict[str, Any]] = []

    def learn(self) -> Path:
        """All of it; the model's file."""
        config = self.config
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / CONFIG).write_text(json.dumps(config.as_data(), indent=2) + "\n")
        self._began_s, steps = time.monotonic(), 0
        try:
            if config.teacher.rule:
                rule = heuristics_of(self._env)[config.teacher.rule]
                imitate(self.scorer, self._env, rule, config)
            self._evaluate(0)
            if config.steps:
                steps = self._reinforce()
        except KeyboardInterrupt:
            self._say("interrupted: the best so far is kept")
        finally:
            if self._best is not None:
                self.scorer.load_state_dict(self._best[1])
        training = {
            "config": config.as_data(),
            "steps": steps,
            "wall_s": round(time.monotonic() - self._began_s, 1),
            "torch": str(torch.__version__),
            f"evaluated_{self.figure}": None if self._best is None else round(self._best[0], 6),
        }
        return export_baseline(
            self.scorer, config, self.recipe.name, self.figure, training, self.folder
        )

    def play(self, env: Environment, seen: Any) -> int:
        """The best allowed action by the scores of now."""
        return best_action(self.scorer, env, seen)

    def _reinforce(self) -> int:
        config = self.config
        envs = DummyVecEnv(
            [lambda: _Shown(self.recipe.make(), self.inputs) for _ in range(config.num_envs)]
        )
        envs.seed(1000 + config.seed * config.num_envs)
        # Rewards are in the units of each environment: those of its returns are learned.
        scaled = VecNormalize(envs, norm_obs=False, norm_reward=True, gamma=config.ppo.gamma)
        first = config.ppo.learning_rate
        model = MaskablePPO(
            ScoringPolicy,
            scaled,
            learning_rate=lambda left: first * left + 1e-6,
            seed=config.seed,
            device="cpu",
            policy_kwargs={
                "ortho_init": False,  # What was imitated stays.
                "features_extractor_class": _Scores,
                "features_extractor_kwargs": {"scorer": self.scorer},
            },
            **config.ppo.as_keywords(),
        )
        # Without one of ours it makes a folder in /tmp for its own.
        model.set_logger(Logger(None, []))
        model.learn(config.steps, _Watch(self._evaluate, config.evaluation.every_steps))
        self._evaluate(model.num_timesteps)
        return model.num_timesteps

    def _evaluate(self, steps: int) -> None:
        """Play the evaluation's episodes; keep the weights if they are the best so far."""
        evaluation = self.config.evaluation
        seeds = range(evaluation.first_seed, evaluation.first_seed + evaluation.seeds)
        found = [figure_of(self._env, self.play, seed, self.figure) for seed in seeds]
        mean, spent_s = sum(found) / len(found), time.monotonic() - self._began_s
        if self._best is None or mean < self._best[0]:
            weights = {name: each.clone() for name, each in self.scorer.state_dict().items()}
            self._best = mean, weights
        self._rows.append({"steps": steps, "wall_s": round(spent_s, 1), self.figure: mean})
        with (self.folder / PROGRESS).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(self._rows[0]))
            writer.writeheader()
            writer.writerows(self._rows)
        best = self._best[0]
        self._say(f"{steps:>9,} steps  {spent_s:5.0f} s  {self.figure} {mean:.6g}, best {best:.6g}")


class _Watch(BaseCallback):
    """Has the policy evaluated every so many steps, between its rounds."""

    def __init__(self, evaluate: Callable[[int], None], every_steps: int) -> None:
        super().__init__()
        self._evaluate, self._every_steps, self._evaluated = evaluate, every_steps, 0

    def _on_rollout_start(self) -> None:
        if self.num_timesteps - self._evaluated >= self._every_steps:
            self._evaluated = self.num_timesteps
            self._evaluate(self.num_timesteps)

    def _on_step(self) -> bool:
        return True
