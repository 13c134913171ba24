"""The management network gets addresses that nobody on this machine uses."""

from ipaddress import IPv4Address, IPv4Network

import pytest

from patchlight.emulation.fabric import links
from patchlight.emulation.servers.rehearsal import (
    ManagementNetwork,
    NoManagementNetwork,
    choose_network,
)
from patchlight.emulation.servers.server import interface_of
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.linux.netlink import Netlink

DEFAULT_ROUTES = [
    IPv4Network("0.0.0.0/0"),
    IPv4Network("128.0.0.0/1"),
    IPv4Network("0.0.0.0/1"),
]


@pytest.mark.parametrize(
    ("servers", "taken", "chosen"),
    [
        (4, [], "198.18.0.0/24"),
        (4, ["10.0.0.0/8", "192.168.10.0/24"], "198.18.0.0/24"),
        (4, ["198.18.0.0/24"], "198.18.1.0/24"),
        (4, ["198.18.0.77/32", "198.18.1.128/25"], "198.18.2.0/24"),
        (4, ["198.18.0.0/16"], "198.19.0.0/24"),
        (244, [], "198.18.0.0/24"),
        (245, ["198.18.0.0/24"], "198.18.2.0/23"),
        (1024, [], "198.18.0.0/21"),
        (65_524, [], "198.18.0.0/16"),
    ],
)
def test_the_first_network_that_overlaps_with_none(
    servers: int, taken: list[str], chosen: str
) -> None:
    network = choose_network(
        servers, [*DEFAULT_ROUTES, *map(IPv4Network, taken)]
    )
    assert network == IPv4Network(chosen)
    names = tuple(f"s{number}" for number in range(servers))
    management = ManagementNetwork("lab", network, names)
    addresses = set(management.addresses.values())
    assert len(addresses) == servers
    assert addresses < set(network.hosts()) - {management.machine.ip}


@pytest.mark.parametrize(
    ("servers", "taken", "message"),
    [
        (4, ["198.18.0.0/15"], r"routes to all of 198\.18\.0\.0/15"),
        (65_525, [], "at most 65,524 fit"),
    ],
)
def test_where_no_network_is_left(
    servers: int, taken: list[str], message: str
) -> None:
    with pytest.raises(NoManagementNetwork, match=message):
        choose_network(servers, map(IPv4Network, taken))


def test_routes_of_all_tables_are_listed() -> None:
    with Netlink() as netlink:
        assert IPv4Network("127.0.0.0/8") in links.list_destinations(netlink)


def test_the_interface_is_called_as_no_nic_is() -> None:
    def nic(name: str, number: int) -> Nic:
        return Nic(name, IPv4Address(number), "02:00:00:00:00:01")

    server = Server("s", None, (), (nic("nic0", 1),))
    assert interface_of(server) == "mgmt0"
    assert (
        interface_of(Server("s", None, (), (nic("mgmt0", 1), nic("mgmt1", 2))))
        == "mgmt2"
    )
    assert (
        ManagementNetwork("a-lab", IPv4Network("198.18.0.0/24"), ()).interface
        == "pl-a-lab"
    )
    long = ManagementNetwork(
        "a-lab-with-a-long-name", IPv4Network("198.18.0.0/24"), ()
    )
    assert len(long.interface) == 15
