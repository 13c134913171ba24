"""The networks: the value of a cluster once a job is placed, and what a computation graph adds.

Each option is scored by the cluster that it leaves behind. ``ClusterValue`` tells, for each of some
times, which servers would still be busy, or which share of the RAMP's blocks would be free, and
gives one number for all of it. ``GraphEncoder`` passes messages along the computation graph's
edges; what it finds corrects the scores. ``load_run`` and ``scorer_of`` read a trained one back
from its run's folder.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from patchlight.controller.policies.observation import (
    COUNTED,
    INTERVAL,
    IS_NODE,
    JOB_FEATURES,
    NODE_FEATURES,
    OPTION_FEATURES,
    RECENT_BINS,
    UNEVENNESS,
    WORK,
    WORK_DEVIATION,
    ObservationLayout,
    written,
)
from patchlight.emulation.learning.blocks import EACH, SIZES, told_blocks
from patchlight.emulation.learning.config import Config, Network, parse_config
from patchlight.emulation.learning.job_times import JobTimes
from patchlight.emulation.simulator.network.compiled import IS_COMPILED
from patchlight.emulation.simulator.ramp.ramp import PAC_ML_SHAPE
from patchlight.testbed.errors import BadInput, PatchlightError

# Where an action cannot succeed. Not infinite, so that softmax and export stay finite.
IMPOSSIBLE = -1e6


class ClusterValue(nn.Module):
    """The value of a cluster: jobs that it will accept, discounted, beyond the mean number.

    Since version 2 of the observation, times count in those in which one job comes to 32 servers,
    and the work of jobs in what the cluster does meanwhile. So one network serves any load, and
    told of blocks only, RAMPs of any shape: its weights do not depend on the layout.
    """

    busy_after: Tensor
    members: Tensor
    sizes: Tensor

    def __init__(self, layout: ObservationLayout, network: Network) -> None:
        super().__init__()
        # A little more, so that a job that ends as the next one comes counts as gone.
        self.register_buffer("busy_after", torch.tensor(network.busy_after_ks).float() + 1e-3)
        self._order = self.busy_after.argsort()
        self._looked_up: tuple[Tensor, Tensor] | None = None
        self.layout, self.cluster = layout, network.cluster
        quick = network.cluster != "servers" and IS_COMPILED
        self._quick = told_blocks(layout.ramp) if quick else None
        each = layout.servers if network.cluster != "blocks" else 0
        if network.cluster != "servers":
            each += EACH
            members, sizes = _blocks(layout.ramp)
            self.register_buffer("members", members, persistent=False)
            self.register_buffer("sizes", sizes, persistent=False)
        self.known = self._known(torch.zeros(layout.shapes["recent"])).shape[-1]
        width = len(network.busy_after_ks) * each + self.known
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
        return self.of(self.seen(remaining, recent))

    def of(self, seen: Tensor) -> Tensor:
        """The value of what was ``seen``."""
        found: Tensor = self.layers(seen)
        return found.squeeze(-1)

    def worth(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """As ``forward`` of N × servers and N × features, where nothing is learned from it."""
        if self.cluster != "servers":
            return self.forward(remaining, recent)
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        after = self._after(recent)[:, self._order].contiguous()
        busy = torch.searchsorted(after, remaining.contiguous())
        servers = remaining.shape[-1]
        rows = busy * servers + torch.arange(servers)
        shown = embedding_bag(rows, self._sums(first.weight, servers), mode="sum")
        told = first.weight[:, len(self.busy_after) * servers :]
        shown += torch.addmm(first.bias, self._known(recent), told.T)
        found: Tensor = self.layers[1:](shown)
        return found.squeeze(-1)

    def _sums(self, weight: Tensor, servers: int) -> Tensor:
        """What a server adds that is busy at the first k times, (times + 1) · servers × width.

        To look such sums up takes a fifth of the time of multiplying.
        """
        if self._looked_up is None or not torch.equal(weight, self._looked_up[0]):
            times, width = len(self.busy_after), len(weight)
            each = weight.T[: times * servers].reshape(times, servers, width)[self._order]
            sums = torch.zeros(times + 1, servers, width)
            torch.cumsum(each, 0, out=sums[1:])
            self._looked_up = weight.detach().clone(), sums.view(-1, width)
        return self._looked_up[1]

    def seen(self, remaining: Tensor, recent: Tensor) -> Tensor:
        """The numbers that the value is made of."""
        after = self._after(recent)
        parts = []
        if self.cluster != "blocks":
            parts.append((remaining.unsqueeze(-2) > after.unsqueeze(-1)).float())
        if self._quick is not None and remaining.dim() == 2:
            shares = self._quick.shares(remaining.numpy(), after.numpy())
            parts.append(torch.from_numpy(shares.reshape(len(shares), -1, EACH)))
        elif self.cluster != "servers":
            busy = (remaining.unsqueeze(-2) > after.unsqueeze(-1)).float()
            share = torch.relu(1.0 - busy @ self.members) @ self.sizes
            parts += [1.0 - busy.mean(-1, keepdim=True), share, (share > 0).float()]
        shown = torch.cat(parts, dim=-1).flatten(-2)
        return torch.cat([shown, self._known(recent)], dim=-1)

    def _after(self, recent: Tensor) -> Tensor:
        """The times at which it is told who is busy, … × times."""
        if self.layout.version == 1:
            return self.busy_after.expand(*recent.shape[:-1], -1)
        # In which one job comes to as many servers as PAC-ML's cluster has.
        each = self.layout.servers / PAC_ML_SHAPE.size
        return self.busy_after * (recent[..., INTERVAL : INTERVAL + 1] * each)

    def _known(self, recent: Tensor) -> Tensor:
        """What recent jobs tell, without units."""
        if self.layout.version == 1:
            return recent
        capacity = (recent[..., INTERVAL : INTERVAL + 1] * self.layout.servers).clamp(min=1e-6)
        told = [recent[..., : RECENT_BINS + 2], recent[..., WORK : WORK + 1] / capacity]
        told.append(recent[..., COUNTED : COUNTED + 1])
        told.append(recent[..., WORK_DEVIATION : WORK_DEVIATION + 1] / capacity)
        told.append(recent[..., UNEVENNESS : UNEVENNESS + 1])
        return torch.cat(told, dim=-1).clamp(max=10.0)


def _blocks(shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """The servers of all blocks of ``SIZES``, servers × blocks, and for each block of its size
    one over the number of them, blocks × sizes.
    """
    table = told_blocks(shape)
    found = [(place, block) for place, each in enumerate(table.blocks) for block in each]
    members = torch.zeros(math.prod(shape), len(found))
    sizes = torch.zeros(len(found), len(SIZES))
    for column, (place, block) in enumerate(found):
        members[list(block.servers), column] = 1.0
        sizes[column, place] = 1.0
    return members, sizes / sizes.sum(0).clamp(min=1.0)


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

    def __init__(self, layout: ObservationLayout, network: Network, discount: float) -> None:
        super().__init__()
        self.discount = discount * self._larger(layout)
        self.value = ClusterValue(layout, network)
        self.network = network
        self.times = None if network.times == "told" else JobTimes(network)
        self.graph: GraphEncoder | None = None
        if network.graph_width and self.times is None:
            self.graph = GraphEncoder(network.graph_width, network.graph_rounds)
            width = network.graph_width + JOB_FEATURES + OPTION_FEATURES
            width += layout.shapes["recent"][0]
            last = nn.Linear(64, 1)
            # It begins with no opinion, so that values learned without it still hold.
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            self.correction = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), last)

    def on(self, layout: ObservationLayout) -> "OptionScorer":
        """The same scorer for a RAMP of another shape; ``BadInput`` unless it is told of blocks."""
        if layout == self.value.layout:
            return self
        if self.network.cluster != "blocks" or self.graph is not None:
            raise BadInput(
                f"this network is for a RAMP of {written(self.value.layout.ramp)} servers: only "
                "one with 'cluster: blocks' and no graph network in its scores serves other shapes"
            )
        gamma = self.discount / self._larger(self.value.layout)
        found = OptionScorer(layout, self.network, gamma)
        found.load_state_dict(self.state_dict())
        return found

    @staticmethod
    def _larger(layout: ObservationLayout) -> float:
        """To a larger cluster as many more jobs come, for each of which a free server counts."""
        return layout.servers / PAC_ML_SHAPE.size if layout.version > 1 else 1.0

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arrays of an observation that it looks at."""
        plain = ("remaining", "mask", "recent")
        return (*plain, "options", "job", "nodes", "edges") if self.graph else plain

    def corrected(self, graph: Tensor, job: Tensor, option: Tensor, recent: Tensor) -> Tensor:
        """What the computation graph adds to the score of an option, all … × features."""
        # Times are up to 100 units: squeezed, so that no feature drowns the others.
        known = torch.log1p(torch.cat([graph, job, option], dim=-1).clamp(min=0.0))
        found: Tensor = self.correction(torch.cat([known, recent], dim=-1))
        return found.squeeze(-1)

    def forward(self, seen: Mapping[str, Tensor]) -> Tensor:
        """Scores, batch × actions; ``IMPOSSIBLE`` where the mask is 0."""
        remaining, mask = seen["remaining"], seen["mask"]
        actions = remaining.shape[-2]
        recent = seen["recent"].unsqueeze(-2).expand(-1, actions, -1)
        scores = self.discount * self.value(remaining, recent)
        scores = scores + (torch.arange(actions) > 0).float()
        if self.graph is not None:
            described = self.graph(seen["nodes"], seen["edges"])
            graph = described.unsqueeze(-2).expand(-1, actions, -1)
            job = seen["job"].unsqueeze(-2).expand(-1, actions, -1)
            scores = scores + self.corrected(graph, job, seen["options"], recent)
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


def scorer_of(config: Config, kept: dict[str, Any]) -> tuple[OptionScorer, ObservationLayout]:
    """The scorer that a checkpoint holds, and the layout it is for.

    ``BadInput`` for a run that is for studies only, and for a checkpoint of another network.
    """
    if reason := config.network.no_model:
        raise BadInput(
            f"{config.name!r} {reason}, of which there are no models",
            hint="'patchlight policy study' compares what such networks learn",
        )
    with of_this_network(f"the checkpoint of {config.name!r}"):
        groups, racks, servers = kept["ramp"]
        version = int(kept.get("observation_version", 1))
        layout = ObservationLayout((groups, racks, servers), tuple(kept["degrees"]), version)
        scorer = OptionScorer(layout, config.network, float(kept["discount"]))
        scorer.load_state_dict(kept["average"])
    return scorer, layout


@contextmanager
def of_this_network(what: str) -> Iterator[None]:
    """``BadInput`` where weights inside do not fit: ``what`` is of another network."""
    try:
        yield
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        # PyTorch lists each weight that does not fit, on lines of their own.
        reason = str(error).strip().splitlines()[:2]
        raise BadInput(
            f"{what} is of another network than its configuration says: {' '.join(reason)}",
            hint="begin in a new folder, or take the config.json that was written with it",
        ) from error
