"""Give a NIC to a worker's namespace, and take it back as it was.

A network device that changes namespaces loses its addresses, routes, neighbours, root qdisc
and per-device sysctls. So its state is read first (``read_nic``), what the worker needs is
set up inside (``give_nic``), and all of it is put back at home (``take_nic_back``). Functions
here block; they run in the calling thread's namespace unless they say otherwise.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from patchlight.agents.errors import NicError, NicGone
from patchlight.testbed.linux import ethtool, namespaces
from patchlight.testbed.linux.netlink import KernelRefused, Netlink
from patchlight.testbed.linux.rate_limits import LimitNotKept, SavedLimit, restore_limit, save_limit

GONE = "{} is gone: the server has no such interface any more"
NO_CARRIER = "{} has no carrier"
# A queue of 50 ms is usual; one may be seconds deep on a slow link.
_QUEUE_S = 10.0
_IFF_UP = 1
_NUD_PERMANENT = 0x80
_PROTO_KERNEL = 2
# What decides which of several NICs of one server answers for an address.
_DEVICE_SYSCTLS = ("arp_announce", "arp_filter", "arp_ignore", "accept_local", "rp_filter")


@dataclass(frozen=True, slots=True)
class NicState:
    """All that a NIC loses or may lose on its way to a worker and back. Plain values."""

    interface: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[tuple[str, int], ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    routes: tuple[dict[str, Any], ...] = ()
    shaping: SavedLimit | None = None
    tx_checksum: bool | None = None
    sysctls: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For the lease's file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NicState:
        """The state that ``as_dict`` wrote, also after a way through JSON."""
        return cls(
            **{
                **data,
                "addresses": tuple((a, int(n)) for a, n in data["addresses"]),
                "neighbours": tuple((a, m) for a, m in data["neighbours"]),
                "routes": tuple(data["routes"]),
                "shaping": SavedLimit(**data["shaping"]) if data["shaping"] else None,
            }
        )


def read_nic(interface: str) -> NicState:
    """The NIC's present state; ``NicError`` if it is not here or could not be carried over."""
    with _netlink(interface, "reading") as ip:
        return _read(ip, interface)


def give_nic(
    interface: str,
    namespace: Path,
    state: NicState,
    *,
    address: str,
    prefix: int,
    mac: str | None,
    neighbours: Sequence[tuple[str, str]],
) -> None:
    """Move a NIC from here to ``namespace`` and set it up there; its address comes last.

    It keeps its name, MTU, rate limit and checksum setting. ``mac`` (``None``: as it is) and
    the static ``neighbours`` (address, MAC) hold inside. ``NicError`` if any of it does not
    hold after being set; the NIC may then be on either side: take it back.
    """
    with _netlink(interface, f"moving to {namespace}") as ip:
        _move(ip, interface, namespace)
    inside = NicState(
        interface=interface,
        mac=mac or state.mac,
        mtu=state.mtu,
        up=True,
        addresses=((address, prefix),),
        neighbours=tuple(neighbours),
        shaping=state.shaping,
        tx_checksum=state.tx_checksum,
    )

    def set_up() -> None:
        # Training pauses for seconds between bursts; starting slowly after each would be the
        # sysctl's doing, not the network's.
        _set_sysctl("ipv4/tcp_slow_start_after_idle", 0)
        _set_sysctl(f"ipv6/conf/{interface}/disable_ipv6", 1)
        _restore(inside, loopback_up=True)

    namespaces.inside(namespace, set_up)


def take_nic_back(state: NicState, namespace: Path, home: Path) -> None:
    """Move the NIC from ``namespace`` to ``home`` if it is there, and put its state back.

    Harmless again, and where the NIC never left. ``NicGone`` if it is in neither.
    """

    def fetch() -> None:
        with _netlink(state.interface, "taking back") as ip:
            if ip.link_lookup(ifname=state.interface):
                _move(ip, state.interface, home)

    if namespace.exists():
        namespaces.inside(namespace, fetch)
    namespaces.inside(home, lambda: _restore(state))


def silence(namespace: Path, interface: str) -> None:
    """Let no packet leave a worker's namespace: what its kernel would still send is dropped.

    Connections live on and send it again after ``unsilence``. On return the NIC's queue is empty;
    ``NicError`` if that takes too long. Again is harmless.
    """
    _blackhole(namespace, "add", errno.EEXIST)
    end = time.monotonic() + _QUEUE_S
    while queued := namespaces.inside(namespace, lambda: _queued_packets(interface)):
        if time.monotonic() > end:
            raise NicError(f"{interface} still has {queued} packets to send after {_QUEUE_S:g} s")
        time.sleep(0.002)


def _queued_packets(interface: str) -> int:
    with _netlink(interface, "reading the queue of") as ip:
        queues = [message.get_attr("TCA_STATS") for message in ip.get_qdiscs(_index(ip, interface))]
    return sum(queue["qlen"] for queue in queues if queue)


def unsilence(namespace: Path) -> None:
    """Let packets leave again; harmless where they do."""
    _blackhole(namespace, "del", errno.ENOENT)


def _blackhole(namespace: Path, command: str, already: int) -> None:
    def switch() -> None:
        with _netlink(namespace.name, "silencing") as ip:
            try:
                # After the rule for local addresses, before all others.
                ip.rule(command, priority=1, action="FR_ACT_BLACKHOLE")
            except NetlinkError as exc:
                if exc.code != already:
                    raise

    namespaces.inside(namespace, switch)


def problem_of(namespace: Path, interface: str) -> str:
    """What is wrong with a NIC that should be in the namespace, in words; empty if nothing is."""
    if not namespace.exists():
        return GONE.format(interface)
    try:
        carrier = namespaces.inside(namespace, lambda: ethtool.settle_link(interface))
    except OSError as exc:
        return GONE.format(interface) if exc.errno == errno.ENODEV else f"{interface}: {exc}"
    return "" if carrier else NO_CARRIER.format(interface)


def is_in(namespace: Path, interface: str) -> bool:
    """Whether an interface of that name is in the namespace (not: the namespace is gone)."""

    def look() -> bool:
        with _netlink(interface, "looking for") as ip:
            return bool(ip.link_lookup(ifname=interface))

    return namespace.exists() and namespaces.inside(namespace, look)


def _read(ip: Any, interface: str) -> NicState:
    index = _index(ip, interface)
    (link,) = ip.get_links(index)
    with Netlink() as netlink:
        limit = save_limit(netlink, index, interface)
    return NicState(
        interface=interface,
        mac=link.get_attr("IFLA_ADDRESS"),
        mtu=link.get_attr("IFLA_MTU"),
        up=bool(link["flags"] & _IFF_UP),
        addresses=tuple(
            (message.get_attr("IFA_LOCAL"), message["prefixlen"])
            for message in ip.get_addr(index=index, family=2)
        ),
        neighbours=tuple(
            sorted(
                (message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR"))
                for message in ip.get_neighbours(ifindex=index, family=2)
                if message["state"] & _NUD_PERMANENT
            )
        ),
        routes=tuple(
            _route(message)
            for message in ip.get_routes(oif=index, family=2)
            if message["proto"] != _PROTO_KERNEL
        ),
        shaping=limit,
        tx_checksum=ethtool.tx_checksum(interface),
        sysctls={
            name: Path("/proc/sys/net", _conf(interface, name)).read_text().strip()
            for name in _DEVICE_SYSCTLS
        },
    )


def _route(message: Any) -> dict[str, Any]:
    destination = message.get_attr("RTA_DST")
    route = {
        "dst": f"{destination or '0.0.0.0'}/{message['dst_len']}",
        "gateway": message.get_attr("RTA_GATEWAY"),
        "table": message.get_attr("RTA_TABLE") or message["table"],
        "prefsrc": message.get_attr("RTA_PREFSRC"),
        "priority": message.get_attr("RTA_PRIORITY"),
        "scope": message["scope"],
        "proto": message["proto"],
    }
    return {key: value for key, value in route.items() if value is not None}


def _move(ip: Any, interface: str, namespace: Path) -> None:
    with namespace.open("rb") as opened:
        ip.link("set", index=_index(ip, interface), net_ns_fd=opened.fileno())


def _restore(state: NicState, *, loopback_up: bool = False) -> None:
    """Bring the NIC of this name, in this thread's namespace, into this state."""
    interface = state.interface
    with _netlink(interface, "setting up") as ip:
        index = _index(ip, interface)
        (link,) = ip.get_links(index)
        if link.get_attr("IFLA_ADDRESS") != state.mac or link.get_attr("IFLA_MTU") != state.mtu:
            ip.link("set", index=index, state="down")
            ip.link("set", index=index, address=state.mac, mtu=state.mtu)
        if state.tx_checksum is not None and ethtool.tx_checksum(interface) != state.tx_checksum:
            ethtool.set_tx_checksum(interface, state.tx_checksum)
        if state.shaping is not None:
            with Netlink() as netlink:
                restore_limit(netlink, index, interface, state.shaping)
        for name, value in (state.sysctls or {}).items():
            _set_sysctl(_conf(interface, name), value)
        if loopback_up:
            ip.link("set", index=_index(ip, "lo"), state="up")
        ip.link("set", index=index, state="up" if state.up else "down")
        for address, mac in state.neighbours:
            ip.neigh(
                "replace", ifindex=index, dst=address, lladdr=mac, state=_NUD_PERMANENT, family=2
            )
        for address, prefix in state.addresses:
            try:
                ip.addr("add", index=index, address=address, prefixlen=prefix)
            except NetlinkError as exc:
                if exc.code != errno.EEXIST:
                    raise
        for route in state.routes:
            ip.route("replace", oif=index, family=2, **route)
        now = _read(ip, interface)
    if now.mac != state.mac or not set(state.addresses) <= set(now.addresses):
        raise NicError(f"{interface} did not take its address: wanted {state}, got {now}")


def _index(ip: Any, interface: str) -> int:
    indices = ip.link_lookup(ifname=interface)
    if not indices:
        raise NicGone(
            f"there is no interface {interface} in this network namespace",
            hint="the lab file names a NIC's interface with 'interface:' where it differs from "
            "the NIC's name",
        )
    return int(indices[0])


def _conf(interface: str, name: str) -> str:
    return f"ipv4/conf/{interface}/{name}"


def _set_sysctl(key: str, value: str | int) -> None:
    if not namespaces.set_sysctl(key, value):
        raise NicError(f"setting the sysctl net/{key} to {value}: this kernel has none")


@contextmanager
def _netlink(interface: str, doing: str) -> Iterator[Any]:
    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as exc:
        hint = "run it as root" if exc.code == errno.EPERM else None
        raise NicError(f"{doing} {interface}: {os.strerror(exc.code)}", hint=hint) from exc
    except OSError as exc:
        raise NicError(f"{doing} {interface}: {exc}") from exc
    except (KernelRefused, LimitNotKept, ethtool.OffloadNotSet) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc
