"""NICs on their way into a worker's namespace and back."""

import json
import os
import socket
import subprocess
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from patchlight.agents.errors import NicError
from patchlight.agents.nics.moving import (
    block_egress,
    read_nic,
    unblock_egress,
)
from patchlight.agents.nics.state import NicAccess, NicState, link_local
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.namespaces import NamespaceError
from tests.support.agent_bench import ip
from tests.support.nic_spaces import Spaces, furnish, ping, tc
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.root


@pytest.mark.parametrize("rate", ["13Mbit", "40Gbit"])
def test_a_nic_comes_back_as_it_was(spaces: Spaces, rate: str) -> None:
    furnish(spaces, rate)
    before = spaces.read()
    assert before.shaping is not None
    assert ("2001:db8::5", 64) in before.addresses
    assert "2001:db8:1::/48" in [route["dst"] for route in before.routes]
    # The way through the lease's file keeps all of it.
    kept = TypeAdapter(NicState).validate_json(json.dumps(asdict(before)))
    assert kept == before
    for _ in range(3):
        spaces.give(kept)
        assert "nic0" not in ip("-n", spaces.server, "-o", "link")
        inside = namespaces.inside(
            namespaces.namespace_path(spaces.worker),
            lambda: read_nic(NicAccess("veth", "nic0")),
        )
        assert inside.addresses == (("10.79.0.11", 24),)
        assert inside.mac == "02:4c:0a:4f:00:0b"
        peer = "02:00:00:00:00:01"
        assert inside.neighbours == (
            ("10.79.0.1", peer),
            (link_local(peer), peer),
        )
        assert (inside.mtu, inside.tx_checksum) == (1400, False)
        assert inside.shaping == before.shaping
        assert f"rate {rate}" in tc(
            spaces.worker, "qdisc", "show", "dev", "nic0"
        )
        wait_until(
            lambda: ping(spaces.fabric, "10.79.0.11"),
            "an answer from 10.79.0.11",
        )
        assert not ping(spaces.fabric, "10.79.0.5")
        spaces.take(kept)
        after = spaces.read()
        assert after == before
        wait_until(
            lambda: ping(spaces.fabric, "10.79.0.5"),
            "an answer from 10.79.0.5",
        )
        assert not ping(spaces.fabric, "10.79.0.11")
        spaces.take(kept)  # again is harmless


def test_a_worker_reaches_others_by_ipv6_and_is_silent_while_it_is_held(
    spaces: Spaces,
) -> None:
    worker, fabric = map(
        namespaces.namespace_path, (spaces.worker, spaces.fabric)
    )
    spaces.give(spaces.read())
    mine = link_local("02:4c:0a:4f:00:0b")
    theirs = link_local("02:00:00:00:00:01")
    shown = json.loads(
        ip("-n", spaces.worker, "-j", "-6", "addr", "show", "dev", "nic0")
    )
    assert [each["local"] for each in shown[0]["addr_info"]] == [mine]
    ip("-n", spaces.fabric, "neigh", "replace", mine, "lladdr", "02:4c:0a:4f:00:0b", "dev", "p0",
       "nud", "permanent")  # fmt: skip
    wait_until(
        lambda: ping(spaces.worker, f"{theirs}%nic0"), "an answer over IPv6"
    )
    with ExitStack() as stack:

        def heard() -> bytes:
            with suppress(TimeoutError):
                return near.recv(10)
            return b""

        listener = namespaces.inside(
            fabric,
            lambda: socket.create_server(("::", 5001), family=socket.AF_INET6),
        )
        stack.enter_context(listener)
        far = namespaces.inside(
            worker,
            lambda: socket.create_connection(
                (f"{theirs}%nic0", 5001), timeout=PATIENCE_S
            ),
        )
        near = stack.enter_context(listener.accept()[0])
        near.settimeout(0.5)
        block_egress(worker, "nic0")
        stack.enter_context(far).sendall(b"held")
        assert heard() == b""
        assert not ping(spaces.worker, f"{theirs}%nic0")
        unblock_egress(worker)
        wait_until(lambda: heard() == b"held", "what was held")


def test_a_nic_that_was_down_and_bare_is_so_again(spaces: Spaces) -> None:
    before = spaces.read()
    assert (before.up, before.addresses, before.shaping) == (False, (), None)
    spaces.give(before)
    wait_until(
        lambda: ping(spaces.fabric, "10.79.0.11"), "an answer from 10.79.0.11"
    )
    spaces.take(before)
    assert spaces.read() == before


def test_a_nic_that_is_nowhere_is_an_error(spaces: Spaces) -> None:
    before = spaces.read()
    with pytest.raises(NicError, match="interface nic9 not found"):
        spaces.take(replace(before, interface="nic9"))


@pytest.mark.parametrize(
    "qdisc",
    [("root", "handle", "7:", "htb"), ("clsact",), ("ingress",)],
    ids=lambda q: q[-1],
)
def test_what_cannot_be_carried_over_is_refused(
    spaces: Spaces, qdisc: tuple[str, ...]
) -> None:
    tc(spaces.server, "qdisc", "add", "dev", "nic0", *qdisc)
    with pytest.raises(NicError, match="would be lost"):
        spaces.read()


def test_namespaces_are_made_entered_and_removed() -> None:
    name = f"pl.test-{os.getpid()}.made"
    path = namespaces.create(name)
    try:
        with pytest.raises(NamespaceError, match="already exists"):
            namespaces.create(name)
        here = os.readlink("/proc/self/ns/net")
        there = namespaces.inside(path, _namespace)
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
        assert (
            namespaces.inside(namespaces.namespace_path(name), _namespace)
            == inode
        )
    finally:
        namespaces.delete(name)
