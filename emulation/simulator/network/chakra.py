"""Chakra execution traces on a network: jobs whose operations wait for each other.

Operations of different ranks become one where they meet: the k-th collective of a group at each of
its members. The k-th receive of a rank from another with a tag waits for the send that goes with
it; a send waits for no receive, and is done when all of it has arrived, as in ASTRA-sim.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from patchlight.emulation.simulator.network.chakra_file import TraceNode, read_rank
from patchlight.emulation.simulator.network.contract import Network, Round, collective, ring
from patchlight.emulation.simulator.network.engine import Order, run
from patchlight.emulation.simulator.network.jobs import PlacedJob, program_of, sessions_of
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.emulation.simulator.network.specs import CALM, Trouble
from patchlight.emulation.simulator.results import provenance
from patchlight.testbed.errors import BadInput, PatchlightError

COLLECTIVE_TYPES = (
    *("ALL_REDUCE", "REDUCE", "ALL_GATHER", "GATHER", "SCATTER", "BROADCAST", "ALL_TO_ALL"),
    *("REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK", "BARRIER"),
)
"""By their numbers in the schema."""
_PARTNERS = {"COMM_SEND_NODE": "COMM_RECV_NODE", "COMM_RECV_NODE": "COMM_SEND_NODE"}
_Key = tuple[tuple[Any, Any], int]  # What operations have in common, and their count so far.
_SKIP = (
    "--skip-bad (skip_bad=True in Python) leaves out dependencies on nodes that are not there, and "
    "control dependencies in a circle, and counts them"
)
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


@dataclass(frozen=True)
class ChakraJob:
    """A job of so many ranks. ``notes`` counts what a user should know of how it was read."""

    operations: Sequence[Operation]
    ranks: int
    notes: Mapping[str, int]

    @property
    def compute_s(self) -> float:
        """For how long the busiest rank computes."""
        found = np.zeros(self.ranks)
        for each in self.operations:
            found[each.ranks] += each.compute_s
        return float(found.max())


class PlacedTrace(NamedTuple):
    """A job whose rank r is on ``nodes[r]``, and when it begins."""

    job: ChakraJob
    nodes: Ints
    begins_s: float = 0.0


def read_chakra(files: Sequence[Path], skip_bad: bool = False) -> ChakraJob:
    """A job, of the traces of its ranks 0, 1, 2 … in this order.

    A collective without a group (``pg_name``) is one of all ranks. With ``skip_bad`` dependencies
    on nodes that are not in a rank's file are left out and counted, and all control dependencies if
    with them nodes wait in a circle. ``BadInput`` names file and node where a dependency is missing
    or in a circle, where a type or attribute makes no sense, and where a rank does not take part in
    what others do.
    """
    if not files:
        raise BadInput("a Chakra job has the trace of at least one rank: none is given")
    ranks = [read_rank(path) for path in files]
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, nodes in enumerate(ranks):
        for name in {_group(node) for node in nodes if node.type == "COMM_COLL_NODE"}:
            groups[name].append(rank)
    groups[""] = list(range(len(ranks)))
    met: dict[_Key, list[tuple[int, TraceNode]]] = defaultdict(list)
    keys: list[dict[int, _Key]] = []
    for rank, nodes in enumerate(ranks):
        counts: Counter[tuple[Any, Any]] = Counter()
        keys.append({})
        for node in nodes:
            key = _meeting(node, rank, len(ranks))
            counts[key] += 1
            met[key, counts[key]].append((rank, node))
            keys[rank][node.number] = key, counts[key]
    for kinds in (("data", "control"), ("data",)):
        needs, notes = _needs(met, keys, skip_bad, kinds)
        try:
            in_order = list(TopologicalSorter(needs).static_order())
            break
        except CycleError as error:
            if not skip_bad or kinds == ("data",):
                places = ", ".join(met[key][0][1].place for key in error.args[1][:4])
                said, hint = f"nodes wait in a circle: {places}", None if skip_bad else _SKIP
                raise BadInput(said, hint=hint) from error
    if kinds == ("data",):  # In traces of PyTorch the others may say who called whom.
        control = sum(len(node.control) for nodes in ranks for node in nodes)
        notes["control dependencies left out: with them nodes wait in a circle"] = control
    found: list[Operation] = []
    # What takes no time is left out: who waits for it waits for what it waits for.
    stands_for: dict[_Key, tuple[int, ...]] = {}
    for key in in_order:
        before = tuple(sorted({n for need in needs[key] for n in stands_for[need]}))
        operation = _operation(met[key], groups, before)
        if met[key][0][1].type == "COMM_COLL_NODE" and len(operation.ranks) == 1:
            notes["collectives of one rank, which take no time"] += 1
        if operation.compute_s or operation.rounds:
            stands_for[key] = (len(found),)
            found.append(operation)
        else:
            stands_for[key] = before
    if not found:
        raise BadInput(f"nothing in {files[0]} and the other ranks' traces takes any time")
    return ChakraJob(found, len(files), notes)


def run_chakra(
    network: Network, placed: Sequence[PlacedTrace], trouble: Trouble = CALM
) -> list[float]:
    """How long each job takes, in seconds from when it begins; they share the network's links.

    An operation begins when what it needs is done; several of one rank may run at once. Circuits
    are made for each that communicates. ``BadInput`` for too few nodes and for nodes that fail: a
    trace has no checkpoints. ``PatchlightError`` if a job cannot go on.
    """
    if any(failure.what == "node" for failure in trouble.failures):
        raise BadInput(
            "nodes of a Chakra job cannot fail: a trace has no checkpoints",
            hint="let links fail, or nodes be slow",
        )
    jobs: list[PlacedJob] = []
    begins_s: list[float] = []
    needs: list[tuple[int, ...]] = []
    switching = network.switching
    for job, nodes, job_begins_s in placed:
        if len(nodes) < job.ranks:
            raise BadInput(f"a Chakra job of {job.ranks} ranks is given {len(nodes)} nodes")
        first = len(jobs)
        for each in job.operations:
            jobs.append(PlacedJob(nodes[each.ranks], each.compute_s, each.rounds))
            needs.append(tuple(first + need for need in each.needs))
            dark_s = switching.dark_s if each.rounds else 0.0
            begins_s.append(dark_s if each.needs else dark_s + switching.setup_s + job_begins_s)
    followers: list[list[int]] = [[] for _ in jobs]
    for number, before in enumerate(needs):
        for need in before:
            followers[need].append(number)
    order = Order(
        np.array([len(each) for each in needs], np.int64),
        np.cumsum([0, *map(len, followers)], dtype=np.int64),
        np.array([number for each in followers for number in each], np.int64),
    )
    sessions = [sessions_of(network, job) for job in jobs]
    program = program_of(network, jobs, sessions, trouble.checked(network))
    outcome = run(replace(program, begins_s=np.array(begins_s, np.float64), order=order))
    if len(outcome.stuck):
        raise PatchlightError(f"a Chakra job never ends: a link of {network.spec} has no rate")
    ends = np.cumsum([0, *(len(job.operations) for job, _, _ in placed)])
    return [
        float(outcome.ends_s[first:end].max()) - each.begins_s
        for each, first, end in zip(placed, ends, ends[1:], strict=False)
    ]


def result_of_chakra(
    network: Network,
    traces: Sequence[tuple[str, Sequence[Path], float]],
    trouble: Trouble = CALM,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """What ``result.json`` holds of jobs: the name, files and beginning of each.

    Each job has the nodes behind those of the one before it, rank by rank.
    """
    origin = provenance([trouble.seed], [file for _, files, _ in traces for file in files])
    placed: list[PlacedTrace] = []
    taken = 0
    for _, files, begins_s in traces:
        job = read_chakra(files, skip_bad)
        placed.append(PlacedTrace(job, np.arange(taken, taken + job.ranks), begins_s))
        taken += job.ranks
    if taken > network.nodes:
        raise BadInput(f"{network.spec} has {network.nodes} nodes: the Chakra jobs need {taken}")
    lasts_s = run_chakra(network, placed, trouble)
    jobs = [
        {
            "chakra": name,
            "begins_s": begins_s,
            "first_node": int(each.nodes[0]),
            "ranks": each.job.ranks,
            "operations": len(each.job.operations),
            "completion_s": job_s,
            "compute_s": each.job.compute_s,
            "notes": dict(each.job.notes),
        }
        for (name, _, begins_s), each, job_s in zip(traces, placed, lasts_s, strict=True)
    ]
    return {
        "experiment": "chakra",
        "schema_version": 1,
        "network": network.spec,
        "nodes": network.nodes,
        "ranks": taken,
        "operations": sum(len(each.job.operations) for each in placed),
        "completion_s": max(each.begins_s + s for each, s in zip(placed, lasts_s, strict=True)),
        "compute_s": max(each.job.compute_s for each in placed),
        "jobs": jobs,
        "provenance": origin,
    }


def _needs(
    met: Mapping[_Key, Sequence[tuple[int, TraceNode]]],
    keys: Sequence[Mapping[int, _Key]],
    skip_bad: bool,
    kinds: Sequence[str],
) -> tuple[dict[_Key, set[_Key]], Counter[str]]:
    """What each operation waits for, and what was left out, by these kinds of dependencies."""
    needs: dict[_Key, set[_Key]] = {key: set() for key in met}
    notes: Counter[str] = Counter()
    for key, each in met.items():
        for rank, node in each:
            if partner := _PARTNERS.get(node.type):
                other = (partner, key[0][1]), key[1]
                if other not in met:
                    raise BadInput(f"{node.place}: no other rank has the {partner} for it")
                if partner == "COMM_SEND_NODE":
                    needs[key].add(other)
            for number in (number for kind in kinds for number in getattr(node, kind)):
                if number in keys[rank]:
                    needs[key].add(keys[rank][number])
                elif skip_bad:
                    notes["dependencies left out, on nodes that are not in the file"] += 1
                else:
                    there = f"{node.place} waits for node {number}, which there is not"
                    raise BadInput(there, hint=_SKIP)
    return needs, notes


def _group(node: TraceNode) -> str:
    return str(node.attributes.get("pg_name") or "")


def _meeting(node: TraceNode, rank: int, ranks: int) -> tuple[Any, Any]:
    """What tells a node's operation from others; nodes of one rank that agree are in order."""
    if node.type == "COMM_COLL_NODE":
        return "collective", _group(node)
    if node.type in _PARTNERS:
        sends = node.type == "COMM_SEND_NODE"
        other = node.whole("comm_dst" if sends else "comm_src")
        if other >= ranks or other == rank:
            raise BadInput(f"{node.place}: rank {rank} cannot exchange anything with rank {other}")
        tag = node.whole("comm_tag") if "comm_tag" in node.attributes else 0
        return node.type, (rank, other, tag) if sends else (other, rank, tag)
    return rank, node.number


def _operation(
    met: Sequence[tuple[int, TraceNode]], groups: dict[str, list[int]], needs: tuple[int, ...]
) -> Operation:
    rank, node = met[0]
    if node.type == "COMM_COLL_NODE":
        return _collective(met, groups[_group(node)], needs)
    if node.type == "COMM_SEND_NODE":
        ends, bits = np.array([rank, node.whole("comm_dst")]), 8.0 * node.whole("comm_size")
        flow = Round(np.array([0]), np.array([1]), bits)
        return Operation(ends, 0.0, [flow] if bits else [], needs)
    if node.type == "COMM_RECV_NODE":
        return Operation(np.array([rank]), 0.0, [], needs)
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
