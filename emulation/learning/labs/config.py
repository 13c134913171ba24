"""What a training run over random labs is told: YAML in, a ``LabConfig`` out."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from patchlight.emulation.learning.config import NAME, ConfigError
from patchlight.emulation.simulator.traces import LAWS
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.fields import FieldType, ListOf, Text, Whole, choice
from patchlight.testbed.io.forms import Number, Record, setting
from patchlight.testbed.io.reader import FileIssues

DRAWN = "drawn"
LEARNED = ("partition",)
_GONE = ("placement", "topology", "order", "elasticity")
"""Kinds in which training added nothing to the rule *least-delay*."""
_SEED = Whole("a seed", 0, 2**31)
_LOAD = Number("a load", above=0, highest=4)


@dataclass(frozen=True)
class Labs:
    """Labs drawn from seeds (``patchlight.testbed.generate.generate``), with jobs for each.

    ``traces`` take turns: jobs that are ``drawn`` at random, or pieces of traces drawn by a law.
    """

    first_seed: int = setting(_SEED, "that of the first lab", 1000)
    largest: int = setting(Whole("a number of GPUs", 8, 1024), "GPUs of the largest lab", 64)
    jobs: int = setting(Whole("a number of jobs", 2, 10_000), "that come to each lab", 40)
    mixed: float = setting(
        Number("a part", lowest=0, highest=1), "of the labs that has two GPU models", 0.3
    )
    lowest_load: float = setting(_LOAD, "GPUs wanted over GPUs that there are, at least", 0.6)
    highest_load: float = setting(_LOAD, "the same at most", 1.3)
    traces: tuple[str, ...] = setting(
        ListOf(choice("jobs", DRAWN, *LAWS), "kinds of jobs"),
        "what jobs are like, lab by lab",
        (DRAWN,),
    )

    def __post_init__(self) -> None:
        if not self.traces:
            raise BadInput(f"'traces' is empty: expected some of {DRAWN}, {', '.join(LAWS)}")
        if self.lowest_load > self.highest_load:
            raise BadInput(f"'lowest_load' {self.lowest_load} is over {self.highest_load}")


@dataclass(frozen=True)
class GraphNetwork:
    """How large the network is: numbers for each node, and rounds of messages."""

    width: int = setting(Whole("a width", 1, 512), "numbers for each node", 24)
    rounds: int = setting(Whole("a number", 0, 8), "of messages between neighbours", 2)


@dataclass(frozen=True)
class Trials:
    """How answers are tried out.

    Of each lab's episode ``decisions`` are looked at; at each, up to ``options`` answers that seem
    best and one more are played until all jobs have ended that come up to ``horizon`` after the
    one decided about.
    """

    decisions: int = setting(Whole("a number", 1, 1000), "of an episode that are looked at", 6)
    options: int = setting(Whole("a number", 2, 100), "that seem best, and one more, are tried", 4)
    horizon: int = setting(Whole("a number of jobs", 1, 10_000), "that come after and count", 24)


@dataclass(frozen=True)
class Fitting:
    """How the network learns from what was tried: AdamW, until labs kept apart get no better."""

    learning_rate: float = setting(Number("a learning rate", above=0), "AdamW's", 1e-3)
    weight_decay: float = setting(Number("a rate", lowest=0), "AdamW's", 0.1)
    batch_size: int = setting(Whole("a number", 1, 4096), "decisions of a gradient step", 64)
    n_epochs: int = setting(Whole("a number", 1, 1000), "through what was tried, at most", 20)


@dataclass(frozen=True)
class HeldOut:
    """On which labs, never trained on, the model is tested at the end."""

    first_seed: int = setting(_SEED, "that of the first lab", 500)
    labs: int = setting(Whole("a number", 2, 10_000), "of labs", 20)
    largest: int = setting(Whole("a number of GPUs", 8, 1024), "GPUs of the largest lab", 128)
    mixed: float = setting(
        Number("a part", lowest=0, highest=1), "of the labs that has two GPU models", 0.3
    )


def _record(cls: type[Any], name: str) -> Record:
    return Record(cls, repr(name))


@dataclass(frozen=True)
class LabConfig:
    """A training run. ``steps`` are decisions that are looked at, over all labs."""

    name: str = setting(NAME, "the model's name")
    learns: tuple[str, ...] = setting(
        ListOf(Text("a kind of policy", str), "kinds of policy"), "what it decides"
    )
    steps: int = setting(Whole("a number", 1, 10**9, grouped=True), "decisions looked at", 2000)
    seed: int = setting(_SEED, "of the weights and of what is drawn", 0)
    labs: Labs = setting(_record(Labs, "labs"), "where it learns", Labs())
    network: GraphNetwork = setting(_record(GraphNetwork, "network"), "its size", GraphNetwork())
    what_if: Trials = setting(_record(Trials, "what_if"), "what is tried out", Trials())
    fitting: Fitting = setting(_record(Fitting, "fitting"), "how it learns from that", Fitting())
    testing: HeldOut = setting(_record(HeldOut, "testing"), "at the end", HeldOut())

    def __post_init__(self) -> None:
        if self.learns == LEARNED:
            return
        if gone := [kind for kind in self.learns if kind in _GONE]:
            raise BadInput(
                f"learning {gone[0]!r} was removed, as it gained nothing: use the rule "
                f"'least-delay', and expect {list(LEARNED)} here"
            )
        raise BadInput(f"'learns' is {list(self.learns)}: expected {list(LEARNED)}")

    def as_data(self) -> dict[str, Any]:
        """As a card and a checkpoint keep it."""
        return dataclasses.asdict(self)


_CONFIG: FieldType = Record(LabConfig, "the configuration")


def is_for_labs(text: str) -> bool:
    """Whether a configuration is one of this kind: it says what is learned."""
    return re.search(r'^\s*"?learns"?\s*:', text, re.MULTILINE) is not None


def parse_lab_config(text: str, name: str = "config") -> LabConfig:
    """The configuration in this YAML text; ``ConfigError`` with every mistake in it."""
    issues = FileIssues(name, ConfigError)
    config = _CONFIG.parse(text, issues)
    issues.raise_if_any()
    assert isinstance(config, LabConfig)
    return config
