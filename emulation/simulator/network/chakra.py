"""Chakra execution traces on a network: one job whose operations wait for each other.

Operations of different ranks become one where they meet: the k-th collective of a group at each of
its members, and the k-th send of a rank to another with a tag and the receive that goes with it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.emulation.provenance import provenance
from patchlight.emulation.simulator.network.chakra_file import TraceNode, read_rank
from patchlight.emulation.simulator.network.collectives import Round, collective, ring
from patchlight.emulation.simulator.network.contract import Network
from patchlight.emulation.simulator.network.engine import Order, run
from patchlight.emulation.simulator.network.jobs import PlacedJob, program_of, sessions_of
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.trouble import CALM, Trouble
from patchlight.testbed.errors import BadInput, PatchlightError

COLLECTIVE_TYPES = (
    *("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL"),
    *("REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"),
)
"""By their numbers in the schema."""
_HALF_A_RING = ("ALL_GATHER", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK")


@dataclass(frozen=True)
class Operation:
    """What some ranks do: compute, or send ``rounds`` (of positions in ``ranks``).

    ``needs`` are the operations before it.
    """

    ranks: Ints
    compute_s: float
    rounds: Sequence[Round]
    needs: tuple[int, ...]


def read_chakra(files: Sequence[Path]) -> list[Operation]:
    """The operations of a job, of the traces of its ranks 0, 1, 2 … in this order.

    A collective without a group (``pg_name``) is one of all ranks. ``BadInput`` names file and node
    where a dependency is missing or in a cycle, where a type or attribute makes no sense, and where
    a rank does not take part in what others do.
    """
    if not files:
        raise BadInput("a Chakra job has the trace of at least one rank: none is given")
    ranks = [read_rank(path) for path in files]
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, nodes in enumerate(ranks):
        for name in {_group(node) for node in nodes if node.type == "COMM_COLL_NODE"}:
            groups[name].append(rank)
    groups[""] = list(range(len(ranks)))
    met: dict[object, list[tuple[int, TraceNode]]] = defaultdict(list)
    keys: list[dict[int, object]] = []
    for rank, nodes in enumerate(ranks):
        counts: dict[object, int] = defaultdict(int)
        keys.append({})
        for node in nodes:
            key = _meeting(node, rank, len(ranks))
            counts[key] += 1
            met[key, counts[key]].append((rank, node))
            keys[rank][node.number] = key, counts[key]
    needs: dict[object, set[object]] = {key: set() for key in met}
    for key, each in met.items():
        for rank, node in each:
            for number in node.needs:
                if number not in keys[rank]:
                    raise BadInput(f"{node.place} waits for node {number}, which there is not")
                needs[key].add(keys[rank][number])
    try:
        in_order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        places = ", ".join(met[key][0][1].place for key in error.args[1])
        raise BadInput(f"nodes wait for each other in a circle: {places}") from error
    found: list[Operation] = []
    # What takes no time is left out: who waits for it waits for what it waits for.
    stands_for: dict[object, tuple[int, ...]] = {}
    for key in in_order:
        before = tuple(sorted({n for need in needs[key] for n in stands_for[need]}))
        operation = _operation(met[key], groups, before)
        if operation.compute_s or operation.rounds:
            stands_for[key] = (len(found),)
            found.append(operation)
        else:
            stands_for[key] = before
    return found


def run_chakra(
    network: Network, operations: Sequence[Operation], nodes: Ints, trouble: Trouble = CALM
) -> float:
    """How long a job takes whose rank r is on ``nodes[r]``, in seconds.

    An operation begins when what it needs is done; several of one rank may run at once. Circuits
    are made for each that communicates. ``BadInput`` for too few nodes and for nodes that fail: a
    trace has no checkpoints. ``PatchlightError`` if it cannot go on.
    """
    size = 1 + max((int(each.ranks.max()) for each in operations), default=0)
    if len(nodes) < size:
        raise BadInput(f"a Chakra job of {size} ranks is given {len(nodes)} nodes")
    if any(failure.what == "node" for failure in trouble.failures):
        raise BadInput(
            "nodes of a Chakra job cannot fail: a trace has no checkpoints",
            hint="let links fail, or nodes be slow",
        )
    if not operations:
        return 0.0
    jobs = [PlacedJob(nodes[each.ranks], each.compute_s, each.rounds) for each in operations]
    sessions = [sessions_of(network, job) for job in jobs]
    switching = network.switching
    begins_s = [
        (switching.dark_s if each.rounds else 0.0) + (0.0 if each.needs else switching.setup_s)
        for each in operations
    ]
    followers: list[list[int]] = [[] for _ in operations]
    for number, each in enumerate(operations):
        for need in each.needs:
            followers[need].append(number)
    order = Order(
        np.array([len(each.needs) for each in operations], np.int64),
        np.cumsum([0, *map(len, followers)], dtype=np.int64),
        np.array([number for each in followers for number in each], np.int64),
    )
    program = program_of(network, jobs, sessions, trouble.checked(network))
    outcome = run(replace(program, begins_s=np.array(begins_s, np.float64), order=order))
    if len(outcome.stuck):
        raise PatchlightError(f"the Chakra job never ends: a link of {network.spec} has no rate")
    return float(outcome.ends_s.max())


def result_of_chakra(
    network: Network, files: Sequence[Path], trouble: Trouble = CALM
) -> dict[str, Any]:
    """What ``result.json`` holds of a job whose rank r is on node r."""
    origin = provenance([trouble.seed], files)
    operations = read_chakra(files)
    compute_s = np.zeros(len(files))
    for each in operations:
        compute_s[each.ranks] += each.compute_s
    return {
        "experiment": "chakra",
        "schema_version": 1,
        "network": network.spec,
        "nodes": network.nodes,
        "ranks": len(files),
        "operations": len(operations),
        "completion_s": run_chakra(network, operations, np.arange(network.nodes), trouble),
        "compute_s": float(compute_s.max()),
        "provenance": origin,
    }


def _group(node: TraceNode) -> str:
    return str(node.attributes.get("pg_name") or "")


def _meeting(node: TraceNode, rank: int, ranks: int) -> object:
    """What tells a node's operation from others; nodes of one rank that agree are in order."""
    if node.type == "COMM_COLL_NODE":
        return "collective", _group(node)
    if node.type in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        sends = node.type == "COMM_SEND_NODE"
        other = node.whole("comm_dst" if sends else "comm_src")
        if other >= ranks or other == rank:
            raise BadInput(f"{node.place}: rank {rank} cannot exchange anything with rank {other}")
        tag = node.whole("comm_tag") if "comm_tag" in node.attributes else 0
        return "flow", (rank, other, tag) if sends else (other, rank, tag)
    return rank, node.number


def _operation(
    met: Sequence[tuple[int, TraceNode]], groups: dict[str, list[int]], needs: tuple[int, ...]
) -> Operation:
    rank, node = met[0]
    if node.type == "COMM_COLL_NODE":
        return _collective(met, groups[_group(node)], needs)
    if node.type in ("COMM_SEND_NODE", "COMM_RECV_NODE"):
        by_type = {each.type: (its, each) for its, each in met}
        if len(by_type) != 2:
            raise BadInput(f"{node.place}: no other rank has what goes with this {node.type}")
        source, sent = by_type["COMM_SEND_NODE"]
        destination, _ = by_type["COMM_RECV_NODE"]
        ends, bits = np.array([source, destination]), 8.0 * sent.whole("comm_size")
        flow = Round(np.array([0]), np.array([1]), bits)
        return Operation(ends, 0.0, [flow] if bits else [], needs)
    if node.type == "COMP_NODE" and not node.duration_s and node.attributes.get("num_ops"):
        raise BadInput(
            f"{node.place} says how many operations it has, not how long they take",
            hint="give it a duration_micros",
        )
    return Operation(np.array([rank]), node.duration_s, [], needs)


def _collective(
    met: Sequence[tuple[int, TraceNode]], members: Sequence[int], needs: tuple[int, ...]
) -> Operation:
    _, node = met[0]
    here = {rank for rank, _ in met}
    if missing := [rank for rank in members if rank not in here]:
        raise BadInput(f"{node.place}: rank {missing[0]} does not take part in this collective")
    types, sizes = ({each.whole(name) for _, each in met} for name in ("comm_type", "comm_size"))
    if len(types) > 1 or len(sizes) > 1:
        raise BadInput(f"{node.place}: ranks do not agree on this collective's type and size")
    [number], [nbytes], count = types, sizes, len(members)
    kind = COLLECTIVE_TYPES[number] if number < len(COLLECTIVE_TYPES) else str(number)
    if count == 1:
        rounds: list[Round] = []
    elif kind == "ALL_REDUCE":
        rounds = collective("ring", count, nbytes)
    elif kind in _HALF_A_RING and nbytes:
        # The size is what each rank puts in: of a gather one part, of a reduction all of it.
        [edges] = ring(count, nbytes * count if kind == "ALL_GATHER" else nbytes)
        adds = edges.reduced_bits if kind != "ALL_GATHER" else 0.0
        half = edges._replace(bits=edges.bits / 2, messages=count - 1, reduced_bits=adds)
        rounds = [half]
    elif kind == "ALL_TO_ALL":
        rounds = collective("all-to-all", count, nbytes)
    elif kind == "BARRIER":
        rounds = collective("tree", count, 1)
    elif kind in ("REDUCE", "BROADCAST"):
        up, down = collective("tree", count, max(1, nbytes))
        rounds = [up if kind == "REDUCE" else down]
    elif kind in _HALF_A_RING:
        rounds = []
    else:
        raise BadInput(f"{node.place}: a collective of the type {kind} is not known here")
    return Operation(np.array(members), 0.0, rounds, needs)
