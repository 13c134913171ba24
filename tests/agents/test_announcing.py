"""Announcements of a NIC that moved, between namespaces joined by bridges that learn."""

import asyncio
import os
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from patchlight.agents.nics.announcing import announce, announce_once
from patchlight.agents.nics.state import NicState
from patchlight.agents.nics.status import NicPlace
from patchlight.testbed.linux import namespaces
from tests.support.agent_bench import ip
from tests.support.nic_spaces import ping
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.root

PREFIX = f"pl.test-{os.getpid()}-"
FABRIC, A, B = (f"{PREFIX}{name}" for name in ("fabric", "a", "b"))
ADDRESSES = {A: IPv4Address("10.79.1.11"), B: IPv4Address("10.79.1.12")}
MACS = {A: "02:4c:0a:4f:01:0b", B: "02:4c:0a:4f:01:0c"}


@pytest.fixture
def fabric() -> Iterator[str]:
    """Two bridges with a trunk; ``a`` at the first, ``b`` with a cable to each, the second dark."""
    try:
        for name in (FABRIC, A, B):
            namespaces.create(name)
            # What the kernel would send by IPv6 announces a NIC, too.
            with namespaces.entered(namespaces.namespace_path(name)):
                namespaces.set_sysctl("ipv6/conf/all/disable_ipv6", 1)
        for bridge in ("br1", "br2"):
            ip(
                "-n",
                FABRIC,
                "link",
                "add",
                bridge,
                "type",
                "bridge",
                "forward_delay",
                "0",
            )
            ip("-n", FABRIC, "link", "set", bridge, "up")
        ip(
            "-n",
            FABRIC,
            "link",
            "add",
            "t1",
            "type",
            "veth",
            "peer",
            "name",
            "t2",
        )
        for port, bridge in (("t1", "br1"), ("t2", "br2")):
            ip("-n", FABRIC, "link", "set", port, "master", bridge, "up")
        for space, port in ((A, "pa"), (B, "pb")):
            ip("-n", FABRIC, "link", "add", port, "type", "veth",
               "peer", "name", "nic0", "netns", space)  # fmt: skip
            ip("-n", FABRIC, "link", "set", port, "master", "br1", "up")
            ip(
                "-n",
                space,
                "link",
                "set",
                "nic0",
                "address",
                MACS[space],
                "up",
            )
            ip(
                "-n",
                space,
                "addr",
                "add",
                f"{ADDRESSES[space]}/24",
                "dev",
                "nic0",
            )
        for space, other in ((A, B), (B, A)):
            ip("-n", space, "neigh", "add", str(ADDRESSES[other]), "lladdr", MACS[other],
               "dev", "nic0", "nud", "permanent")  # fmt: skip
        wait_until(
            lambda: ping(A, str(ADDRESSES[B])), "the way over one bridge"
        )
        yield FABRIC
    finally:
        for name in (FABRIC, A, B):
            namespaces.delete(name)


def move_b() -> None:
    """Plug ``b`` into the second bridge, without the bridges noticing."""
    learned = ip("-n", FABRIC, "-j", "link", "show", "pb")
    assert '"br1"' in learned
    ip("-n", FABRIC, "link", "add", "bx", "type", "veth", "peer", "name", "by")
    # A crossbar in front of the port: the port of the old bridge keeps its carrier and entries.
    ip("-n", FABRIC, "link", "set", "bx", "master", "br1", "up")
    ip("-n", FABRIC, "link", "set", "by", "up")
    ip(
        "netns",
        "exec",
        FABRIC,
        "bridge",
        "fdb",
        "replace",
        MACS[B],
        "dev",
        "bx",
        "master",
        "dynamic",
    )
    ip("-n", FABRIC, "link", "set", "pb", "nomaster")
    ip("-n", FABRIC, "link", "set", "pb", "master", "br2")
    ip(
        "netns",
        "exec",
        FABRIC,
        "bridge",
        "fdb",
        "replace",
        MACS[A],
        "dev",
        "t2",
        "master",
        "dynamic",
    )


def place(space: str) -> NicPlace:
    state = NicState("nic0", MACS[space], 1500, up=True)
    return NicPlace(
        namespaces.namespace_path(space), state, "nic0", ADDRESSES[space]
    )


async def meet(
    *spaces: str,
    token: str = "t",
    wait_s: float = PATIENCE_S,
    mtu: int | None = None,
) -> dict[str, list[str]]:
    """What each of these does not hear of the others, once all have announced themselves."""
    answers = await asyncio.gather(
        *(
            announce(
                place(space),
                {
                    MACS[other]: str(ADDRESSES[other])
                    for other in ADDRESSES
                    if other != space
                },
                token,
                wait_s,
                mtu,
            )
            for space in spaces
        )
    )
    return dict(zip(spaces, answers, strict=True))


def test_a_nic_that_moved_is_not_reached_until_it_is_announced(
    fabric: str,
) -> None:
    move_b()
    assert not ping(A, str(ADDRESSES[B]))  # frames still go to its old port
    announce_once(place(B))
    wait_until(lambda: ping(A, str(ADDRESSES[B])), "the moved NIC")


async def test_workers_hear_each_other_at_the_new_place(fabric: str) -> None:
    move_b()
    assert await meet(A, B) == {A: [], B: []}
    wait_until(lambda: ping(A, str(ADDRESSES[B])), "the moved NIC")


async def test_who_is_not_heard_is_named(fabric: str) -> None:
    assert await meet(A, wait_s=0.3) == {A: [str(ADDRESSES[B])]}
    # One way only: b's frames arrive, a's do not.
    ip("netns", "exec", FABRIC, "tc", "qdisc", "add", "dev", "pb", "root", "tbf",
       "rate", "8bit", "burst", "1", "limit", "1")  # fmt: skip
    answers = await meet(A, B, wait_s=1.5)
    assert answers == {A: [], B: [str(ADDRESSES[A])]}


async def test_greetings_are_as_large_as_the_packets_of_the_lab(
    fabric: str,
) -> None:
    assert await meet(A, B, mtu=1500) == {A: [], B: []}
    for space in (A, B):
        ip("-n", space, "link", "set", "nic0", "mtu", "9000")
    # The ports of the bridges carry 1500.
    unheard = await meet(A, B, wait_s=0.3, mtu=9000)
    assert unheard == {A: [str(ADDRESSES[B])], B: [str(ADDRESSES[A])]}
    assert await meet(A, B, token="u", mtu=1500) == {A: [], B: []}
