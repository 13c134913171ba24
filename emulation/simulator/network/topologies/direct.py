"""Networks whose links are fixed for the whole job: tori, ASTRA-sim's topologies, labs, TopoOpt."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from patchlight.controller.policies.engineering.traffic import (
    degree_constrained,
)
from patchlight.controller.prediction.network import LabNetwork
from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Round,
    Switching,
    checked_nodes,
    goes_round,
    links,
    ring_part,
)
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.topologies.packet import (
    LATENCY,
    RATE,
)
from patchlight.testbed.errors import BadInput, reason
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

_KINDS = ("Ring", "Switch", "FullyConnected")
_MOST_LINKS = 1 << 24
# In ASTRA-sim's network files.
_LEAST = {
    "npus_count": 2,
    "bandwidth": 1e-9,
    "latency": 0,
}


def _links(kind: str, size: int) -> int:
    """How many links a node has in a dimension: ahead and back, to and from a switch, or to each
    node of the dimension, of which its own is never used."""
    return size if kind == "FullyConnected" else 2


@dataclass(
    frozen=True,
    eq=False,
)
class Dimensions(Network):
    """Nodes in dimensions of ``dims`` nodes each, joined in each as ``kinds`` says.

    A node's links stand one behind the other, dimension by dimension. The first dimension is that
    of neighbouring numbers. Flows go dimension by dimension, the first one first.
    """

    dims: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()

    def collective(
        self,
        name: str,
        nodes: Ints,
        nbytes: float,
        ring_part: float = 1.0,
    ) -> list[Round]:
        """All-reduces of a block of nodes go over the rings of all dimensions, both ways at once.

        Each part of the bytes takes the dimensions in another order (Sack and Gropp, *Collective
        algorithms for multiported torus networks*, 2015). With parts of the right sizes each link
        carries as much, and all is one round.
        """
        rings = self._rings_of(nodes) if name == "ring" and nbytes else []
        if not rings:
            return super().collective(
                name,
                nodes,
                nbytes,
                ring_part,
            )
        members = len(nodes)
        ranks = np.arange(len(nodes))
        stride = 1
        source = []
        destination = []
        steps = 0
        for size, closed in rings:
            here = ranks // stride % size
            for step in (1, -1) if closed else (1,):
                source.append(ranks)
                destination.append(
                    ranks + ((here + step) % size - here) * stride
                )
            stride = stride * size
            steps = steps + size - 1
        one_way = (members - 1) / members * 8 * nbytes
        edges = np.concatenate(source), np.concatenate(destination)
        return [
            Round(
                *edges,
                2 * one_way / len(source),
                2 * steps,
                one_way,
            )
        ]

    def _rings_of(self, nodes: Ints) -> list[tuple[int, bool]]:
        """How many nodes of a block there are in each dimension, and whether they close a ring of
        three or more; nothing if they are not a block, or links differ."""
        left = len(nodes)
        rings = list[tuple[int, bool]]()
        block = 1
        if (
            set(self.kinds) != {"Ring"}
            or np.ptp(self.capacity_bps)
            or left < 2
        ):
            return []
        for size in self.dims:
            across = min(left, size)
            if left % across or nodes[0] // block % size + across > size:
                return []
            if across > 1:
                rings.append((across, across == size > 2))
            left = left // across
            block = block * size
            if across < size and left > 1:
                return []
        whole = len(nodes) // rings[-1][0] if rings else 1
        aligned = nodes[0] % whole == 0 and bool((np.diff(nodes) == 1).all())
        return rings if aligned and left == 1 else []

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        at = source.copy()
        moves = []
        counts = [
            _links(*each) for each in zip(self.kinds, self.dims, strict=True)
        ]
        width = sum(counts)
        first = 0
        stride = 1
        for kind, size, count in zip(
            self.kinds,
            self.dims,
            counts,
            strict=True,
        ):
            here = at // stride % size
            there = destination // stride % size
            arrived = at + (there - here) * stride
            link = at * width + first
            goes = here != there
            if kind == "Ring":
                ahead = (there - here) % size
                # The shorter way round; of two equal ones ahead from every second node.
                forward = 2 * ahead + here % 2 <= size
                step = np.where(forward, 1, -1)
                hops = np.where(forward, ahead, size - ahead)
                for hop in range(size // 2):
                    on = at + ((here + hop * step) % size - here) * stride
                    link = on * width + first + ~forward
                    moves.append(np.where(hop < hops, link, NO_LINK))
            elif kind == "Switch":
                moves.append(np.where(goes, link, NO_LINK))
                moves.append(
                    np.where(goes, arrived * width + first + 1, NO_LINK)
                )
            else:
                moves.append(np.where(goes, link + there, NO_LINK))
            at = arrived
            first = first + count
            stride = stride * size
        return np.stack(moves, axis=1)


def _dimensions(
    spec: str,
    dims: Sequence[int],
    kinds: Sequence[str],
    bps: Floats,
    latency_s: Floats,
) -> Dimensions:
    """The network whose links have so many bit/s and seconds in each dimension."""
    nodes = math.prod(dims)
    checked_nodes(spec, nodes)
    counts = [_links(*each) for each in zip(kinds, dims, strict=True)]
    if (count := nodes * sum(counts)) > _MOST_LINKS:
        raise BadInput(
            f"{spec} has {count:,} links: expected {_MOST_LINKS:,} at most"
        )
    # What a node sends at most: a switch's second link is down, the last of a full mesh unused.
    sends = np.array(counts) - [kind != "Ring" for kind in kinds]
    return Dimensions(
        spec,
        float(sends @ bps),
        np.arange(nodes) // dims[0],
        np.tile(np.repeat(bps, counts), nodes),
        np.tile(np.repeat(latency_s, counts), nodes),
        dims=tuple(dims),
        kinds=tuple(kinds),
    )


def torus(
    spec: str,
    dims: tuple[int, ...] = (4, 4, 4),
    rate: float = RATE,
    latency: float = LATENCY,
) -> Dimensions:
    """A torus of so many nodes each way, routed dimension by dimension (Dally and Seitz, 1987).

    ``rate`` is a node's: each of its links, two for each dimension, has an equal part of it.
    """
    if min(dims) < 2:
        raise BadInput(f"{spec}: expected at least 2 nodes in each dimension")
    each_bps = np.full(len(dims), rate / (2 * len(dims)))
    rings = ["Ring"] * len(dims)
    made = _dimensions(
        spec,
        dims,
        rings,
        each_bps,
        np.full(len(dims), latency),
    )
    return replace(
        made,
        nic_bps=rate,
        parts={"transceiver-100g": made.nodes * rate / 100e9},
    )


def astra(spec: str, file: str) -> Dimensions:
    """What a network file of ASTRA-sim's analytical back end describes (Won et al., *ASTRA-sim2.0*,
    ISPASS 2023): a ring, a full mesh or a switch in each dimension.

    ``bandwidth`` is each link's, in 2³⁰ bytes a second as there; ``latency`` each link's, in ns.
    ``BadInput`` if the file cannot be read, or says something else.
    """
    try:
        given = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (
        OSError,
        UnicodeDecodeError,
        yaml.YAMLError,
        RecursionError,
    ) as error:
        raise BadInput(
            f"cannot read the network file {file}: {reason(error)}"
        ) from error
    keys = ("topology", *_LEAST)
    if not isinstance(given, dict) or set(given) != set(keys):
        raise BadInput(
            f"{file} is not a network file of ASTRA-sim: expected {', '.join(keys)}"
        )
    kinds, *columns = (given[key] for key in keys)
    if (
        not isinstance(kinds, list)
        or not kinds
        or not set(map(str, kinds)) <= set(_KINDS)
    ):
        raise BadInput(
            f"{file}: topology is {kinds!r}: expected a list of {', '.join(_KINDS)}"
        )
    for (key, least), column in zip(_LEAST.items(), columns, strict=True):
        each = column if isinstance(column, list) else []
        types = (int,) if key == "npus_count" else (int, float)
        good = [
            type(value) in types and least <= value <= 1e12 for value in each
        ]
        if len(good) != len(kinds) or not all(good):
            numbers = "a whole number" if key == "npus_count" else "a number"
            said = (
                f"expected {numbers} of {least:g} or more for each dimension"
            )
            raise BadInput(f"{file}: {key} is {column!r}: {said}")
    dims, bandwidth, latency_ns = columns
    bps = np.array(bandwidth) * 2.0**30 * 8
    latency_s = np.array(latency_ns) / 1e9
    return _dimensions(
        spec,
        dims,
        kinds,
        bps,
        latency_s,
    )


@dataclass(
    frozen=True,
    eq=False,
)
class LabPaths(Network):
    """Paths are those that the lab's flow tables have."""

    lit: LabNetwork = field(kw_only=True)
    numbers: Mapping[Hashable, int] = field(kw_only=True)

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        found = []
        for here, there in zip(
            source.tolist(), destination.tolist(), strict=True
        ):
            way = self.lit.way(here, there)
            if way is None:
                names = [self.lit.hosts[node].name for node in (here, there)]
                raise BadInput(
                    f"{self.spec}: no optical path from {names[0]} to {names[1]}"
                )
            found.append([self.numbers[link] for link in way])
        longest = max(map(len, found), default=0)
        return np.array(
            [[*way, *[NO_LINK] * (longest - len(way))] for way in found],
            np.int64,
        )


def lab(spec: str, file: str) -> LabPaths:
    """A lab file or a built-in lab, its circuits as in the file; rates are not scaled.

    Its links have no latency: lab files say nothing of it.
    """
    loaded = load_lab(file)
    return lab_network(loaded, loaded.initial_maps, spec)


def lab_network(
    lab: Lab,
    maps: Mapping[str, PortMap],
    spec: str = "",
) -> LabPaths:
    """A lab under these maps of its OCSs; ``spec`` is its name in messages."""
    lit = LabNetwork(lab, trace_links(lab, maps))
    checked_nodes(spec or lab.name, len(lit.hosts))
    switches = [switch.name for switch in lab.packet_switches]
    known = [switch or "" for switch in lit.switches]
    racks = [
        switches.index(name) if name in switches else len(switches)
        for name in known
    ]
    return LabPaths(
        spec or lab.name,
        lit.nic_bps,
        np.array(racks, np.int64),
        np.array([float(bps) for bps in lit.capacity_bps.values()]),
        np.zeros(len(lit.capacity_bps)),
        lit=lit,
        numbers={link: number for number, link in enumerate(lit.capacity_bps)},
    )


MOST_MATCHED = 2048
"""Larger jobs have rings only: a matching takes O(n³), its table of ways n²."""


@dataclass(
    frozen=True,
    eq=False,
)
class TopoOpt(Network):
    """Circuits that each job has to itself: rings for its all-reduces, matchings for the rest.

    Wang et al., *TopoOpt: Co-optimizing Network Topology and Parallelization Strategy for
    Distributed Training Jobs*, NSDI 2023: TopologyFinder with TotientPerms and SelectPermutations.
    How ports are divided, and how a circuit counts that is there, is as in the authors' simulator
    (FlexNet). Link ``node · degree + i`` is the circuit of a node's i-th port.
    ``rings`` of the ports are those of rings; ``matched`` has, for each rank, the ranks that its
    other ports are joined to.
    """

    degree: int = 0
    rings: int = 0
    matched: Ints = field(default_factory=lambda: np.zeros((0, 0), np.int64))

    def strides(self, members: int, ring_part: float = 1.0) -> tuple[int, ...]:
        """The strides of as many rings as there are ports for rings."""
        part = ring_part if members <= MOST_MATCHED else 1.0
        return _strides(members, _ring_ports(self.degree, part))

    def lit_for(self, members: int, rounds: Sequence[Round]) -> "TopoOpt":
        """Ports for rings by their part of the bits, one at least; the others by matchings."""
        if members > MOST_MATCHED:
            return self
        rings = _ring_ports(self.degree, ring_part(rounds, members))
        demand = np.zeros((members, members))
        for each in rounds:
            if not goes_round(each, members):
                np.add.at(demand, (each.source, each.destination), each.bits)
        spare = self.degree - rings
        if not spare or not demand.any():
            return replace(self, rings=rings)
        circuits = degree_constrained(demand, [spare] * members)
        matched = np.full((members, spare), NO_LINK, np.int64)
        for rank, row in enumerate(circuits):
            partners = np.repeat(np.arange(members), row)
            matched[rank, : len(partners)] = partners
        made = replace(
            self,
            rings=rings,
            matched=matched,
        )
        around = replace(self, rings=self.degree)
        # Of equal traffic matchings make cliques. A job without a ring may have the better ones.
        ringless = not ring_part(rounds, members)
        return (
            around
            if ringless and around._hops(demand) < made._hops(demand)
            else made
        )

    def _hops(self, demand: Floats) -> float:
        """The circuits that bits of a demand between ranks pass, as a sum."""
        members = len(demand)
        ranks = np.repeat(np.arange(members), self.degree)
        to = self._circuits(members).ravel()
        joined = csr_array(
            (
                np.ones((to != NO_LINK).sum()),
                (ranks[to != NO_LINK], to[to != NO_LINK]),
            )
        )
        return float((shortest_path(joined, unweighted=True) * demand).sum())

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        ranks = self._ranks(group)
        here = ranks[source]
        there = ranks[destination]
        if len(here) and min(here.min(), there.min()) < 0:
            raise BadInput(
                f"{self.spec}: a flow leaves its job, whose circuits connect no other nodes"
            )
        if not len(self.matched):
            return self._over_rings(here, there, group)
        moves = []
        at = here
        while (at != there).any():
            following = np.where(at == there, at, self._following[there, at])
            link = group[at] * self.degree + self._port[at, following]
            moves.append(np.where(at == there, NO_LINK, link))
            at = following
        return _side_by_side(moves, len(here))

    def _over_rings(
        self,
        here: Ints,
        there: Ints,
        group: Ints,
    ) -> Ints:
        members = len(group)
        at = here
        moves = []
        steps = self._steps(members)
        chains = _chains(members, steps)
        apart = (there - here) % members
        for hop in range(
            int((chains[apart] != NO_LINK).sum(axis=1).max(initial=0))
        ):
            port = chains[apart, hop]
            moves.append(
                np.where(
                    port == NO_LINK, NO_LINK, group[at] * self.degree + port
                )
            )
            at = (
                at + np.where(port == NO_LINK, 0, np.array(steps)[port])
            ) % members
        return _side_by_side(moves, len(here))

    def _spread(self, paths: Ints, group: Ints) -> tuple[Ints, Floats]:
        """Where several circuits join the same two nodes, each has an equal part."""
        to = self._circuits(len(group))
        same = to[:, :, None] == to[:, None, :]
        if (same.sum(axis=2) == 1).all():
            return super()._spread(paths, group)
        node = np.where(paths == NO_LINK, 0, paths // self.degree)
        beside = same[self._ranks(group)[node], paths % self.degree]
        beside &= (paths != NO_LINK)[:, :, None]
        every = node[:, :, None] * self.degree + np.arange(self.degree)
        parts = 1 / np.maximum(
            1,
            beside.sum(
                axis=2,
                keepdims=True,
            ),
        )
        shape = len(paths), -1
        return (
            np.where(beside, every, NO_LINK).reshape(shape),
            np.broadcast_to(parts, every.shape).reshape(shape),
        )

    def _ranks(self, group: Ints) -> Ints:
        found = np.full(self.nodes, NO_LINK, np.int64)
        found[group] = np.arange(len(group))
        return found

    def _steps(self, members: int) -> tuple[int, ...]:
        return _strides(members, self.rings or self.degree)

    def _circuits(self, members: int) -> Ints:
        """The rank that each port of each rank is joined to."""
        ranks = np.arange(members)[:, None]
        around = (ranks + np.array(self._steps(members))) % members
        return (
            np.hstack([around, self.matched]) if len(self.matched) else around
        )

    @cached_property
    def _port(self) -> Ints:
        """The first port of each rank that is joined to another one; ``NO_LINK``: none is."""
        to = self._circuits(len(self.matched))
        found = np.full((len(to), len(to)), NO_LINK, np.int64)
        for port in reversed(range(self.degree)):
            (ranks,) = np.nonzero(to[:, port] != NO_LINK)
            found[ranks, to[ranks, port]] = port
        return found

    @cached_property
    def _following(self) -> npt.NDArray[np.int32]:
        """The rank behind the second of two on a way over the fewest circuits to the first."""
        backwards = csr_array((self._port != NO_LINK).T.astype(np.int8))
        return np.asarray(
            shortest_path(
                backwards,
                unweighted=True,
                return_predecessors=True,
            )[1],
            np.int32,
        )


def topoopt(
    spec: str,
    nodes: int = 64,
    degree: int = 4,
    rate: float = RATE,
    latency: float = LATENCY,
    switching: float = 10e-3,
) -> TopoOpt:
    """A node's ``rate`` is divided evenly over ``degree`` ports at an OCS; circuits are made once,
    before a job begins.

    Of the ports as many get rings as all-reduces over a ring of all ranks have of the job's bits,
    and one at least: ring i joins rank r to rank r + pᵢ, the pᵢ being prime to the job's size and
    about geometric (TotientPerms, SelectPermutations). The others are joined by matchings of the
    most traffic of all other kinds, where a circuit between the same two nodes counts less with
    each that is there. What has no circuit is relayed over the fewest. Theirs, too, is the search
    for a split of the model: here it is given.
    """
    checked_nodes(spec, nodes)
    return TopoOpt(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((nodes * degree, rate / degree)),
        np.full(nodes * degree, latency),
        {"transceiver-100g": nodes * rate / 100e9, "ocs-port": nodes * degree},
        Switching(switching, once=True),
        degree=degree,
    )


def _side_by_side(moves: list[Ints], flows: int) -> Ints:
    return np.stack(moves, axis=1) if moves else np.full((flows, 0), NO_LINK)


def _ring_ports(degree: int, ring_part: float) -> int:
    return max(1, math.floor(degree * ring_part + 0.5))


@cache
def _strides(members: int, degree: int) -> tuple[int, ...]:
    """About geometric strides that are prime to the job's size; the same again if too few are."""
    prime = [p for p in range(1, max(2, members)) if math.gcd(p, members) == 1]
    wanted = [members ** (i / degree) for i in range(degree)]
    found: list[int] = []
    for near in wanted:
        left = [p for p in prime if p not in found] or prime
        found.append(min(left, key=lambda p: (abs(math.log(p / near)), p)))
    return tuple(found)


@cache
def _chains(members: int, steps: tuple[int, ...]) -> Ints:
    """For each distance in ranks, the ports of the fewest circuits that cover it."""
    before: dict[int, tuple[int, int]] = {0: (0, NO_LINK)}
    edge = [0]
    depth = 0
    while edge:
        reached = []
        for port, step in enumerate(steps):
            for at in edge:
                there = (at + step) % members
                if there not in before:
                    before[there] = at, port
                    reached.append(there)
        edge = reached
        depth = depth + 1
    found = np.full((members, depth), NO_LINK, np.int64)
    for apart in range(members):
        at = apart
        hop = 0
        while at:
            at, found[apart, hop] = before[at]
            hop += 1
    return found
