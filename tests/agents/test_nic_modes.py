"""NICs given otherwise than whole, and what is set up of them for a worker."""

import os
import socket
import subprocess
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface

import pytest

from patchlight.agents.errors import NicError
from patchlight.agents.nics.moving import read_nic
from patchlight.agents.nics.state import (
    RENDEZVOUS,
    NicAccess,
    RdmaDevice,
    gid_of,
    rdma_device_of,
)
from patchlight.agents.nics.status import NicProblem, facts_of, problem_of
from patchlight.testbed.lab.model import Rendezvous
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.devices import namespace_mode, sysfs
from patchlight.testbed.wire.worker_api import GidStatus
from tests.support.agent_bench import ip
from tests.support.nic_spaces import Spaces, furnish, inside, ping
from tests.support.waiting import wait_until

# Nearly all of it is the kernel's work, which kernels do in different ways.
pytestmark = [pytest.mark.root, pytest.mark.any_kernel]


def test_a_worker_s_nic_keeps_its_mac_and_gets_the_lab_file_s_mtu_and_routes(
    spaces: Spaces,
) -> None:
    before = spaces.read()
    routes = (("10.81.0.0/16", "10.79.0.1"),)
    spaces.give(before, mac=None, mtu=1280, routes=routes)
    given = inside(spaces.worker)
    assert (given.mac, given.mtu) == (before.mac, 1280)
    (route,) = given.routes
    assert (route["dst"], route["gateway"]) == routes[0]
    spaces.take(before)
    assert spaces.read() == before


def test_where_rates_are_scaled_so_is_what_tcp_sends_ahead(
    spaces: Spaces,
) -> None:
    before = spaces.read()
    spaces.give(before, window_bytes=16_384)

    def window() -> tuple[int, str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            with client, listener.accept()[0] as accepted:
                pace = accepted.getsockopt(
                    socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16
                )
                memory = accepted.getsockopt(
                    socket.SOL_SOCKET, socket.SO_RCVBUF
                )
                return memory, pace.rstrip(b"\0").decode()

    here = window()
    found = namespaces.inside(namespaces.namespace_path(spaces.worker), window)
    assert found == (32_768, "reno")
    assert window() == here
    spaces.take(before)


def test_an_mtu_that_the_nic_cannot_have_is_refused_before_it_moves(
    spaces: Spaces,
) -> None:
    before = spaces.read()
    with pytest.raises(NicError, match="the maximum MTU of nic0 is 65535"):
        spaces.give(before, mtu=70_000)
    assert spaces.read() == before


def test_a_macvlan_has_the_nic_s_name_and_leaves_it_as_it_was(
    spaces: Spaces,
) -> None:
    furnish(spaces, "40Gbit")
    macvlan = NicAccess("macvlan", "nic0")
    before = namespaces.inside(
        namespaces.namespace_path(spaces.server), lambda: read_nic(macvlan)
    )
    with pytest.raises(NicError, match="the maximum MTU of nic0 is 1400"):
        spaces.give(before, mtu=9000)
    spaces.give(before)
    given = inside(spaces.worker)
    assert (given.mac, given.mtu, given.addresses) == (
        "02:4c:0a:4f:00:0b",
        1400,
        (("10.79.0.11", 24),),
    )
    wait_until(
        lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11"
    )
    # The server's own traffic goes on over the NIC.
    wait_until(
        lambda: ping(spaces.fabric, "10.79.0.5"), "an answer from 10.79.0.5"
    )
    spaces.take(before)
    assert "nic0" not in ip("-n", spaces.worker, "-o", "link")
    after = namespaces.inside(
        namespaces.namespace_path(spaces.server), lambda: read_nic(macvlan)
    )
    assert after == before
    spaces.take(before)  # again is harmless


def test_a_macvlan_on_a_nic_that_is_down_is_refused(spaces: Spaces) -> None:
    before = replace(spaces.read(), mode="macvlan")
    with pytest.raises(
        NicError, match="nic0 is down, and with it a macvlan on it"
    ):
        spaces.give(before)


def test_a_second_interface_is_made_and_ends_with_the_worker(
    spaces: Spaces,
) -> None:
    ip("-n", spaces.fabric, "link", "add", "m0", "type", "veth", "peer", "name", "eno1",
       "netns", spaces.server)  # fmt: skip
    ip("-n", spaces.fabric, "link", "set", "m0", "up")
    ip("-n", spaces.fabric, "addr", "add", "10.82.0.1/24", "dev", "m0")
    ip("-n", spaces.server, "link", "set", "eno1", "up")
    before = spaces.read()
    spaces.give(
        before, rendezvous=Rendezvous("eno1", IPv4Interface("10.82.0.51/24"))
    )
    assert inside(spaces.worker, RENDEZVOUS, "macvlan").addresses == (
        ("10.82.0.51", 24),
    )
    wait_until(
        lambda: ping(spaces.fabric, "10.82.0.51"), "an answer from 10.82.0.51"
    )
    spaces.take(before)
    assert spaces.read() == before
    assert "eno1" in ip("-n", spaces.server, "-o", "link")


@pytest.mark.kernel
def test_a_worker_in_a_vlan_has_a_tagged_interface(spaces: Spaces) -> None:
    tagged = [
        "ip",
        "-n",
        spaces.fabric,
        "link",
        "add",
        "link",
        "p0",
        "name",
        "p0.7",
    ]
    made = subprocess.run(
        [*tagged, "type", "vlan", "id", "7"], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("this kernel has no module 8021q")
    ip("-n", spaces.fabric, "addr", "flush", "dev", "p0")
    ip("-n", spaces.fabric, "addr", "add", "10.79.0.1/24", "dev", "p0.7")
    ip("-n", spaces.fabric, "link", "set", "p0.7", "up")
    before = spaces.read()
    spaces.give(before, vlan=7)
    assert inside(spaces.worker, "vlan7").addresses == (("10.79.0.11", 24),)
    wait_until(
        lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11"
    )
    spaces.take(before)
    assert spaces.read() == before
    assert "vlan7" not in ip("-n", spaces.worker, "-o", "link")


def test_what_an_interface_counts_is_read_and_carrier_changes_too(
    spaces: Spaces,
) -> None:
    ip("-n", spaces.server, "link", "set", "nic0", "up")
    space = namespaces.namespace_path(spaces.server)
    first = facts_of(space, "nic0", (space, "nic0"))
    assert (first["mtu"], first["mac"]) == (1500, spaces.read().mac)
    ip("-n", spaces.fabric, "link", "set", "p0", "down")
    wait_until(
        lambda: problem_of(space, "nic0") is not None,
        "the loss of the carrier",
    )
    ip("-n", spaces.fabric, "link", "set", "p0", "up")
    wait_until(lambda: problem_of(space, "nic0") is None, "the carrier")
    after = facts_of(space, "nic0", (space, "nic0"))
    assert after["carrier_changes"] >= first["carrier_changes"] + 2
    assert facts_of(space, "nic9", (space, "nic9")) == {}
    gone = problem_of(space, "nic9")
    assert gone is not None
    assert (gone.words.partition(":")[0], gone.is_dark) == (
        "nic9 is gone",
        False,
    )
    ip("-n", spaces.fabric, "link", "set", "p0", "down")
    wait_until(
        lambda: problem_of(space, "nic0") is not None,
        "the loss of the carrier",
    )
    assert problem_of(space, "nic0") == NicProblem(
        "nic0 has no carrier", is_dark=True
    )


@pytest.mark.kernel
def test_the_gid_of_a_software_device_is_found_again_after_its_port_was_dark(
    spaces: Spaces,
) -> None:
    subprocess.run(["modprobe", "rdma_rxe"], capture_output=True, check=False)
    if namespace_mode() is None:
        pytest.skip("this kernel has no RDMA")
    ip("-n", spaces.server, "link", "set", "nic0", "up")
    ip("-n", spaces.server, "addr", "add", "10.79.0.5/24", "dev", "nic0")
    name = f"rxe{os.getpid()}"
    command = ["ip", "netns", "exec", spaces.server, "rdma", "link"]
    added = subprocess.run(
        [*command, "add", name, "type", "rxe", "netdev", "nic0"],
        capture_output=True,
        check=False,
    )
    if added.returncode:
        pytest.skip(
            f"this kernel makes no rdma_rxe here: {added.stderr.decode()}"
        )
    space = namespaces.namespace_path(spaces.server)
    address = IPv4Address("10.79.0.5")

    def look() -> tuple[RdmaDevice | None, GidStatus | None]:
        with sysfs() as root:
            return rdma_device_of("nic0", root), gid_of("nic0", address, root)

    try:
        wait_until(lambda: namespaces.inside(space, look)[1], "its GID")
        device, gid = namespaces.inside(space, look)
        assert device is not None
        assert gid is not None
        assert device.name == gid.device == name
        for state in ("down", "up"):
            ip("-n", spaces.server, "link", "set", "nic0", state)
        wait_until(
            lambda: namespaces.inside(space, look)[1], "its GID to be back"
        )
    finally:
        subprocess.run([*command, "delete", name], check=False)
