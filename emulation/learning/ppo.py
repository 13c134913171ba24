"""Proximal policy optimisation with action masks: sb3-contrib's ``MaskablePPO``.

The policy is the same ``OptionScorer``: its scores over a temperature are the actions' log-odds,
and the value of the cluster is the mean of these scores under the policy's own odds, corrected.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from patchlight.controller.policies.observation import ObservationLayout
from patchlight.emulation.learning.config import Config, Network
from patchlight.emulation.learning.envs.ramp_partition import RampPartitionVectorEnv
from patchlight.emulation.learning.network import IMPOSSIBLE, OptionScorer, load_run, scorer_of
from patchlight.emulation.learning.rollouts import Progress
from patchlight.emulation.learning.vector_episodes import Finished
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.testbed.errors import BadInput


class Sb3VecEnv(VecEnv):
    """``RampPartitionVectorEnv`` as Stable-Baselines3 wants it."""

    def __init__(self, environments: RampPartitionVectorEnv, first_seed: int) -> None:
        self.environments, self._first_seed = environments, first_seed
        self.finished: list[Finished] = []
        self._actions = np.zeros(environments.num_envs, int)
        super().__init__(
            environments.num_envs,
            environments.single_observation_space,
            environments.single_action_space,
        )

    def reset(self) -> dict[str, Any]:
        seen, _ = self.environments.reset(seed=self._first_seed)
        return {name: array.copy() for name, array in seen.items()}

    def step_async(self, actions: Any) -> None:
        self._actions = np.asarray(actions)

    def step_wait(self) -> Any:
        seen, rewards, over, _, information = self.environments.step(self._actions)
        found: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for env, rate in enumerate(information.get("blocking_rate", ())):
            if rate == rate:
                self.finished.append(Finished(env, 0, 0, float(rate)))
        copied = {name: array.copy() for name, array in seen.items()}
        for env in np.flatnonzero(over).tolist():
            found[env]["terminal_observation"] = {n: array[env] for n, array in copied.items()}
        return copied, rewards.astype(np.float32), over, found

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.environments, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise BadInput(f"cannot set {attr_name!r} of vector environments")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **named: Any) -> Any:
        if method_name != "action_masks":
            raise BadInput(f"vector environments have no method {method_name!r}")
        return list(self.environments.action_masks())

    def has_attr(self, attr_name: str) -> bool:
        return attr_name == "action_masks"

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


class _Scores(BaseFeaturesExtractor):
    """Log-odds of the actions, and the value of the state, one after the other."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        layout: ObservationLayout,
        network: Network,
        settings: Any,
    ) -> None:
        super().__init__(observation_space, len(layout.actions) + 1)
        self.scorer = OptionScorer(layout, network, settings.gamma)
        self.sharpness = nn.Parameter(torch.tensor(1 / settings.temperature))

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        """Batch × (actions + 1)."""
        scores = self.scorer(seen)
        odds = torch.where(scores > IMPOSSIBLE / 2, scores * self.sharpness, scores)
        value = (torch.softmax(odds, dim=-1) * scores).sum(dim=-1, keepdim=True)
        return torch.cat([odds, value], dim=-1)


class _Split(nn.Module):
    """Takes log-odds and value apart; nothing is left to learn behind them."""

    def __init__(self, actions: int) -> None:
        super().__init__()
        self.latent_dim_pi, self.latent_dim_vf = actions, 1

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.forward_actor(features), self.forward_critic(features)

    def forward_actor(self, features: Tensor) -> Tensor:
        return features[..., :-1]

    def forward_critic(self, features: Tensor) -> Tensor:
        return features[..., -1:]


class ScoringPolicy(MaskableMultiInputActorCriticPolicy):
    """Its features extractor gives the actions' log-odds and the value, one after the other."""

    def _build_mlp_extractor(self) -> None:
        actions = int(self.action_space.n)  # type: ignore[attr-defined]
        self.mlp_extractor = _Split(actions)  # type: ignore[assignment]

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.action_net = nn.Identity()
        self.value_net = nn.Linear(1, 1)
        with torch.no_grad():
            self.value_net.weight.fill_(1.0)
            self.value_net.bias.zero_()
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), eps=1e-5)


class _Watch(BaseCallback):
    """Sees each step go by."""

    def _on_step(self) -> bool:
        return True


class PpoLearner:
    """Rounds of PPO. It plays as well as it learns: there is no average to keep."""

    def __init__(self, config: Config, scenarios: Sequence[Scenario], done: int = 0) -> None:
        self.config, settings = config, config.ppo
        environment = config.environment
        torch.manual_seed(config.seed)
        first = environment.first_seed + 2 * (done // 1000 + (done > 0) * environment.num_envs)
        envs = RampPartitionVectorEnv(environment.num_envs, scenario=scenarios, staggered=True)
        self._envs = Sb3VecEnv(envs, first)
        self.steps = done
        total = config.steps

        def rate(left: float) -> float:
            return settings.learning_rate * max(0.0, 1 - self.steps / total) + 1e-6

        shape = {"layout": envs.layout, "network": config.network, "settings": settings}
        self._model = MaskablePPO(
            ScoringPolicy,
            self._envs,
            learning_rate=rate,
            seed=config.seed,
            device="cpu",
            policy_kwargs={"features_extractor_class": _Scores, "features_extractor_kwargs": shape},
            **settings.as_keywords(),
        )
        # Without one of ours it makes a folder in /tmp for its own.
        self._model.set_logger(Logger(None, []))
        self._begin(Path(settings.start) if settings.start else None)
        self._callback: BaseCallback | None = None

    def _begin(self, folder: Path | None) -> None:
        if folder is None:
            return
        config, kept = load_run(folder)
        scorer, _ = scorer_of(config, kept)
        try:
            missing = self.average.load_state_dict(scorer.state_dict(), strict=False)
        except RuntimeError as error:
            raise BadInput(f"cannot begin with {folder}: its network is another one") from error
        if missing.unexpected_keys:
            raise BadInput(f"cannot begin with {folder}: its network has more parts")

    @property
    def average(self) -> OptionScorer:
        """The scorer to evaluate and to keep."""
        features = self._model.policy.features_extractor
        assert isinstance(features, _Scores)
        return features.scorer

    def round(self) -> Progress:
        """Plays ``n_steps`` decisions in every environment and learns from them."""
        model = self._model
        if self._callback is None:
            _, self._callback = model._setup_learn(self.config.steps, _Watch(), False)
        model.collect_rollouts(
            self._envs, self._callback, model.rollout_buffer, self.config.ppo.n_steps
        )
        self.steps += self.config.ppo.n_steps * self._envs.num_envs
        model._update_current_progress_remaining(self.steps, self.config.steps)
        model.train()
        finished, self._envs.finished = tuple(self._envs.finished), []
        loss = float(model.logger.name_to_value["train/loss"])
        # Rewards are 1 and -1.
        return Progress(loss, float(1 - model.rollout_buffer.rewards.mean()) / 2, finished)

    def state(self) -> dict[str, Any]:
        """Weights and the optimiser's memory; episodes begin anew."""
        policy = self._model.policy
        return {"policy": policy.state_dict(), "optimizer": policy.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self._model.policy.load_state_dict(state["policy"])
        self._model.policy.optimizer.load_state_dict(state["optimizer"])
