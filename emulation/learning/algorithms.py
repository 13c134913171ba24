"""What each algorithm can be told, in the words of Stable-Baselines3 where it has them.

``…_fraction`` is a part of all steps.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.emulation.simulator.ramp.requirements import law
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import Text, Whole
from patchlight.testbed.io.forms import MapOf, Number, setting

ALGORITHMS = {
    "afterstates": "afterstates",
    "policy-iteration": "policy_iteration",
    "maskable-ppo": "ppo",
    "masked-dqn": "dqn",
}
"""Each with the key that its settings are under."""
TEACHERS = ("sufficient",)


def _degree(text: str) -> int | str:
    if text in TEACHERS:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise BadInput(f"no teacher {text!r}: expected a degree or {' or '.join(TEACHERS)!r}")


def _law(text: str) -> str:
    law(text)
    return text


LAW = Text("a requirement law", _law)
STEPS = Whole("a number of steps", 1, 10**12, grouped=True)
_FRACTION = Number("a fraction", lowest=0, highest=1)
_SMALL = Number("a rate", above=0, highest=1)
_GAMMA = Number("a discount factor", above=0, highest=1)
_RATE = Number("a learning rate", above=0)
_N_STEPS = Whole("a number of steps", 1, 4096)
_BATCH = Whole("a number of samples", 1, 10**9)
_START = Text("a model or a folder", str)
_TAUGHT = Text("a degree or 'sufficient'", _degree, numbers=True)
_TEACHER = MapOf(LAW, _TAUGHT, "a degree for each law", "{A: 8, B: sufficient}")


@dataclass(frozen=True)
class Afterstates:
    """How values of afterstates are learned, see ``patchlight.emulation.learning.afterstates``.

    ``teacher`` names a degree, or ``sufficient``, for each law. It alone decides for the first
    ``teacher_only_fraction`` of all steps; after that, until ``teacher_until_fraction``, in
    ``teacher_env_fraction`` of the environments. ``epsilon`` falls to 0 at the end; the learning
    rate falls to 0 from ``decay_from_fraction`` on. ``ema_rate`` is that of the moving average of
    weights, by which the policy plays that is kept. ``start`` is a model that comes along, an ONNX
    file, or the folder of an earlier run, whose weights to begin with.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.98)
    td_lambda: float = setting(_FRACTION, "λ of the returns", 0.8)
    epsilon: float = setting(_FRACTION, "part of decisions made at random, at first", 0.01)
    learning_rate: float = setting(_RATE, "Adam's", 1e-3)
    decay_from_fraction: float = setting(_FRACTION, "when the learning rate begins to fall", 0.4)
    batch_size: int = setting(_BATCH, "samples of a gradient step", 1024)
    n_steps: int = setting(_N_STEPS, "decisions of each environment in a round", 16)
    ema_rate: float = setting(_SMALL, "of the average of weights, for each gradient step", 0.002)
    teacher_only_fraction: float = setting(_FRACTION, "until when the teacher decides alone", 0.15)
    teacher_until_fraction: float = setting(_FRACTION, "until when it decides at all", 0.6)
    teacher_env_fraction: float = setting(_FRACTION, "of the environments where it does", 0.2)
    start: str = setting(_START, "a model or a run whose weights to begin with", "")
    teacher: Mapping[str, int | str] = setting(_TEACHER, "the degree that it takes by law", {})


@dataclass(frozen=True)
class PolicyIteration:
    """How roll-outs improve a policy, see ``patchlight.emulation.learning.policy_iteration``.

    Of each decision at most ``options`` actions, whose scores are at most ``near`` below the best,
    are played out in ``futures`` futures of ``jobs`` jobs each. ``buffer_size``, ``batch_size`` and
    ``learning_starts`` count decisions that were played out, all else as ``Afterstates``.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.99)
    near: float = setting(Number("a difference", above=0), "of scores, in accepted jobs", 0.2)
    options: int = setting(Whole("a number", 2, 64), "of actions that are compared", 4)
    futures: int = setting(Whole("a number", 1, 4096), "in which each is played out", 8)
    jobs: int = setting(Whole("a number", 1, 1000), "to come in each of them", 16)
    epsilon: float = setting(_FRACTION, "part of decisions made at random, at first", 0.03)
    learning_rate: float = setting(_RATE, "Adam's", 1e-3)
    decay_from_fraction: float = setting(_FRACTION, "when the learning rate begins to fall", 0.5)
    buffer_size: int = setting(Whole("a number", 1000, 10**8), "decisions that are kept", 100_000)
    learning_starts: int = setting(Whole("a number", 0, 10**9), "decisions before it", 5_000)
    batch_size: int = setting(_BATCH, "decisions of a gradient step", 256)
    n_steps: int = setting(_N_STEPS, "decisions of each environment in a round", 4)
    gradient_steps: int = setting(Whole("a number", 1, 10_000), "of a round", 8)
    ema_rate: float = setting(_SMALL, "of the average of weights, for each gradient step", 0.005)
    start: str = setting(_START, "a model or a run whose weights to begin with", "")


@dataclass(frozen=True)
class MaskablePpo:
    """Settings of sb3-contrib's ``MaskablePPO``."""

    gamma: float = setting(_GAMMA, "the discount factor", 0.98)
    gae_lambda: float = setting(_FRACTION, "λ of generalised advantage estimation", 0.9)
    learning_rate: float = setting(_RATE, "Adam's at first; it falls to 0", 3e-4)
    batch_size: int = setting(_BATCH, "samples of a gradient step", 2048)
    n_steps: int = setting(_N_STEPS, "decisions of each environment in a round", 32)
    n_epochs: int = setting(Whole("a number", 1, 1000), "passes over a round's decisions", 3)
    clip_range: float = setting(_SMALL, "of the policy's change", 0.2)
    ent_coef: float = setting(_FRACTION, "weight of the entropy in the loss", 0.001)

    def as_keywords(self) -> dict[str, Any]:
        """As ``MaskablePPO`` takes them, but for the learning rate."""
        same = dataclasses.fields(MaskablePpo)
        return {f.name: getattr(self, f.name) for f in same if f.name != "learning_rate"}


@dataclass(frozen=True)
class Ppo(MaskablePpo):
    """The same for partition policies.

    Scores over ``temperature`` are the first policy's log-odds. ``start`` is a folder of an
    earlier run with the same network, whose weights to begin with.
    """

    temperature: float = setting(Number("a temperature", above=0), "of the first policy", 0.1)
    start: str = setting(Text("a folder", str), "a run whose weights to begin with", "")


@dataclass(frozen=True)
class Dqn:
    """Settings of ``masked-dqn``, see ``patchlight.emulation.learning.dqn``.

    ``train_freq`` is in decisions of each environment, all others in decisions over all of them.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.98)
    learning_rate: float = setting(_RATE, "Adam's", 3e-4)
    buffer_size: int = setting(Whole("a number", 1000, 10**8), "decisions that are kept", 200_000)
    learning_starts: int = setting(Whole("a number", 0, 10**9), "decisions before it", 20_000)
    batch_size: int = setting(_BATCH, "decisions of a gradient step", 512)
    n_steps: int = setting(Whole("a number", 1, 256), "decisions whose rewards are added up", 8)
    train_freq: int = setting(_N_STEPS, "decisions of each environment in a round", 4)
    gradient_steps: int = setting(Whole("a number", 1, 10_000), "of a round", 4)
    target_update_interval: int = setting(STEPS, "decisions between copies of the network", 20_000)
    exploration_fraction: float = setting(_FRACTION, "until when exploring gets less", 0.5)
    exploration_initial_eps: float = setting(_FRACTION, "part of decisions at random, first", 0.5)
    exploration_final_eps: float = setting(_FRACTION, "the same after that", 0.01)
    max_grad_norm: float = setting(Number("a norm", above=0), "gradients are cut to it", 10.0)

    def epsilon_at(self, part: float) -> float:
        """Which part of decisions is made at random when ``part`` of all steps are done."""
        done = min(1.0, part / self.exploration_fraction) if self.exploration_fraction else 1.0
        first, last = self.exploration_initial_eps, self.exploration_final_eps
        return first + done * (last - first)
