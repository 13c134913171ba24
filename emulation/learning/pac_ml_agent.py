"""The observation of PAC-ML's agent, and its graph network.

Parsonson, Shabka, Ottino, Zervas, arXiv 2301.13799, and their public simulator: operations and
edges of the job's training step, a vector about the job and the cluster, and a mask that does not
look for free servers of the right shape. Of the cluster it has the share of servers in use and the
number of running jobs. The network's outputs are the values of all degrees up to the largest.
"""

from itertools import pairwise

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from patchlight.controller.policies.observation import Array, ObservationLayout
from patchlight.emulation.learning.config import Network
from patchlight.emulation.learning.vector_episodes import VectorEpisodes
from patchlight.emulation.simulator.ramp.workloads import Workloads

_NODE = 5
_EDGE = 2
_MESSAGE = 16
_DEEP = 64
_GRAPH = 8
_HEAD = 256
_ABOUT = 17


class TrainingGraphs:
    """The training steps of some models side by side, as one graph of many parts.

    ``nodes`` N × 5: compute and memory as shares of the largest, each with whether it is the
    largest (for compute always 0, as in the authors' code), and the shortest way from the first
    operation; ``edges`` M × 2: size (activations alone) as a share of the largest, whether it is
    the largest; ``source``, ``target`` M; ``owner`` N: which model a node is of; ``about`` G × 12:
    numbers of each model, the first 5 scaled over all models.
    """

    def __init__(self, workloads: Workloads) -> None:
        nodes = []
        edges = []
        source = []
        target = []
        owner = []
        about = []
        first = 0
        for number, graph in enumerate(workloads.training):
            ends = np.array(graph.edges)
            outputs = [
                each.activation_bytes for each in graph.forward.operations
            ]
            size = _beside_largest(
                np.array(outputs, float)[ends[:, 0] % graph.half]
            )
            compute, memory = map(
                _beside_largest, (graph.compute_ms, graph.memory_bytes)
            )
            compute[:, 1] = 0
            step = nx.DiGraph(graph.edges)
            step.add_nodes_from(range(len(compute)))
            first_one = min(
                node for node, parents in step.in_degree if not parents
            )
            away = nx.single_source_shortest_path_length(step, first_one)
            depth = np.array(
                [1 + away.get(each, -1) for each in range(len(compute))]
            )
            nodes.append(
                np.column_stack([compute, memory, depth / max(1, depth.max())])
            )
            edges.append(size)
            source.append(ends[:, 0] + first)
            target.append(ends[:, 1] + first)
            owner.append(np.full(len(depth), number))
            first += len(depth)
            totals = [len(depth), len(ends), workloads.sequential_s[number]]
            totals += [graph.memory_bytes.sum(), graph.activation_edges_bytes]
            shares = (compute[:, 0], memory[:, 0], size[:, 0])
            about.append(
                [
                    *totals,
                    1.0,
                    *(
                        f(each)
                        for each in shares
                        for f in (np.mean, np.median)
                    ),
                ]
            )
        self.nodes = _tensor(np.concatenate(nodes))
        self.edges = _tensor(np.concatenate(edges))
        self.source, self.target = (
            torch.from_numpy(np.concatenate(each)) for each in (source, target)
        )
        self.owner = torch.from_numpy(np.concatenate(owner))
        found = np.array(about)
        least = found[:, :5].min(axis=0)
        most = found[:, :5].max(axis=0)
        # Their upper limits: three times the edges, and the sizes of a graph with every edge.
        most *= [
            1,
            3,
            1,
            1,
            most[0] * (most[0] - 1) / 2,
        ]
        found[:, :5] = (found[:, :5] - least) / np.where(
            most > least, most - least, 1.0
        )
        found[:, :5][:, most <= least] = 1.0
        self.about: Array = found.astype(np.float32)


def _beside_largest(values: NDArray[np.float64]) -> NDArray[np.float64]:
    most = float(values.max()) or 1.0
    return np.column_stack(
        [values / most, np.arange(len(values)) == values.argmax()]
    )


def _tensor(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


class _MeanPool(nn.Module):
    """One round: a node's new state is the mean of what it makes of its own message and of those
    along its edges; 0 for a node without any.
    """

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.node = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, _MESSAGE), nn.ReLU()
        )
        self.edge = nn.Sequential(
            nn.LayerNorm(_EDGE), nn.Linear(_EDGE, _MESSAGE), nn.ReLU()
        )
        self.out = nn.Sequential(
            nn.LayerNorm(2 * _MESSAGE), nn.Linear(2 * _MESSAGE, out), nn.ReLU()
        )

    def forward(self, state: Tensor, graphs: TrainingGraphs) -> Tensor:
        """Nodes × width → nodes × out."""
        node = self.node(state)
        message = self.out(
            torch.cat([node[graphs.source], self.edge(graphs.edges)], dim=-1)
        )
        total = self.out(torch.cat([node, torch.zeros_like(node)], dim=-1))
        total = total.index_add(0, graphs.target, message)
        count = torch.bincount(graphs.target, minlength=len(state)).unsqueeze(
            -1
        )
        found: Tensor = total / (count + 1) * (count > 0)
        return found


class PacMlNetwork(nn.Module):
    """Values of all degrees: two rounds of mean pooling over the graph, then a dueling head.

    With ``graph_width`` 0 of the configuration the graph is left out, all else is as it was.
    """

    def __init__(
        self,
        layout: ObservationLayout,
        network: Network,
        workloads: Workloads,
    ) -> None:
        super().__init__()
        self.graphs = TrainingGraphs(workloads)
        outputs = layout.degrees[-1] + 1
        known = _ABOUT + outputs
        width = _GRAPH
        self.rounds = nn.ModuleList()
        if network.graph_width:
            wide = [
                _NODE,
                *[_DEEP] * (network.graph_rounds - 1),
                network.graph_width,
            ]
            self.rounds.extend(_MeanPool(a, b) for a, b in pairwise(wide))
            width += network.graph_width
        self.about = nn.Sequential(
            nn.LayerNorm(known), nn.Linear(known, _GRAPH)
        )
        self.shared = nn.Sequential(nn.Linear(width, _HEAD), nn.ReLU())
        self.value = nn.Sequential(
            nn.Linear(_HEAD, _HEAD), nn.ReLU(), nn.Linear(_HEAD, 1)
        )
        self.better = nn.Sequential(
            nn.Linear(_HEAD, _HEAD), nn.ReLU(), nn.Linear(_HEAD, outputs)
        )
        # RLlib's initial weights: at the authors' learning rate they hardly move away from them.
        for layer in (*self.shared, *self.value, *self.better):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        first = self.shared[0]
        assert isinstance(first, nn.Linear)
        with torch.no_grad():
            nn.init.normal_(first.weight).div_(
                first.weight.norm(
                    dim=1,
                    keepdim=True,
                )
            )

    def pooled(self) -> Tensor:
        """The mean state of each graph's nodes, G × width; without a graph network G × 0."""
        state = self.graphs.nodes
        for each in self.rounds:
            state = each(state, self.graphs)
        count = torch.bincount(self.graphs.owner).unsqueeze(-1)
        state = state if len(self.rounds) else state[:, :0]
        sums = torch.zeros(len(count), state.shape[-1]).index_add(
            0, self.graphs.owner, state
        )
        return sums / count

    def forward(
        self,
        graph: Tensor,
        about: Tensor,
        pooled: Tensor | None = None,
    ) -> Tensor:
        """``graph`` N, ``about`` N × features → N × degrees from 0 on.

        ``pooled`` saves computing it while the weights stay as they are.
        """
        pooled = self.pooled() if pooled is None else pooled
        seen = self.shared(
            torch.cat([self.about(about), pooled[graph]], dim=-1)
        )
        better = self.better(seen)
        found: Tensor = (
            self.value(seen) + better - better.mean(-1, keepdim=True)
        )
        return found


class PacMlPlayer:
    """Plays by what PAC-ML's agent sees. Nothing is masked: a degree that no shape serves, or more
    than the free servers, refuses the job, as in the authors' configuration.
    """

    def __init__(self, network: PacMlNetwork) -> None:
        self.network = network
        self._scales: NDArray[np.float64] | None = None
        self._pooled: Tensor | None = None

    def seen(self, episodes: VectorEpisodes) -> tuple[NDArray[np.intp], Array]:
        """The job's graph, E, and the vector about job and cluster, E × (17 + outputs)."""
        degrees = episodes.layout.degrees
        outputs = episodes.layout.degrees[-1] + 1
        about = np.zeros((episodes.num_envs, _ABOUT + outputs), np.float32)
        known = self.network.graphs.about[episodes.graph]
        about[:, :3] = known[:, :3]
        about[:, 6:15] = known[:, 3:]
        low, high = self._scaled(episodes)
        requests = np.stack([episodes.limit_s, episodes.beta])
        about[:, 3:5] = (
            (requests - low) / np.where(high > low, high - low, 1.0)
        ).T
        about[:, 5] = episodes.beta
        about[:, 15] = 1 - episodes.free / episodes.layout.servers
        about[:, 16] = episodes.running / episodes.layout.servers
        about[:, _ABOUT] = 1
        about[:, _ABOUT + np.array(degrees)] = (
            np.array(degrees) <= episodes.free[:, None]
        )
        return episodes.graph.copy(), about

    def _scaled(self, episodes: VectorEpisodes) -> NDArray[np.float64]:
        """The least and the largest limit and β of each environment's episode, 2 × 2 × E."""
        if self._scales is None or self._scales.shape[2] != episodes.num_envs:
            self._scales = np.zeros((2, 2, episodes.num_envs))
            begun = np.arange(episodes.num_envs)
        else:
            begun = np.flatnonzero(episodes.episode_start)
        alone = np.array(episodes.workloads.sequential_s)
        for env in begun.tolist():
            jobs = episodes.jobs[env]
            both = np.stack([jobs.beta * alone[jobs.graph], jobs.beta])
            self._scales[:, :, env] = both.min(axis=1), both.max(axis=1)
        return self._scales

    def scores(self, episodes: VectorEpisodes) -> NDArray[np.float64]:
        """The value of each action, E × A; of refusing, that of the best degree that refuses.

        The graph network is that of the first call.
        """
        with torch.no_grad():
            self._pooled = (
                self.network.pooled() if self._pooled is None else self._pooled
            )
            seen = map(torch.from_numpy, self.seen(episodes))
            found = self.network(*seen, self._pooled).numpy()
        columns = np.array(episodes.layout.actions)
        refusing = np.delete(found, columns[1:], axis=1).max(
            axis=1,
            keepdims=True,
        )
        return np.concatenate(
            [refusing, found[:, columns[1:]]], axis=1
        ).astype(np.float64)
