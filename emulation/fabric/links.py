"""The requests that make links: veth pairs, bridges, addresses, routes, neighbours.

Encoded by pyroute2; each comes with the words that an error about it would use.
"""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from patchlight.testbed.linux.netlink import F_CREATE, F_DUMP, F_EXCL, F_REPLACE, Netlink, Request
from patchlight.testbed.linux.netlink import attributes as split_attributes

_NEWLINK, _GETLINK = 16, 18
_NEWADDR, _NEWROUTE, _NEWRULE = 20, 24, 32
_GETNSID = 90
_IFF_UP = 1
_AF_INET = 2
_HEADER_LENGTH = 16
_IFINFO = struct.Struct("=BxHiII")
_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_LINK, _IFLA_LINKINFO = 1, 3, 5, 18
_IFLA_LINK_NETNSID, _IFLA_INFO_KIND = 37, 1
_NETNSA_NSID, _NETNSA_FD = 1, 3
_SCOPE_LINK = 253
_PROTOCOL_STATIC = 4
LOOPBACK = 1


@dataclass(frozen=True, slots=True)
class LinkEnd:
    """One end of a veth pair to be made.

    ``index`` is the interface index to give it (``None``: the kernel chooses); ``namespace``
    an open descriptor, ``None`` for the one that the request is sent in.
    """

    name: str
    index: int | None = None
    mac: str | None = None
    namespace: int | None = None
    up: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """An interface as the kernel shows it. ``peer_*`` are set where its other end is elsewhere."""

    index: int
    name: str
    mac: str
    up: bool
    kind: str
    peer_index: int | None
    peer_namespace_id: int | None


def _body(message: Any, **value: Any) -> bytes:
    message.setvalue(value)
    message.encode()
    return bytes(message.data)[_HEADER_LENGTH:]


def _end_value(end: LinkEnd) -> dict[str, Any]:
    attrs: list[tuple[str, Any]] = [("IFLA_IFNAME", end.name)]
    if end.mac:
        attrs.append(("IFLA_ADDRESS", end.mac))
    if end.namespace is not None:
        attrs.append(("IFLA_NET_NS_FD", end.namespace))
    flags = _IFF_UP if end.up else 0
    return {"index": end.index or 0, "flags": flags, "change": flags, "attrs": attrs}


def add_veth(a: LinkEnd, b: LinkEnd) -> Request:
    """Make a veth pair, each end in its namespace with its name and MAC, and ``a`` up if wanted.

    ``b`` cannot be up: the kernel opens it before it is one of a pair, and refuses.
    """
    value = _end_value(a)
    value["attrs"].append(_kind("veth", [("VETH_INFO_PEER", _end_value(b))]))
    doing = f"making the link {a.name} – {b.name}"
    return Request(_NEWLINK, F_CREATE | F_EXCL, _body(ifinfmsg(), **value), doing)


def add_bridge(name: str, index: int) -> Request:
    """Make a learning bridge without spanning tree, up."""
    # Forward at once (no 15 s of listening), and do not let multicast snooping hold frames.
    settings = ("IFLA_BR_STP_STATE", "IFLA_BR_FORWARD_DELAY", "IFLA_BR_MCAST_SNOOPING")
    value = _end_value(LinkEnd(name, index, up=True))
    value["attrs"].append(_kind("bridge", [(setting, 0) for setting in settings]))
    body = _body(ifinfmsg(), **value)
    return Request(_NEWLINK, F_CREATE | F_EXCL, body, f"making the bridge {name}")


def set_master(index: int, bridge_index: int, name: str) -> Request:
    """Make an interface a port of a bridge."""
    return _set(index, f"putting {name} on its bridge", attrs=[("IFLA_MASTER", bridge_index)])


def set_up(index: int, name: str) -> Request:
    """Bring an interface up."""
    return _set(index, f"bringing {name} up", flags=_IFF_UP, change=_IFF_UP)


def set_down(index: int, name: str) -> Request:
    """Take an interface down; the other end of its pair loses carrier."""
    return _set(index, f"taking {name} down", flags=0, change=_IFF_UP)


def set_alias(index: int, alias: str) -> Request:
    """Note something on an interface; the cheapest question whether it is still there."""
    return _set(index, f"noting {alias} on interface {index}", attrs=[("IFLA_IFALIAS", alias)])


def move(index: int, namespace: int, name: str) -> Request:
    """Move an interface to an open namespace; it arrives down, without addresses or queue."""
    attrs = [("IFLA_NET_NS_FD", namespace)]
    return _set(index, f"moving {name} to another namespace", attrs=attrs)


def _set(index: int, doing: str, **value: Any) -> Request:
    return Request(_NEWLINK, 0, _body(ifinfmsg(), index=index, **value), doing)


def add_address(index: int, address: IPv4Interface, name: str) -> Request:
    """Give an interface an address with its prefix."""
    attrs = [
        ("IFA_LOCAL", str(address.ip)),
        ("IFA_ADDRESS", str(address.ip)),
        ("IFA_BROADCAST", str(address.network.broadcast_address)),
    ]
    body = _body(
        ifaddrmsg(), family=_AF_INET, prefixlen=address.network.prefixlen, index=index, attrs=attrs
    )
    doing = f"giving {name} the address {address}"
    return Request(_NEWADDR, F_CREATE | F_REPLACE, body, doing)


def add_subnet_route(index: int, address: IPv4Interface, table: int, name: str) -> Request:
    """In ``table``: the subnet of ``address`` is reached over this interface, from it."""
    network = address.network
    attrs = [
        ("RTA_DST", str(network.network_address)),
        ("RTA_OIF", index),
        ("RTA_PREFSRC", str(address.ip)),
        ("RTA_TABLE", table),
    ]
    length, shown = network.prefixlen, min(table, 252)
    fixed = {"family": _AF_INET, "proto": _PROTOCOL_STATIC, "scope": _SCOPE_LINK, "type": 1}
    body = _body(rtmsg(), dst_len=length, table=shown, attrs=attrs, **fixed)
    doing = f"routing {network} over {name}"
    return Request(_NEWROUTE, F_CREATE | F_REPLACE, body, doing)


def add_source_rule(source: IPv4Address, table: int) -> Request:
    """Packets from this address are routed by ``table``."""
    attrs = [("FRA_SRC", str(source)), ("FRA_TABLE", table), ("FRA_PRIORITY", 1000)]
    fixed = {"family": _AF_INET, "src_len": 32, "action": 1}
    body = _body(fibmsg(), table=min(table, 252), attrs=attrs, **fixed)
    return Request(_NEWRULE, F_CREATE, body, f"adding the routing rule for {source}")


def _kind(kind: str, data: list[tuple[str, Any]]) -> tuple[str, Any]:
    info = [("IFLA_INFO_KIND", kind), ("IFLA_INFO_DATA", {"attrs": data})]
    return ("IFLA_LINKINFO", {"attrs": info})


def list_links(netlink: Netlink) -> dict[str, Link]:
    """Every interface of the socket's namespace, by name."""
    request = Request(_GETLINK, F_DUMP, _IFINFO.pack(0, 0, 0, 0, 0), "listing interfaces")
    links = [_parse_link(body) for kind, body in netlink.ask(request) if kind == _NEWLINK]
    return {link.name: link for link in links}


def _parse_link(body: bytes) -> Link:
    """A link message's body → what it says. (pyroute2 decodes everything, 30 times slower.)"""
    _, _, index, flags, _ = _IFINFO.unpack_from(body)
    values = dict(split_attributes(body[_IFINFO.size :]))
    info = dict(split_attributes(values.get(_IFLA_LINKINFO, b"")))
    return Link(
        index=index,
        name=values[_IFLA_IFNAME].rstrip(b"\0").decode(),
        mac=values.get(_IFLA_ADDRESS, b"").hex(":"),
        up=bool(flags & _IFF_UP),
        kind=info.get(_IFLA_INFO_KIND, b"").rstrip(b"\0").decode(),
        peer_index=_integer(values.get(_IFLA_LINK)),
        peer_namespace_id=_integer(values.get(_IFLA_LINK_NETNSID)),
    )


def namespace_id(netlink: Netlink, namespace: int) -> int | None:
    """The id that the socket's namespace knows another (open) namespace by, if it does."""
    body = struct.pack("=Bxxx", 0) + struct.pack("=HHi", 8, _NETNSA_FD, namespace)
    for _, answer in netlink.ask(Request(_GETNSID, 0, body, "asking for a namespace's id")):
        number = _integer(dict(split_attributes(answer[4:])).get(_NETNSA_NSID))
        return None if number is None or number < 0 else number
    return None


def _integer(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data, "little", signed=True)
