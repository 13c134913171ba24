"""The networks: the value of a cluster once a job is placed, and what a computation graph adds.

Each option is scored by the cluster that it leaves behind. ``ClusterValue`` tells, for each of some
times, which servers and which RAMP blocks would still be busy, and gives one number for all of
it. ``GraphEncoder`` passes messages along the computation graph's edges; what it finds
corrects the scores. ``load_run`` and ``scorer_of`` read a trained one back from its run's folder.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from patchlight.controller.policies.observation import (
    IS_NODE,
    JOB_FEATURES,
    NODE_FEATURES,
    OPTION_FEATURES,
    RECENT_FEATURES,
    Layout,
)
from patchlight.emulation.learning.config import Config, Network, parse_config
from patchlight.testbed.errors import BadInput, PatchlightError

# Where an action cannot succeed. Not infinite, so that softmax and export stay finite.
IMPOSSIBLE = -1e6


class ClusterValue(nn.Module):
    """The value of a cluster: jobs that it will accept, discounted, beyond the mean number."""

    busy_after: Tensor

    def __init__(self, layout: Layout, network: Network) -> None:
        super().__init__()
        # A little more, so that a job that ends as the next one comes counts as gone.
        self.register_buffer("busy_after", torch.tensor(network.busy_after_ks).float() + 1e-3)
        width = len(network.busy_after_ks) * layout.servers + RECENT_FEATURES
        layers: list[nn.Module] = []
        for hidden in network.hidden:
            layers += [nn.Linear(width, hidden), nn.ReLU()]
            width = hidden
        last = nn.Linear(width, 1)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.zero_()
        self.layers = nn.Sequential(*layers, last)

    def forward(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """``remaining`` … × servers, ``recent`` … × features → …"""
        busy = (remaining.unsqueeze(-2) > self.busy_after.unsqueeze(-1)).float()
        found: Tensor = self.layers(torch.cat([busy.flatten(-2), recent], dim=-1))
        return found.squeeze(-1)


class GraphEncoder(nn.Module):
    """Message passing over a computation graph, forward and backward, then the mean of its nodes.

    As PAC-ML's network (mean pooling over neighbours), with padded nodes and edges.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = nn.Linear(NODE_FEATURES, width)
        self.rounds = nn.ModuleList(nn.Linear(3 * width, width) for _ in range(rounds))

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """Batch × nodes × features, batch × edges × 3 → batch × width."""
        is_node = nodes[..., IS_NODE : IS_NODE + 1]
        state = torch.relu(self.enter(nodes)) * is_node
        width = state.shape[-1]
        source = edges[..., 0:1].long().expand(-1, -1, width)
        target = edges[..., 1:2].long().expand(-1, -1, width)
        weight = edges[..., 2:3]
        into = torch.zeros_like(nodes[..., :1]).scatter_add(1, target[..., :1], weight)
        out_of = torch.zeros_like(nodes[..., :1]).scatter_add(1, source[..., :1], weight)
        for each in self.rounds:
            down = torch.gather(state, 1, source) * weight
            up = torch.gather(state, 1, target) * weight
            parents = torch.zeros_like(state).scatter_add(1, target, down) / into.clamp(min=1.0)
            children = torch.zeros_like(state).scatter_add(1, source, up) / out_of.clamp(min=1.0)
            mixed = each(torch.cat([state, parents, children], dim=-1))
            state = (state + torch.relu(mixed)) * is_node
        return state.sum(1) / is_node.sum(1).clamp(min=1.0)


class OptionScorer(nn.Module):
    """A score for each action of an observation: its reward now and the value of what it leaves."""

    def __init__(self, layout: Layout, network: Network, discount: float) -> None:
        super().__init__()
        self.discount = discount
        self.value = ClusterValue(layout, network)
        self.graph: GraphEncoder | None = None
        if network.graph_width:
            self.graph = GraphEncoder(network.graph_width, network.graph_rounds)
            width = network.graph_width + JOB_FEATURES + OPTION_FEATURES + RECENT_FEATURES
            last = nn.Linear(64, 1)
            # It begins with no opinion, so that values learned without it still hold.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.correction = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), last)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays of an observation that it looks at."""
        plain = ("remaining", "mask", "recent")
        return (*plain, "options", "job", "nodes", "edges") if self.graph else plain

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Scores, batch × actions; ``IMPOSSIBLE`` where the mask is 0."""
        remaining, mask = seen["remaining"], seen["mask"]
        actions = remaining.shape[-2]
        recent = seen["recent"].unsqueeze(-2).expand(-1, actions, -1)
        scores = self.discount * self.value(remaining, recent)
        scores = scores + (torch.arange(actions) > 0).float()
        if self.graph is not None:
            described = self.graph(seen["nodes"], seen["edges"])
            about = torch.cat([described, seen["job"]], dim=-1)
            about = about.unsqueeze(-2).expand(-1, actions, -1)
            # Times are up to 100 units: squeezed, so that no feature drowns the others.
            known = torch.log1p(torch.cat([about, seen["options"]], dim=-1).clamp(min=0.0))
            scores = scores + self.correction(torch.cat([known, recent], dim=-1)).squeeze(-1)
        return torch.where(mask > 0, scores, torch.full_like(scores, IMPOSSIBLE))


CHECKPOINT, CONFIG = "checkpoint.pt", "config.json"


def load_run(folder: Path) -> tuple[Config, dict[str, Any]]:
    """The configuration and the checkpoint in a run's folder; ``BadInput`` if it has none."""
    try:
        config = parse_config((folder / CONFIG).read_text(), str(folder / CONFIG))
        kept = torch.load(folder / CHECKPOINT, weights_only=True)
    except PatchlightError:
        raise
    except FileNotFoundError as error:
        raise BadInput(
            f"{folder} is no training run: it has no {Path(error.filename).name}",
            hint="give the folder that 'patchlight policy train' wrote",
        ) from error
    except Exception as error:
        raise BadInput(f"cannot read the checkpoint in {folder}: {error}") from error
    return config, kept


def scorer_of(config: Config, kept: dict[str, Any]) -> tuple[OptionScorer, Layout]:
    """The scorer that a checkpoint holds, and the layout it is for."""
    groups, racks, servers = kept["ramp"]
    layout = Layout((groups, racks, servers), tuple(kept["degrees"]))
    scorer = OptionScorer(layout, config.network, float(kept["discount"]))
    scorer.load_state_dict(kept["average"])
    return scorer, layout
