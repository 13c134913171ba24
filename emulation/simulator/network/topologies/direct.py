"""Networks with fixed links: tori, those of ASTRA-sim's network files, and labs."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml

from patchlight.controller.prediction.network import LabNetwork
from patchlight.emulation.simulator.network.contract import NO_LINK, Network, checked_nodes
from patchlight.emulation.simulator.network.sharing import Floats, Ints
from patchlight.emulation.simulator.network.topologies.packet import LATENCY, RATE
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab

_KINDS = ("Ring", "Switch", "FullyConnected")
_MOST_LINKS = 1 << 24
_LEAST = {"npus_count": 2, "bandwidth": 1e-9, "latency": 0}  # In ASTRA-sim's network files.


def _links(kind: str, size: int) -> int:
    """How many links a node has in a dimension: ahead and back, to and from a switch, or to each
    node of the dimension, of which its own is never used."""
    return size if kind == "FullyConnected" else 2


@dataclass(frozen=True, eq=False)
class Dimensions(Network):
    """Nodes in dimensions of ``dims`` nodes each, joined in each as ``kinds`` says.

    A node's links stand one behind the other, dimension by dimension. The first dimension is that
    of neighbouring numbers. Flows go dimension by dimension, the first one first.
    """

    dims: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        at, moves = source.copy(), []
        counts = [_links(*each) for each in zip(self.kinds, self.dims, strict=True)]
        width, first, stride = sum(counts), 0, 1
        for kind, size, count in zip(self.kinds, self.dims, counts, strict=True):
            here, there = at // stride % size, destination // stride % size
            arrived = at + (there - here) * stride
            link, goes = at * width + first, here != there
            if kind == "Ring":
                ahead = (there - here) % size
                forward = ahead <= size - ahead  # The shorter way round; of two equal ones ahead.
                step, hops = np.where(forward, 1, -1), np.where(forward, ahead, size - ahead)
                for hop in range(size // 2):
                    on = at + ((here + hop * step) % size - here) * stride
                    link = on * width + first + ~forward
                    moves.append(np.where(hop < hops, link, NO_LINK))
            elif kind == "Switch":
                moves.append(np.where(goes, link, NO_LINK))
                moves.append(np.where(goes, arrived * width + first + 1, NO_LINK))
            else:
                moves.append(np.where(goes, link + there, NO_LINK))
            at, first, stride = arrived, first + count, stride * size
        return np.stack(moves, axis=1)


def _dimensions(
    spec: str, dims: Sequence[int], kinds: Sequence[str], bps: Floats, latency_s: Floats
) -> Dimensions:
    """The network whose links have so many bit/s and seconds in each dimension."""
    nodes = math.prod(dims)
    checked_nodes(spec, nodes)
    counts = [_links(*each) for each in zip(kinds, dims, strict=True)]
    if (count := nodes * sum(counts)) > _MOST_LINKS:
        raise BadInput(f"{spec} has {count:,} links: expected {_MOST_LINKS:,} at most")
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
    spec: str, dims: tuple[int, ...] = (4, 4, 4), rate: float = RATE, latency: float = LATENCY
) -> Dimensions:
    """A torus of so many nodes each way, routed dimension by dimension (Dally and Seitz, 1987).

    ``rate`` is a node's: each of its links, two for each dimension, has an equal part of it.
    """
    if min(dims) < 2:
        raise BadInput(f"{spec}: expected at least 2 nodes in each dimension")
    each_bps = np.full(len(dims), rate / (2 * len(dims)))
    rings = ["Ring"] * len(dims)
    made = _dimensions(spec, dims, rings, each_bps, np.full(len(dims), latency))
    parts = dict.fromkeys(("transceiver-100g", "nic-100g"), made.nodes * rate / 100e9)
    return replace(made, nic_bps=rate, parts=parts)


def astra(spec: str, file: str) -> Dimensions:
    """What a network file of ASTRA-sim's analytical back end describes (Won et al., *ASTRA-sim2.0*,
    ISPASS 2023): a ring, a full mesh or a switch in each dimension.

    ``bandwidth`` is each link's, in 2³⁰ bytes a second as there; ``latency`` each link's, in ns.
    ``BadInput`` if the file cannot be read, or says something else.
    """
    try:
        given = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise BadInput(f"cannot read the network file {file}: {error}") from error
    keys = ("topology", *_LEAST)
    if not isinstance(given, dict) or set(given) != set(keys):
        raise BadInput(f"{file} is no network file of ASTRA-sim: expected {', '.join(keys)}")
    kinds, *columns = (given[key] for key in keys)
    if not isinstance(kinds, list) or not kinds or not set(map(str, kinds)) <= set(_KINDS):
        raise BadInput(f"{file}: topology is {kinds!r}: expected a list of {', '.join(_KINDS)}")
    for (key, least), column in zip(_LEAST.items(), columns, strict=True):
        each = column if isinstance(column, list) else []
        types = (int,) if key == "npus_count" else (int, float)
        good = [type(value) in types and least <= value <= 1e12 for value in each]
        if len(good) != len(kinds) or not all(good):
            numbers = "a whole number" if key == "npus_count" else "a number"
            said = f"expected {numbers} of {least:g} or more for each dimension"
            raise BadInput(f"{file}: {key} is {column!r}: {said}")
    dims, bandwidth, latency_ns = columns
    bps, latency_s = np.array(bandwidth) * 2.0**30 * 8, np.array(latency_ns) / 1e9
    return _dimensions(spec, dims, kinds, bps, latency_s)


@dataclass(frozen=True, eq=False)
class LabPaths(Network):
    """Paths are those that the lab's flow tables have."""

    lit: LabNetwork = field(kw_only=True)
    numbers: Mapping[Hashable, int] = field(kw_only=True)

    def _paths(self, source: Ints, destination: Ints, flow: Ints, group: Ints) -> Ints:
        found = []
        for here, there in zip(source.tolist(), destination.tolist(), strict=True):
            way = self.lit.way(here, there)
            if way is None:
                names = [self.lit.hosts[node].name for node in (here, there)]
                raise BadInput(f"{self.spec}: no light leads from {names[0]} to {names[1]}")
            found.append([self.numbers[link] for link in way])
        longest = max(map(len, found), default=0)
        return np.array([[*way, *[NO_LINK] * (longest - len(way))] for way in found], np.int64)


def lab(spec: str, file: str) -> LabPaths:
    """A lab file or a built-in lab, its circuits as in the file; rates are not scaled.

    Its links have no latency: lab files say nothing of it.
    """
    loaded = load_lab(file)
    return lab_network(loaded, loaded.initial_maps, spec)


def lab_network(lab: Lab, maps: Mapping[str, PortMap], spec: str = "") -> LabPaths:
    """A lab under these maps of its OCSs; ``spec`` is its name in messages."""
    lit = LabNetwork(lab, trace_links(lab, maps))
    checked_nodes(spec or lab.name, len(lit.hosts))
    switches = [switch.name for switch in lab.packet_switches]
    known = [switch or "" for switch in lit.switches]
    racks = [switches.index(name) if name in switches else len(switches) for name in known]
    return LabPaths(
        spec or lab.name,
        lit.nic_bps,
        np.array(racks, np.int64),
        np.array([float(bps) for bps in lit.capacity_bps.values()]),
        np.zeros(len(lit.capacity_bps)),
        lit=lit,
        numbers={link: number for number, link in enumerate(lit.capacity_bps)},
    )
