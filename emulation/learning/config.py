"""What a training run is told: YAML in; a ``Config``, or every mistake with its position, out.

Keys are those of Stable-Baselines3 where it has them; ``…_fraction`` is a part of all steps.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES, law
from patchlight.emulation.simulator.ramp.scenario import MAX_ERROR, FixedArrivals
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.fields import (
    FieldType,
    ListOf,
    MapOf,
    Number,
    Text,
    Whole,
    choice,
    matching,
)
from patchlight.testbed.files.issues import FileError, FileIssues
from patchlight.testbed.files.reader import parse, read_text
from patchlight.testbed.files.records import Record, setting

CONFIGS = Path(__file__).resolve().parent / "configs"
ALGORITHMS = {"afterstates": "afterstates", "maskable-ppo": "ppo", "masked-dqn": "dqn"}
"""Each with the key that its settings are under."""
TEACHERS = ("sufficient",)


class ConfigError(FileError):
    """A training configuration has mistakes."""


def _degree(text: str) -> int | str:
    if text in TEACHERS:
        return text
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise BadInput(f"no teacher {text!r}: expected a degree or {' or '.join(TEACHERS)!r}")


def _law(text: str) -> str:
    law(text)
    return text


def _condition(text: str) -> str:
    Variation.under(text)
    return " ".join(text.split())


_LAW = Text("a requirement law", _law)
_CONDITION = Text("when jobs come, and of which models", _condition)
_OBSERVATIONS = ("patchlight", "pac-ml")
_CLUSTERS = ("servers", "blocks", "both")
_TIMES_BY = ("told", "limit", "size", "graph")
_FRACTION = Number("a fraction", lowest=0, highest=1)
_SMALL = Number("a rate", above=0, highest=1)
_GAMMA = Number("a discount factor", above=0, highest=1)
_RATE = Number("a learning rate", above=0)
_LAYER = Whole("a layer's size", 1, 4096)
_SEED = Whole("a seed", 0, 2**31)
_STEPS = Whole("a number of steps", 1, 10**12, grouped=True)
_N_STEPS = Whole("a number of steps", 1, 4096)
_BATCH = Whole("a number of samples", 1, 10**9)
_TAUGHT = Text("a degree or 'sufficient'", _degree, numbers=True)
_TEACHER = MapOf(_LAW, _TAUGHT, "a degree for each law", "{A: 8, B: sufficient}")
_RULE = choice("a placement rule", *PlacementRule)
_TIMES = ListOf(Number("a time in 1,000 s", lowest=0, highest=100), "times in 1,000 s")
_PLAIN = "fixed:1000"
_BUSY_AFTER_KS = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 28)
NAME = matching(
    r"[A-Za-z0-9_-]*[A-Za-z0-9][A-Za-z0-9_-]*", "a name", "letters, digits, -, _", "small", 64
)


@dataclass(frozen=True)
class Environment:
    """What is simulated: as ``pac_ml_scenario``; each episode has one of ``laws`` in turn.

    ``conditions`` are loads and mixes, like ``fixed:800``, ``poisson:1000`` or
    ``fixed:150 gnmt=1``: each law comes under each of them. ``remaining_error`` is that of
    ``Scenario``, in training and in evaluation.
    """

    rule: str = setting(_RULE, "how operations are placed", PlacementRule.RAMP_FIRST_FIT.value)
    laws: tuple[str, ...] = setting(ListOf(_LAW, "requirement laws"), "those of jobs", LAW_NAMES)
    horizon_s: float = setting(Number("seconds", above=0), "an episode's length in seconds", 1e6)
    training_horizon_s: float | None = setting(
        Number("seconds", above=0), "the same while training, if other", None
    )
    num_envs: int = setting(Whole("a number", 1, 65536), "episodes that are played at once", 512)
    first_seed: int = setting(_SEED, "that of the first episode", 1000)
    law_instance: int | None = setting(_SEED, "fixes laws B, C and D, else new ones for each", None)
    remaining_error: float = setting(
        Number("a share", lowest=0, highest=MAX_ERROR), "how far off told remaining times are", 0.0
    )
    conditions: tuple[str, ...] = setting(
        ListOf(_CONDITION, "conditions"), "when jobs come, and of which models", (_PLAIN,)
    )

    def __post_init__(self) -> None:
        if not self.laws:
            raise BadInput("'laws' is empty: expected at least one requirement law")
        if not self.conditions:
            raise BadInput("'conditions' is empty: expected at least one, like fixed:1000")

    @property
    def scenarios(self) -> list[tuple[str, str]]:
        """Each law under each condition."""
        return [(law, condition) for condition in self.conditions for law in self.laws]

    def horizon_of(self, condition: str, training: bool = False) -> float:
        """How long an episode is under a condition: long enough for as many jobs."""
        usual_s = FixedArrivals().mean_interval_s
        horizon_s = (training and self.training_horizon_s) or self.horizon_s
        return horizon_s * Variation.under(condition).arrivals.mean_interval_s / usual_s

    @property
    def names(self) -> list[str]:
        """What tables call them."""
        many = len(self.conditions) > 1
        return [f"{law} {under}" if many else law for law, under in self.scenarios]


@dataclass(frozen=True)
class Network:
    """How large the networks are.

    ``busy_after_ks`` are the times for which the network is told who is still busy then, in those
    in which one job comes to 32 servers: with PAC-ML's arrivals 1,000 s. ``cluster`` says what it
    is told: which *servers* are busy, which share of the *blocks* of each size is free, or both.
    Of blocks only, its weights fit a RAMP of any shape. ``observation`` ``pac-ml`` is what PAC-ML's
    agent sees, and no afterstates.
    ``hidden`` are the layers over the cluster; ``graph_width`` and ``graph_rounds`` are of
    the message passing over the computation graph, which is left out with a width of 0.
    ``times`` says whether it is told how long the waiting job will take, or has to estimate that
    from the job's ``limit``, its ``size`` or its ``graph`` (``job_times``).
    """

    busy_after_ks: tuple[float, ...] = setting(
        _TIMES, "the network sees which servers are busy then", _BUSY_AFTER_KS
    )
    observation: str = setting(
        choice("an observation", *_OBSERVATIONS), "what is seen: ours, or PAC-ML's", "patchlight"
    )
    cluster: str = setting(
        choice("what a network is told of", *_CLUSTERS),
        "who is busy, free blocks, or both",
        "servers",
    )
    hidden: tuple[int, ...] = setting(ListOf(_LAYER, "layers' sizes"), "hidden layers", (256, 64))
    times: str = setting(
        choice("what tells how long a job takes", *_TIMES_BY),
        "told, or estimated from its limit, its size, its graph",
        "told",
    )
    graph_width: int = setting(Whole("a width", 0, 256), "of the message passing", 0)
    graph_rounds: int = setting(Whole("a number", 1, 8), "of message passing", 2)

    def __post_init__(self) -> None:
        if not self.busy_after_ks:
            raise BadInput("'busy_after_ks' is empty: expected at least one time")
        if self.times == "graph" and not self.graph_width:
            raise BadInput("'times: graph' needs a 'graph_width' above 0")
        if self.times != "told" and self.observation == "pac-ml":
            raise BadInput("'times' is of the observation 'patchlight': 'pac-ml' has its own")

    @property
    def no_model(self) -> str:
        """Why there is no model of such a network, for studies only; empty where there is."""
        if self.observation == "pac-ml":
            return "learned by PAC-ML's observation"
        return "" if self.times == "told" else "estimates times that nobody tells"


@dataclass(frozen=True)
class Afterstates:
    """How values of afterstates are learned, see ``patchlight.emulation.learning.afterstates``.

    ``teacher`` names a degree, or ``sufficient``, for each law. It alone decides for the first
    ``teacher_only_fraction`` of all steps; after that, until ``teacher_until_fraction``, in
    ``teacher_env_fraction`` of the environments. ``epsilon`` falls to 0 at the end; the learning
    rate falls to 0 from ``decay_from_fraction`` on. ``ema_rate`` is that of the moving average of
    weights, by which the policy plays that is kept. ``start`` is a model that comes along, or an
    ONNX file, whose weights to begin with.
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
    start: str = setting(Text("a model", str), "a model whose weights to begin with", "")
    teacher: Mapping[str, int | str] = setting(_TEACHER, "the degree that it takes by law", {})


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
    target_update_interval: int = setting(_STEPS, "decisions between copies of the network", 20_000)
    exploration_fraction: float = setting(_FRACTION, "until when exploring gets less", 0.5)
    exploration_initial_eps: float = setting(_FRACTION, "part of decisions at random, first", 0.5)
    exploration_final_eps: float = setting(_FRACTION, "the same after that", 0.01)
    max_grad_norm: float = setting(Number("a norm", above=0), "gradients are cut to it", 10.0)

    def epsilon_at(self, part: float) -> float:
        """Which part of decisions is made at random when ``part`` of all steps are done."""
        done = min(1.0, part / self.exploration_fraction) if self.exploration_fraction else 1.0
        first, last = self.exploration_initial_eps, self.exploration_final_eps
        return first + done * (last - first)


@dataclass(frozen=True)
class Evaluation:
    """On which seeds, never trained on, progress is measured, and how often."""

    first_seed: int = setting(_SEED, "that of the first episode", 500)
    seeds: int = setting(Whole("a number", 1, 1000), "of episodes", 10)
    every_steps: int = setting(_STEPS, "how often, in decisions", 1_000_000)


def _record(cls: type[Any]) -> Record:
    return Record(cls, repr(cls.__name__.lower()))


@dataclass(frozen=True)
class Config:
    """A training run. ``steps`` are decisions, over all environments."""

    name: str = setting(NAME, "the model's name")
    algorithm: str = setting(choice("an algorithm", *ALGORITHMS), "how it learns", "afterstates")
    steps: int = setting(_STEPS, "decisions to learn from", 2_000_000)
    seed: int = setting(_SEED, "of the weights and of what is drawn", 0)
    environment: Environment = setting(_record(Environment), "what is simulated", Environment())
    network: Network = setting(_record(Network), "how large it is", Network())
    afterstates: Afterstates = setting(_record(Afterstates), "of that algorithm", Afterstates())
    ppo: Ppo = setting(_record(Ppo), "of maskable-ppo", Ppo())
    dqn: Dqn = setting(_record(Dqn), "of masked-dqn", Dqn())
    evaluation: Evaluation = setting(_record(Evaluation), "while training", Evaluation())

    def __post_init__(self) -> None:
        key = ALGORITHMS[self.algorithm]
        for other, cls in (("afterstates", Afterstates), ("ppo", Ppo), ("dqn", Dqn)):
            if other != key and getattr(self, other) != cls():
                raise BadInput(
                    f"{other!r} is not of algorithm {self.algorithm!r}: its settings are {key!r}"
                )
        if self.network.times != "told" and key != "afterstates":
            raise BadInput(f"{self.algorithm!r} does not learn where times are not told")
        if self.network.observation == "pac-ml":
            if self.afterstates.start:
                raise BadInput("'start' needs the observation 'patchlight': models see by that")
            if key == "ppo":
                raise BadInput("'maskable-ppo' does not learn by the observation 'pac-ml'")

    @property
    def discount(self) -> float:
        """Of its algorithm."""
        gamma: float = getattr(self, ALGORITHMS[self.algorithm]).gamma
        return gamma

    def as_data(self) -> dict[str, Any]:
        """As a card and a checkpoint keep it: what the algorithm does not use is left out."""
        data: dict[str, Any] = dataclasses.asdict(self)
        for name in set(ALGORITHMS.values()) - {ALGORITHMS[self.algorithm]}:
            del data[name]
        for name in ("law_instance", "training_horizon_s"):
            if data["environment"][name] is None:
                del data["environment"][name]  # A file has no way to write it.
        # Runs from before there were these go on, and models stay as they were.
        if not self.environment.remaining_error:
            del data["environment"]["remaining_error"]
        if self.network.times == "told":
            del data["network"]["times"]
        return data


_CONFIG: FieldType = Record(Config, "the configuration")


def find_config(path: Path) -> Path:
    """The file itself, or the configuration of this name that comes with Patchlight."""
    shipped = CONFIGS / f"{path}.yaml"
    return shipped if not path.exists() and path.parent == Path(".") and shipped.exists() else path


def read_config(path: Path) -> Config:
    """The configuration in a file; ``ConfigError`` with every mistake in it."""
    return parse_config(read_text(path, ConfigError), str(path))


def parse_config(text: str, name: str = "config") -> Config:
    """The configuration in this YAML text; ``name`` is what mistakes call the file."""
    issues = FileIssues(name, ConfigError)
    config = parse(text, _CONFIG, issues)
    issues.raise_if_any()
    assert isinstance(config, Config)
    return config


def check(config: Config, degrees: tuple[int, ...]) -> None:
    """``BadInput`` if a teacher leaves a law out, or names a degree that this cluster lacks."""
    teacher = config.afterstates.teacher
    missing = [law for law in dict.fromkeys(config.environment.laws) if law not in teacher]
    if teacher and missing:
        raise BadInput(f"the teacher has no degree for law {', '.join(missing)}")
    for name, degree in teacher.items():
        if isinstance(degree, int) and degree not in degrees:
            raise BadInput(
                f"the teacher for law {name} is degree {degree}: expected one of "
                f"{', '.join(map(str, degrees))}"
            )
