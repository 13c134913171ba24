"""A policy for labs: what its training is told, its graph network, and that as policy and model.

Messages go along the cluster's edges. An option's score is its predicted cost and a correction that
is learned; before any training, the option with the lowest predicted cost is taken.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from patchlight.controller.policies.contract import (
    ClusterShape,
    ClusterView,
    GpuSite,
    JobView,
)
from patchlight.controller.policies.files import OUTPUT, OptionsCard
from patchlight.controller.policies.options.cluster_graph import (
    EDGE_FEATURES,
    NODE_FEATURES,
)
from patchlight.controller.policies.options.listing import Listing
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    COST,
    MOST_OPERATIONS,
    OPERATION_FEATURES,
    OPTION_FEATURES,
    SCHEMA,
    STATE_FEATURES,
    VERSION,
    Observation,
    Observer,
)
from patchlight.controller.policies.options.policies import (
    WeighsPartitions,
    load_options,
)
from patchlight.emulation.learning.config import NAME, ConfigError
from patchlight.emulation.learning.export import (
    code_version,
    rounded,
    traced,
    write_files,
)
from patchlight.emulation.simulator.traces.files import LAWS
from patchlight.testbed.errors import BadInput
from patchlight.testbed.io.keys import (
    Text,
    choice,
    grouped,
    listing,
    number,
    plain,
    read,
    whole,
)
from patchlight.testbed.io.reader import FileIssues
from patchlight.testbed.io.records import record, setting

DRAWN = "drawn"
LEARNED = ("partition",)
"""The kinds in which training adds to the rule *least-delay*."""
_SEED = Annotated[int, whole("a seed", 0, 2**31)]
_LOAD = Annotated[float, number("a load", gt=0, le=4)]


@dataclass(frozen=True)
class Labs:
    """Labs drawn from seeds (``patchlight.testbed.generate.generate``), with jobs for each.

    ``traces`` take turns: jobs that are ``drawn`` at random, or pieces of traces drawn by a law.
    """

    first_seed: int = setting(_SEED, "that of the first lab", 1000)
    largest: int = setting(
        Annotated[int, whole("a number of GPUs", 8, 1024)],
        "GPUs of the largest lab",
        64,
    )
    jobs: int = setting(
        Annotated[int, whole("a number of jobs", 2, 10_000)],
        "of arrivals in each lab",
        40,
    )
    mixed: float = setting(
        Annotated[float, number("a part", ge=0, le=1)],
        "share of labs with two GPU models",
        0.3,
    )
    lowest_load: float = setting(
        _LOAD, "lowest load: requested over available GPUs", 0.6
    )
    highest_load: float = setting(_LOAD, "highest load", 1.3)
    traces: tuple[str, ...] = setting(
        Annotated[
            tuple[Annotated[str, choice("jobs", DRAWN, *LAWS)], ...],
            listing("kinds of jobs"),
        ],
        "kinds of jobs in labs",
        (DRAWN,),
    )

    def __post_init__(self) -> None:
        if not self.traces:
            raise BadInput(
                f"'traces' is empty: expected some of {DRAWN}, {', '.join(LAWS)}"
            )
        if self.lowest_load > self.highest_load:
            raise BadInput(
                f"'lowest_load' {self.lowest_load} is over {self.highest_load}"
            )


@dataclass(frozen=True)
class GraphNetwork:
    """How large the network is, and where the rule decides in its place."""

    width: int = setting(
        Annotated[int, whole("a width", 1, 512)], "numbers for each node", 24
    )
    rounds: int = setting(
        Annotated[int, whole("a number", 0, 8)],
        "of messages between neighbours",
        2,
    )
    waiting: int = setting(
        Annotated[int, whole("a number", 0, 1000)],
        "least number of jobs; with fewer the rule decides",
        3,
    )


@dataclass(frozen=True)
class Trials:
    """How answers are tried out.

    Of each lab's episode ``decisions`` are looked at; at each, up to ``options`` answers that seem
    best and one more are played until all jobs have ended that come up to ``horizon`` after the
    one decided about.
    """

    decisions: int = setting(
        Annotated[int, whole("a number", 1, 1000)],
        "decisions of an episode that are examined",
        6,
    )
    options: int = setting(
        Annotated[int, whole("a number", 2, 100)],
        "best options tried, plus one more",
        4,
    )
    horizon: int = setting(
        Annotated[int, whole("a number of jobs", 1, 10_000)],
        "jobs that arrive later and count",
        24,
    )


@dataclass(frozen=True)
class Fitting:
    """How the network learns from what was tried: AdamW, until labs kept apart get no better."""

    learning_rate: float = setting(
        Annotated[float, number("a learning rate", gt=0)], "AdamW's", 1e-3
    )
    weight_decay: float = setting(
        Annotated[float, number("a rate", ge=0)], "AdamW's", 0.1
    )
    batch_size: int = setting(
        Annotated[int, whole("a number", 1, 4096)],
        "decisions of a gradient step",
        64,
    )
    n_epochs: int = setting(
        Annotated[int, whole("a number", 1, 1000)],
        "most passes through the data",
        20,
    )


@dataclass(frozen=True)
class HeldOut:
    """On which labs, never trained on, the model is tested at the end."""

    first_seed: int = setting(_SEED, "that of the first lab", 500)
    labs: int = setting(
        Annotated[int, whole("a number", 2, 10_000)], "of labs", 20
    )
    largest: int = setting(
        Annotated[int, whole("a number of GPUs", 8, 1024)],
        "GPUs of the largest lab",
        128,
    )
    mixed: float = setting(
        Annotated[float, number("a part", ge=0, le=1)],
        "share of labs with two GPU models",
        0.3,
    )


@dataclass(frozen=True)
class LabConfig:
    """A training run. ``steps`` are decisions that are looked at, over all labs."""

    name: str = setting(NAME, "the model's name")
    learns: tuple[str, ...] = setting(
        Annotated[
            tuple[Annotated[Any, Text("a kind of policy", str)], ...],
            listing("kinds of policy"),
        ],
        "the decision",
    )
    steps: int = setting(
        Annotated[int, whole("a number", 1, 10**9), BeforeValidator(grouped)],
        "decisions examined",
        2000,
    )
    seed: int = setting(_SEED, "seed of the weights and of random draws", 0)
    labs: Labs = setting(
        record(Labs, "'labs'"), "the labs for learning", Labs()
    )
    network: GraphNetwork = setting(
        record(GraphNetwork, "'network'"), "its size", GraphNetwork()
    )
    what_if: Trials = setting(
        record(Trials, "'what_if'"), "the options tried", Trials()
    )
    fitting: Fitting = setting(
        record(Fitting, "'fitting'"), "the algorithm from that", Fitting()
    )
    testing: HeldOut = setting(
        record(HeldOut, "'testing'"), "at the end", HeldOut()
    )

    def __post_init__(self) -> None:
        if self.learns != LEARNED:
            raise BadInput(
                f"'learns' is {list(self.learns)}: expected {list(LEARNED)}"
            )

    def as_data(self) -> dict[str, Any]:
        """As a card and a checkpoint keep it."""
        return dataclasses.asdict(self)


def is_for_labs(text: str) -> bool:
    """Whether a configuration is one of this kind: it says what is learned."""
    return re.search(r'^\s*"?learns"?\s*:', text, re.MULTILINE) is not None


_CONFIG = record(LabConfig, "the configuration")


def parse_lab_config(text: str, name: str = "config") -> LabConfig:
    """The configuration in this YAML text; ``ConfigError`` with every mistake in it."""
    issues = FileIssues(name, ConfigError)
    found = read(_CONFIG, text, issues)
    issues.raise_if_any()
    config = plain(found)
    assert isinstance(config, LabConfig)
    return config


INPUTS = tuple(ARRAYS)
_STUCK = 2  # the feature of an option that says that its ring has no way
_WAITING = 4  # the feature of the state that has n waiting jobs as n / (n + 8)
_SAMPLES = ("of_node", "of_option", "of_operation")


def _mean(
    values: Tensor,
    into: Tensor,
    like: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """Means of rows by the group that each is ``into``; as many groups as ``like`` has rows."""
    wide = into.unsqueeze(-1).expand(-1, values.shape[-1])
    weighed = values if weight is None else values * weight
    summed = (
        torch.zeros_like(like[:, :1]).expand(-1, values.shape[-1]).contiguous()
    )
    summed = summed.scatter_add(0, wide, weighed)
    each = torch.ones_like(values[:, :1]) if weight is None else weight
    counted = torch.zeros_like(like[:, :1]).scatter_add(
        0, into.unsqueeze(-1), each
    )
    return summed / counted.clamp(min=1e-6)


class Messages(nn.Module):
    """Rounds of messages along edges: each node hears the mean of its neighbours'."""

    def __init__(
        self,
        features: int,
        edge_features: int,
        width: int,
        rounds: int,
    ) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.say = nn.ModuleList(
            nn.Linear(width + edge_features, width) for _ in range(rounds)
        )
        self.mix = nn.ModuleList(
            nn.Linear(2 * width, width) for _ in range(rounds)
        )

    def forward(
        self,
        nodes: Tensor,
        edges: Tensor,
        links: Tensor | None,
    ) -> Tensor:
        """Nodes × features, edges × 2, edges × features → nodes × width."""
        state = torch.relu(self.enter(nodes))
        source = edges[:, 0]
        target = edges[:, 1]
        for say, mix in zip(self.say, self.mix, strict=True):
            heard = state[source]
            said = torch.relu(
                say(heard if links is None else torch.cat([heard, links], -1))
            )
            state = state + torch.relu(
                mix(torch.cat([state, _mean(said, target, state)], -1))
            )
        return state


class OptionNetwork(nn.Module):
    """Scores options of one decision or, as a union of graphs, of many.

    Once it is trained, scores are the rule's where fewer jobs wait than ``network`` says.
    """

    def __init__(self, network: GraphNetwork) -> None:
        super().__init__()
        width = network.width
        self.least_waiting = (network.waiting - 0.5) / (network.waiting + 7.5)
        self.cluster = Messages(
            NODE_FEATURES,
            EDGE_FEATURES,
            width,
            network.rounds,
        )
        self.job = Messages(
            OPERATION_FEATURES,
            0,
            width,
            min(1, network.rounds),
        )
        # Of an option: the nodes that it touches, by how much of it is there and by how much of
        # them it takes; the cluster, the job, the state, and itself.
        self.judge = nn.Sequential(
            nn.Linear(4 * width + STATE_FEATURES + OPTION_FEATURES, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )
        last = self.judge[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """A score for each option."""
        options = seen["options"]
        nodes = self.cluster(seen["nodes"], seen["edges"], seen["links"])
        operations = self.job(seen["operations"], seen["flows"], None)
        option = seen["touched"][:, 0]
        node = seen["touched"][:, 1]
        there = seen["amounts"][:, 0:1]
        taken = seen["amounts"][:, 1:2]
        touched = [
            _mean(
                nodes[node],
                option,
                options,
                each,
            )
            for each in (there, taken)
        ]
        whole = _mean(nodes, seen["of_node"], seen["state"])
        job = _mean(operations, seen["of_operation"], seen["state"])
        shared = torch.cat([whole, job, seen["state"]], -1)[seen["of_option"]]
        correction = self.judge(
            torch.cat([*touched, shared, options], -1)
        ).squeeze(-1)
        if not self.training:
            decides = (seen["state"][:, _WAITING] > self.least_waiting).float()
            correction = correction * decides[seen["of_option"]]
        found: Tensor = self.plain(options) + correction
        return found

    @staticmethod
    def plain(options: Tensor) -> Tensor:
        """The score of each option without a correction: that of the rule."""
        found: Tensor = -options[:, COST] - 10.0 * options[:, _STUCK]
        return found


def joined(observations: Sequence[Observation]) -> dict[str, Tensor]:
    """Many decisions as one: their graphs side by side, and of which decision each row is."""
    found: dict[str, list[np.ndarray]] = {
        name: [] for name in (*INPUTS, *_SAMPLES)
    }
    firsts = {
        name: np.zeros(2, np.int64) for name in ("edges", "flows", "touched")
    }
    for index, seen in enumerate(observations):
        sizes = (
            len(seen["nodes"]),
            len(seen["options"]),
            len(seen["operations"]),
        )
        for name in INPUTS:
            found[name].append(
                seen[name] + firsts[name] if name in firsts else seen[name]
            )
        for name, size in zip(_SAMPLES, sizes, strict=True):
            found[name].append(np.full(size, index, np.int64))
        for name, more in zip(firsts, ((0, 0), (2, 2), (1, 0)), strict=True):
            firsts[name] = firsts[name] + np.array(
                [sizes[more[0]], sizes[more[1]]]
            )
    return {
        name: torch.from_numpy(np.concatenate(arrays))
        for name, arrays in found.items()
    }


class OneDecision(nn.Module):
    """The network with an argument for each array of one observation, as ONNX wants it."""

    def __init__(self, network: OptionNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, *arrays: Tensor) -> Tensor:
        """The arrays in the order of ``INPUTS`` → a score for each option."""
        seen = dict(zip(INPUTS, arrays, strict=True))
        for name, of in zip(
            _SAMPLES, ("nodes", "options", "operations"), strict=True
        ):
            seen[name] = torch.zeros_like(seen[of][:, 0], dtype=torch.int64)
        found: Tensor = self.network(seen)
        return found


class _Input(NamedTuple):
    name: str


class TorchSession:
    """A network where a policy expects a model."""

    def __init__(self, network: OptionNetwork) -> None:
        self._network = network.eval()

    def get_inputs(self) -> list[_Input]:
        """All arrays of an observation."""
        return [_Input(name) for name in INPUTS]

    def run(
        self, names: Sequence[str], seen: Observation
    ) -> list[np.ndarray[Any, Any]]:
        """The scores of one decision's options."""
        with torch.inference_mode():
            return [self._network(joined([seen])).numpy()]


def policy_of(network: OptionNetwork) -> WeighsPartitions:
    """The partition policy that a network makes, as an episode takes it."""
    card = OptionsCard(
        "training",
        LEARNED,
        SCHEMA,
        VERSION,
        0,
        "",
        {},
        "",
        "",
    )
    return WeighsPartitions(card, TorchSession(network))


_OPEN = {
    name: f"number of {name}"
    for name in ARRAYS
    if name not in ("state", "links", "amounts")
}
# These have a row for each row of another.
_OPEN |= {"links": _OPEN["edges"], "amounts": _OPEN["touched"]}


def export_lab_model(
    network: OptionNetwork,
    config: LabConfig,
    training: Mapping[str, Any],
    folder: Path,
) -> Path:
    """Writes the model into ``folder`` and reads it back as a user would; the ONNX file's path.

    The card has as tested range that of ``training``'s test, nothing where there was none.
    """
    content = lab_onnx_bytes(network)
    labs = config.labs
    tested = training.get("tested", {})
    card = OptionsCard(
        config.name,
        config.learns,
        SCHEMA,
        VERSION,
        MOST_OPERATIONS,
        f"random labs of up to {labs.largest} GPUs from seed {labs.first_seed} on, loads "
        f"{labs.lowest_load:g} to {labs.highest_load:g}",
        tested.get("tested_range", {}),
        code_version(),
        hashlib.sha256(content).hexdigest(),
        _notes(training),
        json.loads(json.dumps(training)),
    )
    path = write_files(
        folder,
        config.name,
        content,
        card.written(),
    )
    load_options(path, "partition")
    return path


def _notes(training: Mapping[str, Any]) -> str:
    """How much it was trained, and its test."""
    said = f"Learned from {training['steps']:,} decisions in {training['labs']:,} random labs"
    if "tested" not in training:
        return f"{said}; not tested."
    tested = training["tested"]
    name, (mean, spread) = max(
        tested["jct_over"].items(), key=lambda each: each[1][0]
    )
    return (
        f"{said}; mean JCT {mean:.3f} ± {spread:.3f} times that of {name}, the best of the "
        f"compared policies, on {tested['labs']} other labs."
    )


def lab_onnx_bytes(network: OptionNetwork) -> bytes:
    """The network as an ONNX model of one decision, of any size."""
    sites = tuple(GpuSite(f"gpu{n}", n // 2, n // 4) for n in range(8))
    shape = ClusterShape(sites, tuple("abcd"), ("tor1", "tor2"))
    cluster = ClusterView(0.0, shape, 0)
    job = JobView("job", 2)
    observer = Observer()
    outlook = observer.outlook(cluster)
    options = Listing().placements(
        outlook,
        job,
        2,
        with_circuits=False,
    )
    seen = observer.observe(
        "placement",
        outlook,
        job,
        options,
    )
    examples = {name: torch.from_numpy(seen[name]) for name in INPUTS}
    open_axes = {
        **{k: {0: v} for k, v in _OPEN.items()},
        OUTPUT: {0: "options"},
    }
    return traced(OneDecision(rounded(network).eval()), examples, open_axes)
