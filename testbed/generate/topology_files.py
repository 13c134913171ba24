"""A topology as the files of other schedulers: Slurm's and Kueue's.

Slurm: ``topology.yaml`` (from 25.05 on: man page topology.yaml(5) of May 2025) with a tree and,
as a second topology, blocks; ``topology.conf`` for older ones. Kueue: a ``Topology`` object of
``kueue.x-k8s.io/v1beta2`` and the labels of the nodes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.topology import Leaf, Node, Topology

LABELS = ("patchlight.local/fabric", "patchlight.local/block", "patchlight.local/switch")
"""The labels of a Kubernetes node, from the widest on; below them is its host name."""

_HOST_NAME = "kubernetes.io/hostname"
# RFC 1123, as Kubernetes wants nodes' names.
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


def _tree(topology: Topology) -> list[tuple[str, str, list[str]]]:
    """Slurm's tree from the leaves up: a switch's name, ``nodes`` or ``children``, and these.

    A level that has the same groups as the one below it is left out.
    """
    rows = [(leaf.name, "nodes", list(leaf.nodes)) for leaf in topology.leaves]
    below = {leaf: leaf.name for leaf in topology.leaves}
    levels: list[Callable[[Leaf], str]] = [lambda leaf: leaf.block, lambda leaf: leaf.fabric]
    for level in levels:
        groups: dict[str, list[str]] = {}
        for leaf in topology.leaves:
            children = groups.setdefault(level(leaf), [])
            if below[leaf] not in children:
                children.append(below[leaf])
        joined = {name: children for name, children in groups.items() if len(children) > 1}
        rows += [(name, "children", children) for name, children in joined.items()]
        below = {
            leaf: level(leaf) if level(leaf) in joined else below[leaf] for leaf in topology.leaves
        }
    return rows


def slurm_yaml(topology: Topology) -> str:
    """``topology.yaml`` of Slurm 25.05 and later: a tree, the default, and blocks."""
    tree = [{"switch": name, kind: ",".join(names)} for name, kind, names in _tree(topology)]
    blocks = [{"block": leaf.name, "nodes": ",".join(leaf.nodes)} for leaf in topology.leaves]
    sizes = [min((len(leaf.nodes) for leaf in topology.leaves), default=1)]
    document: list[dict[str, Any]] = [
        {"topology": "patchlight", "cluster_default": True, "tree": {"switches": tree}},
        {
            "topology": "patchlight-blocks",
            "cluster_default": False,
            "block": {"block_sizes": sizes, "blocks": blocks},
        },
    ]
    return _notes(topology) + yaml.safe_dump(document, sort_keys=False, width=1_000_000)


def slurm_conf(topology: Topology) -> str:
    """``topology.conf`` of the plugin topology/tree, for Slurm before 25.05."""
    keys = {"nodes": "Nodes", "children": "Switches"}
    lines = [
        f"SwitchName={name} {keys[kind]}={','.join(names)}\n"
        for name, kind, names in _tree(topology)
    ]
    return _notes(topology) + "".join(lines)


def _notes(topology: Topology) -> str:
    """What the format has no word for, as comments."""
    lines = [f"# The nodes of lab {topology.lab} as they are lit now."]
    for node in topology.nodes:
        if node.switch is None:
            lines.append(f"# {node.name} is left out: its NICs are dark.")
        elif also := _elsewhere(node):
            lines.append(f"# {node.name} is lit to {', '.join(also)} too.")
    return "".join(f"{line}\n" for line in lines)


def _elsewhere(node: Node) -> list[str]:
    return sorted({gpu.switch for gpu in node.gpus if gpu.switch not in (None, node.switch)})


def kueue(topology: Topology) -> str:
    """A manifest: the ``Topology`` with its levels, and each node with its labels.

    A node whose NICs are dark has none, and Kueue gives it no work that wants a topology.
    ``BadInput`` for servers whose names no Kubernetes node can have.
    """
    wrong = [node.name for node in topology.nodes if not _NODE_NAME.fullmatch(node.name)]
    if wrong:
        raise BadInput(
            f"no Kubernetes node can be called {', '.join(wrong)}: expected small letters, digits "
            "and hyphens",
            hint="nodes go by the servers' names in the lab file",
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
            labels = dict(zip(LABELS, (leaf.fabric, leaf.block, leaf.name), strict=True))
        objects.append(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}}
        )
    return _notes(topology) + yaml.safe_dump_all(objects, sort_keys=False, width=1_000_000)


FORMATS: Mapping[str, Callable[[Topology], str]] = {
    "slurm": slurm_yaml,
    "slurm-conf": slurm_conf,
    "kueue": kueue,
}
"""What writes a topology as text, by the format's name; ``json`` beside these is its values."""
