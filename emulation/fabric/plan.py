"""Plans the namespaces and links of an emulated lab, without kernel or files.

A fibre becomes a veth pair, its ends in the namespaces of its devices. A limit of a fibre or NIC
applies to what each end may *send*: the queue at an end shapes one direction, so both ends have
one, whatever is behind an OCS.

In a lab with wavelengths, all optical devices are in one namespace, ``pl.<lab>.light``.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from itertools import count
from math import inf

from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.loops import harmful_loops, in_words
from patchlight.testbed.lab.model import (
    Device,
    Endpoint,
    Fibre,
    Lab,
    Nic,
    PacketSwitch,
    Route,
    Server,
)
from patchlight.testbed.lab.optical_links import is_end
from patchlight.testbed.lab.packet_drivers import PACKET_DRIVERS
from patchlight.testbed.lab.packet_sizes import USUAL_MTU, largest_mtu
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.linux.rate_limits import NOT_IMPAIRED, Impairment

# The kernel's limit for an interface name, in bytes; unique in its namespace.
_LONGEST_NAME = 15
# The plan sets the indexes; the kernel's own in a new namespace are lower.
_FIRST_INDEX = 100


def namespace_name(lab: str, device: str) -> str:
    """The namespace of a server, an OCS, or the ``fabric``: ``pl.<lab>.<device>``."""
    return f"{namespace_prefix(lab)}{device}"


def namespace_prefix(lab: str) -> str:
    """The prefix of all namespaces of a lab."""
    return f"pl.{lab}."


def fabric_namespace(lab: str) -> str:
    """The namespace that holds the lab's packet switches."""
    return namespace_name(lab, "fabric")


def light_namespace(lab: str) -> str:
    """The namespace of optical devices, in a lab with wavelengths."""
    return namespace_name(lab, "light")


def is_machine(switch: PacketSwitch) -> bool:
    """Whether an emulated packet switch is a machine of its own, with an sshd."""
    return bool(
        switch.driver in PACKET_DRIVERS
        and PACKET_DRIVERS[switch.driver].port_names
    )


def switch_port_name(switch: str, port: str) -> str:
    """``tor1-3``; a long switch name is shortened with a hash."""
    return fitted(switch, f"-{port}")


def fitted(name: str, ending: str) -> str:
    """``name + ending`` in 15 bytes, deterministically."""
    if len((name + ending).encode()) <= _LONGEST_NAME:
        return name + ending
    digest = hashlib.sha256(name.encode()).hexdigest()[:4]
    kept = name.encode()[
        : _LONGEST_NAME - len(ending) - len(digest) - 1
    ].decode(errors="ignore")
    return f"{kept}~{digest}{ending}"


@dataclass(
    frozen=True,
    slots=True,
)
class PlannedEnd:
    """One end of a fibre: an interface in a namespace, perhaps a port of a ``bridge``. ``rate_bps``
    (``None``: no limit) and ``impairment`` apply to what it sends; the rate includes the lab's
    scale. ``routes`` are further ones of a NIC."""

    namespace: str
    name: str
    index: int
    mac: str | None = None
    address: IPv4Interface | None = None
    rate_bps: float | None = None
    bridge: str | None = None
    up: bool = True
    impairment: Impairment = NOT_IMPAIRED
    mtu: int = USUAL_MTU
    routes: tuple[Route, ...] = ()


@dataclass(
    frozen=True,
    slots=True,
)
class PlannedBridge:
    """A packet switch: its bridge, and the interface of each port number.

    ``machine``: it is a Linux bridge in a namespace of its own. ``learns``: it forwards without a
    controller, with ``spanning_tree`` if wanted.
    """

    switch: str
    namespace: str
    name: str
    index: int
    datapath_id: int | None
    ports: tuple[tuple[int, str], ...]
    machine: bool = False
    learns: bool = False
    spanning_tree: bool = False


@dataclass(
    frozen=True,
    slots=True,
)
class FabricPlan:
    """Everything to make, in order. ``optical`` are the namespaces of optical devices."""

    fabric: str
    servers: tuple[str, ...]
    optical: tuple[str, ...]
    cables: tuple[tuple[PlannedEnd, PlannedEnd], ...]
    bridges: tuple[PlannedBridge, ...]

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Every namespace, the fabric's first, servers' last: a link is made with its second end,
        and a NIC is set up there."""
        machines = (
            bridge.namespace for bridge in self.bridges if bridge.machine
        )
        return (self.fabric, *self.optical, *machines, *self.servers)

    @property
    def in_fabric(self) -> tuple[PlannedBridge, ...]:
        """The packet switches that are not machines of their own."""
        return tuple(bridge for bridge in self.bridges if not bridge.machine)

    @property
    def ends(self) -> Iterator[PlannedEnd]:
        """Both ends of every cable."""
        return (end for cable in self.cables for end in cable)


def plan_fabric(lab: Lab) -> FabricPlan:
    """The plan of a runtime lab; ``BadInput`` if its fabric is not possible."""
    _check_can_be_emulated(lab)
    indexes = _Indexes(lambda: count(_FIRST_INDEX))
    cables = []
    for fibre in lab.fibres:
        limit_bps = _rate_bps(lab, fibre)
        rate_bps = None if limit_bps is None else limit_bps / lab.scale
        impairment = Impairment(
            fibre.delay_s, fibre.jitter_s, fibre.packet_loss
        )
        a, b = (
            _end(
                lab,
                end,
                indexes,
                rate_bps,
                impairment,
            )
            for end in (fibre.a, fibre.b)
        )
        cables.append((a, b))
    if lab.coloured:
        cables = _without_queues_of_light(lab, cables)
    fabric = fabric_namespace(lab.name)
    plugged = {end for fibre in lab.fibres for end in (fibre.a, fibre.b)}
    for host in lab.hosts:
        if host.endpoint not in plugged:
            # The NIC exists, but its other end stays down: it has no carrier.
            index = next(indexes[fabric])
            dark = PlannedEnd(
                fabric,
                f"dark{index}",
                index,
                up=False,
                mtu=largest_mtu(lab),
            )
            cables.append((_end(lab, host.endpoint, indexes), dark))
    ports: dict[str, list[int]] = {
        switch.name: [] for switch in lab.packet_switches
    }
    for end in plugged:
        if end.device in ports:
            ports[end.device].append(int(end.port))
    bridges = []
    for switch in lab.packet_switches:
        machine = is_machine(switch)
        namespace = (
            namespace_name(lab.name, switch.name) if machine else fabric
        )
        bridges.append(
            PlannedBridge(
                switch=switch.name,
                namespace=namespace,
                name=_bridge_name(switch),
                index=next(indexes[namespace]),
                datapath_id=switch.datapath_id,
                ports=tuple(
                    (port, _port_name(switch, port))
                    for port in sorted(ports[switch.name])
                ),
                machine=machine,
                learns=switch.learns,
                spanning_tree=switch.spanning_tree,
            )
        )
    optical = [namespace_name(lab.name, c.name) for c in lab.circuit_switches]
    if lab.coloured:
        optical = [light_namespace(lab.name)]
    return FabricPlan(
        fabric=fabric,
        servers=tuple(namespace_name(lab.name, s.name) for s in lab.servers),
        optical=tuple(optical),
        cables=tuple(cables),
        bridges=tuple(bridges),
    )


def _bridge_name(switch: PacketSwitch) -> str:
    return switch.bridge if is_machine(switch) else fitted(switch.name, "")


def _port_name(switch: PacketSwitch, port: int) -> str:
    if is_machine(switch):
        return switch.interface_names[port - 1]
    return switch_port_name(switch.name, str(port))


def _check_can_be_emulated(lab: Lab) -> None:
    """``BadInput`` if a fibre between two optical devices is slower, or delays or loses packets:
    frames cross all such fibres at once, with the rate, delay and loss at NICs and packet
    switches."""
    if not lab.coloured:
        return
    inner = [
        f
        for f in lab.fibres
        if not any(is_end(lab, e.device) for e in (f.a, f.b))
    ]
    outer = [f for f in lab.fibres if f not in inner]
    slowest_bps = min(
        (rate for f in outer if (rate := _rate_bps(lab, f))), default=None
    )
    for fibre in inner:
        where = f"the fibre {fibre.a} – {fibre.b} between two optical devices"
        if fibre.delay_s or fibre.packet_loss:
            raise BadInput(
                f"lab {lab.name} delays or loses packets on {where}: this is not supported in "
                "labs with wavelengths",
                hint="set delay and packet_loss at the fibres of NICs and packet switches",
            )
        if fibre.rate_bps and (
            slowest_bps is None or fibre.rate_bps < slowest_bps
        ):
            raise BadInput(
                f"lab {lab.name} limits {where} more than those at NICs and packet switches: "
                "this is not supported in labs with wavelengths",
                hint="set the rate at the fibres of NICs and packet switches",
            )


def _rate_bps(lab: Lab, fibre: Fibre) -> int | None:
    """The lowest limit of a fibre and of the NICs at its ends."""
    nics = (_nic(lab, fibre.a), _nic(lab, fibre.b))
    limits = [fibre.rate_bps, *(nic.rate_bps for nic in nics if nic)]
    return min((limit for limit in limits if limit is not None), default=None)


def with_swapped(
    plan: FabricPlan,
    lab: Lab,
    swaps: Sequence[Sequence[str]],
) -> FabricPlan:
    """The plan with the fibres at these pairs of ports swapped; ``BadInput`` for a port without a
    fibre, and in a lab with wavelengths."""
    if lab.coloured and swaps:
        raise BadInput(
            f"fibres of lab {lab.name} cannot be swapped: in labs with wavelengths, signals "
            "follow the lab file"
        )
    ends = [list(cable) for cable in plan.cables]
    sides = [end for fibre in lab.fibres for end in (fibre.a, fibre.b)]
    position = {end: divmod(at, 2) for at, end in enumerate(sides)}
    for texts in swaps:
        pair = [Endpoint.parse(text) for text in texts]
        if loose := [end for end in pair if end not in position]:
            raise BadInput(
                f"{loose[0]} cannot be swapped: it has no fibre in lab {lab.name}"
            )
        (a, a_side), (b, b_side) = (position[end] for end in pair)
        ends[a][a_side], ends[b][b_side] = ends[b][b_side], ends[a][a_side]
    return replace(plan, cables=tuple((a, b) for a, b in ends))


# The next free interface index of each namespace.
_Indexes = defaultdict[str, Iterator[int]]


def _nic(lab: Lab, endpoint: Endpoint) -> Nic | None:
    device = lab.device(endpoint.device)
    if not isinstance(device, Server):
        return None
    return next(nic for nic in device.nics if nic.name == endpoint.port)


def _without_queues_of_light(
    lab: Lab, cables: Sequence[tuple[PlannedEnd, PlannedEnd]]
) -> list[tuple[PlannedEnd, PlannedEnd]]:
    """The cables, without limits where no transmitter is faster: receivers separate channels, which
    do not share their rate."""
    light = light_namespace(lab.name)
    directed = (pair for cable in cables for pair in (cable, cable[::-1]))
    into_light = (
        a.rate_bps or inf
        for a, b in directed
        if b.namespace == light != a.namespace
    )
    fastest_bps = max(into_light, default=inf)

    def free(end: PlannedEnd) -> PlannedEnd:
        has_queue = end.namespace != light or (end.rate_bps or 0) < fastest_bps
        return end if has_queue else replace(end, rate_bps=None)

    return [(free(a), free(b)) for a, b in cables]


def _end(
    lab: Lab,
    endpoint: Endpoint,
    indexes: _Indexes,
    rate_bps: float | None = None,
    impairment: Impairment = NOT_IMPAIRED,
) -> PlannedEnd:
    nic = _nic(lab, endpoint)
    device = lab.device(endpoint.device)
    passes_light_on = lab.coloured and not is_end(lab, endpoint.device)
    where = "light" if passes_light_on else endpoint.device
    bridge = None
    name = endpoint.port if isinstance(device, Server) else f"p{endpoint.port}"
    if passes_light_on:
        name = switch_port_name(endpoint.device, endpoint.port)
    elif isinstance(device, PacketSwitch):
        where = endpoint.device if is_machine(device) else "fabric"
        name = _port_name(device, int(endpoint.port))
        bridge = _bridge_name(device)
    namespace = namespace_name(lab.name, where)
    return PlannedEnd(
        namespace=namespace,
        name=name,
        index=next(indexes[namespace]),
        mac=nic.mac if nic else None,
        address=IPv4Interface((nic.address, lab.network.prefixlen))
        if nic
        else None,
        rate_bps=rate_bps,
        bridge=bridge,
        impairment=impairment,
        mtu=_mtu(lab, device, nic),
        routes=nic.routes if nic else (),
    )


def _mtu(
    lab: Lab,
    device: Device,
    nic: Nic | None,
) -> int:
    """That of a NIC or packet switch, by default what all NICs need of a switch."""
    if nic is not None:
        return nic.mtu or USUAL_MTU
    own = device.mtu if isinstance(device, PacketSwitch) else None
    return own or largest_mtu(lab)


def check_fabric(lab: Lab, *, controller: bool) -> None:
    """``BadInput`` if a lab cannot run with its kind of packet switches or no controller."""
    if lab.fabric != "openvswitch" and lab.circuit_switches:
        raise BadInput(
            f"lab {lab.name} has the circuit switch {lab.circuit_switches[0].name}, which needs "
            "OpenFlow switches, but has fabric: bridge",
            hint="set fabric: openvswitch in the lab file, or use --fabric openvswitch",
        )
    # Without a controller, all switches of the emulation learn.
    alone = lab.fabric != "openvswitch" or not controller
    links = trace_links(lab, lab.initial_maps).pairs()
    for loop in harmful_loops(lab, links, all_flood=alone):
        raise BadInput(
            f"lab {lab.name} has a loop of packet switches ({in_words(loop)}): switches that learn "
            "would flood it forever",
            hint="use the controller and fabric: openvswitch, or remove a fibre"
            if alone
            else "remove a fibre or circuit, or give the switches spanning_tree: true",
        )
