"""Encodes what a learned policy sees: a cluster, a job and its legal degrees as arrays.

The main part are *afterstates*. The degree determines where a job goes (``preview``), so for each
option, including refusal, one row has how long each server would then be busy.

A model only runs on the layout and the schema version that it was trained on. Version 2 adds the
arrival times of recent jobs; models of version 1 see what they saw.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.sets import members
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs.model import ComputationGraph

SCHEMA = "patchlight.ramp-partition"
VERSION = 2
VERSIONS = (1, 2)
UNIT_S = 1000.0
"""The unit of times, in seconds."""
LONGEST = 100.0
"""The maximum of times in this unit, also used for unknown times and broken servers."""
MAX_NODES = 128
MAX_EDGES = 256
SCALED = ("forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")
"""The features of an operation, each as its part of the graph's sum."""
NODE_DEPTH = len(SCALED)
IS_NODE = len(SCALED) + 1
"""Further features of a node: its depth in the graph, and 1 (0 for padding)."""
NODE_FEATURES = len(SCALED) + 2
JOB_FEATURES = 4
OPTION_FEATURES = 4
RECENT_BINS = 10
RECENT_JOBS = 64
RECENT_FEATURES = RECENT_BINS + 7
WORK, COUNTED, WORK_DEVIATION, INTERVAL, UNEVENNESS = range(
    RECENT_BINS + 2, RECENT_FEATURES
)
"""Indices in ``recent``: mean sequential time, number of jobs, the deviation of their sequential
times, the mean interval between jobs, and its relative deviation."""
_RECENT_OF = {1: COUNTED + 1, 2: RECENT_FEATURES}

Array = NDArray[np.float32]
Observation = dict[str, Array]


@dataclass(frozen=True)
class ObservationLayout:
    """The sizes of an observation: for which RAMP, and which degrees other than 0."""

    ramp: tuple[int, int, int]
    degrees: tuple[int, ...]
    version: int = VERSION

    @property
    def servers(self) -> int:
        """All servers of the RAMP, each with one GPU."""
        return math.prod(self.ramp)

    @property
    def actions(self) -> tuple[int, ...]:
        """The degree that each action stands for, 0 first."""
        return (0, *self.degrees)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each array, without a batch. All are ``float32``.

        ``remaining``: for each action, for how long each server would be busy; the first row, for
        refusal, is the present cluster. ``options``: for each action its degree as a share of the
        servers, the expected time, that as a share of the limit, the share of servers taken;
        ``mask``: 1 where the action can succeed. ``job``: the requirement β, the sequential time,
        the limit, the GPUs free as a share. ``recent``: the share of the last 64 jobs with β in
        each tenth, mean and deviation of their β, their mean sequential time, how many of 64 there
        were; since version 2 also the deviation of their sequential time, the mean time from one to
        the next and to this job, and its deviation as a share of that. ``nodes``: for each
        operation its share of the forward time, of the backward time, of activations and of
        parameters, its depth as a share of the deepest, and 1 (0 where there is no operation).
        ``edges``: source, target, and 1 (0 where there is no edge).
        """
        actions = len(self.degrees) + 1
        return {
            "remaining": (actions, self.servers),
            "options": (actions, OPTION_FEATURES),
            "mask": (actions,),
            "job": (JOB_FEATURES,),
            "recent": (_RECENT_OF[self.version],),
            "nodes": (MAX_NODES, NODE_FEATURES),
            "edges": (MAX_EDGES, 3),
        }

    def empty(self, *batch: int) -> Observation:
        """Arrays of zeros, with leading dimensions ``batch``."""
        return {
            name: np.zeros((*batch, *shape), np.float32)
            for name, shape in self.shapes.items()
        }


def recent_features(
    requirements: Sequence[float],
    sequential_s: Sequence[float],
    arrived_s: Sequence[float],
) -> Array:
    """``recent`` before each of some successive jobs, and after the last.

    Row i covers the (at most 64) jobs before job i. ``arrived_s`` has one time more than there are
    jobs, and there is one row more. Without jobs, one is assumed to arrive every ``UNIT_S``.
    """
    count = len(requirements)
    beta = np.minimum(np.asarray(requirements, np.float64), 1.0)
    work = np.asarray(sequential_s, np.float64) / UNIT_S
    work = np.minimum(np.where(np.isnan(work), 0.0, work), LONGEST)
    gap = np.minimum(
        np.diff(np.asarray(arrived_s, np.float64)) / UNIT_S, LONGEST
    )
    each = np.zeros((count + 1, RECENT_FEATURES))
    tenth = np.clip(
        (beta * RECENT_BINS + 1e-9).astype(int), 0, RECENT_BINS - 1
    )
    each[np.arange(1, count + 1), tenth] = 1.0
    each[1:, RECENT_BINS] = beta
    each[1:, RECENT_BINS + 1] = beta * beta
    each[1:, WORK] = work
    each[1:, WORK_DEVIATION] = work * work
    each[1:, INTERVAL] = gap
    each[1:, UNEVENNESS] = gap * gap
    summed = np.cumsum(each, axis=0)
    until = np.arange(count + 1)
    since = np.maximum(until - RECENT_JOBS, 0)
    window = summed - summed[since]
    number = np.maximum(until - since, 1)[:, None]
    found = window / number
    found[:, RECENT_BINS + 1] = _deviation(
        found[:, RECENT_BINS + 1], found[:, RECENT_BINS]
    )
    found[:, COUNTED] = (until - since) / RECENT_JOBS
    found[:, WORK_DEVIATION] = _deviation(
        found[:, WORK_DEVIATION], found[:, WORK]
    )
    found[until == since, INTERVAL] = 1.0
    interval = found[:, INTERVAL]
    found[:, UNEVENNESS] = _deviation(
        found[:, UNEVENNESS], interval
    ) / np.maximum(interval, 1e-9)
    found[until == since, UNEVENNESS] = 0.0
    return found.astype(np.float32)


def _deviation(
    square: NDArray[np.float64], mean: NDArray[np.float64]
) -> NDArray[np.float64]:
    # Rounding errors are not a deviation.
    left = np.maximum(square - mean * mean, 0.0)
    found: NDArray[np.float64] = np.sqrt(
        np.where(left > 1e-9 * square, left, 0.0)
    )
    return found


def graph_features(graph: ComputationGraph) -> tuple[Array, Array]:
    """``nodes`` and ``edges`` of a graph; ``BadInput`` if it has too many."""
    operations = graph.operations
    edges = graph.edges
    if len(operations) > MAX_NODES or len(edges) > MAX_EDGES:
        raise BadInput(
            f"{graph.name!r} has {len(operations)} operations and {len(edges)} edges: a learned "
            f"policy sees at most {MAX_NODES} and {MAX_EDGES}"
        )
    nodes = np.zeros((MAX_NODES, NODE_FEATURES), np.float32)
    links = np.zeros((MAX_EDGES, 3))
    for column, name in enumerate(SCALED):
        values = np.array(
            [float(getattr(operation, name)) for operation in operations]
        )
        nodes[: len(values), column] = values / max(float(values.sum()), 1e-30)
    depth = depths(graph)
    nodes[: len(depth), NODE_DEPTH] = np.array(depth) / max(1, *depth)
    nodes[: len(depth), IS_NODE] = 1.0
    for row, (source, target) in enumerate(edges):
        links[row] = source, target, 1.0
    return nodes, links.astype(np.float32)


class GraphArrays:
    """Makes the arrays of graphs, with a cache."""

    _MOST = 256

    def __init__(
        self,
        make: Callable[[ComputationGraph], tuple[NDArray[Any], NDArray[Any]]],
    ) -> None:
        self._make = make
        # By identity: comparing large graphs takes longer.
        self._known: dict[
            int, tuple[ComputationGraph, NDArray[Any], NDArray[Any]]
        ] = {}

    def of(self, graph: ComputationGraph) -> tuple[NDArray[Any], NDArray[Any]]:
        """Nodes and edges."""
        known = self._known.get(id(graph))
        if known is None or known[0] is not graph:
            if len(self._known) >= self._MOST:
                self._known.clear()
            known = self._known[id(graph)] = (graph, *self._make(graph))
        return known[1:]


def depths(graph: ComputationGraph) -> list[int]:
    """How many operations each operation waits for, one after the other, including itself."""
    found = [0] * len(graph.operations)
    for node in graph.order:
        found[node] = 1 + max(
            (found[parent] for parent in graph.parents[node]), default=-1
        )
    return found


class RampObserver:
    """Makes observations of one layout; each overwrites the previous one.

    Without ``graphs``, computation graphs are omitted, so that jobs may have any, or none.
    """

    def __init__(self, layout: ObservationLayout, graphs: bool = True) -> None:
        self.layout = layout
        self._sees_graphs = graphs
        self._arrays = layout.empty()
        self._graphs = GraphArrays(graph_features)

    def observe(
        self,
        cluster: ClusterView,
        job: JobView,
        legal: tuple[int, ...],
    ) -> Observation:
        """The observation of cluster and job; ``BadInput`` if they do not have the layout."""
        layout = self.layout
        found = self._arrays
        if (
            cluster.shape.ramp != layout.ramp
            or len(cluster.shape.gpus) != layout.servers
        ):
            raise BadInput(
                f"this observation is of a RAMP of {written(layout.ramp)} servers, not of "
                + (
                    f"one of {written(cluster.shape.ramp)}"
                    if cluster.shape.ramp
                    else "another lab"
                )
            )
        if self._sees_graphs:
            if job.graph is None:
                raise BadInput(f"job {job.name!r} has no computation graph")
            found["nodes"][:], found["edges"][:] = self._graphs.of(job.graph)
        now_s = cluster.now_s
        remaining = found["remaining"]
        options = found["options"]
        mask = found["mask"]
        size = layout.servers
        row = [0.0] * size
        for running in cluster.running:
            left = _units(running.ends_s - now_s)
            for server in members(running.gpus):
                row[server] = left
        known = 0
        for running in cluster.running:
            known |= running.gpus
        for server in members((cluster.occupied & ~known) | cluster.broken):
            row[server] = LONGEST
        remaining[:] = row
        options[:] = 0.0
        mask[:] = 0.0
        mask[0] = 1.0
        for action, degree in enumerate(layout.degrees, start=1):
            expected_s = job.expected_s.get(degree, math.nan)
            if expected_s != expected_s:
                continue
            options[action, 0] = degree / size
            options[action, 1] = _units(expected_s)
            options[action, 2] = (
                min(expected_s / job.limit_s, LONGEST)
                if job.limit_s
                else LONGEST
            )
            if degree not in legal or expected_s > job.limit_s:
                continue
            servers = cluster.preview(job, degree)
            if not servers:
                continue
            mask[action] = 1.0
            options[action, 3] = servers.bit_count() / size
            remaining[action, members(servers)] = _units(expected_s)
        features = found["job"]
        features[0] = min(job.requirement, 1.0)
        features[1] = _units(job.sequential_s)
        features[2] = _units(job.limit_s)
        features[3] = cluster.free.bit_count() / size
        recent = cluster.recent[-RECENT_JOBS:]
        told = recent_features(
            [each.requirement for each in recent],
            [each.sequential_s for each in recent],
            [*(each.arrived_s for each in recent), now_s],
        )[-1]
        found["recent"][:] = told[: found["recent"].shape[0]]
        return found


def _units(seconds: float) -> float:
    """Seconds in ``UNIT_S``, within 0 and ``LONGEST``, which is also used if unknown."""
    return (
        min(max(seconds / UNIT_S, 0.0), LONGEST)
        if seconds == seconds
        else LONGEST
    )


def written(ramp: Sequence[int]) -> str:
    """A RAMP's shape as text: 4×4×2."""
    return "×".join(map(str, ramp))
