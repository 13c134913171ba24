"""Reads the configuration of a training run from YAML, and reports every mistake with its position.

Keys are those of Stable-Baselines3 where it has them; ``…_fraction`` is a part of all steps.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.scenario import (
    MAX_ERROR,
    FixedArrivals,
)
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES, law
from patchlight.testbed.errors import BadInput, FileError, nearest
from patchlight.testbed.io.keys import (
    Text,
    choice,
    grouped,
    listing,
    mapping,
    matching,
    number,
    plain,
    read,
    whole,
)
from patchlight.testbed.io.reader import FileIssues, read_text
from patchlight.testbed.io.records import record, setting

CONFIGS = Path(__file__).resolve().parent / "configs"
ALGORITHMS = {
    "afterstates": "afterstates",
    "policy-iteration": "policy_iteration",
    "dqn": "dqn",
}
"""Each with the key that its settings are under."""


class ConfigError(FileError):
    """A training configuration has mistakes."""


def _condition(text: str) -> str:
    Variation.under(text)
    return " ".join(text.split())


def _degree(text: str) -> int | str:
    if text == "sufficient":
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise BadInput(f"no teacher {text!r}: expected a degree or 'sufficient'")


def _law(text: str) -> str:
    law(text)
    return text


def _algorithm(text: str) -> str:
    if text in ALGORITHMS:
        return text
    raise BadInput(
        f"{text!r} is not an algorithm: {nearest(text, ALGORITHMS)}"
    )


_LAW = Annotated[Any, Text("a requirement law", _law)]
_STEPS = Annotated[
    int, whole("a number of steps", 1, 10**12), BeforeValidator(grouped)
]
_FRACTION = Annotated[float, number("a fraction", ge=0, le=1)]
_SMALL = Annotated[float, number("a rate", gt=0, le=1)]
_GAMMA = Annotated[float, number("a discount factor", gt=0, le=1)]
_RATE = Annotated[float, number("a learning rate", gt=0)]
_N_STEPS = Annotated[int, whole("a number of steps", 1, 4096)]
_BATCH = Annotated[int, whole("a number of samples", 1, 10**9)]
_START = Annotated[Any, Text("a folder", str)]
_TAUGHT = Annotated[
    Any, Text("a degree or 'sufficient'", _degree, numbers=True)
]
_TEACHER = Annotated[
    dict[_LAW, _TAUGHT],
    mapping("a degree for each law", "{A: 8, B: sufficient}"),
]
_CONDITION = Annotated[Any, Text("arrivals and models of jobs", _condition)]
_LAYER = Annotated[int, whole("a layer's size", 1, 4096)]
_SEED = Annotated[int, whole("a seed", 0, 2**31)]
_RULE = Annotated[str, choice("a placement rule", *PlacementRule)]
_TIMES = Annotated[
    tuple[Annotated[float, number("a time in 1,000 s", ge=0, le=100)], ...],
    listing("times in 1,000 s"),
]
_BUSY_AFTER_KS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 28)
NAME = Annotated[
    str,
    matching(
        "[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*",
        "a name",
        "letters, digits, -, _",
        "small",
        64,
    ),
]


@dataclass(frozen=True)
class Afterstates:
    """How values of afterstates are learned, see ``patchlight.emulation.learning.afterstates``.

    ``teacher`` names a degree, or ``sufficient``, for each law. It alone decides for the first
    ``teacher_only_fraction`` of all steps; after that, until ``teacher_until_fraction``, in
    ``teacher_env_fraction`` of the environments. ``epsilon`` falls to 0 at the end; the learning
    rate falls to 0 from ``decay_from_fraction`` on. ``ema_rate`` is that of the moving average of
    weights, by which the policy plays that is kept. ``start`` is the folder of an earlier run,
    whose weights to begin with.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.98)
    td_lambda: float = setting(_FRACTION, "λ of the returns", 0.8)
    epsilon: float = setting(
        _FRACTION, "initial share of random decisions", 0.01
    )
    learning_rate: float = setting(_RATE, "Adam's", 1e-3)
    decay_from_fraction: float = setting(
        _FRACTION,
        "the share of steps after which the learning rate falls",
        0.4,
    )
    batch_size: int = setting(_BATCH, "samples of a gradient step", 1024)
    n_steps: int = setting(
        _N_STEPS, "decisions of each environment in a round", 16
    )
    ema_rate: float = setting(
        _SMALL, "weight of the average of weights, per gradient step", 0.002
    )
    teacher_only_fraction: float = setting(
        _FRACTION,
        "the share of steps in which the teacher decides alone",
        0.15,
    )
    teacher_until_fraction: float = setting(
        _FRACTION,
        "the share of steps in which the teacher decides at all",
        0.6,
    )
    teacher_env_fraction: float = setting(
        _FRACTION, "the share of environments where it does", 0.2
    )
    start: str = setting(_START, "a run whose weights to begin with", "")
    teacher: Mapping[str, int | str] = setting(
        _TEACHER, "the teacher's degree for each law", {}
    )


@dataclass(frozen=True)
class PolicyIteration:
    """How roll-outs improve a policy, see ``patchlight.emulation.learning.policy_iteration``.

    Of each decision at most ``options`` actions, whose scores are at most ``near`` below the best,
    are played out in ``futures`` futures of ``jobs`` jobs each. ``buffer_size``, ``batch_size`` and
    ``learning_starts`` count decisions that were played out, all else as ``Afterstates``.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.99)
    near: float = setting(
        Annotated[float, number("a difference", gt=0)],
        "of scores, in accepted jobs",
        0.2,
    )
    options: int = setting(
        Annotated[int, whole("a number", 2, 64)],
        "of actions that are compared",
        4,
    )
    futures: int = setting(
        Annotated[int, whole("a number", 1, 4096)],
        "in which each is played out",
        8,
    )
    jobs: int = setting(
        Annotated[int, whole("a number", 1, 1000)],
        "to come in each of them",
        16,
    )
    epsilon: float = setting(
        _FRACTION, "initial share of random decisions", 0.03
    )
    learning_rate: float = setting(_RATE, "Adam's", 1e-3)
    decay_from_fraction: float = setting(
        _FRACTION,
        "the share of steps after which the learning rate falls",
        0.5,
    )
    buffer_size: int = setting(
        Annotated[int, whole("a number", 1000, 10**8)],
        "decisions that are kept",
        100_000,
    )
    learning_starts: int = setting(
        Annotated[int, whole("a number", 0, 10**9)],
        "decisions before it",
        5_000,
    )
    batch_size: int = setting(_BATCH, "decisions of a gradient step", 256)
    n_steps: int = setting(
        _N_STEPS, "decisions of each environment in a round", 4
    )
    gradient_steps: int = setting(
        Annotated[int, whole("a number", 1, 10_000)], "of a round", 8
    )
    ema_rate: float = setting(
        _SMALL, "weight of the average of weights, per gradient step", 0.005
    )
    start: str = setting(_START, "a run whose weights to begin with", "")


@dataclass(frozen=True)
class Dqn:
    """Ape-X DQN with the settings of PAC-ML's authors, see ``patchlight.emulation.learning.dqn``.

    ``learning_starts`` counts decisions, ``target_update_interval`` samples learned from.
    """

    gamma: float = setting(_GAMMA, "the discount factor", 0.999)
    multi_step: int = setting(
        Annotated[int, whole("a number", 1, 1000)], "of rewards in a return", 3
    )
    learning_rate: float = setting(_RATE, "Adam's", 4.121e-7)
    buffer_size: int = setting(
        Annotated[int, whole("a number", 1000, 10**8)],
        "decisions that are kept",
        100_000,
    )
    learning_starts: int = setting(
        Annotated[int, whole("a number", 0, 10**9)],
        "decisions before it",
        50_000,
    )
    batch_size: int = setting(_BATCH, "samples of a gradient step", 512)
    target_update_interval: int = setting(
        _BATCH, "samples between target networks", 100_000
    )
    alpha: float = setting(_FRACTION, "weight of the priority", 0.9)
    beta: float = setting(_FRACTION, "how far weights compensate for it", 0.1)
    n_steps: int = setting(
        _N_STEPS, "decisions of each environment in a round", 16
    )
    ema_rate: float = setting(
        _SMALL, "weight of the average of weights, per gradient step", 1.0
    )


@dataclass(frozen=True)
class Environment:
    """The simulated episodes, as ``pac_ml_scenario``; each has one of ``laws`` in turn.

    ``conditions`` are loads and mixes, like ``fixed:800``, ``poisson:1000 error:0.3`` or
    ``fixed:150 gnmt=1``: each law comes under each of them. ``remaining_error`` is that of
    ``Scenario``, in training and in evaluation, under conditions that have none of their own.
    ``blocks`` says among how many free blocks of each degree a policy chooses (``BlockChoices``).
    """

    rule: str = setting(
        _RULE,
        "the placement rule of operations",
        PlacementRule.RAMP_FIRST_FIT.value,
    )
    laws: tuple[str, ...] = setting(
        Annotated[tuple[_LAW, ...], listing("requirement laws")],
        "those of jobs",
        LAW_NAMES,
    )
    horizon_s: float = setting(
        Annotated[float, number("seconds", gt=0)],
        "an episode's length in seconds",
        1e6,
    )
    training_horizon_s: float | None = setting(
        Annotated[float, number("seconds", gt=0)],
        "the same while training, if different",
        None,
    )
    num_envs: int = setting(
        Annotated[int, whole("a number", 1, 65536)],
        "episodes in parallel",
        512,
    )
    first_seed: int = setting(_SEED, "that of the first episode", 1000)
    law_instance: int | None = setting(
        _SEED,
        "fixes laws B, C and D; by default new ones for each episode",
        None,
    )
    remaining_error: float = setting(
        Annotated[float, number("a share", ge=0, le=MAX_ERROR)],
        "error of the remaining times given to policies",
        0.0,
    )
    blocks: int = setting(
        Annotated[int, whole("a number", 1, 64)],
        "to choose from for each degree",
        1,
    )
    conditions: tuple[str, ...] = setting(
        Annotated[tuple[_CONDITION, ...], listing("conditions")],
        "arrivals and models of jobs",
        ("fixed:1000",),
    )

    def __post_init__(self) -> None:
        if not self.laws:
            raise BadInput(
                "'laws' is empty: expected at least one requirement law"
            )
        if not self.conditions:
            raise BadInput(
                "'conditions' is empty: expected at least one, like fixed:1000"
            )
        if self.blocks > 1 and self.rule != PlacementRule.RAMP_BLOCK.value:
            raise BadInput(
                f"'blocks' is of rule {PlacementRule.RAMP_BLOCK.value}: {self.rule} "
                "has no block to choose"
            )

    def under(self, condition: str) -> Variation:
        """What a condition says, and what is usual here where it says nothing."""
        return Variation.under(condition, self.remaining_error)

    @property
    def scenarios(self) -> list[tuple[str, str]]:
        """Each law under each condition."""
        return [
            (law, condition)
            for condition in self.conditions
            for law in self.laws
        ]

    def horizon_of(self, condition: str, training: bool = False) -> float:
        """How long an episode is under a condition: long enough for as many jobs."""
        usual_s = FixedArrivals().mean_interval_s
        horizon_s = (training and self.training_horizon_s) or self.horizon_s
        return (
            horizon_s
            * Variation.under(condition).arrivals.mean_interval_s
            / usual_s
        )

    @property
    def names(self) -> list[str]:
        """Their names in tables."""
        many = len(self.conditions) > 1
        return [
            f"{law} {under}" if many else law for law, under in self.scenarios
        ]


@dataclass(frozen=True)
class Network:
    """How large the networks are.

    ``busy_after_ks`` are the times for which the network is told which servers are still busy then,
    in those in which one job comes to 32 servers: with PAC-ML's arrivals 1,000 s. ``hidden`` are
    the layers over the cluster. ``observation`` ``pac-ml`` is what PAC-ML's agent sees, for the
    algorithm ``dqn``; ``graph_width`` and ``graph_rounds`` are of its graph network, which is left
    out with a width of 0.
    """

    busy_after_ks: tuple[float, ...] = setting(
        _TIMES, "the network sees which servers are busy then", _BUSY_AFTER_KS
    )
    observation: str = setting(
        Annotated[str, choice("an observation", "patchlight", "pac-ml")],
        "observation: Patchlight's or PAC-ML's",
        "patchlight",
    )
    cluster: str = setting(
        Annotated[str, choice("inputs of the network", "servers")],
        "which servers are busy",
        "servers",
    )
    hidden: tuple[int, ...] = setting(
        Annotated[tuple[_LAYER, ...], listing("layers' sizes")],
        "hidden layers",
        (256, 64),
    )
    graph_width: int = setting(
        Annotated[int, whole("a width", 0, 256)], "of the message passing", 0
    )
    graph_rounds: int = setting(
        Annotated[int, whole("a number", 1, 8)], "of message passing", 2
    )

    def __post_init__(self) -> None:
        if not self.busy_after_ks:
            raise BadInput(
                "'busy_after_ks' is empty: expected at least one time"
            )
        if self.graph_width and self.observation != "pac-ml":
            raise BadInput(
                "'graph_width' is of the observation 'pac-ml': ours has no graph"
            )

    @property
    def has_model(self) -> bool:
        """Whether a model can be exported; PAC-ML's observation is for studies only."""
        return self.observation != "pac-ml"


@dataclass(frozen=True)
class Evaluation:
    """On which seeds, never trained on, progress is measured, and how often."""

    first_seed: int = setting(_SEED, "that of the first episode", 500)
    seeds: int = setting(
        Annotated[int, whole("a number", 1, 1000)], "of episodes", 10
    )
    every_steps: int = setting(_STEPS, "interval in decisions", 1_000_000)


def _record(cls: type[Any]) -> Any:
    return record(cls, repr(cls.__name__.lower()))


@dataclass(frozen=True)
class Config:
    """A training run. ``steps`` are decisions, over all environments."""

    name: str = setting(NAME, "the model's name")
    algorithm: str = setting(
        Annotated[Any, Text("an algorithm", _algorithm)],
        "the algorithm",
        "afterstates",
    )
    steps: int = setting(_STEPS, "decisions to learn from", 2_000_000)
    seed: int = setting(_SEED, "seed of the weights and of random draws", 0)
    environment: Environment = setting(
        _record(Environment), "the simulated cluster", Environment()
    )
    network: Network = setting(
        _record(Network), "the size of the network", Network()
    )
    afterstates: Afterstates = setting(
        _record(Afterstates), "of that algorithm", Afterstates()
    )
    policy_iteration: PolicyIteration = setting(
        _record(PolicyIteration), "of that algorithm", PolicyIteration()
    )
    dqn: Dqn = setting(_record(Dqn), "of that algorithm", Dqn())
    evaluation: Evaluation = setting(
        _record(Evaluation), "while training", Evaluation()
    )

    def __post_init__(self) -> None:
        key = ALGORITHMS[self.algorithm]
        usual = {each.name: each.default for each in dataclasses.fields(self)}
        for other in ALGORITHMS.values():
            if other != key and getattr(self, other) != usual[other]:
                raise BadInput(
                    f"{other!r} is not of algorithm {self.algorithm!r}: its settings are {key!r}"
                )
        if (key == "dqn") == self.network.has_model:
            raise BadInput(
                "the algorithm 'dqn' and the observation 'pac-ml' need each other: "
                f"these are {self.algorithm!r} and {self.network.observation!r}"
            )
        if key == "dqn" and self.environment.blocks > 1:
            raise BadInput("'blocks' needs the observation 'patchlight'")
        conditions = self.environment.conditions
        errors = [
            self.environment.under(each).remaining_error for each in conditions
        ]
        if key == "policy_iteration" and any(errors):
            raise BadInput(
                "'policy-iteration' needs exact remaining times: no error of them"
            )

    @property
    def settings(self) -> Afterstates | PolicyIteration | Dqn:
        """Those of its algorithm."""
        found: Afterstates | PolicyIteration | Dqn = getattr(
            self, ALGORITHMS[self.algorithm]
        )
        return found

    def as_data(self) -> dict[str, Any]:
        """As a card and a checkpoint keep it: what the algorithm does not use is left out."""
        data: dict[str, Any] = dataclasses.asdict(self)
        for name in set(ALGORITHMS.values()) - {ALGORITHMS[self.algorithm]}:
            del data[name]
        for name in ("law_instance", "training_horizon_s"):
            if data["environment"][name] is None:
                del data["environment"][name]  # A file has no way to write it.
        return data


_CONFIG = record(Config, "the configuration")


def find_config(path: Path) -> Path:
    """The file itself, or the shipped configuration of this name."""
    shipped = CONFIGS / f"{path}.yaml"
    if path.exists() or path.parent != Path("."):
        return path
    return shipped if shipped.exists() else path


def read_config(path: Path) -> Config:
    """The configuration in a file; ``ConfigError`` with every mistake in it."""
    return parse_config(read_text(path, ConfigError), str(path))


def parse_config(text: str, name: str = "config") -> Config:
    """The configuration in this YAML text; ``name`` is what mistakes call the file."""
    issues = FileIssues(name, ConfigError)
    found = read(_CONFIG, text, issues)
    issues.raise_if_any()
    config = plain(found)
    assert isinstance(config, Config)
    return config


def with_conditions(config: Config, conditions: Sequence[str]) -> Config:
    """A configuration under other conditions; ``BadInput`` for what is none."""
    written = tuple(_condition(each) for each in conditions)
    return replace(
        config, environment=replace(config.environment, conditions=written)
    )


def with_start(config: Config, start: str) -> Config:
    """A configuration that begins with the weights of an earlier run."""
    if isinstance(config.settings, Dqn):
        raise BadInput(
            "the algorithm 'dqn' cannot start from the weights of another run"
        )
    key = ALGORITHMS[config.algorithm]
    changed: dict[str, Any] = {key: replace(config.settings, start=start)}
    return replace(config, **changed)


def check(config: Config, degrees: tuple[int, ...]) -> None:
    """``BadInput`` if a teacher leaves a law out, or names a degree that this cluster lacks."""
    teacher = config.afterstates.teacher
    missing = [
        law
        for law in dict.fromkeys(config.environment.laws)
        if law not in teacher
    ]
    if teacher and missing:
        raise BadInput(
            f"the teacher has no degree for law {', '.join(missing)}"
        )
    for name, degree in teacher.items():
        if isinstance(degree, int) and degree not in degrees:
            raise BadInput(
                f"the teacher for law {name} is degree {degree}: expected one of "
                f"{', '.join(map(str, degrees))}"
            )
