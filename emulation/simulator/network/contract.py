"""The network as the simulator sees it, and collectives as rounds of flows."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from patchlight.controller.prediction.framing import BARE, Framing
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.testbed.errors import BadInput, nearest


class Round(NamedTuple):
    """Edges from ``source`` to ``destination`` (ranks), each with so many ``bits`` in all.

    They are sent as ``messages`` one after the other, each of which pays the path's latency, and
    ``reduced_bits`` of them are added up by each receiver.

    A ring's 2(n−1) steps, each with the same edges, are one round of as many messages: latency is
    paid for each, and bits move at the rate of the slowest edge, as they do when each step waits
    for the one before.
    """

    source: Ints
    destination: Ints
    bits: float
    messages: int = 1
    reduced_bits: float = 0.0


def ring(
    members: int,
    nbytes: float,
    strides: Sequence[int] = (1,),
) -> list[Round]:
    """Ring all-reduce of ``nbytes``: 2(n−1)/n of it over each edge (Patarasuk and Yuan, 2009).

    With several ``strides`` p, each prime to n, an equal part of it goes over each ring r → r + p.
    """
    ranks = np.arange(members)
    one_way = (members - 1) / members * 8 * nbytes / len(strides)
    source = np.concatenate([ranks for _ in strides])
    destination = np.concatenate(
        [(ranks + stride) % members for stride in strides]
    )
    return [
        Round(
            source,
            destination,
            2 * one_way,
            2 * (members - 1),
            one_way * len(strides),
        )
    ]


def goes_round(each: Round, members: int) -> bool:
    """Whether a round is (part of) an all-reduce over rings of all ``members``: it adds up, and
    all of them send to the one so many ranks on, which is prime to their number."""
    if not each.reduced_bits:
        return False
    senders = np.bincount((each.destination - each.source) % members)
    (strides,) = np.nonzero(senders)
    return all(
        senders[stride] % members == 0 and math.gcd(stride, members) == 1
        for stride in strides.tolist()
    )


def ring_part(rounds: Sequence[Round], members: int) -> float:
    """The part of all bits sent that all-reduces over rings of all ``members`` send."""
    sent = [each.bits * len(each.source) for each in rounds]
    round_it = [
        b
        for each, b in zip(rounds, sent, strict=True)
        if goes_round(each, members)
    ]
    return sum(round_it) / sum(sent) if sum(sent) else 1.0


def two_rings(members: int, nbytes: float) -> list[Round]:
    """Half of it each way round at the same time."""
    ranks = np.arange(members)
    there = (ranks + 1) % members
    back = (ranks - 1) % members
    one_way = (members - 1) / members * 4 * nbytes
    sides = np.concatenate([ranks, ranks]), np.concatenate([there, back])
    return [
        Round(
            *sides,
            2 * one_way,
            2 * (members - 1),
            2 * one_way,
        )
    ]


def hierarchical(
    members: int,
    nbytes: float,
    inside: int = 8,
) -> list[Round]:
    """Reduce-scatter in groups of ``inside``, ring all-reduce across them, all-gather inside."""
    groups = max(1, members // inside)
    if members <= inside or members % inside:
        return ring(members, nbytes)
    in_group = [
        np.arange(group * inside, (group + 1) * inside)
        for group in range(groups)
    ]
    across = [np.arange(rank, members, inside) for rank in range(inside)]
    one_way = (inside - 1) / inside * 8 * nbytes
    ranks = np.arange(inside)
    edges = Round(
        ranks,
        (ranks + 1) % inside,
        one_way,
        inside - 1,
        one_way,
    )
    gathers = edges._replace(reduced_bits=0.0)
    return [
        *side_by_side([edges], in_group),
        *side_by_side(ring(groups, nbytes / inside), across),
        *side_by_side([gathers], in_group),
    ]


def halving_doubling(members: int, nbytes: float) -> list[Round]:
    """Recursive halving and doubling (Rabenseifner, 2004); 2ᵏ members."""
    if members & (members - 1):
        raise BadInput(
            f"halving-doubling among {members}: expected a power of two",
            hint="choose ring, which takes any number",
        )
    ranks = np.arange(members)
    halving = []
    apart = members // 2
    bits = 4.0 * nbytes
    while apart:
        halving.append(
            Round(
                ranks,
                ranks ^ apart,
                bits,
                1,
                bits,
            )
        )
        apart = apart // 2
        bits = bits / 2
    doubling = [each._replace(reduced_bits=0.0) for each in reversed(halving)]
    return [*halving, *doubling]


def tree(members: int, nbytes: float) -> list[Round]:
    """Up a binary tree and down again, in a pipeline: as fast as its busiest NIC."""
    children = np.arange(1, members)
    parents = (children - 1) // 2
    depth = (members - 1).bit_length()
    up = Round(
        children,
        parents,
        8 * nbytes,
        depth,
        8 * nbytes,
    )
    return [
        up,
        Round(
            parents,
            children,
            8 * nbytes,
            depth,
        ),
    ]


def parameter_server(
    members: int,
    nbytes: float,
    servers: int = 1,
) -> list[Round]:
    """To ``servers`` of the members, which hold an equal part each, and back."""
    ranks = np.arange(members)
    pairs = [
        (rank, server)
        for server in range(min(servers, members))
        for rank in ranks
    ]
    workers, holders = np.array(
        [pair for pair in pairs if pair[0] != pair[1]]
    ).T
    bits = 8 * nbytes / min(servers, members)
    push = Round(
        workers,
        holders,
        bits,
        1,
        bits * (members - 1),
    )
    return [push, Round(holders, workers, bits)]


_MOST_EDGES = 1 << 20


def all_to_all(
    members: int,
    nbytes: float,
    at_a_time: int = 1,
) -> list[Round]:
    """Each sends an n-th of its ``nbytes`` to each other one: n−1 shifts, so many at a time.

    With ``at_a_time=0`` all are sent at the same time, as far as memory allows.
    """
    ranks = np.arange(members)
    batch = max(1, min(at_a_time or members, _MOST_EDGES // members))
    found = []
    for first in range(1, members, batch):
        shifts = np.arange(first, min(first + batch, members))
        there = (ranks + shifts[:, None]) % members
        found.append(
            Round(
                np.tile(ranks, len(shifts)),
                there.ravel(),
                8 * nbytes / members,
            )
        )
    return found


def pipeline(members: int, nbytes: float) -> list[Round]:
    """Activations from each stage to the next, gradients of them back."""
    stages = np.arange(members - 1)
    return [
        Round(stages, stages + 1, 8 * nbytes),
        Round(stages + 1, stages, 8 * nbytes),
    ]


COLLECTIVES: Mapping[str, Callable[[int, float], list[Round]]] = {
    "ring": ring,
    "two-rings": two_rings,
    "hierarchical": hierarchical,
    "halving-doubling": halving_doubling,
    "tree": tree,
    "parameter-server": parameter_server,
    "all-to-all": all_to_all,
    "pipeline": pipeline,
}


def collective(
    name: str,
    members: int,
    nbytes: float,
    strides: Sequence[int] = (1,),
) -> list[Round]:
    """The rounds of a collective among so many; none for one member.

    ``strides`` are those of the rings that a network has for so many (``Network.strides``).
    ``BadInput`` for a name that there is not and for a size that makes no sense.
    """
    if name not in COLLECTIVES:
        raise BadInput(f"no collective {name!r}: {nearest(name, COLLECTIVES)}")
    if members < 1 or not 0 <= nbytes < float("inf"):
        raise BadInput(
            f"{name} of {nbytes} bytes among {members}: expected 0 bytes or more, 1 member or more"
        )
    if members == 1 or not nbytes:
        return []
    return (
        ring(members, nbytes, strides)
        if name == "ring"
        else COLLECTIVES[name](members, nbytes)
    )


def side_by_side(
    rounds: Sequence[Round], groups: Sequence[Ints] | Ints
) -> list[Round]:
    """The same rounds in each group of ranks at the same time: data, tensor, expert parallelism."""
    return [
        each._replace(
            source=np.concatenate([group[each.source] for group in groups]),
            destination=np.concatenate(
                [group[each.destination] for group in groups]
            ),
        )
        for each in rounds
    ]


NO_LINK = -1
"""Fills up rows of paths that are shorter than the longest."""
MOST_NODES = 1 << 17


class Switching(NamedTuple):
    """Circuits that are set up for those who communicate.

    Light is gone for ``dark_s`` whenever nodes begin to talk to others than before, and a node has
    circuits to and from ``fan_out`` others at a time; a job has ``channels``, each for one sender
    at a time; 0 is any number. Where circuits are made ``once``, only before a job begins, flows
    to others are relayed. ``scheduler`` (``testbed/paths/schedulers.py``) says who is first
    where there are too few; what it is told, and what it says, takes ``control_s`` each.
    ``setup_s`` is what a job waits once for a network of its own.
    """

    dark_s: float = 0.0
    fan_out: int = 0
    once: bool = False
    channels: int = 0
    scheduler: str = "first-come"
    control_s: float = 0.0
    setup_s: float = 0.0


class Loads(NamedTuple):
    """Flows on links: for each (rows) the links that carry some of it, filled up with ``NO_LINK``,
    how many bits are on each for each bit that is sent, and the seconds that a bit needs."""

    links: Ints
    bits: Floats
    latency_s: Floats


@dataclass(
    frozen=True,
    eq=False,
)
class Network(ABC):
    """Nodes and the directed links between them.

    ``spec`` is the text that makes the same network again. ``racks`` tells the rack of each node,
    for placement policies; ``nic_bps`` is what a node sends at most. ``capacity_bps`` and
    ``latency_s`` have a value for each link. ``parts`` counts what it is built of, by the names of
    the price list. A node is a GPU with a NIC. ``framing`` says what of a link's rate goes to
    headers and acknowledgements.
    """

    spec: str
    nic_bps: float
    racks: Ints
    capacity_bps: Floats
    latency_s: Floats
    parts: Mapping[str, float] = field(default_factory=dict)
    switching: Switching = field(default_factory=Switching)
    framing: Framing = BARE

    @property
    def nodes(self) -> int:
        """How many nodes there are, numbered from 0."""
        return len(self.racks)

    def paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        """The links of flows: a row for each (flows × longest path), filled up with ``NO_LINK``.

        ``source`` and ``destination`` are nodes, ``flow`` a number that tells flows apart where
        they are spread over equal paths. ``group`` are the nodes of the job, in the order of its
        ranks: a network that is lit for jobs goes by it. ``BadInput`` for a node that there is not
        and for a flow to oneself.
        """
        for nodes in (source, destination):
            if len(nodes) and not 0 <= nodes.min() <= nodes.max() < self.nodes:
                raise BadInput(
                    f"{self.spec} has no node {nodes.max()}: its nodes are 0 to {self.nodes - 1}"
                )
        if (own := np.flatnonzero(source == destination)).size:
            raise BadInput(
                f"flow {flow[own[0]]} goes from node {source[own[0]]} to itself: expected another "
                "destination"
            )
        return self._paths(
            source,
            destination,
            flow,
            group,
        )

    def loads(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Loads:
        """What flows put on links: on those of ``paths``, and with acknowledgements on those of the
        paths back."""
        paths = self.paths(
            source,
            destination,
            flow,
            group,
        )
        there = paths != NO_LINK
        latency_s = np.where(there, self.latency_s[paths], 0.0).sum(axis=1)
        links, bits = self._spread(paths, group)
        if self.framing == BARE:
            return Loads(links, bits, latency_s)
        back, acknowledged = self._spread(
            self._paths(
                destination,
                source,
                flow,
                group,
            ),
            group,
        )
        carried = bits * self.framing.there, acknowledged * self.framing.back
        return Loads(np.hstack([links, back]), np.hstack(carried), latency_s)

    def strides(self, members: int, ring_part: float = 1.0) -> tuple[int, ...]:
        """The rings r → r + stride over which a job of so many ranks splits a ring all-reduce.

        ``ring_part`` of what the job sends are such all-reduces.
        """
        return (1,)

    def collective(
        self,
        name: str,
        nodes: Ints,
        nbytes: float,
        ring_part: float = 1.0,
    ) -> list[Round]:
        """The rounds of a collective among these nodes, as this network does it best.

        ``ring`` is an all-reduce over as many rings as there are; ``all-to-all`` sends to as many
        at a time as a node has circuits, or to all. ``BadInput`` as ``collective``.
        """
        members = len(nodes)
        if name == "all-to-all" and members > 1 and nbytes:
            return all_to_all(members, nbytes, self.switching.fan_out)
        return collective(
            name,
            members,
            nbytes,
            self.strides(members, ring_part),
        )

    def least_s(self, nbytes: float, *, reduces: bool) -> float:
        """What an all-reduce of so many bytes among all nodes takes at least, or an all-to-all in
        which each sends so many: the time of what a node sends, at its rate."""
        one_way_s = (self.nodes - 1) / self.nodes * 8 * nbytes / self.nic_bps
        return 2 * one_way_s if reduces else one_way_s

    def lit_for(self, members: int, rounds: Sequence[Round]) -> "Network":
        """The network with circuits for what a job of so many ranks sends; itself where circuits
        are made for each round, or there are none."""
        return self

    def _spread(self, paths: Ints, group: Ints) -> tuple[Ints, Floats]:
        """The links of paths, and the part of a flow's bits that each carries."""
        return paths, np.ones(paths.shape)

    @abstractmethod
    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        """The links of flows, which are checked."""


def links(*capacities: tuple[int, float]) -> Floats:
    """The capacities of links, so many of each after each other."""
    return np.concatenate(
        [np.full(count, float(bps)) for count, bps in capacities]
    )


def rows(*columns: Ints) -> Ints:
    """Paths out of their first links, second links, and so on."""
    return np.stack(np.broadcast_arrays(*columns), axis=1).astype(np.int64)


def draw(choices: int, *numbers: Ints) -> Ints:
    """One of so many equal paths for each flow, hashed as a switch does: always the same."""
    mixed = np.zeros(1, np.uint64)
    for each in numbers:
        mixed = (mixed ^ each.astype(np.uint64)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(
            0xBF58476D1CE4E5B9
        )
        mixed ^= mixed >> np.uint64(32)
    return (mixed % np.uint64(choices)).astype(np.int64)


def checked_nodes(spec: str, nodes: int) -> None:
    """``BadInput`` if a network cannot have so many nodes."""
    if not 2 <= nodes <= MOST_NODES:
        raise BadInput(f"{spec} has {nodes} nodes: expected 2 to {MOST_NODES}")
