"""A NIC with soft RoCE stays at home with its RoCE; all else goes to the worker."""

import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from patchlight.agents.errors import NicError
from patchlight.agents.nics.moving import read_nic
from patchlight.agents.nics.state import (
    NicAccess,
    NicState,
    RdmaDevice,
    link_local,
)
from patchlight.testbed.linux import namespaces
from tests.support.agent_bench import ip
from tests.support.nic_spaces import Spaces, made_spaces, tc
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(60)]
SOFT = RdmaDevice("rxe0", is_soft=True)


@pytest.fixture
def spaces() -> Iterator[Spaces]:
    with made_spaces() as made:
        ip("-n", made.server, "addr", "add", "10.79.9.1/24", "dev", "nic0")
        ip("-n", made.server, "link", "set", "nic0", "up")
        yield made


FAMILIES = {socket.AF_INET: ("0.0.0.0", "10.79.0.11")}
FAMILIES[socket.AF_INET6] = ("::", f"{link_local('02:4c:0a:4f:00:0b')}%p0")


def listener(
    space: str, port: int, family: socket.AddressFamily = socket.AF_INET
) -> socket.socket:
    def opened() -> socket.socket:
        made = socket.socket(family, socket.SOCK_DGRAM)
        made.bind((FAMILIES[family][0], port))
        return made

    return namespaces.inside(namespaces.namespace_path(space), opened)


def heard(listening: socket.socket, within_s: float = 10) -> bool:
    """Whether the packet arrives. Its ARP request may be lost while a link comes up; the next one
    follows a second later."""
    listening.settimeout(within_s)
    try:
        return listening.recv(10) == b"x"
    except TimeoutError:
        return False


def state_of(spaces: Spaces) -> NicState:
    return replace(spaces.read(), mode="physical", rdma=SOFT)


@pytest.mark.parametrize("family", FAMILIES)
def test_roce_stays_and_all_else_goes_to_the_worker(
    spaces: Spaces, family: socket.AddressFamily
) -> None:
    state = state_of(spaces)
    spaces.give(state)
    for space in (spaces.server, spaces.fabric):
        wait_until(
            lambda: "tentative" not in ip("-n", space, "-6", "addr"),  # noqa: B023
            "its addresses",
        )
    at_home = [listener(spaces.server, port, family) for port in (4791, 5000)]
    of_worker = [
        listener(spaces.worker, port, family) for port in (4791, 5000)
    ]

    def send() -> None:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            for port in (4791, 5000):
                sender.sendto(b"x", (FAMILIES[family][1], port))

    # ARP and neighbour discovery are the worker's: the sender finds the NIC's address by it.
    namespaces.inside(namespaces.namespace_path(spaces.fabric), send)
    assert heard(at_home[0])
    assert heard(of_worker[1])
    assert not heard(at_home[1], 0.3)
    assert not heard(of_worker[0], 0.3)
    for each in (*at_home, *of_worker):
        each.close()


def test_roce_from_another_nic_of_the_server_arrives(spaces: Spaces) -> None:
    other = "10.79.0.12"
    ip(
        "-n",
        spaces.server,
        "link",
        "add",
        "nic1",
        "type",
        "veth",
        "peer",
        "name",
        "nic2",
    )
    ip("-n", spaces.server, "addr", "add", f"{other}/32", "dev", "nic1")
    ip("-n", spaces.server, "link", "set", "nic1", "up")
    ip("-n", spaces.fabric, "addr", "add", f"{other}/32", "dev", "p0")
    spaces.give(state_of(spaces))

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.bind((other, 0))
            sender.sendto(b"x", ("10.79.0.11", 4791))

    with listener(spaces.server, 4791) as at_home:
        namespaces.inside(namespaces.namespace_path(spaces.fabric), send)
        assert heard(at_home)


def test_the_worker_s_nic_has_the_mac_and_reaches_the_fabric(
    spaces: Spaces,
) -> None:
    spaces.give(state_of(spaces))
    for space in (spaces.server, spaces.worker):
        assert "02:4c:0a:4f:00:0b" in ip("-n", space, "link", "show", "nic0")
    ip(
        "netns",
        "exec",
        spaces.worker,
        "ping",
        "-c",
        "1",
        "-W",
        "5",
        "10.79.0.1",
    )


def test_the_nic_is_as_before_once_it_is_back(spaces: Spaces) -> None:
    state = state_of(spaces)
    spaces.give(state)
    spaces.take(state)
    spaces.take(state)
    assert state_of(spaces) == state
    assert "clsact" not in tc(spaces.server, "qdisc", "show")
    links = ip("-n", spaces.server, "-br", "link").splitlines()
    assert sorted(line.split("@")[0].split()[0] for line in links) == [
        "lo",
        "nic0",
    ]
    assert "nic0" not in ip("-n", spaces.worker, "-br", "link")


def test_a_nic_with_filters_of_others_is_refused(spaces: Spaces) -> None:
    tc(spaces.server, "qdisc", "add", "dev", "nic0", "clsact")
    access = NicAccess("physical", "nic0", rdma=SOFT)
    home = namespaces.namespace_path(spaces.server)
    with pytest.raises(
        NicError, match="traffic control filters of another program"
    ):
        namespaces.inside(home, lambda: read_nic(access))
