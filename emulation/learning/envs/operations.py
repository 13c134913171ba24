"""Environments of a model's operations on RAMP: which server gets the next one, and which runs
next."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from patchlight.emulation.learning.envs.queued import (
    MaskedEnv,
    Observation,
    unit,
)
from patchlight.emulation.learning.envs.ramp_partition import scenarios
from patchlight.emulation.learning.envs.registry import (
    Heuristic,
    first_allowed,
)
from patchlight.emulation.simulator.ramp.ramp import (
    PlacementRule,
    place_one_by_one,
)
from patchlight.emulation.simulator.ramp.steps import step_time
from patchlight.emulation.simulator.ramp.workloads import LAW_NAMES, Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.model import PartitionedGraph, TrainingGraph

OPERATION_FEATURES = 5
"""Where it is placed: share of the step's time, of all activations and of all parameters, parts,
whether it is next. In a list: share of the step's time, of the longest way to its end, parts,
whether it is in the list, and allowed."""
SERVER_FEATURES = 4
"""Of another job, time of its parts, parts of the operation's parents, has a part of it already."""


def ramp_first_fit(env: "OperationPlacementEnv", seen: Observation) -> int:
    """Where PAC-ML's placer has it: with the first parent, or in the first free block."""
    planned = env.planned()
    return first_allowed(env, seen) if planned is None else planned


def least_loaded(env: "OperationPlacementEnv", seen: Observation) -> int:
    """The server whose parts take the least time."""
    return _least(seen, seen["servers"][:, 1])


def near_parents(env: "OperationPlacementEnv", seen: Observation) -> int:
    """The server with the most parts of the parents, then the one with the most work."""
    return _least(seen, -2 * seen["servers"][:, 2] - seen["servers"][:, 1])


def _least(seen: Observation, costs: NDArray[Any]) -> int:
    return int(np.where(seen["action_mask"] > 0, costs, np.inf).argmin())


def plans_of(
    workloads: Workloads, degrees: Sequence[int]
) -> list[PartitionedGraph]:
    """The models split by these degrees, so that any placement of their parts fits.

    A server has the memory for a part of each operation. ``BadInput`` if there is none.
    """
    found = [
        plans[degree].graph
        for plans in workloads.plans
        for degree in degrees
        if degree in plans and plans[degree].fits_memory
    ]
    if not found:
        raise BadInput(
            f"no model can be split into {', '.join(map(str, degrees)) or 'nothing'}",
            hint=f"the degrees here are {', '.join(map(str, workloads.degrees))}",
        )
    return found


def chosen_plan(
    plans: Sequence[PartitionedGraph],
    rng: np.random.Generator,
    options: Mapping[str, Any],
) -> PartitionedGraph:
    """One of them, drawn among those of the ``model`` and ``degree`` of an episode's options."""
    found = [
        plan
        for plan in plans
        if options.get("model", plan.training.forward.name)
        == plan.training.forward.name
        and options.get("degree", plan.degree) == plan.degree
    ]
    if not found:
        raise BadInput(
            f"no model is {options}: expected a name and a degree of the environment"
        )
    return found[int(rng.integers(len(found)))]


class OperationsEnv(MaskedEnv):
    """What both share: a training step's time over that on one server counts."""

    figure: ClassVar[str] = "step_over_sequential"
    _graph: PartitionedGraph | None = None

    def __init__(self, workloads: Workloads | None) -> None:
        rule = PlacementRule.RAMP_FIRST_FIT
        self.workloads = (
            workloads or scenarios(LAW_NAMES[:1], rule, 1e6)[0].workloads
        )

    @property
    def graph(self) -> PartitionedGraph:
        """The model of the episode; ``ResetNeeded`` before the first one."""
        if self._graph is None:
            raise gymnasium.error.ResetNeeded(
                "call reset() before the first step()"
            )
        return self._graph

    @abstractmethod
    def step_s(self) -> float:
        """How long a training step takes at the end of an episode."""

    @abstractmethod
    def _begin(self, graph: PartitionedGraph) -> None:
        """A new episode with this model."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Another model on other servers; ``options`` may have ``model`` and ``degree``."""
        super().reset(seed=seed)
        self._graph = graph = chosen_plan(
            self._plans, self.np_random, options or {}
        )
        self._begin(graph)
        return self._observe(), {
            "model": graph.training.forward.name,
            "degree": graph.degree,
        }

    def _make_spaces(
        self,
        plans: list[PartitionedGraph],
        rows: tuple[int, int],
        servers: int,
        actions: int,
    ) -> dict[str, spaces.Space[Any]]:
        """``rows`` are the most operations and edges of these models."""
        self._plans = plans
        self._rows = rows
        self._servers = servers
        self.action_space = spaces.Discrete(actions)
        return {
            "operations": unit(rows[0], OPERATION_FEATURES),
            "edges": spaces.Box(
                0,
                rows[0] - 1,
                (rows[1], 2),
                np.int64,
            ),
            "counts": spaces.Box(
                0,
                max(rows),
                (2,),
                np.int64,
            ),
            "at": unit(rows[0], servers),
            "action_mask": spaces.MultiBinary(actions),
        }

    def _pad(self, operations: int, edges: Sequence[tuple[int, int]]) -> None:
        """The arrays of an episode, as large as for the largest model."""
        rows, most_edges = self._rows
        self._operations = np.zeros((rows, OPERATION_FEATURES), np.float32)
        self._at = np.zeros((rows, self._servers), np.float32)
        self._edges = np.zeros((most_edges, 2), np.int64)
        self._edges[: len(edges)] = np.array(edges).reshape(-1, 2)
        self._counts = np.array([operations, len(edges)])

    def _ended(
        self,
        over: bool,
        illegal: bool,
        graph: PartitionedGraph,
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """What a step returns; the last one has the time of the training step."""
        info: dict[str, Any] = {"illegal": True} if illegal else {}
        reward = 0.0
        if over:
            info["step_over_sequential"] = self.step_s() / (
                1e-3 * graph.training.sequential_ms
            )
            reward = -info["step_over_sequential"]
        return self._observe(), reward, over, False, info

    def _observe(self) -> Observation:
        return {
            "operations": self._operations.copy(),
            "edges": self._edges.copy(),
            "counts": self._counts.copy(),
            "at": self._at.copy(),
            "action_mask": self._mask.copy(),
        }


class OperationPlacementEnv(OperationsEnv):
    """A model that is split is placed on a RAMP; an action is the server of the next part.

    An episode is one model at one partition degree of ``degrees``, on a RAMP where up to
    ``most_busy`` of the servers have other jobs. Operations come in topological order, part by
    part; the backward twin is where the forward operation is. Allowed are servers without another
    job and without a part of the same operation. The last step's reward is −1 times the simulated
    time of a training step over that on one server, all others are 0 (Mirhoseini et al., ICML
    2017). Models' milliseconds count as milliseconds. An action that is not allowed is taken for
    the first one that is, and ``info`` says ``illegal``.

    Seen are the computation graph, padded (``operations``, ``edges`` and how many there are of both
    in ``counts``), the share of each operation's parts that is ``at`` each server, and ``servers``
    (of another job, time of its parts, parts of the operation's parents, has a part of it already).
    """

    per_action: ClassVar[tuple[str, ...]] = ("servers",)
    _plan_known = False
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "ramp-first-fit": ramp_first_fit,
        "least-loaded": least_loaded,
        "near-parents": near_parents,
    }

    def __init__(
        self,
        workloads: Workloads | None = None,
        degrees: Sequence[int] = (2, 4, 8),
        most_busy: float = 0.5,
    ) -> None:
        super().__init__(workloads)
        size = self.workloads.ramp.shape.size
        if not 0 <= most_busy <= 1:
            raise BadInput(
                f"{most_busy} of the servers are busy: expected 0 to 1"
            )
        self._most_busy = most_busy
        plans = plans_of(self.workloads, degrees)
        graphs = [plan.training.forward for plan in plans]
        rows = (
            max(len(each.operations) for each in graphs),
            max(len(each.edges) for each in graphs),
        )
        seen = self._make_spaces(
            plans,
            rows,
            size,
            size,
        )
        self.observation_space = spaces.Dict(
            {**seen, "servers": unit(size, SERVER_FEATURES)}
        )
        self.servers: list[list[int]] = []

    def step(
        self, action: np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place a part; the last one says how long a training step takes."""
        graph = self.graph
        number = int(action)
        order = graph.training.forward.order
        if self._turn == len(order):
            raise gymnasium.error.ResetNeeded(
                "the episode is over: call reset()"
            )
        illegal = not self._mask[number]
        server = int(self._mask.argmax()) if illegal else number
        operation = order[self._turn]
        self.servers[operation].append(server)
        self._at[operation, server] = 1.0
        twins = graph.part_ms[[operation, graph.training.half + operation]]
        self._server[server, 1] += twins.sum() / graph.training.sequential_ms
        self._turn += len(self.servers[operation]) == graph.splits[operation]
        self._show(graph)
        return self._ended(self._turn == len(order), illegal, graph)

    def step_s(self) -> float:
        """How long a training step takes once all is placed."""
        homes = [tuple(each) for each in self.servers] * 2
        return step_time(
            self.graph,
            self.workloads.ramp,
            self.workloads.timing,
            homes,
        )

    def planned(self) -> int | None:
        """The server of the next part in PAC-ML's placer; ``None`` if it finds no place."""
        graph = self.graph
        if not self._plan_known:
            memory_bytes = self.workloads.device.memory_bytes
            self._plan = place_one_by_one(
                self.workloads.ramp,
                graph,
                self.occupied,
                memory_bytes,
            )
            self._plan_known = True
        operation = graph.training.forward.order[self._turn]
        return (
            None
            if self._plan is None
            else self._plan[operation][len(self.servers[operation])]
        )

    def _begin(self, graph: PartitionedGraph) -> None:
        training = graph.training
        forward = graph.training.forward
        size = self._servers
        count = len(forward.operations)
        half = training.half
        most = int(min(self._most_busy * size, size - graph.max_split))
        number = int(self.np_random.integers(most + 1))
        busy = self.np_random.permutation(size)[:number].tolist()
        self.occupied = sum(1 << server for server in busy)
        self.servers = [[] for _ in forward.operations]
        self._turn = 0
        self._plan_known = False
        self._pad(count, forward.edges)
        self._server = np.zeros((size, SERVER_FEATURES), np.float32)
        self._server[busy, 0] = 1.0
        activations = max(1, forward.activation_bytes)
        parameters = max(1, forward.parameter_bytes)
        self._operations[:count, 0] = (
            training.compute_ms[:half] + training.compute_ms[half:]
        ) / training.sequential_ms
        self._operations[:count, 1:4] = [
            (
                each.activation_bytes / activations,
                each.parameter_bytes / parameters,
                parts,
            )
            for each, parts in zip(
                forward.operations,
                np.array(graph.splits[:half]) / size,
                strict=True,
            )
        ]
        self._show(graph)

    def _show(self, graph: PartitionedGraph) -> None:
        """The next part: what is allowed, and where its parents are."""
        forward = graph.training.forward
        self._operations[:, 4] = 0.0
        self._server[:, 2:] = 0.0
        if self._turn == len(forward.order):
            self._mask = (self._server[:, 0] == 0).astype(np.int8)
            return
        operation = forward.order[self._turn]
        self._operations[operation, 4] = 1.0
        if parents := forward.parents[operation]:
            self._server[:, 2] = self._at[list(parents)].mean(axis=0)
        self._server[self.servers[operation], 3] = 1.0
        self._mask = ((self._server[:, 0] + self._server[:, 3]) == 0).astype(
            np.int8
        )

    def _observe(self) -> Observation:
        return {**super()._observe(), "servers": np.minimum(self._server, 1.0)}


def shortest(env: "OperationOrderEnv", seen: Observation) -> int:
    """The operation of which a part takes the least time."""
    parts = np.maximum(seen["operations"][:, 2], 1e-9)
    return _least(seen, seen["operations"][:, 0] / parts)


def longest_path(env: "OperationOrderEnv", seen: Observation) -> int:
    """The operation from which the way to the end takes longest (as HEFT, IEEE TPDS 2002)."""
    return _least(seen, -seen["operations"][:, 1])


class OperationOrderEnv(OperationsEnv):
    """A placed model gets a list of its operations; an action is the next one in the list.

    An episode is one model at one partition degree of ``degrees``, its parts on twice as many
    servers by chance. Forward operations count from 0, then their backward twins; allowed are those
    whose predecessors are in the list. When all are, a training step is simulated in which each
    server takes of the operations that are ready the first in the list. The last step's reward is
    −1 times the time of that over the time on one server, all others are 0. Models that are one
    chain are left out, as they have no order to choose. An action that is not allowed is taken for
    the first one that is, and ``info`` says ``illegal``.

    Seen are the training graph, padded (``operations``, ``edges`` and how many there are of both in
    ``counts``), and the share of each operation's parts that is ``at`` each server.
    """

    per_action: ClassVar[tuple[str, ...]] = ("operations",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "as-numbered": first_allowed,
        "shortest": shortest,
        "longest-path": longest_path,
    }

    def __init__(
        self,
        workloads: Workloads | None = None,
        degrees: Sequence[int] = (1, 2, 4),
    ) -> None:
        super().__init__(workloads)
        plans = [
            p
            for p in plans_of(self.workloads, degrees)
            if not _is_chain(p.training)
        ]
        most = max((plan.max_split for plan in plans), default=0)
        if not 0 < 2 * most <= self.workloads.ramp.shape.size:
            raise BadInput(
                "no order to choose: expected a model with branches, and degrees that leave "
                "twice as many servers",
                hint="use workloads of a model with branches, and lower degrees",
            )
        operations = max(2 * plan.training.half for plan in plans)
        rows = operations, max(len(plan.training.edges) for plan in plans)
        seen = self._make_spaces(
            plans,
            rows,
            2 * most,
            operations,
        )
        self.observation_space = spaces.Dict(seen)

    def step(
        self, action: np.int64
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Put an operation into the list; the last one says how long a training step takes."""
        graph = self.graph
        chosen = int(action)
        if len(self.listed) == 2 * graph.training.half:
            raise gymnasium.error.ResetNeeded(
                "call reset() before the first step()"
            )
        illegal = not self._mask[chosen]
        operation = int(self._mask.argmax()) if illegal else chosen
        self.listed.append(operation)
        self._mask[operation] = 0
        self._operations[operation, 3] = 1.0
        for target in self._after[operation]:
            self._missing[target] -= 1
            if not self._missing[target]:
                self._mask[target] = 1
        over = len(self.listed) == 2 * graph.training.half
        if over:
            self._mask[0] = (
                1  # Nothing is left; a mask allows something all the same.
            )
        return self._ended(over, illegal, graph)

    def step_s(self) -> float:
        """How long a training step takes once all operations are in the list."""
        if (
            self._graph is None
            or len(self.listed) < 2 * self.graph.training.half
        ):
            raise BadInput(
                "some operations are not in the list yet: expected the end of an episode"
            )
        turns = [0.0] * len(self.listed)
        for turn, operation in enumerate(self.listed):
            turns[operation] = float(turn)
        ramp = self.workloads.ramp
        timing = self.workloads.timing
        return step_time(
            self.graph,
            ramp,
            timing,
            self.servers,
            turns=turns,
        )

    def _begin(self, graph: PartitionedGraph) -> None:
        training = graph.training
        size = 2 * graph.max_split
        half = graph.training.half
        drawn = [
            tuple(self.np_random.permutation(size)[:n].tolist())
            for n in graph.splits[:half]
        ]
        self.servers = drawn * 2
        self.listed = list[int]()
        count = 2 * half
        self._missing = [0] * count
        self._after: list[list[int]] = [[] for _ in range(count)]
        for source, target in training.edges:
            self._missing[target] += 1
            self._after[source].append(target)
        self._pad(count, training.edges)
        self._operations[:count, 0] = (
            training.compute_ms / training.sequential_ms
        )
        to_end = _to_end_ms(training, self._after, graph.part_ms)
        self._operations[:count, 1] = to_end / max(to_end)
        self._operations[:count, 2] = np.array(graph.splits) / self._servers
        for operation, homes in enumerate(self.servers):
            self._at[operation, list(homes)] = 1 / len(homes)
        self._mask = np.zeros(self._rows[0], np.int8)
        self._mask[:count] = [not missing for missing in self._missing]

    def _observe(self) -> Observation:
        self._operations[:, 4] = self._mask
        return super()._observe()


def _is_chain(training: TrainingGraph) -> bool:
    sources = [source for source, _ in training.edges]
    return len(set(sources)) == len(sources)


def _to_end_ms(
    training: TrainingGraph,
    after: Sequence[Sequence[int]],
    part_ms: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The longest way from each operation's beginning to the end, without transfers."""
    half = training.half
    order = training.forward.order
    found = part_ms.copy()
    # Backward operations are over in the other order; all of them come after the forward ones.
    for operation in [*(half + each for each in order), *reversed(order)]:
        found[operation] += max(
            (found[each] for each in after[operation]), default=0.0
        )
    return found
