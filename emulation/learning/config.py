"""What a training run is told: YAML in; a ``Config``, or every mistake with its position, out.

Keys are those of Stable-Baselines3 where it has them; ``…_fraction`` is a part of all steps.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.emulation.experiments.pac_ml.variation import Variation
from patchlight.emulation.learning.algorithms import (
    ALGORITHMS,
    LAW,
    STEPS,
    Afterstates,
    Dqn,
    PolicyIteration,
    Ppo,
)
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.scenario import MAX_ERROR, FixedArrivals
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, ListOf, Text, Whole, choice, matching
from patchlight.testbed.io.forms import Number, Record, setting
from patchlight.testbed.io.issues import FileError, FileIssues
from patchlight.testbed.io.reader import parse, read_text

CONFIGS = Path(__file__).resolve().parent / "configs"


class ConfigError(FileError):
    """A training configuration has mistakes."""


def _condition(text: str) -> str:
    Variation.under(text)
    return " ".join(text.split())


_CONDITION = Text("when jobs come, and of which models", _condition)
_OBSERVATIONS = ("patchlight", "pac-ml")
_CLUSTERS = ("servers", "blocks", "both")
_TIMES_BY = ("told", "limit", "size", "graph")
_LAYER = Whole("a layer's size", 1, 4096)
_SEED = Whole("a seed", 0, 2**31)
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

    ``conditions`` are loads and mixes, like ``fixed:800``, ``poisson:1000 error:0.3`` or
    ``fixed:150 gnmt=1``: each law comes under each of them. ``remaining_error`` is that of
    ``Scenario``, in training and in evaluation, under conditions that have none of their own.
    ``blocks`` says among how many free blocks of each degree a policy chooses (``BlockChoices``).
    """

    rule: str = setting(_RULE, "how operations are placed", PlacementRule.RAMP_FIRST_FIT.value)
    laws: tuple[str, ...] = setting(ListOf(LAW, "requirement laws"), "those of jobs", LAW_NAMES)
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
    blocks: int = setting(Whole("a number", 1, 64), "to choose from for each degree", 1)
    conditions: tuple[str, ...] = setting(
        ListOf(_CONDITION, "conditions"), "when jobs come, and of which models", (_PLAIN,)
    )

    def __post_init__(self) -> None:
        if not self.laws:
            raise BadInput("'laws' is empty: expected at least one requirement law")
        if not self.conditions:
            raise BadInput("'conditions' is empty: expected at least one, like fixed:1000")
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
class Evaluation:
    """On which seeds, never trained on, progress is measured, and how often."""

    first_seed: int = setting(_SEED, "that of the first episode", 500)
    seeds: int = setting(Whole("a number", 1, 1000), "of episodes", 10)
    every_steps: int = setting(STEPS, "how often, in decisions", 1_000_000)


def _record(cls: type[Any]) -> Record:
    return Record(cls, repr(cls.__name__.lower()))


@dataclass(frozen=True)
class Config:
    """A training run. ``steps`` are decisions, over all environments."""

    name: str = setting(NAME, "the model's name")
    algorithm: str = setting(choice("an algorithm", *ALGORITHMS), "how it learns", "afterstates")
    steps: int = setting(STEPS, "decisions to learn from", 2_000_000)
    seed: int = setting(_SEED, "of the weights and of what is drawn", 0)
    environment: Environment = setting(_record(Environment), "what is simulated", Environment())
    network: Network = setting(_record(Network), "how large it is", Network())
    afterstates: Afterstates = setting(_record(Afterstates), "of that algorithm", Afterstates())
    policy_iteration: PolicyIteration = setting(
        _record(PolicyIteration), "of that algorithm", PolicyIteration()
    )
    ppo: Ppo = setting(_record(Ppo), "of maskable-ppo", Ppo())
    dqn: Dqn = setting(_record(Dqn), "of masked-dqn", Dqn())
    evaluation: Evaluation = setting(_record(Evaluation), "while training", Evaluation())

    def __post_init__(self) -> None:
        key = ALGORITHMS[self.algorithm]
        usual = {each.name: each.default for each in dataclasses.fields(self)}
        for other in ALGORITHMS.values():
            if other != key and getattr(self, other) != usual[other]:
                raise BadInput(
                    f"{other!r} is not of algorithm {self.algorithm!r}: its settings are {key!r}"
                )
        if key == "policy_iteration":
            self._check_policy_iteration()
        if self.environment.blocks > 1:
            if key not in ("afterstates", "policy_iteration"):
                raise BadInput(f"{self.algorithm!r} does not choose blocks: 'afterstates' does")
            if self.network.graph_width or self.network.no_model:
                raise BadInput(
                    "'blocks' above 1 needs the observation 'patchlight', 'times: told' and no "
                    "'graph_width': scores are then of clusters alone"
                )
        if self.network.times != "told" and key != "afterstates":
            raise BadInput(f"{self.algorithm!r} does not learn where times are not told")
        if self.network.observation == "pac-ml":
            if self.afterstates.start:
                raise BadInput("'start' needs the observation 'patchlight': models see by that")
            if key == "ppo":
                raise BadInput("'maskable-ppo' does not learn by the observation 'pac-ml'")

    def _check_policy_iteration(self) -> None:
        if self.network.observation == "pac-ml" or self.network.graph_width:
            raise BadInput(
                "'policy-iteration' compares clusters alone: it needs the observation "
                "'patchlight' and no 'graph_width'"
            )
        environment = self.environment
        if any(environment.under(each).remaining_error for each in environment.conditions):
            raise BadInput("'policy-iteration' needs exact remaining times: no error of them")

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
        if self.environment.blocks == 1:
            del data["environment"]["blocks"]
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


def with_conditions(config: Config, conditions: Sequence[str]) -> Config:
    """A configuration under other conditions; ``BadInput`` for what is none."""
    written = tuple(_condition(each) for each in conditions)
    return replace(config, environment=replace(config.environment, conditions=written))


def with_start(config: Config, start: str) -> Config:
    """A configuration that begins with these weights; ``BadInput`` if its algorithm cannot."""
    key = ALGORITHMS[config.algorithm]
    settings = getattr(config, key)
    if not hasattr(settings, "start"):
        raise BadInput(f"{config.algorithm!r} always begins anew: it has no 'start'")
    changed: dict[str, Any] = {key: replace(settings, start=start)}
    return replace(config, **changed)


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
