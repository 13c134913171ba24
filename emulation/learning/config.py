"""What a training run is told: YAML in; a ``Config``, or every mistake with its place, out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from patchlight.emulation.simulator.ramp.placement import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.testbed.errors import BadInput
from patchlight.testbed.files.issues import FileError, FileIssue, FileIssues, nearest

CONFIGS = Path(__file__).resolve().parent / "configs"
ALGORITHMS = ("afterstates", "maskable-ppo")
TEACHERS = ("sufficient",)


class ConfigError(FileError):
    """A training configuration has mistakes."""


@dataclass(frozen=True)
class Environment:
    """What is simulated: as ``pac_ml_scenario``; each episode has one of ``laws`` in turn."""

    rule: str = PlacementRule.RAMP_FIRST_FIT.value
    laws: tuple[str, ...] = LAW_NAMES
    horizon_s: float = 1e6
    lanes: int = 512
    first_seed: int = 1000


@dataclass(frozen=True)
class Network:
    """How large the networks are.

    ``busy_after`` are the times, in units of 1,000 s, for which the network is told who is still
    busy then. ``hidden`` are the layers over the cluster; ``graph_width`` and ``graph_rounds`` are
    of the message passing over the computation graph, which is left out with a width of 0.
    """

    busy_after: tuple[float, ...] = (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20, 28)
    hidden: tuple[int, ...] = (256, 64)
    graph_width: int = 0
    graph_rounds: int = 2


@dataclass(frozen=True)
class Afterstates:
    """How values of afterstates are learned, see ``patchlight.emulation.learning.afterstates``.

    ``teacher`` names a degree, or ``sufficient``, for each law. It decides for the first
    ``taught`` of all steps; after that, until ``teaching`` of all steps, in ``taught_lanes`` of the
    lanes. The learning rate falls from ``decaying`` of all steps on.
    """

    discount: float = 0.98
    trace: float = 0.8
    exploration: float = 0.01
    learning_rate: float = 1e-3
    decaying: float = 0.4
    batch: int = 1024
    horizon: int = 16
    averaging: float = 0.002
    taught: float = 0.15
    teaching: float = 0.6
    taught_lanes: float = 0.2
    teacher: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ppo:
    """Settings of sb3-contrib's ``MaskablePPO``; ``horizon`` is its ``n_steps``.

    ``start`` is a folder of an earlier run with the same network, whose weights to begin with.
    """

    discount: float = 0.98
    trace: float = 0.9
    learning_rate: float = 3e-4
    batch: int = 2048
    horizon: int = 32
    epochs: int = 3
    clip: float = 0.2
    entropy: float = 0.001
    sharpness: float = 10.0
    start: str = ""


@dataclass(frozen=True)
class Evaluation:
    """On which seeds, never trained on, progress is measured, and how often."""

    first_seed: int = 500
    seeds: int = 10
    every_steps: int = 1_000_000


@dataclass(frozen=True)
class Config:
    """A training run. ``steps`` are decisions, over all lanes."""

    name: str
    algorithm: str = "afterstates"
    steps: int = 2_000_000
    seed: int = 0
    environment: Environment = field(default_factory=Environment)
    network: Network = field(default_factory=Network)
    afterstates: Afterstates = field(default_factory=Afterstates)
    ppo: Ppo = field(default_factory=Ppo)
    evaluation: Evaluation = field(default_factory=Evaluation)

    def as_data(self) -> dict[str, Any]:
        """As a card and a checkpoint keep it: what the algorithm does not use is left out."""
        found: dict[str, Any] = dataclasses.asdict(self)
        del found["ppo" if self.algorithm == "afterstates" else "afterstates"]
        return found


def find_config(path: Path) -> Path:
    """The file itself, or the configuration of this name that comes with Patchlight."""
    shipped = CONFIGS / f"{path}.yaml"
    return shipped if not path.exists() and path.parent == Path(".") and shipped.exists() else path


def read_config(path: Path) -> Config:
    """The configuration in a file; ``ConfigError`` with every mistake in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([FileIssue(str(path), 1, 1, f"cannot be read: {error}")]) from None
    return parse_config(text, str(path))


def parse_config(text: str, name: str = "config") -> Config:
    """The configuration in this YAML text; ``name`` is what mistakes call the file."""
    mistakes = FileIssues(name, ConfigError)
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ConfigError([FileIssue(name, line, column, f"not YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([FileIssue(name, 1, 1, f"not YAML: {error}")]) from None
    config = None
    if root is None:
        mistakes.add(1, 1, "the file is empty: expected at least 'name: …'")
    else:
        config = _Reader(mistakes).group(root, Config)
    mistakes.raise_if_any()
    assert isinstance(config, Config)
    return config


# Bounds of numbers, by key: least, most, and whether the least itself is allowed.
_SHARE, _POSITIVE = (0.0, 1.0, True), (0.0, math.inf, False)
_BOUNDS: Mapping[str, tuple[float, float, bool]] = {
    "discount": (0.0, 1.0, False), "trace": _SHARE, "exploration": _SHARE, "taught": _SHARE,
    "teaching": _SHARE, "taught_lanes": _SHARE, "decaying": _SHARE, "averaging": (0, 1, False),
    "clip": (0, 1, False), "entropy": _SHARE, "graph_width": (0, 256, True),
    "graph_rounds": (1, 8, True), "seed": (0, 2**31, True), "first_seed": (0, 2**31, True),
    "lanes": (1, 65536, True), "hidden": (1, 4096, True), "busy_after": (0, 100, True),
    "horizon": (1, 4096, True), "seeds": (1, 1000, True),
}  # fmt: skip
_WORDS: Mapping[str, tuple[str, ...]] = {
    "algorithm": ALGORITHMS,
    "rule": tuple(PlacementRule),
    "laws": LAW_NAMES,
}


class _Reader:
    """Reads dataclasses from YAML nodes: their fields are the keys, their defaults the kinds."""

    def __init__(self, mistakes: FileIssues) -> None:
        self._mistakes = mistakes

    def group(self, node: yaml.Node, kind: type[Any]) -> Any:
        what = "the configuration" if kind is Config else f"{kind.__name__.lower()!r}"
        if not isinstance(node, yaml.MappingNode):
            self._wrong(node, f"{what} is a group of 'key: value' lines")
            return None
        known = {each.name: each for each in dataclasses.fields(kind)}
        found: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                self._wrong(key, f"unknown key {name!r} in {what}: {nearest(name, known)}")
            elif name in found:
                self._wrong(key, f"key {name!r} stands twice: expected it once")
            else:
                found[name] = self._value(value, name, _default(known[name]))
        for name, each in known.items():
            if _default(each) is None and found.get(name) is None:
                if name not in found:
                    self._wrong(node, f"{what} lacks {name!r}")
                found[name] = ""
        return kind(**{name: value for name, value in found.items() if value is not None})

    def _value(self, node: yaml.Node, name: str, default: Any) -> Any:
        if dataclasses.is_dataclass(default):
            return self.group(node, type(default))
        if isinstance(default, tuple):
            if not isinstance(node, yaml.SequenceNode) or not node.value:
                return self._wrong(node, f"{name!r} is a list, like {list(default)}")
            return tuple(self._value(each, name, default[0]) for each in node.value)
        if isinstance(default, dict):
            return self._teacher(node)
        if not isinstance(node, yaml.ScalarNode):
            return self._wrong(node, f"{name!r} is one value, not a group or list")
        if default is None or isinstance(default, str):
            return self._word(node, name)
        return self._number(node, name, default)

    def _word(self, node: yaml.ScalarNode, name: str) -> Any:
        known = _WORDS.get(name)
        if known and node.value not in known:
            return self._wrong(node, f"{name!r} is {node.value!r}: {nearest(node.value, known)}")
        if name == "name" and not (
            0 < len(node.value) <= 64 and node.value.replace("-", "").replace("_", "").isalnum()
        ):
            return self._wrong(node, f"{node.value!r} is no name: expected letters, digits, -, _")
        return str(node.value)

    def _number(self, node: yaml.ScalarNode, name: str, default: float) -> Any:
        whole = isinstance(default, int) and name != "busy_after"
        try:
            text = node.value.replace("_", "")
            value: float = int(text) if whole else float(text)
        except ValueError:
            kind = "a whole number" if whole else "a number"
            return self._wrong(node, f"{name!r} is {node.value!r}: expected {kind}")
        least, most, closed = _BOUNDS.get(name, _POSITIVE)
        if not (least < value <= most or (closed and value == least)) or math.isinf(value):
            over = "from" if closed else "over"
            upto = f" to {most:g}" if math.isfinite(most) else " on"
            return self._wrong(node, f"{name!r} is {value:g}: expected {over} {least:g}{upto}")
        return value

    def _teacher(self, node: yaml.Node) -> Any:
        if not isinstance(node, yaml.MappingNode):
            return self._wrong(node, "'teacher' gives a degree for each law, like {A: 8, B: 16}")
        found: dict[str, int | str] = {}
        for key, value in node.value:
            law, degree = str(key.value), str(value.value)
            if law not in LAW_NAMES:
                self._wrong(key, f"no requirement law {law!r}: {nearest(law, LAW_NAMES)}")
            elif degree in TEACHERS:
                found[law] = degree
            elif degree.isdigit() and int(degree) > 0:
                found[law] = int(degree)
            else:
                self._wrong(value, f"no teacher {degree!r}: expected a degree or 'sufficient'")
        return found

    def _wrong(self, node: yaml.Node, message: str) -> Any:
        """Notes the mistake; ``None``, to go on with."""
        mark = node.start_mark
        self._mistakes.add(mark.line + 1, mark.column + 1, message)
        return None


def _default(each: dataclasses.Field[Any]) -> Any:
    if each.default_factory is not dataclasses.MISSING:
        return each.default_factory()
    return None if each.default is dataclasses.MISSING else each.default


def check(config: Config, degrees: tuple[int, ...]) -> None:
    """``BadInput`` if a teacher names a degree that this cluster does not have."""
    for law, degree in config.afterstates.teacher.items():
        if isinstance(degree, int) and degree not in degrees:
            raise BadInput(
                f"the teacher for law {law} is degree {degree}: expected one of "
                f"{', '.join(map(str, degrees))}"
            )
