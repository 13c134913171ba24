"""Encodes what a model that weighs options sees: schema ``patchlight.options`` version 3.

Cluster, job graph and number of options may have any size. In a large graph, successive operations
are merged until there are few enough.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from patchlight.controller.policies.cheapest import HORIZON_S
from patchlight.controller.policies.contract import (
    KINDS,
    ClusterView,
    JobView,
    PolicyKind,
)
from patchlight.controller.policies.observation import (
    SCALED,
    GraphArrays,
    depths,
)
from patchlight.controller.policies.options import cluster_graph
from patchlight.controller.policies.options.cluster_graph import (
    ClusterGraph,
    bits,
    squeezed,
)
from patchlight.controller.policies.options.listing import BUILT_IN, Option
from patchlight.controller.policies.options.outlook import Networks, Outlook
from patchlight.testbed.graphs.model import ComputationGraph
from patchlight.testbed.lab.model import Lab

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

OPERATION_FEATURES = 6
"""Of an operation, or merged ones: their part of the graph's forward time, backward time,
activations and parameters; their depth, and 1 (0 for a job without a graph)."""
MOST_OPERATIONS = 64
"""Larger graphs are pooled to this many operations."""
_NOTHING = (
    np.zeros((1, OPERATION_FEATURES), np.float32),
    np.zeros((1, 2), np.int64),
)

SCHEMA = "patchlight.options"
VERSION = 3
PROPOSERS = (*BUILT_IN, "regroup", "give-and-take")
"""Policies for which an option says whether they would choose it."""
NOT_PROPOSERS = 17
OPTION_FEATURES = NOT_PROPOSERS + len(PROPOSERS)
STATE_FEATURES = 11 + len(KINDS)
COST = 0
"""The feature of an option for the increase of all times to the ends of jobs over the best option,
relative to the mean duration. For an order decision it is how much later other jobs start."""
MOST_COST = 20.0
ARRAYS: Mapping[str, tuple[str, int]] = {
    "nodes": ("float32", cluster_graph.NODE_FEATURES),
    "edges": ("int64", 2),
    "links": ("float32", cluster_graph.EDGE_FEATURES),
    "options": ("float32", OPTION_FEATURES),
    "touched": ("int64", 2),
    "amounts": ("float32", 2),
    "state": ("float32", STATE_FEATURES),
    "operations": ("float32", OPERATION_FEATURES),
    "flows": ("int64", 2),
}
"""Each array's type and columns; the number of rows varies.

``nodes`` and ``edges`` (from, to; ``links`` has what is known of each) are the cluster,
``operations`` and ``flows`` the job's graph, pooled. ``options`` has a row for each candidate
answer; ``touched`` pairs options with the nodes that they change, ``amounts`` says by how much: the
part of the option's GPUs there, and the part of the free GPUs there that it takes. ``state`` is one
row: the queue, recent jobs, the kind of decision.
"""

Array = NDArray[Any]
Observation = dict[str, Array]
_KEPT = 4


def job_graph(
    graph: ComputationGraph, most: int = MOST_OPERATIONS
) -> tuple[Floats, Ints]:
    """Nodes (n × features), pooled to ``most``, and edges (m × 2, from, to), at least one."""
    count = len(graph.operations)
    depth = np.array(depths(graph))
    groups = min(count, most)
    group = np.empty(count, np.int64)
    # By depth, so that merged nodes are neighbours in the graph.
    in_turn = np.lexsort((np.argsort(graph.order), depth))
    group[in_turn] = np.arange(count) * groups // count
    nodes = np.zeros((groups, OPERATION_FEATURES), np.float32)
    for column, name in enumerate(SCALED):
        values = np.array(
            [float(getattr(each, name)) for each in graph.operations]
        )
        nodes[:, column] = np.bincount(group, values, groups) / max(
            float(values.sum()), 1e-30
        )
    held = np.bincount(group, minlength=groups)
    nodes[:, len(SCALED)] = (
        np.bincount(group, depth, groups) / held / max(1.0, depth.max())
    )
    nodes[:, len(SCALED) + 1] = 1.0
    ends = sorted(
        {
            (int(group[a]), int(group[b]))
            for a, b in graph.edges
            if group[a] != group[b]
        }
    )
    return nodes, np.array(ends or [(0, 0)], np.int64)


class Observer:
    """Makes observations, with a cache of the graphs of recent circuits."""

    def __init__(self) -> None:
        self._networks = Networks()
        self._graphs: list[tuple[object, ClusterGraph]] = []
        self._plugs: (
            tuple[Lab, Sequence[str], cluster_graph.FixedFibres] | None
        ) = None
        self._jobs = GraphArrays(job_graph)

    def outlook(self, cluster: ClusterView) -> Outlook:
        """The cluster's jobs on their links."""
        return Outlook(cluster, self._networks.of(cluster))

    def observe(
        self,
        kind: PolicyKind,
        outlook: Outlook,
        job: JobView | None,
        options: Sequence[Option],
    ) -> Observation:
        """What a model sees of a decision; there is at least one of ``options``."""
        cluster = outlook.cluster
        graph = self._graph(outlook)
        # Waiting jobs are seen one by one, and compared.
        unit_s = typical_s(cluster, () if kind == "order" else options)
        touched, amounts = _touched(graph, cluster, options)
        operations, flows = (
            _NOTHING
            if job is None or job.graph is None
            else self._jobs.of(job.graph)
        )
        return {
            "nodes": graph.nodes(outlook, job, unit_s),
            "edges": graph.edges,
            "links": graph.links(outlook),
            "options": _options(
                kind,
                graph,
                outlook,
                options,
                unit_s,
            ),
            "touched": touched,
            "amounts": amounts,
            "state": _state(
                kind,
                cluster,
                job,
                unit_s,
            ),
            "operations": operations,
            "flows": flows,
        }

    def _graph(self, outlook: Outlook) -> ClusterGraph:
        network = outlook.network
        cluster = outlook.cluster
        key: object = cluster.shape if network is None else network
        for known, graph in self._graphs:
            if known is key:
                return graph
        plugs = None
        racks = cluster.shape.racks
        if network is not None:
            seen = self._plugs
            if seen is None or seen[0] is not network.lab or seen[1] != racks:
                self._plugs = seen = (
                    network.lab,
                    racks,
                    cluster_graph.FixedFibres(network, racks),
                )
            plugs = seen[2]
        graph = ClusterGraph(
            cluster.shape,
            network,
            cluster.circuits,
            plugs,
        )
        self._graphs = [(key, graph), *self._graphs[: _KEPT - 1]]
        return graph


def typical_s(cluster: ClusterView, options: Sequence[Option]) -> float:
    """How long jobs last, about: the unit of times. From recent jobs and this one."""
    each = [option.prospect.lasts_s for option in options]
    known = [min((s for s in each if 0 < s < math.inf), default=math.nan)]
    for job in cluster.recent:
        is_split = job.training is None or job.training.split
        known.append(
            job.sequential_s / (max(1, job.workers) if is_split else 1)
        )
    found = [seconds for seconds in known if 0 < seconds < math.inf]
    return math.fsum(found) / len(found) if found else HORIZON_S


def _touched(
    graph: ClusterGraph,
    cluster: ClusterView,
    options: Sequence[Option],
) -> tuple[Array, Array]:
    """``touched`` and ``amounts``; options without GPUs touch the first node by nothing."""
    free = bits(cluster.free, graph.gpus)
    lengths = np.array([len(option.gpus) for option in options], np.int64)
    number = np.repeat(np.arange(len(options)), lengths)
    gpus = np.array(
        [gpu for option in options for gpu in option.gpus], np.int64
    )
    nothing = np.flatnonzero(lengths == 0)
    part = 1 / np.maximum(lengths, 1)
    rows: list[tuple[Array, Array, Array, Array]] = [
        (nothing, np.zeros_like(nothing), 0.0 * nothing, 0.0 * nothing),
        (number, gpus, part[number], np.ones(len(gpus))),
    ]
    for of, first in (
        (graph.server_of, graph.first_server),
        (graph.rack_of, graph.first_rack),
    ):
        count = int(of.max(initial=0)) + 1
        free_in = np.maximum(np.bincount(of[of >= 0], free[of >= 0], count), 1)
        there = of[gpus] >= 0
        keys, held = np.unique(
            number[there] * count + of[gpus][there], return_counts=True
        )
        option, place = np.divmod(keys, count)
        rows.append(
            (option, first + place, held * part[option], held / free_in[place])
        )
    options_of, nodes, parts, taken = (
        np.concatenate(column) for column in zip(*rows, strict=True)
    )
    touched = np.stack([options_of, nodes], 1).astype(np.int64)
    return touched, np.stack([parts, taken], 1).astype(np.float32)


def _options(
    kind: PolicyKind,
    graph: ClusterGraph,
    outlook: Outlook,
    options: Sequence[Option],
    unit_s: float,
) -> Array:
    cluster = outlook.cluster
    found = np.zeros((len(options), OPTION_FEATURES), np.float32)
    racks = cluster.shape.rack_gpus
    largest = max(1, max((rack.bit_count() for rack in racks), default=1))
    is_order = kind == "order"
    costs = [
        o.prospect.queue_s if is_order else o.prospect.cost_s for o in options
    ]
    best_s = (
        0.0 if is_order else min((s for s in costs if s == s), default=0.0)
    )
    free_now = cluster.free
    free_by_rack = [(free_now & rack).bit_count() for rack in racks]
    for row, (option, cost_s) in enumerate(zip(options, costs, strict=True)):
        prospect = option.prospect
        count = len(option.gpus)
        known = cost_s == cost_s
        taken = 0
        for gpu in option.gpus if option.taken > 0 else ():
            taken |= 1 << gpu
        sites = [cluster.shape.gpus[gpu] for gpu in option.gpus]
        under = {site.rack for site in sites}
        after = list(free_by_rack)
        for rack in under:
            if rack >= 0 and taken:
                after[rack] = (free_now & ~taken & racks[rack]).bit_count()
        partly = sum(
            0 < n < r.bit_count() for n, r in zip(after, racks, strict=True)
        )
        lasts_s = prospect.lasts_s
        alone_s = prospect.alone_s
        slowed = alone_s > 0 and lasts_s == lasts_s
        excess = squeezed(lasts_s / alone_s - 1, 1.0) if slowed else 0.0
        one = cluster.shape.gpus[option.gpus[0]].model if option.gpus else ""
        values = (
            min((cost_s - best_s) / unit_s, MOST_COST) if known else 0.0,
            float(known),
            float(prospect.stuck),
            squeezed(prospect.lasts_s, unit_s) if known else 0.0,
            excess,
            math.tanh(prospect.delays_s / unit_s) if known else 0.0,
            math.tanh(prospect.queue_s / unit_s) if known else 0.0,
            squeezed(prospect.dark_s, unit_s),
            option.moves / max(1, count),
            len(under) / max(1, min(len(racks), count)),
            len({site.server for site in sites}) / max(1, count),
            option.taken / max(1, graph.gpus),
            (free_now & ~taken).bit_count() / max(1, graph.gpus),
            max(after, default=0) / largest,
            partly / max(1, len(racks)),
            min((after[r] for r in under if r >= 0), default=0) / largest,
            sum(site.model != one for site in sites) / max(1, count),
            *(float(name in option.proposers) for name in PROPOSERS),
        )
        found[row] = values
    return found


def _state(
    kind: PolicyKind,
    cluster: ClusterView,
    job: JobView | None,
    unit_s: float,
) -> Array:
    gpus = max(1, len(cluster.shape.gpus))
    recent = cluster.recent
    wanted = [each.workers for each in cluster.queue]
    sizes = [each.workers for each in recent]
    span_s = cluster.now_s - recent[0].arrived_s if recent else 0.0
    offered = sum(sizes) * unit_s / (span_s * gpus) if span_s > 0 else 0.0
    workers = 0 if job is None else job.workers
    waited_s = 0.0 if job is None else cluster.now_s - job.arrived_s
    values = (
        math.log1p(unit_s) / 15,
        math.log1p(gpus) / 10,
        cluster.free.bit_count() / gpus,
        len(cluster.running) / gpus,
        squeezed(len(wanted), 8.0),
        squeezed(sum(wanted), gpus),
        sum(sizes) / len(sizes) / gpus if sizes else 0.0,
        sizes.count(1) / len(sizes) if sizes else 0.0,
        squeezed(offered, 1.0),
        workers / gpus,
        squeezed(waited_s, unit_s),
        *(float(each == kind) for each in KINDS),
    )
    return np.array([values], np.float32)
