"""Packet-switched networks: ideal, fat-tree, leaf-spine, rail-only."""

from dataclasses import dataclass

import numpy as np

from patchlight.emulation.simulator.network.contract import (
    NO_LINK,
    Network,
    Round,
    checked_nodes,
    draw,
    hierarchical,
    links,
    rows,
)
from patchlight.emulation.simulator.network.sharing import Ints
from patchlight.testbed.errors import BadInput

RATE = 100e9
LATENCY = 500e-9
"""A NIC's rate in bit/s; the seconds that a bit needs over a link and through what follows."""


def check_taper(spec: str, taper: float) -> None:
    """``BadInput`` for uplinks that are wider than what is below them."""
    if taper < 1:
        raise BadInput(
            f"{spec}: taper={taper:g}: expected 1 (full bisection) or more"
        )


def clos_parts(
    spec: str,
    ends: int,
    clusters: int,
    rate: float,
    radix: int,
) -> dict[str, float]:
    """Ports and transceivers of non-blocking trees of switches with ``radix`` ports of ``rate``.

    There are so many ``clusters`` of so many ``ends``. A tree of t levels has radixᵗ / 2ᵗ⁻¹ ends;
    each needs 2t − 1 switch ports, and 2t − 2 transceivers between switches. Ports in use count.
    """
    if radix < 4:
        raise BadInput(f"{spec}: radix={radix}: expected 4 ports or more")
    levels = 1
    while radix**levels / 2 ** (levels - 1) < ends:
        levels += 1
    each = clusters * ends * rate / 100e9
    return {
        "switch-port-100g": (2 * levels - 1) * each,
        "transceiver-100g": 2 * (levels - 1) * each,
    }


@dataclass(
    frozen=True,
    eq=False,
)
class Ideal(Network):
    """One switch that never blocks: NICs are all there is. Links: up, then down."""

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        return rows(source, self.nodes + destination)


def ideal(
    spec: str,
    nodes: int = 64,
    rate: float = RATE,
    latency: float = LATENCY,
    radix: int = 64,
) -> Ideal:
    """The electrical switch of infinite size with which architectures are compared.

    Its parts are those of a non-blocking tree of switches with ``radix`` ports.
    """
    checked_nodes(spec, nodes)
    return Ideal(
        spec,
        rate,
        np.zeros(nodes, np.int64),
        links((2 * nodes, rate)),
        np.full(2 * nodes, latency),
        {
            "copper-100g": nodes * rate / 100e9,
            **clos_parts(
                spec,
                nodes,
                1,
                rate,
                radix,
            ),
        },
    )


@dataclass(
    frozen=True,
    eq=False,
)
class FatTree(Network):
    """Pods of edge and aggregation switches under core switches.

    Links: NICs up and down, edge switches up and down (one link to each aggregation switch of the
    pod), aggregation switches up and down (one link to each of their core switches). With one of
    the ``ways``, all links of a switch in one direction are one, and so are those of a pod.
    """

    half: int = 0
    ways: int = 0

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        half = self.half
        ways = self.ways
        nodes = self.nodes
        edge = source // half
        other_edge = destination // half
        pod = edge // half
        other_pod = other_edge // half
        aggregation = draw(
            ways,
            source,
            destination,
            flow,
        )
        core = draw(
            ways,
            source,
            destination,
            flow,
            np.ones(1, np.int64),
        )
        up = edge * ways + aggregation
        down = other_edge * ways + aggregation
        rising = (pod * ways + aggregation) * ways + core
        falling = (other_pod * ways + aggregation) * ways + core
        leaves = edge != other_edge
        crosses = pod != other_pod
        edges = nodes // half * ways
        pods = nodes // half**2 * ways**2
        return rows(
            source,
            np.where(leaves, 2 * nodes + up, NO_LINK),
            np.where(crosses, 2 * (nodes + edges) + rising, NO_LINK),
            np.where(crosses, 2 * (nodes + edges) + pods + falling, NO_LINK),
            np.where(leaves, 2 * nodes + edges + down, NO_LINK),
            nodes + destination,
        )


def fat_tree(
    spec: str,
    k: int = 8,
    taper: float = 1.0,
    rate: float = RATE,
    latency: float = LATENCY,
    spread: str = "flows",
) -> Network:
    """k³/4 nodes under switches of k ports (Al-Fares, Loukissas, Vahdat, SIGCOMM 2008).

    With ``spread=flows`` each flow draws one of the (k/2)² paths between pods (ECMP), with
    ``spread=packets`` its packets take all of them (Dixit et al., *On the Impact of Packet
    Spraying in Data Center Networks*, INFOCOM 2013). Links between switches have a NIC's
    rate divided by ``taper``: 2 is a tree whose edge is oversubscribed 2:1.
    """
    if spread not in ("flows", "packets"):
        raise BadInput(f"{spec}: spread={spread}: expected flows or packets")
    if k % 2:
        raise BadInput(
            f"{spec}: k={k}: a fat-tree's switches have an even number of ports"
        )
    check_taper(spec, taper)
    half = k // 2
    nodes = k**3 // 4
    checked_nodes(spec, nodes)
    between = 4 * nodes * rate / taper / 100e9
    ways = half if spread == "flows" else 1
    together = half // ways
    capacity_bps = links(
        (2 * nodes, rate),
        (2 * nodes // together, together * rate / taper),
        (2 * nodes // together**2, together**2 * rate / taper),
    )
    return FatTree(
        spec,
        rate,
        np.arange(nodes) // half,
        capacity_bps,
        np.full(len(capacity_bps), latency),
        {
            "switch-port-100g": nodes * rate / 100e9 + between,
            "transceiver-100g": between,
            "copper-100g": nodes * rate / 100e9,
        },
        half=half,
        ways=ways,
    )


@dataclass(
    frozen=True,
    eq=False,
)
class LeafSpine(Network):
    """Leaves with nodes, each joined to every spine. Links: NICs up, down; leaves up, down."""

    hosts: int = 0
    spines: int = 0

    def _leaves(self, group: Ints) -> Ints:
        """The leaf of each node, as far as the job with these nodes is concerned."""
        return self.racks

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        leaves = self._leaves(group)
        leaf = leaves[source]
        other = leaves[destination]
        spine = draw(
            self.spines,
            source,
            destination,
            flow,
        )
        uplinks = self.nodes // self.hosts * self.spines
        up = leaf * self.spines + spine
        down = other * self.spines + spine
        return rows(
            source,
            np.where(leaf == other, NO_LINK, 2 * self.nodes + up),
            np.where(leaf == other, NO_LINK, 2 * self.nodes + uplinks + down),
            self.nodes + destination,
        )


def leaf_spine(
    spec: str,
    leaves: int = 8,
    hosts: int = 8,
    spines: int = 4,
    taper: float = 1.0,
    rate: float = RATE,
    latency: float = LATENCY,
) -> LeafSpine:
    """Two levels of switches (Alizadeh et al., *CONGA*, SIGCOMM 2014, §2), ECMP over the spines.

    A leaf's uplinks have together the rate of its NICs divided by ``taper``.
    """
    check_taper(spec, taper)
    nodes = leaves * hosts
    uplinks = leaves * spines
    checked_nodes(spec, nodes)
    uplink = hosts * rate / spines / taper
    between = 2 * uplinks * uplink / 100e9
    return LeafSpine(
        spec,
        rate,
        np.arange(nodes) // hosts,
        links((2 * nodes, rate), (2 * uplinks, uplink)),
        np.full(2 * nodes + 2 * uplinks, latency),
        {
            "switch-port-100g": nodes * rate / 100e9 + between,
            "transceiver-100g": between,
            "copper-100g": nodes * rate / 100e9,
        },
        hosts=hosts,
        spines=spines,
    )


@dataclass(
    frozen=True,
    eq=False,
)
class RailOnly(Network):
    """Links: GPUs onto their server's own switch and off it, NICs onto their rail and off it."""

    gpus: int = 0

    def least_s(self, nbytes: float, *, reduces: bool) -> float:
        """As the base class; what leaves a server takes all its NICs, the rest its switch."""
        nic_bps = self.nic_bps
        inside_bps = float(self.capacity_bps[0])
        bits = 8 * nbytes
        outside = 1 - self.gpus / self.nodes
        if not reduces:
            inside_s = (self.gpus - 1) / self.nodes * bits / inside_bps
            return max(outside * bits / nic_bps, inside_s)
        servers_s = 2 * outside * bits / (self.gpus * nic_bps)
        one_s = 2 * (1 - 1 / self.nodes) * bits / (inside_bps + nic_bps)
        return max(servers_s, one_s)

    def collective(
        self,
        name: str,
        nodes: Ints,
        nbytes: float,
        ring_part: float = 1.0,
    ) -> list[Round]:
        """A ring all-reduce over whole servers is reduced inside them first, then on all rails."""
        servers, left = divmod(len(nodes), self.gpus)
        rails = np.tile(np.arange(self.gpus), servers)
        if (
            name == "ring"
            and servers > 1
            and not left
            and (nodes % self.gpus == rails).all()
        ):
            return hierarchical(len(nodes), nbytes, self.gpus)
        return super().collective(
            name,
            nodes,
            nbytes,
            ring_part,
        )

    def _paths(
        self,
        source: Ints,
        destination: Ints,
        flow: Ints,
        group: Ints,
    ) -> Ints:
        nodes = self.nodes
        gpus = self.gpus
        same = source // gpus == destination // gpus
        # Data changes rails inside the source's server: only there is a way from one to another.
        relay = source // gpus * gpus + destination % gpus
        inside = same | (relay != source)
        return rows(
            np.where(inside, source, NO_LINK),
            np.where(
                inside, nodes + np.where(same, destination, relay), NO_LINK
            ),
            np.where(same, NO_LINK, 2 * nodes + relay),
            np.where(same, NO_LINK, 3 * nodes + destination),
        )


def rail_only(
    spec: str,
    servers: int = 8,
    gpus: int = 8,
    rate: float = RATE,
    server_rate: float = 2.4e12,
    latency: float = LATENCY,
    radix: int = 64,
) -> RailOnly:
    """Rails without a spine (Wang et al., *Rail-only*, arXiv 2307.12169).

    GPU i of each server is on rail i, a non-blocking tree of switches with ``radix`` ports; within
    a server each GPU has ``server_rate``. Between rails, data goes through the server.
    """
    nodes = servers * gpus
    checked_nodes(spec, nodes)
    between = clos_parts(
        spec,
        servers,
        gpus,
        rate,
        radix,
    )
    return RailOnly(
        spec,
        rate,
        np.arange(nodes) // gpus,
        links((2 * nodes, server_rate), (2 * nodes, rate)),
        np.full(4 * nodes, latency),
        {
            "switch-port-100g": between["switch-port-100g"],
            "transceiver-100g": between["transceiver-100g"]
            + 2 * nodes * rate / 100e9,
        },
        gpus=gpus,
    )
