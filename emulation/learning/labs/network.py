"""The graph network: messages along the cluster's edges, a number for each option.

The score of an option is what it is predicted to cost, and a correction that is learned. It begins
with no opinion: before any training, the option with the lowest predicted cost is taken.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from patchlight.controller.policies.contract import KINDS
from patchlight.controller.policies.options.cluster_graph import EDGE_FEATURES, NODE_FEATURES
from patchlight.controller.policies.options.observation import (
    ARRAYS,
    COST,
    OPERATION_FEATURES,
    OPTION_FEATURES,
    STATE_FEATURES,
    Observation,
)
from patchlight.emulation.learning.labs.config import GraphNetwork

INPUTS = tuple(ARRAYS)
_STUCK = 2  # the feature of an option that says that its ring has no way
_SAMPLES = ("of_node", "of_option", "of_operation")


def _mean(values: Tensor, into: Tensor, like: Tensor, weight: Tensor | None = None) -> Tensor:
    """Means of rows by the group that each is ``into``; as many groups as ``like`` has rows."""
    wide = into.unsqueeze(-1).expand(-1, values.shape[-1])
    weighed = values if weight is None else values * weight
    summed = torch.zeros_like(like[:, :1]).expand(-1, values.shape[-1]).contiguous()
    summed = summed.scatter_add(0, wide, weighed)
    each = torch.ones_like(values[:, :1]) if weight is None else weight
    counted = torch.zeros_like(like[:, :1]).scatter_add(0, into.unsqueeze(-1), each)
    return summed / counted.clamp(min=1e-6)


class Messages(nn.Module):
    """Rounds of messages along edges: each node hears the mean of its neighbours'."""

    def __init__(self, features: int, edge_features: int, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = nn.Linear(features, width)
        self.say = nn.ModuleList(nn.Linear(width + edge_features, width) for _ in range(rounds))
        self.mix = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))

    def forward(self, nodes: Tensor, edges: Tensor, links: Tensor | None) -> Tensor:
        """Nodes × features, edges × 2, edges × features → nodes × width."""
        state = torch.relu(self.enter(nodes))
        source, target = edges[:, 0], edges[:, 1]
        for say, mix in zip(self.say, self.mix, strict=True):
            heard = state[source]
            said = torch.relu(say(heard if links is None else torch.cat([heard, links], -1)))
            state = state + torch.relu(mix(torch.cat([state, _mean(said, target, state)], -1)))
        return state


class OptionNetwork(nn.Module):
    """Scores options of one decision or, as a union of graphs, of many."""

    corrects: Tensor

    def __init__(self, network: GraphNetwork) -> None:
        super().__init__()
        width = network.width
        # Of each kind of decision whether its scores are corrected, as the state says the kind.
        self.register_buffer("corrects", torch.ones(len(KINDS)))
        self.cluster = Messages(NODE_FEATURES, EDGE_FEATURES, width, network.rounds)
        self.job = Messages(OPERATION_FEATURES, 0, width, min(1, network.rounds))
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
        option, node = seen["touched"][:, 0], seen["touched"][:, 1]
        there, taken = seen["amounts"][:, 0:1], seen["amounts"][:, 1:2]
        touched = [_mean(nodes[node], option, options, each) for each in (there, taken)]
        whole = _mean(nodes, seen["of_node"], seen["state"])
        job = _mean(operations, seen["of_operation"], seen["state"])
        shared = torch.cat([whole, job, seen["state"]], -1)[seen["of_option"]]
        correction = self.judge(torch.cat([*touched, shared, options], -1)).squeeze(-1)
        is_kind = seen["state"][:, -len(KINDS) :] @ self.corrects
        found: Tensor = self.plain(options) + correction * is_kind[seen["of_option"]]
        return found

    @staticmethod
    def plain(options: Tensor) -> Tensor:
        """The score of each option without a correction: that of the rule."""
        found: Tensor = -options[:, COST] - 10.0 * options[:, _STUCK]
        return found

    def forget(self, kind: str) -> None:
        """Correct nothing any more where a decision is of this kind."""
        self.corrects[KINDS.index(kind)] = 0.0


def joined(observations: Sequence[Observation]) -> dict[str, Tensor]:
    """Many decisions as one: their graphs side by side, and of which decision each row is."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in (*INPUTS, *_SAMPLES)}
    firsts = {name: np.zeros(2, np.int64) for name in ("edges", "flows", "touched")}
    for number, seen in enumerate(observations):
        sizes = len(seen["nodes"]), len(seen["options"]), len(seen["operations"])
        for name in INPUTS:
            found[name].append(seen[name] + firsts[name] if name in firsts else seen[name])
        for name, size in zip(_SAMPLES, sizes, strict=True):
            found[name].append(np.full(size, number, np.int64))
        for name, more in zip(firsts, ((0, 0), (2, 2), (1, 0)), strict=True):
            firsts[name] = firsts[name] + np.array([sizes[more[0]], sizes[more[1]]])
    return {name: torch.from_numpy(np.concatenate(arrays)) for name, arrays in found.items()}


class OneDecision(nn.Module):
    """The network with an argument for each array of one observation, as ONNX wants it."""

    def __init__(self, network: OptionNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, *arrays: Tensor) -> Tensor:
        """The arrays in the order of ``INPUTS`` → a score for each option."""
        seen = dict(zip(INPUTS, arrays, strict=True))
        for name, of in zip(_SAMPLES, ("nodes", "options", "operations"), strict=True):
            seen[name] = torch.zeros_like(seen[of][:, 0], dtype=torch.int64)
        found: Tensor = self.network(seen)
        return found
