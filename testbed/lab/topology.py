"""Describes the network between a lab's GPUs for other schedulers, with files for Slurm and Kueue.

A *node* is a server. A *block* is a set of packet switches linked directly or through one other,
like a pod; a *fabric* is all that reach each other. The circuits decide which node is under which
switch.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.wiring import Links


@dataclass(
    frozen=True,
    slots=True,
)
class NodeGpu:
    """A GPU, its NIC, and its packet switch now (``None``: not connected).

    ``rate_bps`` is that of the slowest fibre on the path, ``None`` without a limit.
    """

    name: str
    model: str
    nic: str | None
    switch: str | None
    rate_bps: int | None


@dataclass(
    frozen=True,
    slots=True,
)
class TopologyNode:
    """A server with GPUs. ``switch`` is the packet switch that most of them are connected to.

    In a tie it is the first in the lab file; ``None`` if no NIC is connected.
    """

    name: str
    switch: str | None
    gpus: tuple[NodeGpu, ...]


@dataclass(
    frozen=True,
    slots=True,
)
class Leaf:
    """A packet switch with nodes, and its block and fabric."""

    name: str
    block: str
    fabric: str
    nodes: tuple[str, ...]


@dataclass(
    frozen=True,
    slots=True,
)
class Topology:
    """All nodes; the packet switches that have nodes, in lab file order; the trunks.

    ``trunks`` are the links between packet switches: both ends, and the rate in bit/s.
    """

    lab: str
    nodes: tuple[TopologyNode, ...]
    leaves: tuple[Leaf, ...]
    trunks: tuple[tuple[str, str, int | None], ...]

    @property
    def as_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        leaf_of = {leaf.name: leaf for leaf in self.leaves}
        return {
            "lab": self.lab,
            "nodes": [
                {
                    "name": node.name,
                    "switch": node.switch,
                    "block": leaf_of[node.switch].block
                    if node.switch
                    else None,
                    "fabric": leaf_of[node.switch].fabric
                    if node.switch
                    else None,
                    "gpus": list(map(asdict, node.gpus)),
                }
                for node in self.nodes
            ],
            "switches": [
                {**asdict(leaf), "nodes": list(leaf.nodes)}
                for leaf in self.leaves
            ],
            "links": [
                {"a": a, "b": b, "rate_bps": rate}
                for a, b, rate in self.trunks
            ],
        }


def topology_of(lab: Lab, links: Links) -> Topology:
    """The topology of a lab with these links. Servers without a GPU are not nodes."""
    order = {
        switch.name: number
        for number, switch in enumerate(lab.packet_switches)
    }
    nodes = tuple(_nodes(lab, links, order))
    under: dict[str, list[str]] = {}
    for node in nodes:
        if node.switch is not None:
            under.setdefault(node.switch, []).append(node.name)
    pairs = [
        (a, b)
        for a, b in links.pairs()
        if a.device in order and b.device in order
    ]
    trunks = tuple((str(a), str(b), links.paths[a].rate_bps) for a, b in pairs)
    beside: dict[str, set[str]] = {name: set() for name in order}
    for a, b in pairs:
        beside[a.device].add(b.device)
        beside[b.device].add(a.device)
    found = sorted(under, key=lambda name: order[name])

    def near(switch: str) -> set[str]:
        return beside[switch].union(*(beside[each] for each in beside[switch]))

    blocks = _groups(found, near)
    fabrics = _groups(order, lambda switch: beside[switch])
    # Named for the first leaf: switch names cannot contain a dot.
    first: dict[str, str] = {}
    for name in found:
        first.setdefault(fabrics[name], name)
    leaves = tuple(
        Leaf(
            name,
            f"block.{blocks[name]}",
            f"fabric.{first[fabrics[name]]}",
            tuple(under[name]),
        )
        for name in found
    )
    return Topology(
        lab.name,
        nodes,
        leaves,
        trunks,
    )


def _nodes(
    lab: Lab,
    links: Links,
    order: Mapping[str, int],
) -> Iterable[TopologyNode]:
    host_of = {
        (host.server.name, host.gpu.name): host
        for host in lab.hosts
        if host.gpu
    }
    for server in lab.servers:
        gpus = []
        for gpu in server.gpus:
            host = host_of.get((server.name, gpu.name))
            switch = (
                None if host is None else links.switch_of(lab, host.endpoint)
            )
            rate = (
                None
                if host is None or switch is None
                else links.paths[host.endpoint].rate_bps
            )
            nic = None if host is None else host.nic.name
            gpus.append(
                NodeGpu(
                    gpu.name,
                    gpu.model,
                    nic,
                    switch,
                    rate,
                )
            )
        lit = Counter(gpu.switch for gpu in gpus if gpu.switch is not None)
        most = min(
            lit,
            key=lambda switch: (-lit[switch], order[switch]),
            default=None,
        )
        if gpus:
            yield TopologyNode(server.name, most, tuple(gpus))


def _groups(
    names: Iterable[str], near: Callable[[str], set[str]]
) -> dict[str, str]:
    """For each of these switches, the first one that it is connected with, step by step."""
    names = list(names)
    among = set(names)
    first = dict[str, str]()
    for name in names:
        waiting = [] if name in first else [name]
        while waiting:
            here = waiting.pop()
            if here not in first:
                first[here] = name
                waiting += [each for each in near(here) if each in among]
    return first


LABELS = (
    "patchlight.local/fabric",
    "patchlight.local/block",
    "patchlight.local/switch",
)
"""The labels of a Kubernetes node, widest first; below them is its host name."""

_HOST_NAME = "kubernetes.io/hostname"
# RFC 1123, required for Kubernetes node names.
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _tree(topology: Topology) -> list[tuple[str, str, list[str]]]:
    """Slurm's tree from the leaves up: a switch's name, ``nodes`` or ``children``, and these.

    A level with the same groups as the one below it is omitted.
    """
    rows = [(leaf.name, "nodes", list(leaf.nodes)) for leaf in topology.leaves]
    below = {leaf: leaf.name for leaf in topology.leaves}
    levels: list[Callable[[Leaf], str]] = [
        lambda leaf: leaf.block,
        lambda leaf: leaf.fabric,
    ]
    for level in levels:
        groups: dict[str, list[str]] = {}
        for leaf in topology.leaves:
            children = groups.setdefault(level(leaf), [])
            if below[leaf] not in children:
                children.append(below[leaf])
        joined = {
            name: children
            for name, children in groups.items()
            if len(children) > 1
        }
        rows += [
            (name, "children", children) for name, children in joined.items()
        ]
        below = {
            leaf: level(leaf) if level(leaf) in joined else below[leaf]
            for leaf in topology.leaves
        }
    return rows


def slurm_yaml(topology: Topology) -> str:
    """``topology.yaml`` of Slurm 25.05 and later: a tree, the default, and blocks."""
    tree = [
        {"switch": name, kind: ",".join(names)}
        for name, kind, names in _tree(topology)
    ]
    blocks = [
        {"block": leaf.name, "nodes": ",".join(leaf.nodes)}
        for leaf in topology.leaves
    ]
    sizes = [min((len(leaf.nodes) for leaf in topology.leaves), default=1)]
    document: list[dict[str, Any]] = [
        {
            "topology": "patchlight",
            "cluster_default": True,
            "tree": {"switches": tree},
        },
        {
            "topology": "patchlight-blocks",
            "cluster_default": False,
            "block": {"block_sizes": sizes, "blocks": blocks},
        },
    ]
    return _notes(topology) + yaml.safe_dump(
        document,
        sort_keys=False,
        width=1_000_000,
    )


def slurm_conf(topology: Topology) -> str:
    """``topology.conf`` of the plugin topology/tree, for Slurm before 25.05."""
    keys = {"nodes": "Nodes", "children": "Switches"}
    lines = [
        f"SwitchName={name} {keys[kind]}={','.join(names)}\n"
        for name, kind, names in _tree(topology)
    ]
    return _notes(topology) + "".join(lines)


def _notes(topology: Topology) -> str:
    lines = [f"# The nodes of lab {topology.lab} as connected now."]
    for node in topology.nodes:
        if node.switch is None:
            lines.append(
                f"# {node.name} is omitted: its NICs are not connected."
            )
        elif also := _elsewhere(node):
            lines.append(
                f"# {node.name} is also connected to {', '.join(also)}."
            )
    return "".join(f"{line}\n" for line in lines)


def _elsewhere(node: TopologyNode) -> list[str]:
    return sorted(
        {
            gpu.switch
            for gpu in node.gpus
            if gpu.switch not in (None, node.switch)
        }
    )


def kueue(topology: Topology) -> str:
    """A manifest: the ``Topology`` with its levels, and each node with its labels.

    A node whose NICs are not connected has no labels, so Kueue gives it no work that requires a
    topology. ``BadInput`` for server names that are not valid node names.
    """
    wrong = [
        node.name
        for node in topology.nodes
        if not _NODE_NAME.fullmatch(node.name)
    ]
    if wrong:
        raise BadInput(
            f"invalid Kubernetes node name {', '.join(wrong)}: expected small letters, digits "
            "and hyphens",
            hint="node names are the servers' names in the lab file",
        )
    leaf_of = {leaf.name: leaf for leaf in topology.leaves}
    levels = [{"nodeLabel": label} for label in (*LABELS, _HOST_NAME)]
    objects: list[dict[str, Any]] = [
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "Topology",
            "metadata": {"name": "patchlight"},
            "spec": {"levels": levels},
        }
    ]
    for node in topology.nodes:
        labels: dict[str, str] = {}
        if node.switch is not None:
            leaf = leaf_of[node.switch]
            labels = dict(
                zip(LABELS, (leaf.fabric, leaf.block, leaf.name), strict=True)
            )
        objects.append(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": node.name, "labels": labels},
            }
        )
    return _notes(topology) + yaml.safe_dump_all(
        objects,
        sort_keys=False,
        width=1_000_000,
    )


FORMATS: Mapping[str, Callable[[Topology], str]] = {
    "slurm": slurm_yaml,
    "slurm-conf": slurm_conf,
    "kueue": kueue,
}
"""Writers of a topology as text, by format; ``json`` is available too."""
