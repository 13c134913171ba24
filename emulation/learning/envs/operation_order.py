"""``patchlight/OperationOrder-v0``: which ready operation of a training step is next?"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from patchlight.emulation.learning.envs.operation_placement import chosen_plan, plans_of
from patchlight.emulation.learning.envs.queued import Observation, unit
from patchlight.emulation.learning.envs.ramp_partition import scenarios
from patchlight.emulation.learning.envs.registry import Heuristic, first_allowed
from patchlight.emulation.simulator.ramp.ramp import PlacementRule
from patchlight.emulation.simulator.ramp.requirements import LAW_NAMES
from patchlight.emulation.simulator.ramp.steps import step_time
from patchlight.emulation.simulator.ramp.workloads import Workloads
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.partitioning import PartitionedGraph, TrainingGraph

OPERATION_FEATURES = 5
"""Share of the step's time, of the longest way to its end, parts, whether in line, and allowed."""


def shortest(env: "OperationOrderEnv", seen: Observation) -> int:
    """The operation of which a part takes the least time."""
    parts = np.maximum(seen["operations"][:, 2], 1e-9)
    return _least(seen, seen["operations"][:, 0] / parts)


def longest_path(env: "OperationOrderEnv", seen: Observation) -> int:
    """The operation from which the way to the end takes longest (as HEFT, IEEE TPDS 2002)."""
    return _least(seen, -seen["operations"][:, 1])


def _least(seen: Observation, costs: NDArray[Any]) -> int:
    return int(np.where(seen["action_mask"] > 0, costs, np.inf).argmin())


class OperationOrderEnv(gymnasium.Env[Observation, np.int64]):
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

    metadata = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own name
    figure: ClassVar[str] = "step_over_sequential"
    per_action: ClassVar[tuple[str, ...]] = ("operations",)
    heuristics: ClassVar[Mapping[str, Heuristic]] = {
        "as-numbered": first_allowed,
        "shortest": shortest,
        "longest-path": longest_path,
    }

    def __init__(
        self, workloads: Workloads | None = None, degrees: Sequence[int] = (1, 2, 4)
    ) -> None:
        rule = PlacementRule.RAMP_FIRST_FIT
        self.workloads = workloads or scenarios(LAW_NAMES[:1], rule, 1e6)[0].workloads
        self._plans = [p for p in plans_of(self.workloads, degrees) if not _is_chain(p.training)]
        most = max((plan.max_split for plan in self._plans), default=0)
        if not 0 < 2 * most <= self.workloads.ramp.shape.size:
            raise BadInput(
                "no order to choose: expected a model that is no chain, and degrees that "
                "leave twice as many servers",
                hint="give workloads of a model with branches, and lower degrees",
            )
        operations = max(2 * plan.training.half for plan in self._plans)
        edges = max(len(plan.training.edges) for plan in self._plans)
        self._rows, self._servers = (operations, edges), 2 * most
        self.action_space = spaces.Discrete(operations)
        self.observation_space = spaces.Dict(
            {
                "operations": unit(operations, OPERATION_FEATURES),
                "edges": spaces.Box(0, operations - 1, (edges, 2), np.int64),
                "counts": spaces.Box(0, max(operations, edges), (2,), np.int64),
                "at": unit(operations, self._servers),
                "action_mask": spaces.MultiBinary(operations),
            }
        )
        self.graph: PartitionedGraph | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Another model on other servers; ``options`` may have ``model`` and ``degree``."""
        super().reset(seed=seed)
        self.graph = graph = chosen_plan(self._plans, self.np_random, options or {})
        size, half = 2 * graph.max_split, graph.training.half
        drawn = [tuple(self.np_random.permutation(size)[:n].tolist()) for n in graph.splits[:half]]
        self.servers, self.listed = drawn * 2, list[int]()
        self._missing = [0] * (2 * half)
        self._after: list[list[int]] = [[] for _ in range(2 * half)]
        for source, target in graph.training.edges:
            self._missing[target] += 1
            self._after[source].append(target)
        self._describe(graph)
        self._mask = np.zeros(self._rows[0], np.int8)
        self._mask[: 2 * half] = [not missing for missing in self._missing]
        return self._observe(), {"model": graph.training.forward.name, "degree": graph.degree}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Put an operation into the list; the last one says how long a training step takes."""
        graph, chosen = self.graph, int(action)
        if graph is None or len(self.listed) == 2 * graph.training.half:
            raise gymnasium.error.ResetNeeded("call reset() before the first step()")
        illegal = not self._mask[chosen]
        operation = int(self._mask.argmax()) if illegal else chosen
        self.listed.append(operation)
        self._mask[operation] = 0
        self._operations[operation, 3] = 1.0
        for target in self._after[operation]:
            self._missing[target] -= 1
            if not self._missing[target]:
                self._mask[target] = 1
        info: dict[str, Any] = {"illegal": illegal} if illegal else {}
        reward, over = 0.0, len(self.listed) == 2 * graph.training.half
        if over:
            self._mask[0] = 1  # Nothing is left; a mask allows something all the same.
            share = self.step_s() / (1e-3 * graph.training.sequential_ms)
            info["step_over_sequential"] = share
            reward = -share
        return self._observe(), reward, over, False, info

    def action_masks(self) -> NDArray[np.bool_]:
        """Which operations may be next."""
        allowed: NDArray[np.bool_] = self._mask > 0
        return allowed

    def step_s(self) -> float:
        """How long a training step takes once all operations are in the list."""
        if self.graph is None or len(self.listed) < 2 * self.graph.training.half:
            raise BadInput("not all operations are in the list yet: expected the end of an episode")
        turns = [0.0] * len(self.listed)
        for turn, operation in enumerate(self.listed):
            turns[operation] = float(turn)
        ramp, timing = self.workloads.ramp, self.workloads.timing
        return step_time(self.graph, ramp, timing, self.servers, turns=turns)

    def _describe(self, graph: PartitionedGraph) -> None:
        """What stays as it is for an episode."""
        (rows, edges), training = self._rows, graph.training
        count, times = 2 * training.half, training.compute_ms
        self._operations = np.zeros((rows, OPERATION_FEATURES), np.float32)
        self._operations[:count, 0] = times / training.sequential_ms
        to_end = _to_end_ms(training, self._after, graph.part_ms)
        self._operations[:count, 1] = to_end / max(to_end)
        self._operations[:count, 2] = np.array(graph.splits) / self._servers
        self._at = np.zeros((rows, self._servers), np.float32)
        for operation, homes in enumerate(self.servers):
            self._at[operation, list(homes)] = 1 / len(homes)
        self._edges = np.zeros((edges, 2), np.int64)
        self._edges[: len(training.edges)] = training.edges
        self._counts = np.array([count, len(training.edges)])

    def _observe(self) -> Observation:
        self._operations[:, 4] = self._mask
        return {
            "operations": self._operations.copy(),
            "edges": self._edges.copy(),
            "counts": self._counts.copy(),
            "at": self._at.copy(),
            "action_mask": self._mask.copy(),
        }


def _is_chain(training: TrainingGraph) -> bool:
    sources = [source for source, _ in training.edges]
    return len(set(sources)) == len(sources)


def _to_end_ms(
    training: TrainingGraph, after: Sequence[Sequence[int]], part_ms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The longest way from each operation's beginning to the end, without transfers."""
    half, order = training.half, training.forward.order
    found = part_ms.copy()
    # Backward operations are over in the other order; all of them come after the forward ones.
    for operation in [*(half + each for each in order), *reversed(order)]:
        found[operation] += max((found[each] for each in after[operation]), default=0.0)
    return found
