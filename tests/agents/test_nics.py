"""NICs on their way into a worker's namespace and back."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.errors import NicError
from patchlight.agents.nics.moving import give_nic, read_nic, take_nic_back
from patchlight.agents.nics.state import RENDEZVOUS, NicState, WorkerNetwork
from patchlight.agents.nics.watch import NicProblem, facts_of, problem_of
from patchlight.agents.nics.ways import NicWay
from patchlight.testbed.linux import ethtool, namespaces
from patchlight.testbed.linux.namespaces import NamespaceError
from patchlight.testbed.nic import NicMode, Rendezvous
from tests.support.agent_bench import ip
from tests.support.waiting import wait_until

pytestmark = pytest.mark.root


def tc(space: str, *arguments: str) -> str:
    return subprocess.run(
        ["ip", "netns", "exec", space, "tc", *arguments], check=True, capture_output=True, text=True
    ).stdout


@dataclass
class Spaces:
    """A server with one NIC, what it is plugged into, and a place for a worker."""

    server: str
    worker: str
    fabric: str

    def read(self) -> NicState:
        return namespaces.inside(
            namespaces.namespace_path(self.server), lambda: read_nic(NicWay("veth", "nic0"))
        )

    def give(self, state: NicState, **network: Any) -> None:
        wanted = WorkerNetwork(
            **{
                "address": "10.79.0.11",
                "prefix": 24,
                "mac": "02:4c:0a:4f:00:0b",
                "neighbours": (("10.79.0.1", "02:00:00:00:00:01"),),
                **network,
            }
        )
        worker = namespaces.namespace_path(self.worker)
        namespaces.inside(
            namespaces.namespace_path(self.server), lambda: give_nic(state, worker, wanted)
        )

    def take(self, state: NicState) -> None:
        take_nic_back(
            state, namespaces.namespace_path(self.worker), namespaces.namespace_path(self.server)
        )


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    names = [f"pl.test-{os.getpid()}.{part}" for part in ("nicserver", "nicworker", "nicfabric")]
    made = Spaces(*names)
    try:
        for name in names:
            namespaces.create(name)
        ip("-n", made.fabric, "link", "add", "p0", "type", "veth", "peer", "name", "nic0",
           "netns", made.server)  # fmt: skip
        ip("-n", made.fabric, "link", "set", "p0", "up", "address", "02:00:00:00:00:01")
        ip("-n", made.fabric, "addr", "add", "10.79.0.1/24", "dev", "p0")
        yield made
    finally:
        for name in names:
            namespaces.delete(name)


def furnish(spaces: Spaces, rate: str) -> None:
    """Give the idle NIC one of everything that a move would lose."""
    space = spaces.server
    ip("-n", space, "link", "set", "nic0", "mtu", "1400", "up")
    ip("-n", space, "addr", "add", "10.79.0.5/24", "dev", "nic0")
    ip("-n", space, "neigh", "add", "10.79.0.77", "lladdr", "02:00:00:00:00:77", "dev", "nic0",
       "nud", "permanent")  # fmt: skip
    ip("-n", space, "route", "add", "10.80.0.0/16", "via", "10.79.0.1", "metric", "7")
    ip("-n", space, "route", "add", "default", "dev", "nic0", "table", "101")
    tc(space, "qdisc", "add", "dev", "nic0", "root", "tbf", "rate", rate, "burst", "32k",
       "latency", "50ms")  # fmt: skip
    namespaces.inside(
        namespaces.namespace_path(space), lambda: ethtool.set_tx_checksum("nic0", False)
    )
    namespaces.inside(
        namespaces.namespace_path(space),
        lambda: namespaces.set_sysctl("ipv4/conf/nic0/arp_ignore", 1),
    )


def ping(space: str, address: str) -> bool:
    command = ["ip", "netns", "exec", space, "ping", "-c", "1", "-W", "0.3", address]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("rate", ["13Mbit", "40Gbit"])
def test_a_nic_comes_back_as_it_was(spaces: Spaces, rate: str) -> None:
    furnish(spaces, rate)
    before = spaces.read()
    assert before.shaping is not None
    # The way through the lease's file keeps all of it.
    kept = NicState.from_dict(json.loads(json.dumps(before.as_dict())))
    assert kept == before
    for _ in range(3):
        spaces.give(kept)
        assert "nic0" not in ip("-n", spaces.server, "-o", "link")
        inside = namespaces.inside(
            namespaces.namespace_path(spaces.worker), lambda: read_nic(NicWay("veth", "nic0"))
        )
        assert inside.addresses == (("10.79.0.11", 24),)
        assert inside.mac == "02:4c:0a:4f:00:0b"
        assert inside.neighbours == (("10.79.0.1", "02:00:00:00:00:01"),)
        assert (inside.mtu, inside.tx_checksum) == (1400, False)
        assert inside.shaping == before.shaping
        assert f"rate {rate}" in tc(spaces.worker, "qdisc", "show", "dev", "nic0")
        wait_until(lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11")
        assert not ping(spaces.fabric, "10.79.0.5")
        spaces.take(kept)
        after = spaces.read()
        assert after == before
        wait_until(lambda: ping(spaces.fabric, "10.79.0.5"), "an answer from 10.79.0.5")
        assert not ping(spaces.fabric, "10.79.0.11")
        spaces.take(kept)  # again is harmless


def test_a_nic_that_was_down_and_bare_is_so_again(spaces: Spaces) -> None:
    before = spaces.read()
    assert (before.up, before.addresses, before.shaping) == (False, (), None)
    spaces.give(before)
    wait_until(lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11")
    spaces.take(before)
    assert spaces.read() == before


def inside(space: str, name: str = "nic0", mode: NicMode = "veth") -> NicState:
    return namespaces.inside(namespaces.namespace_path(space), lambda: read_nic(NicWay(mode, name)))


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


def test_where_rates_are_scaled_so_is_what_tcp_sends_ahead(spaces: Spaces) -> None:
    before = spaces.read()
    spaces.give(before, window_bytes=16_384)

    def window() -> tuple[int, str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            with client, listener.accept()[0] as accepted:
                pace = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                memory = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
                return memory, pace.rstrip(b"\0").decode()

    here = window()
    found = namespaces.inside(namespaces.namespace_path(spaces.worker), window)
    assert found == (32_768, "reno")
    assert window() == here
    spaces.take(before)


def test_an_mtu_that_the_nic_cannot_have_is_refused_before_it_moves(spaces: Spaces) -> None:
    before = spaces.read()
    with pytest.raises(NicError, match="nic0 takes an MTU of 65535 at most"):
        spaces.give(before, mtu=70_000)
    assert spaces.read() == before


def test_a_macvlan_has_the_nic_s_name_and_leaves_it_as_it_was(spaces: Spaces) -> None:
    furnish(spaces, "40Gbit")
    macvlan = NicWay("macvlan", "nic0")
    before = namespaces.inside(namespaces.namespace_path(spaces.server), lambda: read_nic(macvlan))
    with pytest.raises(NicError, match="nic0 takes an MTU of 1400 at most"):
        spaces.give(before, mtu=9000)
    spaces.give(before)
    given = inside(spaces.worker)
    assert (given.mac, given.mtu, given.addresses) == (
        "02:4c:0a:4f:00:0b",
        1400,
        (("10.79.0.11", 24),),
    )
    wait_until(lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11")
    # The server's own traffic goes on over the NIC.
    wait_until(lambda: ping(spaces.fabric, "10.79.0.5"), "an answer from 10.79.0.5")
    spaces.take(before)
    assert "nic0" not in ip("-n", spaces.worker, "-o", "link")
    after = namespaces.inside(namespaces.namespace_path(spaces.server), lambda: read_nic(macvlan))
    assert after == before
    spaces.take(before)  # again is harmless


def test_a_macvlan_on_a_nic_that_is_down_is_refused(spaces: Spaces) -> None:
    before = replace(spaces.read(), mode="macvlan")
    with pytest.raises(NicError, match="nic0 is down, and so is a macvlan on it"):
        spaces.give(before)


def test_a_second_interface_is_made_and_ends_with_the_worker(spaces: Spaces) -> None:
    ip("-n", spaces.fabric, "link", "add", "m0", "type", "veth", "peer", "name", "eno1",
       "netns", spaces.server)  # fmt: skip
    ip("-n", spaces.fabric, "link", "set", "m0", "up")
    ip("-n", spaces.fabric, "addr", "add", "10.82.0.1/24", "dev", "m0")
    ip("-n", spaces.server, "link", "set", "eno1", "up")
    before = spaces.read()
    spaces.give(before, rendezvous=Rendezvous("eno1", IPv4Interface("10.82.0.51/24")))
    assert inside(spaces.worker, RENDEZVOUS, "macvlan").addresses == (("10.82.0.51", 24),)
    wait_until(lambda: ping(spaces.fabric, "10.82.0.51"), "an answer from 10.82.0.51")
    spaces.take(before)
    assert spaces.read() == before
    assert "eno1" in ip("-n", spaces.server, "-o", "link")


def test_a_worker_in_a_vlan_has_a_tagged_interface(spaces: Spaces) -> None:
    tagged = ["ip", "-n", spaces.fabric, "link", "add", "link", "p0", "name", "p0.7"]
    made = subprocess.run([*tagged, "type", "vlan", "id", "7"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("this kernel has no module 8021q")
    ip("-n", spaces.fabric, "addr", "flush", "dev", "p0")
    ip("-n", spaces.fabric, "addr", "add", "10.79.0.1/24", "dev", "p0.7")
    ip("-n", spaces.fabric, "link", "set", "p0.7", "up")
    before = spaces.read()
    spaces.give(before, vlan=7)
    assert inside(spaces.worker, "vlan7").addresses == (("10.79.0.11", 24),)
    wait_until(lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11")
    spaces.take(before)
    assert spaces.read() == before
    assert "vlan7" not in ip("-n", spaces.worker, "-o", "link")


def test_what_an_interface_counts_is_read_and_carrier_changes_too(spaces: Spaces) -> None:
    ip("-n", spaces.server, "link", "set", "nic0", "up")
    space = namespaces.namespace_path(spaces.server)
    first = facts_of(space, "nic0", (space, "nic0"))
    assert (first["mtu"], first["mac"]) == (1500, spaces.read().mac)
    ip("-n", spaces.fabric, "link", "set", "p0", "down")
    wait_until(lambda: problem_of(space, "nic0") is not None, "the loss of the carrier")
    ip("-n", spaces.fabric, "link", "set", "p0", "up")
    wait_until(lambda: problem_of(space, "nic0") is None, "the carrier")
    after = facts_of(space, "nic0", (space, "nic0"))
    assert after["carrier_changes"] >= first["carrier_changes"] + 2
    assert facts_of(space, "nic9", (space, "nic9")) == {}
    gone = problem_of(space, "nic9")
    assert gone is not None
    assert (gone.words.partition(":")[0], gone.is_dark) == ("nic9 is gone", False)
    ip("-n", spaces.fabric, "link", "set", "p0", "down")
    wait_until(lambda: problem_of(space, "nic0") is not None, "the loss of the carrier")
    assert problem_of(space, "nic0") == NicProblem("nic0 has no carrier", is_dark=True)


def test_a_nic_that_is_nowhere_is_an_error(spaces: Spaces) -> None:
    before = spaces.read()
    with pytest.raises(NicError, match="no interface nic9"):
        spaces.take(replace(before, interface="nic9"))


@pytest.mark.parametrize(
    "qdisc", [("root", "handle", "7:", "htb"), ("clsact",), ("ingress",)], ids=lambda q: q[-1]
)
def test_what_cannot_be_carried_over_is_refused(spaces: Spaces, qdisc: tuple[str, ...]) -> None:
    tc(spaces.server, "qdisc", "add", "dev", "nic0", *qdisc)
    with pytest.raises(NicError, match="would be lost"):
        spaces.read()


def test_namespaces_are_made_entered_and_removed() -> None:
    name = f"pl.test-{os.getpid()}.made"
    path = namespaces.create(name)
    try:
        with pytest.raises(NamespaceError, match="is there already"):
            namespaces.create(name)
        here, there = os.readlink("/proc/self/ns/net"), namespaces.inside(path, _namespace)
        assert here != there
        assert os.readlink("/proc/self/ns/net") == here
        with pytest.raises(ZeroDivisionError):
            namespaces.inside(path, lambda: 1 // 0)
    finally:
        namespaces.delete(name)
    namespaces.delete(name)
    assert not path.exists()
    with pytest.raises(NamespaceError, match="No such file"):
        namespaces.inside(path, _namespace)


def _namespace() -> str:
    return os.readlink("/proc/thread-self/ns/net")


def test_a_namespace_outlives_the_process_it_was_made_by() -> None:
    name = f"pl.test-{os.getpid()}.kept"
    process = subprocess.Popen(["unshare", "--net", "sleep", "60"])
    try:
        theirs = Path(f"/proc/{process.pid}/ns/net")
        while os.readlink(theirs) == os.readlink("/proc/self/ns/net"):
            assert process.poll() is None
        namespaces.keep(name, process.pid)
        inode = os.readlink(theirs)
    finally:
        process.kill()
        process.wait()
    try:
        assert namespaces.inside(namespaces.namespace_path(name), _namespace) == inode
    finally:
        namespaces.delete(name)
