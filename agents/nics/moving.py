"""Moves a NIC into a worker's namespace, blocks its egress there, and restores it at home.

A network device that changes namespaces loses its addresses, routes, neighbours, root qdisc and
per-device sysctls. Therefore ``read_nic`` saves its state, ``give_nic`` configures it inside, and
``take_nic_back`` restores it. Functions here block; they run in the calling thread's namespace
unless their docstring says otherwise.
"""

import errno
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from socket import AF_INET, AF_INET6
from typing import Any
from uuid import uuid4

from patchlight.agents.errors import NicError
from patchlight.agents.nics import soft_roce
from patchlight.agents.nics.state import (
    RENDEZVOUS,
    FunctionState,
    NicAccess,
    NicState,
    WorkerNetwork,
    access_of,
    allowing,
    has_rdma_device,
    index_of,
    link_local,
    name_inside,
    rtnetlink,
)
from patchlight.testbed.lab.model import Nic
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux.netlink import Netlink, set_neighbours

_IFF_UP = 1
_WITH_FUNCTIONS = 1
_NUD_PERMANENT = 0x80
# 50 ms is usual; on a slow link a queue may be seconds deep.
_QUEUE_S = 10.0
# Routes of the kernel, and those that routers advertise.
_MADE_BY_ITSELF = (2, 9)
_FAMILIES = {AF_INET: "0.0.0.0", AF_INET6: "::"}
_EVERYWHERE = 0
_IFA_F_NODAD = 0x02
_IFA_F_PERMANENT = 0x80
_NONE_GENERATED = 1
# Sysctls that decide which NIC of a server answers ARP for an address.
_DEVICE_SYSCTLS = (
    "arp_announce",
    "arp_filter",
    "arp_ignore",
    "accept_local",
    "rp_filter",
)


def find_access(nic: Nic) -> NicAccess:
    """How a worker gets the NIC; ``NicError`` if the server does not support it."""
    if nic.mode == "veth":
        return NicAccess("veth", nic.interface or nic.name)
    try:
        with devices.sysfs() as here:
            return access_of(nic, here, devices.namespace_mode())
    except (devices.NoSysfs, devices.RdmaError) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc


def read_nic(access: NicAccess) -> NicState:
    """The NIC's present state; ``NicError`` if it is missing or could not be restored later."""
    interface = access.interface
    with rtnetlink(interface, "reading") as ip:
        index = index_of(ip, interface)
        (link,) = ip.get_links(index)
        if access.rdma is not None and access.rdma.is_soft:
            soft_roce.check_free(ip, index, interface)
        with Netlink() as netlink:
            limit = rate_limits.save_limit(netlink, index, interface)
        return NicState(
            interface=interface,
            mac=link.get_attr("IFLA_ADDRESS"),
            mtu=link.get_attr("IFLA_MTU"),
            up=bool(link["flags"] & _IFF_UP),
            addresses=tuple(_addresses(ip, index)),
            neighbours=tuple(
                sorted(
                    (
                        message.get_attr("NDA_DST"),
                        message.get_attr("NDA_LLADDR"),
                    )
                    for family in _FAMILIES
                    for message in ip.get_neighbours(
                        ifindex=index,
                        family=family,
                    )
                    if message["state"] & _NUD_PERMANENT
                    and message["family"] == family
                )
            ),
            routes=tuple(
                {
                    key: value
                    for key, value in {
                        "dst": f"{message.get_attr('RTA_DST') or anywhere}/{message['dst_len']}",
                        "gateway": message.get_attr("RTA_GATEWAY"),
                        "table": message.get_attr("RTA_TABLE")
                        or message["table"],
                        "prefsrc": message.get_attr("RTA_PREFSRC"),
                        "priority": message.get_attr("RTA_PRIORITY"),
                        "scope": message["scope"],
                        "proto": message["proto"],
                    }.items()
                    if value is not None
                }
                for family, anywhere in _FAMILIES.items()
                for message in ip.get_routes(
                    oif=index,
                    family=family,
                )
                if message["proto"] not in _MADE_BY_ITSELF
                and message["family"] == family
            ),
            shaping=limit,
            tx_checksum=devices.tx_checksum(interface),
            sysctls={
                name: Path("/proc/sys/net", _conf(interface, name))
                .read_text()
                .strip()
                for name in _DEVICE_SYSCTLS
            },
            mode=access.mode,
            function=None
            if access.function is None
            else read_function(ip, access.function),
            rdma=access.rdma,
            rdma_moves=access.rdma_moves,
        )


def give_nic(
    state: NicState,
    namespace: Path,
    network: WorkerNetwork,
) -> None:
    """Move a NIC with its rate limit and checksum setting to ``namespace`` and configure it; the
    address is set last. After a ``NicError`` it may be in either namespace: take it back."""
    interface = state.interface
    with rtnetlink(interface, f"moving to {namespace}") as ip:
        index = index_of(ip, interface)
        _check_mtu(
            ip,
            index,
            state,
            network.mtu,
        )
        if state.stays:
            at_home = replace(
                _bare(state, interface, network), sysctls=soft_roce.SYSCTLS
            )
            _restore(_addressed(at_home, network))
            soft_roce.give(
                ip,
                index,
                state,
                namespace,
                network.mtu or state.mtu,
            )
        elif state.mode == "macvlan":
            make_macvlan(
                ip,
                index,
                interface,
                namespace,
            )
        else:
            if state.function is not None:
                set_function(
                    ip,
                    interface,
                    state.function,
                    network.mac,
                    network.vlan,
                )
            _move(ip, interface, namespace)
        if state.rdma is not None and state.rdma_moves:
            devices.move_device(state.rdma.name, namespace)
        if network.rendezvous is not None:
            parent = index_of(ip, network.rendezvous.interface)
            make_macvlan(
                ip,
                parent,
                RENDEZVOUS,
                namespace,
            )
    namespaces.inside(namespace, lambda: _set_up(state, network))


def _set_up(state: NicState, network: WorkerNetwork) -> None:
    """Configure a NIC that is already in a worker's namespace."""
    interface = state.interface
    # Training pauses for seconds between bursts; slow start after idle would throttle each burst.
    _set_sysctl("ipv4/tcp_slow_start_after_idle", 0)
    _silence_ipv6(interface)
    if network.window_bytes is not None:
        # Half of a socket's memory is window. The built-in trainer limits its window itself.
        memory = 2 * network.window_bytes
        for key in ("ipv4/tcp_rmem", "ipv4/tcp_wmem"):
            _set_sysctl(key, f"{min(4096, memory)} {memory} {memory}")
        # The window must set the pace: BBR, some kernels' default, paces by past measurements.
        _set_sysctl("ipv4/tcp_congestion_control", "reno")
    bare = _bare(state, interface, network)
    if state.mode != "macvlan" and not state.stays:
        # Packets of a macvlan bypass its own queue and use the NIC's.
        bare = replace(
            bare,
            shaping=state.shaping,
            tx_checksum=state.tx_checksum,
        )
    named = name_inside(interface, state.mode, network.vlan)
    if named != interface:
        assert network.vlan is not None
        _restore(bare, loopback_up=True)
        with rtnetlink(interface, f"making VLAN {network.vlan} on") as ip:
            parent = index_of(ip, interface)
            ip.link(
                "add",
                ifname=named,
                kind="vlan",
                link=parent,
                vlan_id=network.vlan,
            )
        _silence_ipv6(named)
        bare = NicState(
            named,
            bare.mac,
            bare.mtu,
            up=True,
        )
    routes = tuple({"dst": to, "gateway": via} for to, via in network.routes)
    _restore(
        replace(_addressed(bare, network), routes=routes), loopback_up=True
    )
    _give_link_local(named, bare.mac, network)
    if network.rendezvous is not None:
        address = network.rendezvous.address
        with rtnetlink(RENDEZVOUS, "setting up") as ip:
            index = index_of(ip, RENDEZVOUS)
            ip.link(
                "set",
                index=index,
                state="up",
            )
            ip.addr(
                "add",
                index=index,
                address=str(address.ip),
                prefixlen=address.network.prefixlen,
            )


def _silence_ipv6(interface: str) -> None:
    """Keep the kernel from announcing an interface and from accepting router advertisements.
    Harmless if the kernel has no IPv6."""
    quiet = {
        "disable_ipv6": 1,
        "addr_gen_mode": _NONE_GENERATED,
        "accept_ra": 0,
    }
    for name, value in quiet.items():
        namespaces.set_sysctl(f"ipv6/conf/{interface}/{name}", value)


def _give_link_local(
    interface: str,
    mac: str,
    network: WorkerNetwork,
) -> None:
    """Give an interface the IPv6 address that is derived from its MAC, and as static neighbours
    those of the job's other workers: not all packet switches forward neighbour discovery."""
    if not namespaces.set_sysctl(f"ipv6/conf/{interface}/disable_ipv6", 0):
        return  # a kernel without IPv6, or an MTU below its minimum
    with (
        rtnetlink(interface, "setting up IPv6 on") as ip,
        Netlink() as netlink,
    ):
        index = index_of(ip, interface)
        _add_address(
            ip,
            index,
            link_local(mac),
            64,
        )
        neighbours = [
            (link_local(each), each) for _, each in network.neighbours
        ]
        set_neighbours(
            netlink,
            index,
            interface,
            neighbours,
        )


def _add_address(
    ip: Any,
    index: int,
    address: str,
    prefix: int,
) -> None:
    """Add an address; an IPv6 one without duplicate address detection."""
    more = (
        {"family": AF_INET6, "flags": _IFA_F_NODAD} if ":" in address else {}
    )
    with allowing(errno.EEXIST):
        ip.addr(
            "add",
            index=index,
            address=address,
            prefixlen=prefix,
            **more,
        )


def _bare(
    state: NicState,
    interface: str,
    network: WorkerNetwork,
) -> NicState:
    return NicState(
        interface,
        network.mac or state.mac,
        network.mtu or state.mtu,
        up=True,
    )


def _addressed(state: NicState, network: WorkerNetwork) -> NicState:
    addresses = ((network.address, network.prefix),)
    return replace(
        state,
        addresses=addresses,
        neighbours=network.neighbours,
    )


def take_nic_back(
    state: NicState,
    namespace: Path,
    home: Path,
) -> None:
    """Move the NIC home if it is in ``namespace`` and restore its state. Idempotent. ``NicGone`` if
    it is in neither namespace."""

    def fetch() -> None:
        with rtnetlink(state.interface, "taking back") as ip:
            for index in ip.link_lookup(ifname=state.interface):
                for (
                    link
                ) in ip.get_links():  # Tagged interfaces would stay behind.
                    kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
                    if kind == "vlan" and link.get_attr("IFLA_LINK") == index:
                        ip.link("del", index=link["index"])
                if state.mode == "macvlan" or state.stays:
                    ip.link("del", index=index)
                else:
                    _move(ip, state.interface, home)
            if state.rdma is not None and state.rdma_moves:
                with devices.sysfs() as inside:
                    if has_rdma_device(state.rdma.name, inside):
                        devices.move_device(state.rdma.name, home)

    def put_back() -> None:
        if state.mode == "macvlan":
            with rtnetlink(state.interface, "looking for") as ip:
                index_of(ip, state.interface)
            return
        if state.stays:
            with rtnetlink(state.interface, "taking back") as ip:
                soft_roce.take_back(ip, index_of(ip, state.interface), state)
        if (before := state.function) is not None:
            with rtnetlink(before.port, "setting up") as ip:
                set_function(
                    ip,
                    state.interface,
                    before,
                    before.mac,
                    before.vlan,
                )
        _restore(state)

    if namespaces.is_one(namespace):
        namespaces.inside(namespace, fetch)
    namespaces.inside(home, put_back)


def is_in(namespace: Path, interface: str) -> bool:
    """Whether the namespace has an interface of that name; false if the namespace is gone."""

    def look() -> bool:
        with rtnetlink(interface, "looking for") as ip:
            return bool(ip.link_lookup(ifname=interface))

    return namespaces.is_one(namespace) and namespaces.inside(namespace, look)


def _addresses(ip: Any, index: int) -> Iterator[tuple[str, int]]:
    """The configured addresses, without IPv6's link-local and advertised ones."""
    for family in _FAMILIES:
        # A kernel without IPv6 answers with IPv4.
        for found in ip.get_addr(
            index=index,
            family=family,
        ):
            is_set = family == AF_INET or (
                found["scope"] == _EVERYWHERE
                and found["flags"] & _IFA_F_PERMANENT
            )
            if is_set and found["family"] == family:
                yield (
                    found.get_attr("IFA_LOCAL")
                    or found.get_attr("IFA_ADDRESS"),
                    found["prefixlen"],
                )


def _move(
    ip: Any,
    interface: str,
    namespace: Path,
) -> None:
    with namespace.open("rb") as opened:
        ip.link(
            "set",
            index=index_of(ip, interface),
            net_ns_fd=opened.fileno(),
        )


def _restore(state: NicState, *, loopback_up: bool = False) -> None:
    """Configure the NIC of this name, in this thread's namespace, to this state."""
    interface = state.interface
    with rtnetlink(interface, "setting up") as ip:
        index = index_of(ip, interface)
        (link,) = ip.get_links(index)
        if (
            link.get_attr("IFLA_ADDRESS") != state.mac
            or link.get_attr("IFLA_MTU") != state.mtu
        ):
            ip.link(
                "set",
                index=index,
                state="down",
            )
            ip.link(
                "set",
                index=index,
                address=state.mac,
                mtu=state.mtu,
            )
        if (
            state.tx_checksum is not None
            and devices.tx_checksum(interface) != state.tx_checksum
        ):
            devices.set_tx_checksum(interface, state.tx_checksum)
        if state.shaping is not None:
            with Netlink() as netlink:
                rate_limits.restore_limit(
                    netlink,
                    index,
                    interface,
                    state.shaping,
                )
        for name, value in (state.sysctls or {}).items():
            _set_sysctl(_conf(interface, name), value)
        if loopback_up:
            ip.link(
                "set",
                index=index_of(ip, "lo"),
                state="up",
            )
        ip.link(
            "set",
            index=index,
            state="up" if state.up else "down",
        )
        if state.neighbours:
            with Netlink() as netlink:
                set_neighbours(
                    netlink,
                    index,
                    interface,
                    state.neighbours,
                )
        for address, prefix in state.addresses:
            _add_address(
                ip,
                index,
                address,
                prefix,
            )
        for route in state.routes:
            family = AF_INET6 if ":" in route["dst"] else AF_INET
            ip.route(
                "replace",
                oif=index,
                family=family,
                **route,
            )
        (link,) = ip.get_links(index)
        addresses = set(_addresses(ip, index))
    mac = link.get_attr("IFLA_ADDRESS")
    if mac != state.mac or not set(state.addresses) <= addresses:
        raise NicError(
            f"could not configure {interface}: wanted {state}, got {mac} and {addresses}"
        )


def _conf(interface: str, name: str) -> str:
    return f"ipv4/conf/{interface}/{name}"


def _set_sysctl(key: str, value: str | int) -> None:
    if not namespaces.set_sysctl(key, value):
        raise NicError(
            f"setting the sysctl net/{key} to {value}: this kernel lacks it"
        )


def block_egress(namespace: Path, interface: str) -> None:
    """Drop new packets from a worker's kernel and wait until the NIC's queue is empty (``NicError``
    on timeout). Connections survive; TCP retransmits after ``unblock_egress``."""

    def queued_packets() -> int:
        with rtnetlink(interface, "reading the queue of") as ip:
            queues = ip.get_qdiscs(index_of(ip, interface))
            return sum(
                each["qlen"]
                for queue in queues
                if (each := queue.get_attr("TCA_STATS"))
            )

    _blackhole(namespace, "add", errno.EEXIST)
    end = time.monotonic() + _QUEUE_S
    while queued := namespaces.inside(namespace, queued_packets):
        if time.monotonic() > end:
            raise NicError(
                f"{interface} still has {queued} packets to send after {_QUEUE_S:g} s"
            )
        time.sleep(0.002)


def unblock_egress(namespace: Path) -> None:
    """Let packets leave again. Idempotent."""
    _blackhole(namespace, "del", errno.ENOENT)


def _blackhole(
    namespace: Path,
    command: str,
    already: int,
) -> None:
    def switch() -> None:
        with rtnetlink(namespace.name, "silencing") as ip:
            for family in _FAMILIES:
                # A kernel may have no IPv6.
                with allowing(already, errno.EAFNOSUPPORT):
                    ip.rule(
                        command,
                        family=family,
                        priority=1,
                        action="FR_ACT_BLACKHOLE",
                    )

    namespaces.inside(namespace, switch)


def _check_mtu(
    ip: Any,
    index: int,
    state: NicState,
    mtu: int | None,
) -> None:
    """``NicError`` if the NIC cannot carry packets of ``mtu`` bytes."""
    if mtu is None:
        return
    (link,) = ip.get_links(index)
    most = (
        state.mtu
        if state.mode == "macvlan"
        else link.get_attr("IFLA_MAX_MTU") or mtu
    )
    if mtu > most:
        raise NicError(
            f"the maximum MTU of {state.interface} is {most}, but the lab file says {mtu}",
            hint=f"raise it: ip link set {state.interface} mtu {mtu}"
            if state.mode == "macvlan"
            else "write a smaller mtu into the lab file",
        )


def make_macvlan(
    ip: Any,
    index: int,
    name: str,
    namespace: Path,
) -> None:
    """Make a macvlan in another namespace on a local interface, in mode ``bridge``: macvlans on one
    NIC reach each other. It is removed with its namespace."""
    (link,) = ip.get_links(index)
    parent = link.get_attr("IFLA_IFNAME")
    if not link["flags"] & _IFF_UP:
        raise NicError(
            f"{parent} is down, and with it a macvlan on it",
            hint=f"ip link set {parent} up",
        )
    # Older kernels (6.1) make it in this namespace first, where its own name may be the NIC's.
    made = f"pl{uuid4().hex[:10]}"
    with namespace.open("rb") as opened:
        ip.link(
            "add",
            ifname=made,
            kind="macvlan",
            link=index,
            macvlan_mode="bridge",
            net_ns_fd=opened.fileno(),
        )

    def rename() -> None:
        with rtnetlink(name, "naming") as inside:
            inside.link(
                "set",
                index=index_of(inside, made),
                ifname=name,
            )

    namespaces.inside(namespace, rename)


def read_function(ip: Any, function: FunctionState) -> FunctionState:
    """A virtual function and the settings that its port has for it."""
    (link,) = ip.link(
        "get",
        index=index_of(ip, function.port),
        ext_mask=_WITH_FUNCTIONS,
    )
    return function_in(link, function)


def function_in(link: Any, function: FunctionState) -> FunctionState:
    """The virtual function in the kernel's message about its port."""
    functions = link.get_attr("IFLA_VFINFO_LIST")
    for each in functions.get_attrs("IFLA_VF_INFO") if functions else ():
        mac = each.get_attr("IFLA_VF_MAC")
        vlan = each.get_attr("IFLA_VF_VLAN")
        if mac["vf"] == function.number:
            return replace(
                function,
                mac=mac["mac"],
                vlan=vlan["vlan"] if vlan else 0,
            )
    raise NicError(
        f"{function.port} does not report its virtual function {function.number}",
        hint="the driver must support this: see 'ip link show'",
    )


def set_function(
    ip: Any,
    name: str,
    at: FunctionState,
    mac: str | None,
    vlan: int | None,
) -> None:
    """Set the MAC and VLAN (``None``: unchanged) of a virtual function, ``name``, at its port."""
    if settings := settings_of(read_function(ip, at), mac, vlan):
        ip.link(
            "set",
            index=index_of(ip, at.port),
            vf=settings,
        )
        # Some drivers (igbvf) take the port's MAC when they are reset, and refuse one before.
        for state in ("up", "down"):
            ip.link(
                "set",
                index=index_of(ip, name),
                state=state,
            )


def settings_of(
    now: FunctionState,
    mac: str | None,
    vlan: int | None,
) -> dict[str, Any]:
    """Attributes to set at the port: only those that differ, as some drivers reject the others."""
    values = {"mac": (mac, now.mac), "vlan": (vlan, now.vlan)}
    settings = {
        k: new for k, (new, old) in values.items() if new not in (None, old)
    }
    return {"vf": now.number, **settings} if settings else {}
