"""Reads containerlab topologies (https://containerlab.dev/manual/topo-def-file/) as plants."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from patchlight.testbed.errors import BadInput, nearest
from patchlight.testbed.generate.plant import (
    Cable,
    Plant,
    PlantDevice,
    PlantPort,
    in_order,
    wrong_shape,
)

# Kinds of containers and machines that run programs; all others are network devices.
_SERVERS = {
    "linux",
    "k8s-kind",
    "ext-container",
    "generic_vm",
    "vr-linux",
    "linux-vm",
    "freebsd",
    "keysight_ixia-c-one",
    "ixia-c-one",
}
# Ends of links that are no nodes: the machine that containerlab runs on, and what is outside.
_OUTSIDE = ("host", "mgmt-net", "macvlan", "vxlan", "vxlan-stitch", "dummy")


class _Form(BaseModel):
    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)


class _Node(_Form):
    kind: str | None = None
    group: str | None = None


class _EndForm(_Form):
    node: str
    interface: str


class _LinkForm(_Form):
    type: str = "veth"
    endpoints: list[str | _EndForm] = []
    endpoint: _EndForm | None = None


class _Topology(_Form):
    defaults: _Node | None = None
    groups: dict[str, _Node | None] | None = None
    nodes: dict[str, _Node | None]
    links: list[_LinkForm] | None = None


class _File(_Form):
    name: str = "lab"
    topology: _Topology


class _End(NamedTuple):
    node: str
    interface: str


def read_containerlab(document: Mapping[str, Any], what: str) -> Plant:
    """The plant of a topology: nodes of kind ``linux`` and the like are servers with a GPU at each
    interface, other nodes packet switches.

    Links to the machine that containerlab runs on and to networks outside are left out. Raises
    ``BadInput`` for links of unknown nodes and nodes without a kind.
    """
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        raise wrong_shape(what, error) from error
    kinds = {
        name: _kind(file.topology, name, what) for name in file.topology.nodes
    }
    left_out = []
    cables = []
    ports: dict[str, set[str]] = {name: set() for name in kinds}
    for number, link in enumerate(file.topology.links or ()):
        where = f"{what}: links[{number}]"
        ends = list(_ends(link, where))
        outside = [
            end
            for end in ends
            if end.node in _OUTSIDE and end.node not in kinds
        ]
        if len(ends) < 2 or outside or link.type not in ("veth", "brief"):
            text = " – ".join(":".join(end) for end in ends)
            left_out.append(f"the link {text} to the outside")
            continue
        for end in ends:
            if end.node not in kinds:
                raise BadInput(
                    f"{where}: {end.node!r} is not a node: {nearest(end.node, kinds)}"
                )
            ports[end.node].add(end.interface)
        cables.append(Cable(PlantPort(*ends[0]), PlantPort(*ends[1])))
    devices = []
    for name, kind in kinds.items():
        names = tuple(in_order(ports[name]))
        if kind not in _SERVERS:
            devices.append(PlantDevice(name, "switch", names))
        elif names:
            served = {port: n for n, port in enumerate(names)}
            devices.append(
                PlantDevice(name, "server", names, len(names), gpu_of=served)
            )
        else:
            left_out.append(f"the node {name} without a link")
    return Plant(file.name, tuple(devices), tuple(cables), tuple(left_out))


def _kind(
    topology: _Topology,
    name: str,
    what: str,
) -> str:
    node = topology.nodes[name] or _Node()
    defaults = topology.defaults or _Node()
    group = (topology.groups or {}).get(node.group or defaults.group or "")
    kind = node.kind or (group and group.kind) or defaults.kind
    if kind is None:
        raise BadInput(
            f"{what}: node {name} has no kind",
            hint="write its kind, a group with one, or defaults: {kind: …}",
        )
    return kind


def _ends(link: _LinkForm, where: str) -> Iterator[_End]:
    if link.endpoint is not None:
        yield _End(link.endpoint.node, link.endpoint.interface)
    elif len(link.endpoints) != 2:
        raise BadInput(
            f"{where}: {len(link.endpoints)} endpoints: expected two, like "
            "[server1:eth1, tor1:e1-1]"
        )
    for end in link.endpoints:
        if isinstance(end, _EndForm):
            yield _End(end.node, end.interface)
            continue
        node, colon, interface = end.partition(":")
        if not (node and colon and interface):
            raise BadInput(
                f"{where}: {end!r} is not an endpoint: expected node:interface"
            )
        yield _End(node, interface)
