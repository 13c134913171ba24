"""How long a job will take, where nobody tells: estimated from what else is known of it.

``limit`` knows only within which time the job must complete, ``size`` what its operations come to
in sum, ``graph`` its computation graph: a time for each operation, by messages along the edges
from what the operation computes and moves (``graphs.costs``), added up. They learn from the models
that are trained on, whose operations' times are known, before any play. For each of some copies
a model is left out: how far a copy is off on what it has never seen is how far estimates
are taken to be off.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from patchlight.emulation.learning.config import Network
from patchlight.emulation.simulator.ramp.scenario import Scenario
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.graphs.model import COSTS, operation_costs

_COPIES, _HIDDEN = 5, 32
_RATE, _DECAY, _FITTED = 5e-3, 0.03, 400
_EPISODES, _BATCH = 16, 4096
_LEAST_SPREAD = 0.02
_UNIT_S = 1000.0
_USUAL = 20.0  # so that logarithms of costs are about 1
_FARTHEST = 2.0


class TimedGraphs:
    """What is known of some models without their times, side by side: N operations of G models.

    ``costs`` N × ``COSTS``, logarithms; ``down``, ``up`` N × N: the mean over the operations that
    feed one, and over those it feeds; ``owner`` N: whose they are, as ones and zeros ``members``
    N × G; ``size`` G × (``COSTS`` + 1): logarithms of the sums, and of how many there are.
    """

    def __init__(self, workloads: Workloads) -> None:
        each = [operation_costs(graph) for graph in workloads.graphs]
        first = np.cumsum([0, *map(len, each)])
        graphs = list(zip(first.tolist(), workloads.graphs, strict=False))
        ends = [(a + start, b + start) for start, graph in graphs for a, b in graph.edges]
        joined = torch.zeros(int(first[-1]), int(first[-1]))
        if ends:
            source, target = np.array(ends).T
            joined[target, source] = 1.0
        self.down, self.up = (m / m.sum(1, keepdim=True).clamp(min=1) for m in (joined, joined.T))
        self.costs = _logarithms(np.concatenate(each))
        counts = torch.tensor([len(costs) for costs in each])
        self.owner = torch.repeat_interleave(counts)
        self.members = torch.eye(len(each))[self.owner]
        self.size = _logarithms(np.array([[*costs.sum(axis=0), len(costs)] for costs in each]))


def _logarithms(values: NDArray[np.float64]) -> Tensor:
    return torch.from_numpy(np.log(1.0 + values)).float()


class _OperationTimes(nn.Module):
    """The logarithm of each operation's time, from its costs and what is around it, K × N.

    A time is a sum over costs, each at a rate. The network says how far an operation's rates are
    from those of all: what it has not seen the like of keeps to these.
    """

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.enter = _Dense(COSTS, width)
        self.rounds = nn.ModuleList(_Dense(3 * width, width) for _ in range(rounds))
        self.leave = _Dense(width, COSTS, small=True)
        self.rates = nn.Parameter(torch.zeros(_COPIES, 1, COSTS))

    def forward(self, graphs: TimedGraphs) -> Tensor:
        state = torch.relu(self.enter(graphs.costs.expand(_COPIES, -1, -1) / _USUAL))
        for each in self.rounds:
            around = [state, graphs.down @ state, graphs.up @ state]
            state = state + torch.relu(each(torch.cat(around, dim=-1)))
        rates = self.rates + _FARTHEST * torch.tanh(self.leave(state))
        return torch.logsumexp(graphs.costs + rates, dim=-1)


class _Dense(nn.Module):
    """``_COPIES`` linear layers side by side: K × N × inputs → K × N × outputs."""

    def __init__(self, inputs: int, outputs: int, small: bool = False) -> None:
        super().__init__()
        spread = (0.1 if small else 1.0) / math.sqrt(inputs)
        self.weight = nn.Parameter(spread * torch.randn(_COPIES, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(_COPIES, 1, outputs))

    def forward(self, seen: Tensor) -> Tensor:
        found: Tensor = torch.baddbmm(self.bias, seen, self.weight)
        return found


def _layers(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(_Dense(inputs, _HIDDEN), nn.ReLU(), _Dense(_HIDDEN, outputs))


class JobTimes(nn.Module):
    """Estimates sequential times by what ``Network.times`` names: ``limit``, ``size``, ``graph``.

    ``spread`` is the standard deviation of the logarithm of time over estimate.
    """

    spread: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.by = network.times
        if self.by == "graph":
            self.network: nn.Module = _OperationTimes(network.graph_width, network.graph_rounds)
        elif self.by == "size":
            self.network = _layers(COSTS + 1, 1)
        else:
            self.network = _layers(1, 2)
        self.register_buffer("spread", torch.ones(()))
        self.requires_grad_(False)

    def of_models(self, graphs: TimedGraphs) -> Tensor | None:
        """Each model's logarithm of its time in s, G; ``None`` if models are not looked at."""
        if self.by == "limit":
            return None
        with torch.no_grad():
            return self._models(graphs).mean(0)

    def of_jobs(
        self, models: Tensor | None, graph: Tensor, limit_s: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Of jobs of these models: the logarithm of the time in s and its spread, N each."""
        if models is not None:
            return models[graph], self.spread.expand(len(graph))
        with torch.no_grad():
            return self._by_limit(limit_s)

    def fit(self, scenarios: Sequence[Scenario], seed: int) -> None:
        """Learn from the models of these scenarios, and for ``limit`` from their jobs."""
        self.requires_grad_(True)
        if self.by == "limit":
            self._fit_to_jobs(scenarios, seed)
        else:
            self._fit_to_models(scenarios[0].workloads)
        self.requires_grad_(False)

    def _models(self, graphs: TimedGraphs) -> Tensor:
        """By each copy, K × G."""
        if self.by == "size":
            size = graphs.size.expand(_COPIES, -1, -1)
            found: Tensor = self.network(size / _USUAL).squeeze(-1)
            return found + math.log(_UNIT_S)
        return torch.log(torch.exp(self.network(graphs)) @ graphs.members)

    def _by_limit(self, limit_s: Tensor) -> tuple[Tensor, Tensor]:
        log_s = torch.log(limit_s)
        seen = ((log_s - math.log(_UNIT_S)) / 4).reshape(1, -1, 1)
        found = self.network(seen.expand(_COPIES, -1, -1)).mean(0)
        return log_s + 1 + found[:, 0], torch.exp(found[:, 1].clamp(-4, 2))

    def _fit_to_jobs(self, scenarios: Sequence[Scenario], seed: int) -> None:
        drawn = [job for s in scenarios for n in range(_EPISODES) for job in s.jobs(seed + n)]
        limit_s = torch.tensor([job.limit_s for job in drawn])
        log_s = torch.log(torch.tensor([job.sequential_s for job in drawn]))
        optimizer = torch.optim.AdamW(self.parameters(), lr=_RATE)
        rng = np.random.default_rng(seed)
        for _ in range(_FITTED):
            rows = torch.from_numpy(rng.integers(len(drawn), size=_BATCH))
            found, spread = self._by_limit(limit_s[rows])
            _step(optimizer, (((log_s[rows] - found) / spread) ** 2 / 2 + torch.log(spread)).mean())

    def _fit_to_models(self, workloads: Workloads) -> None:
        graphs, each_s = TimedGraphs(workloads), workloads.device.seconds_per_ms * workloads.steps
        taken = [op.forward_ms + op.backward_ms for g in workloads.graphs for op in g.operations]
        operations = torch.tensor(taken) * each_s
        log_s = torch.log(torch.tensor(workloads.sequential_s))
        models = torch.arange(len(log_s))
        left_out = models % _COPIES == torch.arange(_COPIES).unsqueeze(-1)  # K × G
        left_out &= len(models) > 1
        share = operations / (graphs.members @ (operations @ graphs.members))
        weight = share * ~left_out[:, graphs.owner]
        known = torch.log(operations.clamp(min=1e-9))
        if isinstance(self.network, _OperationTimes):
            with torch.no_grad():
                # As if all costs but the arithmetic were free, from which it is not far.
                rate = torch.log(operations.sum() / graphs.costs[:, 0].exp().sum())
                self.network.rates.add_(rate)
        decayed, free = list[nn.Parameter](), list[nn.Parameter]()
        for name, weights in self.named_parameters():
            (free if name == "network.rates" else decayed).append(weights)
        groups: list[dict[str, Any]] = [{"params": free, "weight_decay": 0.0}, {"params": decayed}]
        groups = [each for each in groups if each["params"]]
        optimizer = torch.optim.AdamW(groups, lr=_RATE, weight_decay=_DECAY)
        for _ in range(_FITTED):
            off = (self._models(graphs) - log_s) ** 2
            loss = off[~left_out].mean()
            if self.by == "graph":
                loss = loss + (weight * (self.network(graphs) - known) ** 2).sum() / weight.sum()
            _step(optimizer, loss)
        with torch.no_grad():
            unseen = (self._models(graphs) - log_s)[left_out]
        if len(unseen):
            self.spread.fill_(max(_LEAST_SPREAD, float((unseen**2).mean().sqrt())))


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
