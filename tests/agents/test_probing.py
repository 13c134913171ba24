"""Probe frames over a real fibre's stand-in: a veth pair between two namespaces."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from patchlight.agents.nics.status import Ear, probe
from patchlight.testbed.linux import namespaces
from patchlight.testbed.wire.probe_frames import LldpNeighbour, probe_frame
from tests.support.agent_bench import ip

pytestmark = pytest.mark.root

LLDP = bytes.fromhex(
    "0180c200000e02000000000988cc0207040200000000aa040205330a05746f7231780000"
)


@pytest.fixture
def joined() -> Iterator[tuple[str, str]]:
    """Two namespaces; ``nic0`` of the one and ``nic0`` of the other are joined."""
    names = tuple(f"pl.test-{os.getpid()}-{side}" for side in ("a", "b"))
    a, b = names
    try:
        for name in names:
            namespaces.create(name)
        ip(
            "link",
            "add",
            "nic0",
            "netns",
            a,
            "type",
            "veth",
            "peer",
            "name",
            "nic0",
            "netns",
            b,
        )
        for name in names:
            ip("-n", name, "link", "set", "nic0", "up")
        yield a, b
    finally:
        for name in names:
            namespaces.delete(name)


def _probing(
    space: str, names: dict[str, str], token: str, listen_s: float
) -> dict[str, Ear]:
    path = namespaces.namespace_path(space)
    return namespaces.inside(path, lambda: probe(names, token, listen_s))


def test_both_ends_of_a_fibre_hear_each_other_and_only_of_their_search(
    joined: tuple[str, str],
) -> None:
    a, b = joined
    with ThreadPoolExecutor() as pool:
        there = pool.submit(_probing, a, {"server1.nic0": "nic0"}, "t1", 2.0)
        here = pool.submit(
            _probing,
            b,
            {"server2.nic0": "nic0", "server2.nic9": "nic9"},
            "t1",
            2.0,
        )
        other = pool.submit(_probing, b, {"server3.nic0": "nic0"}, "t2", 2.0)
        (ear,) = there.result().values()
        assert (ear.heard, ear.lldp, ear.carrier, ear.problem) == (
            {"server2.nic0"},
            set(),
            True,
            "",
        )
        assert here.result()["server2.nic0"].heard == {"server1.nic0"}
        assert other.result()["server3.nic0"].heard == set()
        gone = here.result()["server2.nic9"]
        assert (gone.heard, gone.carrier) == (set(), False)
        assert "nic9: No such device" in gone.problem


def test_lldp_is_heard_and_a_link_without_light_is_told(
    joined: tuple[str, str],
) -> None:
    a, b = joined
    path = namespaces.namespace_path(b)
    with ThreadPoolExecutor() as pool:
        with namespaces.entered(path):
            sender = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        with sender:
            sender.bind(("nic0", 0))
            listening = pool.submit(
                _probing, a, {"server1.nic0": "nic0"}, "t1", 1.0
            )
            while not listening.done():
                sender.send(LLDP)
                sender.send(probe_frame("old.1", "t0"))
        (ear,) = listening.result().values()
    assert ear.lldp == {LldpNeighbour("tor1x", "3")}
    assert ear.heard == set()
    ip("-n", b, "link", "set", "nic0", "down")
    (ear,) = _probing(a, {"server1.nic0": "nic0"}, "t1", 0.2).values()
    # Dark, but nothing is wrong with it.
    assert (ear.carrier, ear.problem) == (
        False,
        "",
    )
    ip("-n", a, "link", "set", "nic0", "down")
    (ear,) = _probing(a, {"server1.nic0": "nic0"}, "t1", 0.2).values()
    assert ear.problem == "nic0: Network is down"
