"""The network under a lab's GPUs as other schedulers see one: nodes, switches, blocks, fabrics.

A *node* is a server. A *block* is the packet switches that are joined directly or by way of one
other, like those of a pod; a *fabric* is all that reach each other. Which node is under which
switch follows the light. ``testbed/generate/topology_files.py`` writes it for schedulers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU, its NIC (``None``: it has none), and the packet switch that it is lit to now.

    ``switch`` is ``None`` while the NIC is dark; ``rate_bps`` is that of the slowest fibre on the
    way, ``None`` where none has a limit.
    """

    name: str
    model: str
    nic: str | None
    switch: str | None
    rate_bps: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """A server with GPUs. ``switch`` is the packet switch that most of its GPUs are lit to.

    Of equals it is the first in the lab file; ``None`` while all its NICs are dark. Schedulers
    know one place for a node.
    """

    name: str
    switch: str | None
    gpus: tuple[NodeGpu, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A packet switch that nodes are under, with the block and the fabric that it belongs to."""

    name: str
    block: str
    fabric: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """All nodes; the packet switches that have some, in the order of the lab file; the trunks.

    ``trunks`` are the links between packet switches: both ends, and the rate in bit/s.
    """

    lab: str
    nodes: tuple[Node, ...]
    leaves: tuple[Leaf, ...]
    trunks: tuple[tuple[str, str, int | None], ...]

    @property
    def as_json(self) -> dict[str, Any]:
        """In plain JSON values."""
        leaf_of = {leaf.name: leaf for leaf in self.leaves}
        return {
            "lab": self.lab,
            "nodes": [
                {
                    "name": node.name,
                    "switch": node.switch,
                    "block": leaf_of[node.switch].block if node.switch else None,
                    "fabric": leaf_of[node.switch].fabric if node.switch else None,
                    "gpus": [
                        {name: getattr(gpu, name) for name in NodeGpu.__slots__}
                        for gpu in node.gpus
                    ],
                }
                for node in self.nodes
            ],
            "switches": [
                {
                    "name": leaf.name,
                    "block": leaf.block,
                    "fabric": leaf.fabric,
                    "nodes": list(leaf.nodes),
                }
                for leaf in self.leaves
            ],
            "links": [{"a": a, "b": b, "rate_bps": rate} for a, b, rate in self.trunks],
        }


def topology_of(lab: Lab, links: Links) -> Topology:
    """The topology of a lab under these links. Servers without a GPU are no nodes."""
    order = {switch.name: number for number, switch in enumerate(lab.packet_switches)}
    nodes = tuple(_nodes(lab, links, order))
    under: dict[str, list[str]] = {}
    for node in nodes:
        if node.switch is not None:
            under.setdefault(node.switch, []).append(node.name)
    trunks = tuple(
        (str(a), str(b), links.paths[a].rate_bps)
        for a, b in links.pairs()
        if a.device in order and b.device in order
    )
    beside: dict[str, set[str]] = {name: set() for name in order}
    for a, b in links.pairs():
        if a.device in order and b.device in order:
            beside[a.device].add(b.device)
            beside[b.device].add(a.device)
    found = sorted(under, key=lambda name: order[name])

    def near(switch: str) -> set[str]:
        return beside[switch].union(*(beside[each] for each in beside[switch]))

    blocks = _groups(found, near)
    fabrics = _groups(order, lambda switch: beside[switch])
    # Named for the first leaf: a dot is in no switch's name.
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(fabrics[name], name)
    leaves = tuple(
        Leaf(name, f"block.{blocks[name]}", f"fabric.{first[fabrics[name]]}", tuple(under[name]))
        for name in found
    )
    return Topology(lab.name, nodes, leaves, trunks)


def _nodes(lab: Lab, links: Links, order: Mapping[str, int]) -> Iterable[Node]:
    host_of = {(host.server.name, host.gpu.name): host for host in lab.hosts if host.gpu}
    for server in lab.servers:
        gpus = []
        for gpu in server.gpus:
            host = host_of.get((server.name, gpu.name))
            switch = None if host is None else links.switch_of(lab, host.endpoint)
            rate = None if host is None or switch is None else links.paths[host.endpoint].rate_bps
            nic = None if host is None else host.nic.name
            gpus.append(NodeGpu(gpu.name, gpu.model, nic, switch, rate))
        lit = Counter(gpu.switch for gpu in gpus if gpu.switch is not None)
        most = min(lit, key=lambda switch: (-lit[switch], order[switch]), default=None)
        if gpus:
            yield Node(server.name, most, tuple(gpus))


def _groups(names: Iterable[str], near: Callable[[str], set[str]]) -> dict[str, str]:
    """For each of these switches the first one of those that it is joined with, step by step."""
    names = list(names)
    among, first = set(names), dict[str, str]()
    for name in names:
        waiting = [] if name in first else [name]
        while waiting:
            here = waiting.pop()
            if here not in first:
                first[here] = name
                waiting += [each for each in near(here) if each in among]
    return first
