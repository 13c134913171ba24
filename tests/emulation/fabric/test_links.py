"""The requests for links are, byte for byte, those that pyroute2 would send."""

from collections.abc import Callable
from ipaddress import IPv4Interface
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from patchlight.emulation.fabric import links
from patchlight.emulation.fabric.links import LinkEnd
from patchlight.testbed.linux.netlink import Request

HEADER = 16
ADDRESS = IPv4Interface("10.0.0.1/16")
MAC = "02:4c:0a:00:00:01"
UP = {"flags": 1, "change": 1}
PEER = {
    "index": 101, "flags": 0, "change": 0,
    "attrs": [("IFLA_IFNAME", "s1-1"), ("IFLA_NET_NS_FD", 7)],
}  # fmt: skip
VETH = [
    ("IFLA_INFO_KIND", "veth"),
    ("IFLA_INFO_DATA", {"attrs": [("VETH_INFO_PEER", PEER)]}),
]
BRIDGE = [
    ("IFLA_INFO_KIND", "bridge"),
    ("IFLA_INFO_DATA", {"attrs": [
        ("IFLA_BR_STP_STATE", 0), ("IFLA_BR_FORWARD_DELAY", 0), ("IFLA_BR_MCAST_SNOOPING", 0),
    ]}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "message", "value"),
    [
        (
            links.add_veth(LinkEnd("nic0", 100, MAC, up=True), LinkEnd("s1-1", 101, None, 7)),
            ifinfmsg,
            {"index": 100, **UP, "attrs": [
                ("IFLA_IFNAME", "nic0"), ("IFLA_ADDRESS", MAC), ("IFLA_LINKINFO", {"attrs": VETH}),
            ]},
        ),
        (
            links.add_bridge("s1", 9),
            ifinfmsg,
            {"index": 9, **UP, "attrs": [
                ("IFLA_IFNAME", "s1"), ("IFLA_LINKINFO", {"attrs": BRIDGE}),
            ]},
        ),
        (links.set_master(3, 9, "x"), ifinfmsg, {"index": 3, "attrs": [("IFLA_MASTER", 9)]}),
        (links.set_up(4, "x"), ifinfmsg, {"index": 4, **UP}),
        (links.set_alias(3, "hi"), ifinfmsg, {"index": 3, "attrs": [("IFLA_IFALIAS", "hi")]}),
        (links.move(4, 9, "x"), ifinfmsg, {"index": 4, "attrs": [("IFLA_NET_NS_FD", 9)]}),
        (
            links.add_address(3, ADDRESS, "x"),
            ifaddrmsg,
            {"family": 2, "prefixlen": 16, "index": 3, "attrs": [
                ("IFA_LOCAL", "10.0.0.1"), ("IFA_ADDRESS", "10.0.0.1"),
                ("IFA_BROADCAST", "10.0.255.255"),
            ]},
        ),
        (
            links.add_subnet_route(3, ADDRESS, 1003, "x"),
            rtmsg,
            {"family": 2, "proto": 4, "scope": 253, "type": 1, "dst_len": 16, "table": 252,
             "attrs": [("RTA_DST", "10.0.0.0"), ("RTA_OIF", 3), ("RTA_PREFSRC", "10.0.0.1"),
                       ("RTA_TABLE", 1003)]},
        ),
        (
            links.add_source_rule(ADDRESS.ip, 1003),
            fibmsg,
            {"family": 2, "src_len": 32, "action": 1, "table": 252, "attrs": [
                ("FRA_SRC", "10.0.0.1"), ("FRA_TABLE", 1003), ("FRA_PRIORITY", 1000),
            ]},
        ),
    ],
    ids=lambda value: value.doing if isinstance(value, Request) else "",
)  # fmt: skip
def test_a_request_has_the_bytes_that_pyroute2_gives_it(
    request_: Request, message: Callable[[], Any], value: dict[str, Any]
) -> None:
    theirs = message()
    theirs.setvalue(value)
    theirs.encode()
    assert request_.body == bytes(theirs.data)[HEADER:]
