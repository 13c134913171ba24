"""A heuristic's decisions learned first, so that what follows does not begin with nothing."""

from typing import Any

import numpy as np
import torch

from patchlight.emulation.learning.baseline_files import as_arrays
from patchlight.emulation.learning.baselines.config import BaselineConfig
from patchlight.emulation.learning.baselines.scorer import ActionScorer
from patchlight.emulation.learning.envs.registry import Environment, Heuristic, masks_of

_FIRST_SEED = 1000  # Below are the seeds that evaluations use.


def imitate(
    scorer: ActionScorer, env: Environment, rule: Heuristic, config: BaselineConfig
) -> None:
    """Teach the scorer what a rule does, and what returns follow.

    In the first round the rule plays. In each further one half of the decisions are the scorer's
    own, and it learns what the rule would have done there: else it never sees what comes of its
    mistakes (DAgger: Ross, Gordon and Bagnell, AISTATS 2011). What was seen in earlier rounds is
    learned again. Decisions where only one action is allowed are left out.
    """
    teacher = config.teacher
    arrays: dict[str, list[np.ndarray]] = {name: [] for name in scorer.inputs}
    masks, actions, returns = list[np.ndarray](), list[int](), list[float]()
    drawn = np.random.default_rng(config.seed)
    for number in range(teacher.rounds):
        most = teacher.steps * (number + 1) // teacher.rounds
        own = 0.5 * (number > 0)
        seen, _ = env.reset(seed=_FIRST_SEED + config.seed + number)
        rewards, chose = list[float](), list[bool]()
        while len(actions) < most or rewards:
            action, mask = rule(env, seen), masks_of(env)
            if mask.sum() > 1:
                for name, array in as_arrays(seen).items():
                    if name in arrays:
                        arrays[name].append(np.array(array))
                masks.append(mask)
                actions.append(action)
                if own and drawn.random() < own:
                    action = best_action(scorer, env, seen)
            chose.append(mask.sum() > 1)
            seen, reward, over, cut, _ = env.step(np.int64(action))
            rewards.append(float(reward))
            if over or cut:
                returns += _discounted(rewards, chose, config.ppo.gamma)
                rewards, chose = [], []
                seen, _ = env.reset()
        shown = {name: torch.from_numpy(np.stack(each)) for name, each in arrays.items()}
        _fit(scorer, shown, np.stack(masks), actions, returns, config)


def best_action(scorer: ActionScorer, env: Environment, seen: Any) -> int:
    """The allowed action that has the best score."""
    arrays = as_arrays(seen)
    given = {name: torch.from_numpy(np.asarray(arrays[name]))[None] for name in scorer.inputs}
    with torch.inference_mode():
        scores = scorer(given)[0, :-1].numpy()
    return int(np.where(masks_of(env), scores, -np.inf).argmax())


def _discounted(rewards: list[float], chose: list[bool], gamma: float) -> list[float]:
    """The returns from the decisions on that were kept."""
    found, later = list[float](), 0.0
    for reward, kept in zip(reversed(rewards), reversed(chose), strict=True):
        later = reward + gamma * later
        if kept:
            found.append(later)
    return found[::-1]


def _fit(
    scorer: ActionScorer,
    shown: dict[str, torch.Tensor],
    masks: np.ndarray,
    actions: list[int],
    returns: list[float],
    config: BaselineConfig,
) -> None:
    teacher, count = config.teacher, len(actions)
    allowed, chosen = torch.from_numpy(masks), torch.tensor(actions)
    worth = torch.tensor(returns)
    # PPO's rewards are divided by the deviation of returns, so values are of that size.
    worth = worth / worth.std().clamp(min=1e-6)
    optimizer = torch.optim.Adam(scorer.parameters(), teacher.learning_rate)
    drawn = torch.Generator().manual_seed(config.seed)
    for _ in range(teacher.n_epochs):
        for part in torch.split(torch.randperm(count, generator=drawn), teacher.batch_size):
            found = scorer({name: array[part] for name, array in shown.items()})
            scores = found[:, :-1].masked_fill(~allowed[part], -1e9)
            loss = torch.nn.functional.cross_entropy(scores, chosen[part])
            loss = loss + 0.5 * torch.nn.functional.mse_loss(found[:, -1], worth[part])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(scorer.parameters(), 0.5)
            optimizer.step()
