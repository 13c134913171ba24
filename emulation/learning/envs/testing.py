"""Checks environments, and compares rules and trained models in them."""

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import VectorEnv

from patchlight.emulation.learning.envs.registry import (
    Environment,
    EnvironmentRecipe,
    Heuristic,
    heuristics_of,
    masks_of,
    trained_of,
)
from patchlight.emulation.simulator.ramp.scenario import (
    mean_and_interval,
    paired_difference,
)
from patchlight.testbed.errors import BadInput, PatchlightError, reason

MOST_STEPS = 1_000_000
"""An episode that has not ended by then is taken for one that never does."""
_LOOKED_AT = 300  # Steps of an episode that are checked.


class EnvironmentCheck(NamedTuple):
    """One thing that was checked; ``problem`` is empty where it is as it should be."""

    what: str
    problem: str


@dataclass(frozen=True)
class Checked:
    """An environment's checks, and the steps per second of processor time of ``num_envs``."""

    name: str
    checks: tuple[EnvironmentCheck, ...]
    num_envs: int
    steps_per_s: float

    @property
    def is_good(self) -> bool:
        """Whether all checks passed."""
        return not any(check.problem for check in self.checks)


def check_environment(recipe: EnvironmentRecipe, steps: int = 4000) -> Checked:
    """Gymnasium's own checks, and ours: masks, what a seed fixes, several in parallel.

    ``steps`` are what the speed is measured over, all environments together. An environment that
    raises has a problem; nothing of that is raised here.
    """
    parts = (
        ("Gymnasium's checker", lambda: _gymnasium(recipe)),
        ("masks and observations", lambda: _masks(recipe)),
        ("a seed determines the episode", lambda: _seeds(recipe)),
        ("heuristics", lambda: _heuristics(recipe)),
    )
    checks = [
        EnvironmentCheck(what, _problem_of(part)) for what, part in parts
    ]
    num_envs = (
        256
        if recipe.registered and recipe.registered.vector_entry_point
        else 8
    )
    rate = 0.0

    def measure() -> str:
        nonlocal rate
        rate = _steps_per_s(recipe, num_envs, steps)
        return ""

    checks.append(
        EnvironmentCheck("several in parallel", _problem_of(measure))
    )
    return Checked(
        recipe.name,
        tuple(checks),
        num_envs,
        rate,
    )


def _problem_of(part: Any) -> str:
    try:
        return str(part())
    except PatchlightError as error:
        return error.message
    except Exception as error:
        return f"{type(error).__name__}: {reason(error)}"


def _gymnasium(recipe: EnvironmentRecipe) -> str:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        check_env(recipe.make(), skip_render_check=True)
    # A ResourceWarning is about what another part of the program left to the garbage collector.
    heard = [
        each
        for each in heard
        if not issubclass(each.category, ResourceWarning)
    ]
    said = [
        str(each.message)
        for each in heard
        if "check_env" not in str(each.message)
    ]
    return said[0] if said else ""


def _masks(recipe: EnvironmentRecipe) -> str:
    """Under allowed actions nothing is forbidden, and all that is seen is in its space."""
    env = recipe.make()
    count = _actions(env)
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=1)
    for number in range(_LOOKED_AT):
        mask = masks_of(env)
        if mask.shape != (count,) or mask.dtype != np.bool_:
            return f"action_masks() is {mask.dtype} of shape {mask.shape}: expected {count} bools"
        if not mask.any():
            return f"no action is allowed at step {number}"
        if not env.observation_space.contains(seen):
            return f"the observation at step {number} is not in the observation space"
        shown = (
            seen.get("action_mask", mask) if isinstance(seen, dict) else mask
        )
        if not np.array_equal(shown, mask):
            return f"'action_mask' of the observation differs from the masks at step {number}"
        seen, reward, over, cut, info = env.step(
            np.int64(rng.choice(np.flatnonzero(mask)))
        )
        if not math.isfinite(float(reward)):
            return f"the reward of step {number} is {reward}"
        if info.get("illegal"):
            return f"an allowed action was rejected at step {number}"
        if over or cut:
            seen, _ = env.reset()
    return ""


def _seeds(recipe: EnvironmentRecipe) -> str:
    """The same seed and actions give the same; another seed something else."""
    one, same, other = (_played(recipe.make(), seed) for seed in (3, 3, 4))
    if one != same:
        return "two episodes of seed 3 under the same actions differ"
    return "episodes of seeds 3 and 4 are the same" if one == other else ""


def _played(env: Environment, seed: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    seen, _ = env.reset(seed=seed)
    found = [_bytes_of(seen)]
    for _ in range(_LOOKED_AT):
        action = np.int64(rng.choice(np.flatnonzero(masks_of(env))))
        seen, reward, over, cut, _ = env.step(action)
        found += [_bytes_of(seen), np.float64(reward).tobytes()]
        if over or cut:
            break
    return found


def _bytes_of(seen: Any) -> bytes:
    parts = seen.values() if isinstance(seen, dict) else [seen]
    return b"".join(np.asarray(part).tobytes() for part in parts)


def _heuristics(recipe: EnvironmentRecipe) -> str:
    """Its heuristics take allowed actions only."""
    for name, rule in {
        **heuristics_of(env := recipe.make()),
        **trained_of(env),
    }.items():
        seen, _ = env.reset(seed=2)
        for number in range(_LOOKED_AT):
            action = rule(env, seen)
            mask = masks_of(env)
            if not 0 <= action < len(mask):
                return f"{name} chose action {action} of {len(mask)} at step {number}"
            seen, _, over, cut, info = env.step(np.int64(action))
            if info.get("illegal"):
                return f"{name} chose action {action} at step {number}, which is not allowed"
            if over or cut:
                break
    return ""


def _actions(env: Environment) -> int:
    if not isinstance(env.action_space, gymnasium.spaces.Discrete):
        raise BadInput(
            f"its actions are {env.action_space}: expected Discrete, so that masks fit"
        )
    return int(env.action_space.n)


def _steps_per_s(
    recipe: EnvironmentRecipe,
    num_envs: int,
    steps: int,
) -> float:
    """Steps a second of processor time of several, under any allowed actions.

    The same steps are played twice and measured the second time: what is computed when it is
    first needed, and then known, is not what a step takes.
    """
    envs = recipe.make_many(num_envs)
    passed_s = math.inf
    rounds = max(1, steps // num_envs)
    for _ in range(2):
        envs.reset(seed=1000)
        rng = np.random.default_rng(0)
        began_s = time.process_time()
        for _ in range(rounds):
            envs.step(_any_allowed(envs, rng))
        passed_s = time.process_time() - began_s
    envs.close()
    return rounds * num_envs / max(passed_s, 1e-9)


def _any_allowed(
    envs: VectorEnv[Any, Any, Any], rng: np.random.Generator
) -> Any:
    own: Any = getattr(envs, "action_masks", None)
    # Gymnasium's own vectors have their environments to call.
    call: Any = getattr(envs, "call", None)
    masks = own() if own is not None else np.stack(call("action_masks"))
    return (masks * rng.random(masks.shape)).argmax(axis=1)


class Compared(NamedTuple):
    """A rule's result: the mean of the environment's figure, and its 95 % interval.

    ``more`` is how much that is above the first heuristic's, episode by episode.
    """

    rule: str
    sort: str  # heuristic, trained or random
    mean: float
    half_width: float
    more: float
    more_half_width: float


def baselines_of(
    recipe: EnvironmentRecipe, seeds: range
) -> tuple[str, list[Compared]]:
    """The environment's figure (less is better), and each rule's result on these seeds.

    All play the same episodes; ``random`` takes any allowed action. ``BadInput`` for an environment
    without a figure.
    """
    env = recipe.make()
    figure = getattr(env, "figure", None)
    if figure is None:
        raise BadInput(
            f"{recipe.name} has no figure of merit",
            hint="give it 'figure', a key of the last step's info; lower is better",
        )
    rng = np.random.default_rng(0)

    def anything(env: Environment, seen: Any) -> int:
        return int(rng.choice(np.flatnonzero(masks_of(env))))

    rules: list[tuple[str, str, Heuristic]] = [("random", "random", anything)]
    rules += [
        (name, "heuristic", rule) for name, rule in heuristics_of(env).items()
    ]
    rules += [
        (name, "trained", rule) for name, rule in trained_of(env).items()
    ]
    played = [
        [
            figure_of(
                env,
                rule,
                seed,
                figure,
            )
            for seed in seeds
        ]
        for _, _, rule in rules
    ]
    beside = played[min(1, len(rules) - 1)]
    return figure, [
        Compared(
            name,
            sort,
            *mean_and_interval(values),
            *paired_difference(values, beside),
        )
        for (name, sort, _), values in zip(rules, played, strict=True)
    ]


def figure_of(
    env: Environment,
    rule: Heuristic,
    seed: int,
    figure: str,
) -> float:
    """An episode's figure under a rule."""
    seen, _ = env.reset(seed=seed)
    for _ in range(MOST_STEPS):
        seen, _, over, cut, info = env.step(np.int64(rule(env, seen)))
        if over or cut:
            if figure not in info:
                raise BadInput(
                    f"the last step's info has no {figure!r}, its figure of merit"
                )
            return float(info[figure])
    raise BadInput(
        f"the episode of seed {seed} did not end within {MOST_STEPS:,} steps"
    )
