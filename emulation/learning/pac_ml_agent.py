"""PAC-ML's own agent: what it sees, and its graph network.

Parsonson, Shabka, Ottino, Zervas, arXiv 2301.13799, and their public simulator: operations and
edges of the job's training step, a vector about the job and the cluster, and a mask that does not
look for free servers of the right shape. The cluster is told by two numbers: the share of servers
in use and how many jobs run. A score is the value of a degree in this state; there is no
afterstate.
"""

import math
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from patchlight.controller.policies.observation import Array, Layout
from patchlight.emulation.learning.config import Network
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp.workloads import Workloads

_NODE, _EDGE, _MESSAGE, _DEEP, _GRAPH, _HEAD = 5, 2, 16, 64, 8, 256
_ABOUT = 15


class TrainingGraphs:
    """The training steps of some models side by side, as one graph of many parts.

    ``nodes`` N × 5: compute and memory as shares of the largest, whether it is the largest in each,
    depth; ``edges`` M × 2: size as a share of the largest, whether it is the largest; ``source``,
    ``target`` M; ``owner`` N: which model a node is of; ``about`` G × 9: numbers of each model.
    """

    def __init__(self, workloads: Workloads) -> None:
        nodes, edges, source, target, owner, about = [], [], [], [], [], []
        first = 0
        for number, graph in enumerate(workloads.training):
            ends = np.array(graph.edges)
            size = graph.memory_bytes[ends[:, 0]]
            columns = [_beside_largest(graph.compute_ms), _beside_largest(graph.memory_bytes)]
            depth = np.zeros(len(graph.compute_ms))
            for a, b in sorted(graph.edges, key=lambda edge: edge[0]):
                depth[b] = max(depth[b], depth[a] + 1)
            nodes.append(np.column_stack([*columns, depth / max(1.0, depth.max())]))
            edges.append(_beside_largest(size))
            source.append(ends[:, 0] + first)
            target.append(ends[:, 1] + first)
            owner.append(np.full(len(depth), number))
            first += len(depth)
            about.append(
                [
                    len(depth),
                    len(ends),
                    workloads.sequential_s[number],
                    graph.memory_bytes.sum(),
                    size.sum(),
                    *(f(graph.compute_ms) for f in (np.mean, np.median)),
                    *(f(graph.memory_bytes) for f in (np.mean, np.median)),
                ]
            )
        self.nodes, self.edges = _tensor(np.concatenate(nodes)), _tensor(np.concatenate(edges))
        self.source, self.target = (
            torch.from_numpy(np.concatenate(each)) for each in (source, target)
        )
        self.owner = torch.from_numpy(np.concatenate(owner))
        told = np.array(about)
        self.about: Array = (told / np.maximum(told.max(axis=0), 1e-12)).astype(np.float32)


def _beside_largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    most = float(values.max()) or 1.0
    return np.column_stack([values / most, values >= most])


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def about_jobs(episodes: VectorEpisodes, graphs: TrainingGraphs) -> Array:
    """What is told of each environment's job and cluster in addition to the graph, E × (15 + A)."""
    about = np.zeros((episodes.num_envs, _ABOUT), np.float32)
    about[:, :9] = graphs.about[episodes.graph]
    about[:, 9] = episodes.limit_s / max(episodes.workloads.sequential_s)
    about[:, 10] = about[:, 11] = episodes.beta
    about[:, 12] = episodes.workloads.steps / 100
    about[:, 13] = 1 - episodes.free / episodes.layout.servers
    about[:, 14] = episodes.running / episodes.layout.servers
    return np.concatenate([about, allowed(episodes).astype(np.float32)], axis=1)


def allowed(episodes: VectorEpisodes) -> NDArray[np.bool_]:
    """PAC-ML's mask, E × A: no more than the free servers, whether or not a block is free."""
    found = np.ones((episodes.num_envs, len(episodes.layout.actions)), bool)
    found[:, 1:] = np.array(episodes.layout.degrees) <= episodes.free[:, None]
    return found


class _MeanPool(nn.Module):
    """One round: a node's new state is the mean of its own message and those along its edges."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.node = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, _MESSAGE), nn.ReLU())
        self.edge = nn.Sequential(nn.LayerNorm(_EDGE), nn.Linear(_EDGE, _MESSAGE), nn.ReLU())
        self.out = nn.Sequential(
            nn.LayerNorm(2 * _MESSAGE), nn.Linear(2 * _MESSAGE, out), nn.ReLU()
        )

    def forward(self, state: Tensor, graphs: TrainingGraphs) -> Tensor:
        """Nodes × width → nodes × out."""
        node = self.node(state)
        message = torch.cat([node[graphs.source], self.edge(graphs.edges)], dim=-1)
        total = torch.cat([node, torch.zeros_like(node)], dim=-1)
        total = total.index_add(0, graphs.target, message)
        ones = torch.ones(len(graphs.target), 1)
        count = torch.ones(len(state), 1).index_add(0, graphs.target, ones)
        found: Tensor = self.out(total / count)
        return found


class PacMlNetwork(nn.Module):
    """Scores of all actions: two rounds of mean pooling over the graph, then a dueling head.

    With ``graph_width`` 0 of the configuration the graph is left out, all else is as it was.
    """

    def __init__(self, layout: Layout, network: Network, workloads: Workloads) -> None:
        super().__init__()
        self.graphs = TrainingGraphs(workloads)
        told, actions = _ABOUT + len(layout.actions), len(layout.actions)
        self.rounds = nn.ModuleList()
        width = _GRAPH
        if network.graph_width:
            wide = [_NODE, *[_DEEP] * (network.graph_rounds - 1), network.graph_width]
            self.rounds.extend(_MeanPool(a, b) for a, b in pairwise(wide))
            width += network.graph_width
        self.about = nn.Sequential(nn.LayerNorm(told), nn.Linear(told, _GRAPH), nn.ReLU())
        self.shared = nn.Sequential(nn.Linear(width + told, _HEAD), nn.ReLU())
        self.value = nn.Sequential(nn.Linear(_HEAD, _HEAD), nn.ReLU(), nn.Linear(_HEAD, 1))
        self.better = nn.Sequential(nn.Linear(_HEAD, _HEAD), nn.ReLU(), nn.Linear(_HEAD, actions))

    def forward(self, graph: Tensor, about: Tensor) -> Tensor:
        """``graph`` N, ``about`` N × features → N × actions."""
        # The vector comes in a second time as it is: its short summary alone would hide β.
        parts = [self.about(about), about]
        if len(self.rounds):
            state = self.graphs.nodes
            for each in self.rounds:
                state = each(state, self.graphs)
            count = torch.bincount(self.graphs.owner).unsqueeze(-1)
            pooled = torch.zeros(len(count), state.shape[-1])
            parts.append((pooled.index_add(0, self.graphs.owner, state) / count)[graph])
        seen = self.shared(torch.cat(parts, dim=-1))
        better = self.better(seen)
        found: Tensor = self.value(seen) + better - better.mean(-1, keepdim=True)
        return found


class PacMlPlayer:
    """Plays and learns by what PAC-ML's agent sees."""

    values_afterstates = False

    def __init__(self, network: PacMlNetwork) -> None:
        self.network = network
        self._seen: tuple[NDArray[np.intp], Array] | None = None

    def scores(self, episodes: VectorEpisodes) -> NDArray[np.float64]:
        """The value of each action, E × A; minus infinity where the mask forbids it."""
        self._seen = episodes.graph.copy(), about_jobs(episodes, self.network.graphs)
        with torch.no_grad():
            found = self.network(*map(torch.from_numpy, self._seen)).numpy().astype(np.float64)
        return np.where(allowed(episodes), found, -math.inf)

    def taken(self, actions: NDArray[np.intp]) -> tuple[NDArray[np.generic], ...]:
        """What ``predict`` is to be given for these actions, of the last scores."""
        assert self._seen is not None
        return (*self._seen, actions)

    def predict(self, *inputs: Tensor) -> Tensor:
        """The value of what was taken."""
        graph, about, actions = inputs
        found: Tensor = self.network(graph, about)
        return found.gather(1, actions.unsqueeze(-1)).squeeze(-1)
