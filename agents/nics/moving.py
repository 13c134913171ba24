"""Gives a NIC to a worker's namespace, blocks its egress there, and takes it back as it was.

A network device that changes namespaces loses its addresses, routes, neighbours, root qdisc
and per-device sysctls. So its state is read first (``read_nic``), what the worker needs is
set up inside (``give_nic``), and all of it is put back at home (``take_nic_back``). Functions
here block; they run in the calling thread's namespace unless their docstring says otherwise.
"""

import errno
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from patchlight.agents.errors import NicError
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
    name_inside,
    rtnetlink,
)
from patchlight.testbed.lab.model import Nic
from patchlight.testbed.linux import devices, namespaces, rate_limits
from patchlight.testbed.linux.netlink import Netlink, set_neighbours

_IFF_UP = 1
_WITH_FUNCTIONS = 1
_NUD_PERMANENT = 0x80
# A queue of 50 ms is usual; one may be seconds deep on a slow link.
_QUEUE_S = 10.0
_PROTO_KERNEL = 2
# What decides which of several NICs of one server answers for an address.
_DEVICE_SYSCTLS = ("arp_announce", "arp_filter", "arp_ignore", "accept_local", "rp_filter")


def find_access(nic: Nic) -> NicAccess:
    """In which way a worker gets the NIC; ``NicError`` where the server cannot do it."""
    if nic.mode == "veth":  # made of software: there is nothing to find out
        return NicAccess("veth", nic.interface or nic.name)
    try:
        with devices.sysfs() as here:
            return access_of(nic, here, devices.namespace_mode())
    except (devices.NoSysfs, devices.RdmaError) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc


def read_nic(access: NicAccess) -> NicState:
    """The NIC's present state; ``NicError`` if it is not here or could not be carried over."""
    interface = access.interface
    with rtnetlink(interface, "reading") as ip:
        index = index_of(ip, interface)
        (link,) = ip.get_links(index)
        with Netlink() as netlink:
            limit = rate_limits.save_limit(netlink, index, interface)
        return NicState(
            interface=interface,
            mac=link.get_attr("IFLA_ADDRESS"),
            mtu=link.get_attr("IFLA_MTU"),
            up=bool(link["flags"] & _IFF_UP),
            addresses=tuple(_address(message) for message in ip.get_addr(index=index, family=2)),
            neighbours=tuple(
                sorted(
                    (message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR"))
                    for message in ip.get_neighbours(ifindex=index, family=2)
                    if message["state"] & _NUD_PERMANENT
                )
            ),
            routes=tuple(
                {
                    key: value
                    for key, value in {
                        "dst": f"{message.get_attr('RTA_DST') or '0.0.0.0'}/{message['dst_len']}",
                        "gateway": message.get_attr("RTA_GATEWAY"),
                        "table": message.get_attr("RTA_TABLE") or message["table"],
                        "prefsrc": message.get_attr("RTA_PREFSRC"),
                        "priority": message.get_attr("RTA_PRIORITY"),
                        "scope": message["scope"],
                        "proto": message["proto"],
                    }.items()
                    if value is not None
                }
                for message in ip.get_routes(oif=index, family=2)
                if message["proto"] != _PROTO_KERNEL
            ),
            shaping=limit,
            tx_checksum=devices.tx_checksum(interface),
            sysctls={
                name: Path("/proc/sys/net", _conf(interface, name)).read_text().strip()
                for name in _DEVICE_SYSCTLS
            },
            mode=access.mode,
            function=None if access.function is None else read_function(ip, access.function),
            rdma=access.rdma,
            rdma_moves=access.rdma_moves,
        )


def give_nic(state: NicState, namespace: Path, network: WorkerNetwork) -> None:
    """Move a NIC with its rate limit and checksum setting to ``namespace`` and set it up there; its
    address comes last. After a ``NicError`` it may be on either side: take it back."""
    interface = state.interface
    with rtnetlink(interface, f"moving to {namespace}") as ip:
        index = index_of(ip, interface)
        _check_mtu(ip, index, state, network.mtu)
        if state.mode == "macvlan":
            make_macvlan(ip, index, interface, namespace)
        else:
            if state.function is not None:
                set_function(ip, state.function, network.mac, network.vlan)
            _move(ip, interface, namespace)
        if state.rdma is not None and state.rdma_moves:
            devices.move_device(state.rdma.name, namespace)
        if network.rendezvous is not None:
            parent = index_of(ip, network.rendezvous.interface)
            make_macvlan(ip, parent, RENDEZVOUS, namespace)
    namespaces.inside(namespace, lambda: _set_up(state, network))


def _set_up(state: NicState, network: WorkerNetwork) -> None:
    """Bring a NIC that has come into a worker's namespace into the state that it is to have."""
    interface = state.interface
    # Training pauses for seconds between bursts; starting slowly after each would be the
    # sysctl's doing, not the network's.
    _set_sysctl("ipv4/tcp_slow_start_after_idle", 0)
    _set_sysctl(f"ipv6/conf/{interface}/disable_ipv6", 1)
    if network.window_bytes is not None:
        # Half of a socket's memory is window. Our own trainer limits its window itself.
        memory = 2 * network.window_bytes
        for key in ("ipv4/tcp_rmem", "ipv4/tcp_wmem"):
            _set_sysctl(key, f"{min(4096, memory)} {memory} {memory}")
        # The window alone sets the pace: some kernels' default (BBR) paces by what it measured.
        _set_sysctl("ipv4/tcp_congestion_control", "reno")
    is_macvlan = state.mode == "macvlan"
    bare = NicState(
        interface=interface,
        mac=network.mac or state.mac,
        mtu=network.mtu or state.mtu,
        up=True,
        # What is sent by a macvlan passes the NIC's own queue.
        shaping=None if is_macvlan else state.shaping,
        tx_checksum=None if is_macvlan else state.tx_checksum,
    )
    named = name_inside(interface, state.mode, network.vlan)
    if named != interface:
        assert network.vlan is not None
        _restore(bare, loopback_up=True)
        with rtnetlink(interface, f"making VLAN {network.vlan} on") as ip:
            parent = index_of(ip, interface)
            ip.link("add", ifname=named, kind="vlan", link=parent, vlan_id=network.vlan)
        bare = NicState(named, bare.mac, bare.mtu, up=True)
    addressed = replace(
        bare,
        addresses=((network.address, network.prefix),),
        neighbours=network.neighbours,
        routes=tuple({"dst": to, "gateway": via} for to, via in network.routes),
    )
    _restore(addressed, loopback_up=True)
    if network.rendezvous is not None:
        address = network.rendezvous.address
        with rtnetlink(RENDEZVOUS, "setting up") as ip:
            index = index_of(ip, RENDEZVOUS)
            ip.link("set", index=index, state="up")
            ip.addr(
                "add", index=index, address=str(address.ip), prefixlen=address.network.prefixlen
            )


def take_nic_back(state: NicState, namespace: Path, home: Path) -> None:
    """Move the NIC home if it is in ``namespace``, and put its state back; harmless again.
    ``NicGone`` if it is in neither."""

    def fetch() -> None:
        with rtnetlink(state.interface, "taking back") as ip:
            for index in ip.link_lookup(ifname=state.interface):
                for link in ip.get_links():  # tagged interfaces on it stay behind otherwise
                    kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
                    if kind == "vlan" and link.get_attr("IFLA_LINK") == index:
                        ip.link("del", index=link["index"])
                if state.mode == "macvlan":
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
        _restore(state)
        if state.function is not None:
            with rtnetlink(state.function.port, "setting up") as ip:
                set_function(ip, state.function, state.function.mac, state.function.vlan)

    if namespaces.is_one(namespace):
        namespaces.inside(namespace, fetch)
    namespaces.inside(home, put_back)


def is_in(namespace: Path, interface: str) -> bool:
    """Whether an interface of that name is in the namespace (not: the namespace is gone)."""

    def look() -> bool:
        with rtnetlink(interface, "looking for") as ip:
            return bool(ip.link_lookup(ifname=interface))

    return namespaces.is_one(namespace) and namespaces.inside(namespace, look)


def _address(message: Any) -> tuple[str, int]:
    return message.get_attr("IFA_LOCAL"), message["prefixlen"]


def _move(ip: Any, interface: str, namespace: Path) -> None:
    with namespace.open("rb") as opened:
        ip.link("set", index=index_of(ip, interface), net_ns_fd=opened.fileno())


def _restore(state: NicState, *, loopback_up: bool = False) -> None:
    """Bring the NIC of this name, in this thread's namespace, into this state."""
    interface = state.interface
    with rtnetlink(interface, "setting up") as ip:
        index = index_of(ip, interface)
        (link,) = ip.get_links(index)
        if link.get_attr("IFLA_ADDRESS") != state.mac or link.get_attr("IFLA_MTU") != state.mtu:
            ip.link("set", index=index, state="down")
            ip.link("set", index=index, address=state.mac, mtu=state.mtu)
        if state.tx_checksum is not None and devices.tx_checksum(interface) != state.tx_checksum:
            devices.set_tx_checksum(interface, state.tx_checksum)
        if state.shaping is not None:
            with Netlink() as netlink:
                rate_limits.restore_limit(netlink, index, interface, state.shaping)
        for name, value in (state.sysctls or {}).items():
            _set_sysctl(_conf(interface, name), value)
        if loopback_up:
            ip.link("set", index=index_of(ip, "lo"), state="up")
        ip.link("set", index=index, state="up" if state.up else "down")
        if state.neighbours:
            with Netlink() as netlink:
                set_neighbours(netlink, index, interface, state.neighbours)
        for address, prefix in state.addresses:
            with allowing(errno.EEXIST):
                ip.addr("add", index=index, address=address, prefixlen=prefix)
        for route in state.routes:
            ip.route("replace", oif=index, family=2, **route)
        (link,) = ip.get_links(index)
        addresses = {_address(message) for message in ip.get_addr(index=index, family=2)}
    mac = link.get_attr("IFLA_ADDRESS")
    if mac != state.mac or not set(state.addresses) <= addresses:
        raise NicError(
            f"{interface} did not take its address: wanted {state}, got {mac} and {addresses}"
        )


def _conf(interface: str, name: str) -> str:
    return f"ipv4/conf/{interface}/{name}"


def _set_sysctl(key: str, value: str | int) -> None:
    if not namespaces.set_sysctl(key, value):
        raise NicError(f"setting the sysctl net/{key} to {value}: this kernel has none")


def block_egress(namespace: Path, interface: str) -> None:
    """Drop what a worker's kernel would still send, until the NIC's queue is empty (``NicError`` if
    that takes too long). Connections live on, and send it again after ``unblock_egress``."""

    def queued_packets() -> int:
        with rtnetlink(interface, "reading the queue of") as ip:
            queues = ip.get_qdiscs(index_of(ip, interface))
            return sum(each["qlen"] for queue in queues if (each := queue.get_attr("TCA_STATS")))

    _blackhole(namespace, "add", errno.EEXIST)
    end = time.monotonic() + _QUEUE_S
    while queued := namespaces.inside(namespace, queued_packets):
        if time.monotonic() > end:
            raise NicError(f"{interface} still has {queued} packets to send after {_QUEUE_S:g} s")
        time.sleep(0.002)


def unblock_egress(namespace: Path) -> None:
    """Let packets leave again; harmless where they do."""
    _blackhole(namespace, "del", errno.ENOENT)


def _blackhole(namespace: Path, command: str, already: int) -> None:
    def switch() -> None:
        with rtnetlink(namespace.name, "silencing") as ip, allowing(already):
            # After the rule for local addresses, before all others.
            ip.rule(command, priority=1, action="FR_ACT_BLACKHOLE")

    namespaces.inside(namespace, switch)


def _check_mtu(ip: Any, index: int, state: NicState, mtu: int | None) -> None:
    """``NicError`` if the NIC cannot carry packets of ``mtu`` bytes."""
    if mtu is None:
        return
    (link,) = ip.get_links(index)
    most = state.mtu if state.mode == "macvlan" else link.get_attr("IFLA_MAX_MTU") or mtu
    if mtu > most:
        raise NicError(
            f"{state.interface} takes an MTU of {most} at most, and the lab file says {mtu}",
            hint=f"raise that of the NIC: ip link set {state.interface} mtu {mtu}"
            if state.mode == "macvlan"
            else "write a smaller mtu into the lab file",
        )


def make_macvlan(ip: Any, index: int, name: str, namespace: Path) -> None:
    """Make a macvlan in another namespace, on an interface of here, in mode ``bridge``: those on
    one NIC reach each other. It ends with its namespace."""
    (link,) = ip.get_links(index)
    parent = link.get_attr("IFLA_IFNAME")
    if not link["flags"] & _IFF_UP:
        raise NicError(
            f"{parent} is down, and so is a macvlan on it", hint=f"ip link set {parent} up"
        )
    with namespace.open("rb") as opened:
        ip.link(
            "add",
            ifname=name,
            kind="macvlan",
            link=index,
            macvlan_mode="bridge",
            net_ns_fd=opened.fileno(),
        )


def read_function(ip: Any, function: FunctionState) -> FunctionState:
    """A virtual function with what its port has set for it."""
    (link,) = ip.link("get", index=index_of(ip, function.port), ext_mask=_WITH_FUNCTIONS)
    return function_in(link, function)


def function_in(link: Any, function: FunctionState) -> FunctionState:
    """The same, from the kernel's message about the port."""
    functions = link.get_attr("IFLA_VFINFO_LIST")
    for each in functions.get_attrs("IFLA_VF_INFO") if functions else ():
        mac, vlan = each.get_attr("IFLA_VF_MAC"), each.get_attr("IFLA_VF_VLAN")
        if mac["vf"] == function.number:
            return replace(function, mac=mac["mac"], vlan=vlan["vlan"] if vlan else 0)
    raise NicError(
        f"{function.port} says nothing of its virtual function {function.number}",
        hint="its driver has to support it: see 'ip link show'",
    )


def set_function(ip: Any, function: FunctionState, mac: str | None, vlan: int | None) -> None:
    """Have a port let its virtual function send with a MAC, in a VLAN (``None``: as it is)."""
    if settings := settings_of(read_function(ip, function), mac, vlan):
        ip.link("set", index=index_of(ip, function.port), vf=settings)


def settings_of(now: FunctionState, mac: str | None, vlan: int | None) -> dict[str, Any]:
    """What to tell the port of it: only what differs, for not every driver takes everything."""
    wanted = {"mac": mac, "vlan": vlan}
    present = {"mac": now.mac, "vlan": now.vlan}
    settings = {k: v for k, v in wanted.items() if v is not None and v != present[k]}
    return {"vf": now.number, **settings} if settings else {}
