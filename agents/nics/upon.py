"""Interfaces made upon a NIC for a worker, and what a port says of its virtual functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from patchlight.agents.errors import NicError
from patchlight.agents.nics.kernel import index_of, rtnetlink
from patchlight.agents.nics.state import RENDEZVOUS, FunctionState, NicState
from patchlight.testbed.lab.nic import Rendezvous

_WITH_FUNCTIONS = 1
_IFF_UP = 1


def check_mtu(ip: Any, index: int, state: NicState, mtu: int | None) -> None:
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
    """Make a macvlan of the name ``name`` on an interface of here, in another namespace.

    Mode ``bridge``: those on one NIC reach each other. It ends with its namespace.
    """
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


def make_rendezvous(ip: Any, way: Rendezvous, namespace: Path) -> None:
    """Give a worker its second interface."""
    make_macvlan(ip, index_of(ip, way.interface), RENDEZVOUS, namespace)


def set_up_rendezvous(way: Rendezvous) -> None:
    """Give it its address, in the worker's namespace."""
    with rtnetlink(RENDEZVOUS, "setting up") as ip:
        index = index_of(ip, RENDEZVOUS)
        ip.link("set", index=index, state="up")
        ip.addr(
            "add", index=index, address=str(way.address.ip), prefixlen=way.address.network.prefixlen
        )


def make_tagged(interface: str, name: str, vlan: int) -> None:
    """Make an interface whose packets leave by another one, tagged with a VLAN."""
    with rtnetlink(interface, f"making VLAN {vlan} on") as ip:
        ip.link("add", ifname=name, kind="vlan", link=index_of(ip, interface), vlan_id=vlan)


def remove_tagged(ip: Any, index: int) -> None:
    """Remove tagged interfaces on an interface of this namespace: they do not go where it goes."""
    for link in ip.get_links():
        kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
        if kind == "vlan" and link.get_attr("IFLA_LINK") == index:
            ip.link("del", index=link["index"])


def read_function(ip: Any, function: FunctionState) -> FunctionState:
    """A virtual function with what its port has set for it."""
    (link,) = ip.link("get", index=index_of(ip, function.port), ext_mask=_WITH_FUNCTIONS)
    return function_in(link, function)


def function_in(link: Any, function: FunctionState) -> FunctionState:
    """The same, from what the kernel says of the port."""
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
