"""Chakra execution traces of ranks as one job: operations that wait for each other.

Operations of different ranks are merged where they meet: the k-th collective of a group at each of
its members. The k-th receive of a rank from another with a tag waits for the send that goes with
it; a send waits for no receive, and is done when all of it has arrived, as in ASTRA-sim. Both have
one size.

A rank computes one thing at a time on its GPU and one on its CPU, and communicates one at a time,
as in ASTRA-sim (``HardwareResource``). Streams and threads that the trace names are a lane each, as
in Chakra's own converter (``simulate_execution``), and keep the order in which they ran.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from patchlight.emulation.simulator.network.chakra_file import (
    TraceNode,
    read_rank,
)
from patchlight.emulation.simulator.network.contract import (
    Round,
    collective,
    ring,
)
from patchlight.emulation.simulator.network.ordering import (
    ordered,
    shortest_cycle,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput

COLLECTIVE_TYPES = (
    "ALL_REDUCE",
    "REDUCE",
    "ALL_GATHER",
    "GATHER",
    "SCATTER",
    "BROADCAST",
    "ALL_TO_ALL",
    "REDUCE_SCATTER",
    "REDUCE_SCATTER_BLOCK",
    "BARRIER",
)
"""By their numbers in the schema."""
_PARTNERS = {
    "COMM_SEND_NODE": "COMM_RECV_NODE",
    "COMM_RECV_NODE": "COMM_SEND_NODE",
}
# What operations have in common, and their count so far.
_Key = tuple[tuple[Any, Any], int]
# A rank, what its operations are, and a stream or thread.
_Lane = tuple[int, str, str | None]
_SKIP = (
    "--skip-bad (skip_bad=True in Python) leaves out dependencies on missing nodes, and control "
    "dependencies in a cycle, and counts them"
)
_NEVER_SKIPPED = (
    "data dependencies are never left out: correct the trace, or convert it again; each of its "
    "nodes must come after those in its data_deps"
)
_NO_TIME = " has a number of operations but no duration"
_PEAK = (
    "give a GPU's operations per second with --peak-flops 312e12 (peak_flops=312e12 in Python), "
    "or give it a duration_micros"
)
_LONGEST_CYCLE = 100
"""Messages name at most so many nodes of a cycle."""
_HALF_A_RING = ("ALL_GATHER", "REDUCE_SCATTER", "REDUCE_SCATTER_BLOCK")


@dataclass(frozen=True)
class Operation:
    """An operation of some ranks: computing, or sending ``rounds`` (of positions in ``ranks``).

    ``needs`` are the operations before it, ``lanes`` what it occupies: each runs one at a time, of
    those that are ready the one with the lowest ``place``.
    """

    ranks: Ints
    compute_s: float
    rounds: Sequence[Round]
    needs: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    place: int = 0


@dataclass(frozen=True)
class ChakraJob:
    """A job of so many ranks. ``notes`` counts what a user should know about how it was read."""

    operations: Sequence[Operation]
    ranks: int
    notes: Mapping[str, int]

    @property
    def compute_s(self) -> float:
        """For how long the busiest GPU, stream or thread computes."""
        found: dict[int, float] = defaultdict(float)
        for each in self.operations:
            for lane in each.lanes:
                found[lane] += each.compute_s
        return max(found.values())


@dataclass
class _Reading:
    """The traces of a job, by the numbers of its operations.

    ``met`` are an operation's nodes, each with its rank; ``place`` is how late it stands in a
    rank's trace, at most; ``lanes`` have their operations in the order in which they ran.
    """

    ranks: Sequence[Sequence[TraceNode]]
    skip_bad: bool
    peak_flops: float | None
    met: list[list[tuple[int, TraceNode]]] = field(default_factory=list)
    numbers: dict[_Key, int] = field(default_factory=dict)
    of_node: list[dict[int, int]] = field(default_factory=list)
    place: list[int] = field(default_factory=list)
    lanes: dict[_Lane, list[int]] = field(default_factory=dict)
    notes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for rank, nodes in enumerate(self.ranks):
            counts: Counter[tuple[Any, Any]] = Counter()
            self.of_node.append({})
            for at, node in enumerate(nodes):
                what = _meeting(node, rank, len(self.ranks))
                counts[what] += 1
                number = self.numbers.setdefault(
                    (what, counts[what]), len(self.met)
                )
                if number == len(self.met):
                    self.met.append([])
                    self.place.append(0)
                self.met[number].append((rank, node))
                self.of_node[rank][node.number] = number
                self.place[number] = max(self.place[number], at)
                if lane := _lane(node):
                    self.lanes.setdefault((rank, *lane), []).append(number)

    def needs(self, kinds: Sequence[str]) -> list[set[int]]:
        """The operations that each one waits for, by these kinds of dependencies."""
        needs: list[set[int]] = [set() for _ in self.met]
        missing = 0
        for key, number in self.numbers.items():
            for rank, node in self.met[number]:
                if partner := _PARTNERS.get(node.type):
                    other = self.numbers.get(((partner, key[0][1]), key[1]))
                    if other is None:
                        raise BadInput(
                            f"{node.place}: no other rank has the matching {partner}"
                        )
                    if partner == "COMM_SEND_NODE":
                        needs[number].add(other)
                for need in (
                    need for kind in kinds for need in getattr(node, kind)
                ):
                    if need in self.of_node[rank]:
                        needs[number].add(self.of_node[rank][need])
                    elif self.skip_bad:
                        missing += 1
                    else:
                        there = (
                            f"{node.place} waits for the unknown node {need}"
                        )
                        raise BadInput(there, hint=_SKIP)
        if missing:
            self.notes[
                "dependencies left out, because their nodes are not in the file"
            ] = missing
        return needs

    def check_sizes(self) -> None:
        """``BadInput`` for a receive that has another size than its send; with ``skip_bad`` the
        send's size counts."""
        for (what, count), number in self.numbers.items():
            if what[0] != "COMM_RECV_NODE":
                continue
            _, receive = self.met[number][0]
            _, send = self.met[
                self.numbers[("COMM_SEND_NODE", what[1]), count]
            ][0]
            if "comm_size" not in receive.attributes:
                continue
            received = receive.whole("comm_size")
            sent = send.whole("comm_size")
            if received == sent:
                continue
            if not self.skip_bad:
                raise BadInput(
                    f"{receive.place} receives {received} bytes, but {send.place} sends {sent}",
                    hint="with --skip-bad (skip_bad=True in Python) the send's size counts",
                )
            self.notes[
                "receives with another size than their send; the send's size counts"
            ] += 1

    def in_order(self) -> tuple[list[int], list[set[int]]]:
        """Operations in a possible order, and what each comes after.

        ``BadInput`` names the shortest cycle if there is none.
        """
        streams = [
            lane
            for (_, _, name), lane in self.lanes.items()
            if name is not None
        ]
        found = ordered(self.needs(("data", "control")), self.place, streams)
        if len(found.items) < len(self.met):
            needs = self.needs(("data",))
            found = ordered(needs, self.place, streams)
            if len(found.items) < len(self.met):
                raise BadInput(self._cycle(needs), hint=_NEVER_SKIPPED)
            if not self.skip_bad:
                needs = self.needs(("data", "control"))
                raise BadInput(self._cycle(needs), hint=_SKIP)
            # In traces of PyTorch they may say who called whom.
            control = sum(
                len(node.control) for each in self.met for _, node in each
            )
            self.notes[
                "control dependencies left out, because they form a cycle"
            ] = control
        if found.swapped:
            self.notes[
                "operations moved ahead on their stream, because others need them"
            ] = found.swapped
        return found.items, found.after

    def _cycle(self, needs: Sequence[set[int]]) -> str:
        cycle = shortest_cycle(needs)
        places = list(map(self._waiting, cycle, [*cycle[1:], cycle[0]]))
        shown: list[str] = []
        before = ""
        for place in [*places, places[0]]:
            file, _, node = place.rpartition(": ")
            shown.append(node if file == before else place)
            before = file
        if len(shown) > _LONGEST_CYCLE:
            shown[_LONGEST_CYCLE:] = [f"{len(places) - _LONGEST_CYCLE} more"]
        return f"nodes depend on each other in a cycle: {' → '.join(shown)}"

    def _waiting(self, number: int, need: int) -> str:
        """The node of an operation that waits for another operation."""
        for rank, node in self.met[number]:
            waits_for = (*node.data, *node.control)
            if need in (self.of_node[rank].get(each) for each in waits_for):
                return node.place
        return self.met[number][0][1].place

    def operation(
        self, number: int, groups: Mapping[str, Sequence[int]]
    ) -> Operation:
        """The collective or transfer of an operation's ranks; ``BadInput`` if it is invalid."""
        met = self.met[number]
        rank, node = met[0]
        if node.type == "COMM_COLL_NODE":
            found = _collective(met, groups[_group(node)])
        elif node.type == "COMM_SEND_NODE":
            bits = 8.0 * node.whole("comm_size")
            flow = Round(np.array([0]), np.array([1]), bits)
            ends = np.array([rank, node.whole("comm_dst")])
            found = Operation(ends, 0.0, [flow] if bits else [])
        else:
            return Operation(np.array([rank]), self._lasts_s(node), [])
        if not found.rounds:
            what = (
                "collectives of one rank"
                if len(found.ranks) == 1
                else f"{node.type}s of 0 bytes"
            )
            self.notes[f"{what}, which take no time"] += 1
        return found

    def _lasts_s(self, node: TraceNode) -> float:
        """How long a node takes that sends nothing; ``BadInput`` if it does not say."""
        if node.type == "COMM_RECV_NODE":
            return 0.0
        if node.duration_s or node.type == "METADATA_NODE":
            return node.duration_s
        if node.type == "COMP_NODE":
            operations = (
                node.whole("num_ops") if "num_ops" in node.attributes else 0
            )
            if operations and node.on_cpu:
                raise BadInput(
                    f"{node.place}{_NO_TIME}", hint="give it a duration_micros"
                )
            if operations and not (self.peak_flops or 0.0) > 0.0:
                raise BadInput(f"{node.place}{_NO_TIME}", hint=_PEAK)
            if not operations and not node.on_cpu:
                self.notes["GPU computations that take no time"] += 1
            return operations / (self.peak_flops or 1.0)
        if not self.skip_bad:
            raise BadInput(
                f"{node.place} is a {node.type} without a duration",
                hint="give it a duration_micros; --skip-bad (skip_bad=True in Python) counts such "
                "nodes, and assumes that they take no time",
            )
        self.notes[
            f"{node.type}s without a duration, assumed to take no time"
        ] += 1
        return 0.0


def read_chakra(
    files: Sequence[Path],
    skip_bad: bool = False,
    peak_flops: float | None = None,
) -> ChakraJob:
    """A job, of the traces of its ranks 0, 1, 2 … in this order.

    A collective without a group (``pg_name``) is one of all ranks. With ``skip_bad`` dependencies
    on nodes that are not in a rank's file are left out and counted, all control dependencies if
    they form a cycle, the time of memory, storage and the like where none is given, and the sizes
    of receives where their sends have others. A
    GPU that computes ``peak_flops`` operations a second needs ``num_ops`` divided by it where a
    node has no duration. ``BadInput`` names file and node where a dependency is missing or in a
    cycle, where a type or attribute makes no sense, and where a rank does not take part in what
    others do.
    """
    if not files:
        raise BadInput(
            "a Chakra job needs the trace of at least one rank: none was given"
        )
    ranks = [read_rank(path) for path in files]
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, nodes in enumerate(ranks):
        for name in {
            _group(node) for node in nodes if node.type == "COMM_COLL_NODE"
        }:
            groups[name].append(rank)
    groups[""] = list(range(len(ranks)))
    reading = _Reading(ranks, skip_bad, peak_flops)
    in_order, after = reading.in_order()
    reading.check_sizes()
    lanes: dict[int, list[int]] = defaultdict(list)
    for lane, numbers in enumerate(reading.lanes.values()):
        for number in numbers:
            lanes[number].append(lane)
    found: list[Operation] = []
    # Operations that take no time are left out: what waits for them waits for what they wait for.
    stands_for: dict[int, tuple[int, ...]] = {}
    for number in in_order:
        before = tuple(
            sorted({n for need in after[number] for n in stands_for[need]})
        )
        operation = reading.operation(number, groups)
        if operation.compute_s or operation.rounds:
            stands_for[number] = (len(found),)
            at = reading.place[number]
            found.append(
                replace(
                    operation,
                    needs=before,
                    lanes=tuple(lanes[number]),
                    place=at,
                )
            )
        else:
            stands_for[number] = before
    if not found:
        raise BadInput(
            f"{files[0]} and the other ranks' traces have no durations"
        )
    return ChakraJob(found, len(files), reading.notes)


def _group(node: TraceNode) -> str:
    return str(node.attributes.get("pg_name") or "")


def _meeting(
    node: TraceNode,
    rank: int,
    ranks: int,
) -> tuple[Any, Any]:
    """The key that identifies a node's operation; nodes of one rank with one key are in order."""
    if node.type == "COMM_COLL_NODE":
        return "collective", _group(node)
    if node.type in _PARTNERS:
        sends = node.type == "COMM_SEND_NODE"
        other = node.whole("comm_dst" if sends else "comm_src")
        if other >= ranks or other == rank:
            raise BadInput(
                f"{node.place}: rank {rank} cannot exchange anything with rank {other}"
            )
        tag = node.whole("comm_tag") if "comm_tag" in node.attributes else 0
        return node.type, (rank, other, tag) if sends else (other, rank, tag)
    return rank, node.number


def _lane(node: TraceNode) -> tuple[str, str | None] | None:
    """The unit that runs a node, one at a time, and its name in the trace; ``None`` for none."""
    communicates = node.type.startswith("COMM_")
    if node.type == "METADATA_NODE" or (node.on_cpu and not communicates):
        thread = node.attributes.get("tid")
        return "CPU", None if thread is None else str(thread)
    stream = None if node.on_cpu else node.attributes.get("stream")
    if stream is not None:
        return "stream", str(stream)
    if node.type == "COMM_RECV_NODE":
        return None  # As in ASTRA-sim it only waits for the send.
    return "communication" if communicates else node.type, None


def _collective(
    met: Sequence[tuple[int, TraceNode]], members: Sequence[int]
) -> Operation:
    _, node = met[0]
    here = {rank for rank, _ in met}
    if missing := [rank for rank in members if rank not in here]:
        raise BadInput(
            f"{node.place}: rank {missing[0]} does not take part in this collective"
        )
    types, sizes = (
        {each.whole(name) for _, each in met}
        for name in ("comm_type", "comm_size")
    )
    if len(types) > 1 or len(sizes) > 1:
        raise BadInput(
            f"{node.place}: ranks differ in this collective's type or size"
        )
    [number] = types
    [nbytes] = sizes
    count = len(members)
    kind = (
        COLLECTIVE_TYPES[number]
        if number < len(COLLECTIVE_TYPES)
        else str(number)
    )
    if count == 1:
        rounds: list[Round] = []
    elif kind == "ALL_REDUCE":
        rounds = collective("ring", count, nbytes)
    elif kind in _HALF_A_RING and nbytes:
        # The size is what each rank puts in: of a gather one part, of a reduction all of it.
        [edges] = ring(
            count, nbytes * count if kind == "ALL_GATHER" else nbytes
        )
        adds = edges.reduced_bits if kind != "ALL_GATHER" else 0.0
        half = edges._replace(
            bits=edges.bits / 2,
            messages=count - 1,
            reduced_bits=adds,
        )
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
        raise BadInput(
            f"{node.place}: collectives of the type {kind} are not supported"
        )
    return Operation(np.array(members), 0.0, rounds)
