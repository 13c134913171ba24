"""What the training of a baseline is told: YAML in, a ``BaselineConfig`` out.

Keys are those of Stable-Baselines3 where it has them.
"""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from patchlight.emulation.learning.algorithms import MaskablePpo
from patchlight.emulation.learning.config import CONFIGS, NAME, ConfigError
from patchlight.emulation.learning.envs.registry import find_environment
from patchlight.testbed.io.fields import FieldType, ListOf, Text, Whole, choice
from patchlight.testbed.io.forms import Number, Record, setting
from patchlight.testbed.io.issues import FileIssues
from patchlight.testbed.io.reader import parse, read_text

ALGORITHMS = ("maskable-ppo",)
_SEED = Whole("a seed", 0, 2**31)
_STEPS = Whole("a number of steps", 0, 10**12, grouped=True)
_BATCH = Whole("a number of samples", 1, 10**9)
_KEY = Text("an array of the observation", str)


@dataclass(frozen=True)
class Layers:
    """What the network is shown, and how large it is.

    ``inputs`` are arrays of the observation; empty for all of numbers, without masks.
    """

    inputs: tuple[str, ...] = setting(ListOf(_KEY, "arrays"), "what it is shown", ())
    hidden: int = setting(Whole("a layer's size", 1, 1024), "of its layers", 48)


@dataclass(frozen=True)
class Teacher:
    """The heuristic that is imitated first, for so many of its decisions; without one none is."""

    rule: str = setting(Text("a heuristic", str), "of the environment", "")
    steps: int = setting(_STEPS, "decisions of it that are imitated", 20_000)
    rounds: int = setting(Whole("a number", 1, 100), "in all but the first it plays, too", 1)
    n_epochs: int = setting(Whole("a number", 1, 1000), "passes over these, in each round", 8)
    learning_rate: float = setting(Number("a learning rate", above=0), "Adam's", 2e-3)
    batch_size: int = setting(_BATCH, "samples of a gradient step", 256)


def _default(name: str, default: float) -> Any:
    """A setting of ``MaskablePpo`` with another default."""
    return dataclasses.field(
        default=default, metadata=MaskablePpo.__dataclass_fields__[name].metadata
    )


@dataclass(frozen=True)
class Ppo(MaskablePpo):
    """Settings of ``MaskablePPO`` for few environments at once, and their defaults."""

    gamma: float = _default("gamma", 0.99)
    gae_lambda: float = _default("gae_lambda", 0.95)
    learning_rate: float = _default("learning_rate", 3e-4)
    batch_size: int = _default("batch_size", 512)
    n_steps: int = _default("n_steps", 256)
    n_epochs: int = _default("n_epochs", 4)


@dataclass(frozen=True)
class Evaluation:
    """On which seeds, never trained on, the policy that is kept is chosen, and how often."""

    first_seed: int = setting(_SEED, "that of the first episode", 500)
    seeds: int = setting(Whole("a number", 1, 1000), "of episodes", 10)
    every_steps: int = setting(_STEPS, "how often, in decisions", 10_000)


@dataclass(frozen=True)
class BaselineConfig:
    """A training run. ``steps`` are decisions after those of the teacher, over all environments."""

    environment: str = setting(Text("an environment", str), "one of 'env list', or FILE.py:CLASS")
    name: str = setting(NAME, "the model's name", "baseline")
    algorithm: str = setting(choice("an algorithm", *ALGORITHMS), "how it learns", ALGORITHMS[0])
    steps: int = setting(_STEPS, "decisions to learn from", 30_000)
    seed: int = setting(_SEED, "of the weights and of what is drawn", 0)
    num_envs: int = setting(Whole("a number", 1, 4096), "episodes that are played at once", 8)
    network: Layers = setting(Record(Layers, "'network'"), "its size", Layers())
    teacher: Teacher = setting(Record(Teacher, "'teacher'"), "imitated first", Teacher())
    ppo: Ppo = setting(Record(Ppo, "'ppo'"), "of maskable-ppo", Ppo())
    evaluation: Evaluation = setting(
        Record(Evaluation, "'evaluation'"), "while training", Evaluation()
    )

    def as_data(self) -> dict[str, Any]:
        """As a card keeps it."""
        return dataclasses.asdict(self)


_CONFIG: FieldType = Record(BaselineConfig, "the configuration")


def parse_baseline_config(text: str, name: str = "config") -> BaselineConfig:
    """The configuration in this YAML text; ``ConfigError`` with every mistake in it."""
    issues = FileIssues(name, ConfigError)
    config = parse(text, _CONFIG, issues)
    issues.raise_if_any()
    assert isinstance(config, BaselineConfig)
    return config


def baseline_config(name: str) -> BaselineConfig:
    """What a YAML file says, or for an environment what comes along for it, else the defaults."""
    if name.endswith((".yaml", ".yml")):
        return parse_baseline_config(read_text(name, ConfigError), name)
    recipe = find_environment(name)
    short = re.sub(r"[^a-z0-9]+", "-", name.removeprefix("patchlight/").removesuffix("-v0").lower())
    path = CONFIGS / "environments" / f"{short}.yaml"
    if recipe.registered is not None and path.is_file():
        return parse_baseline_config(read_text(path, ConfigError), str(path))
    called = name.rpartition(":")[2] if recipe.registered is None else short
    return BaselineConfig(name, f"ppo-{called}")
