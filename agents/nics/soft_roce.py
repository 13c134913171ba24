"""Gives a worker a NIC with soft RoCE: the NIC stays at home, and all but its RoCE goes to a veth.

Linux's ``rxe`` sends and receives in the machine's first network namespace only, and its device is
removed as soon as its NIC leaves that. So the worker gets a veth with the name, MAC and address of
the NIC. Traffic control passes frames between the two, except RoCE v2 (UDP port 4791).
"""

from pathlib import Path
from typing import Any

from patchlight.agents.errors import NicError
from patchlight.agents.nics.state import NicState, index_of

_PEER = "roce{}"
_INGRESS = 0xFFFFFFF2
_ACCEPTED = 0x10000  # any class: a match without action goes on to the kernel
_ANY_PROTOCOL = 0x0003
# By EtherType (IPv4, IPv6): UDP, destination port 4791.
_ROCE_V2 = {
    0x0800: ["0x00110000/0x00ff0000+8", "0x000012b7/0x0000ffff+20"],
    0x86DD: ["0x00001100/0x0000ff00+4", "0x000012b7/0x0000ffff+40"],
}
_EVERY_FRAME = ["0x0/0x0+0"]
_FILTERED = ("clsact", "ingress")
_NUD_PERMANENT = 0x80
# Frames from another NIC of this server are no martians.
SYSCTLS = {"accept_local": "1", "rp_filter": "2"}


def give(
    ip: Any,
    index: int,
    state: NicState,
    namespace: Path,
    mtu: int,
) -> None:
    """Make the veth of a NIC that is set up, and pass frames to it; ``NicError`` if the NIC has
    traffic control filters already."""
    peer = _PEER.format(index)
    with namespace.open("rb") as opened:
        inside = {
            "ifname": state.interface,
            "net_ns_fd": opened.fileno(),
            "mtu": mtu,
        }
        ip.link(
            "add",
            ifname=peer,
            kind="veth",
            mtu=mtu,
            peer=inside,
        )
    other = index_of(ip, peer)
    ip.link(
        "set",
        index=other,
        state="up",
    )
    for each in (index, other):
        ip.tc("add", "clsact", each)
    for prio, (protocol, keys) in enumerate(_ROCE_V2.items(), 1):
        roce = {
            "prio": prio,
            "protocol": protocol,
            "keys": keys,
            "target": _ACCEPTED,
        }
        ip.tc(
            "add-filter",
            "u32",
            index,
            parent=_INGRESS,
            **roce,
        )
    for source, target in ((index, other), (other, index)):
        pass_on = {
            "kind": "mirred",
            "direction": "egress",
            "action": "redirect",
            "ifindex": target,
        }
        every = {
            "prio": 1 + len(_ROCE_V2),
            "protocol": _ANY_PROTOCOL,
            "keys": _EVERY_FRAME,
            "action": pass_on,
        }
        ip.tc(
            "add-filter",
            "u32",
            source,
            parent=_INGRESS,
            target=_ACCEPTED,
            **every,
        )


def check_free(
    ip: Any,
    index: int,
    interface: str,
) -> None:
    """``NicError`` if the NIC has filters of another program, which a worker would lose."""
    if _has_filters(ip, index):
        raise NicError(
            f"{interface} has traffic control filters of another program, so it cannot be given to "
            "a worker with soft RoCE",
            hint=f"remove them (tc qdisc del dev {interface} clsact), or write rdma: none",
        )


def take_back(
    ip: Any,
    index: int,
    state: NicState,
) -> None:
    """Remove from the NIC what it got for a worker. Idempotent."""
    if _has_filters(ip, index):
        ip.tc("del", "clsact", index)
    for message in ip.get_addr(
        index=index,
        family=2,
    ):
        address = message.get_attr("IFA_LOCAL"), message["prefixlen"]
        if address not in state.addresses:
            ip.addr(
                "del",
                index=index,
                address=address[0],
                prefixlen=address[1],
            )
    known = {address for address, _ in state.neighbours}
    for message in ip.get_neighbours(
        ifindex=index,
        family=2,
    ):
        address = message.get_attr("NDA_DST")
        if message["state"] & _NUD_PERMANENT and address not in known:
            ip.neigh(
                "del",
                ifindex=index,
                dst=address,
            )


def _has_filters(ip: Any, index: int) -> bool:
    return any(
        each.get_attr("TCA_KIND") in _FILTERED for each in ip.get_qdiscs(index)
    )
