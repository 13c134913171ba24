"""Labs made by rule: counts, ports, connectivity."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate.generate import (
    arity,
    fat_tree,
    linear,
    single,
    tree,
    two_tors,
)
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.ocs_drivers import KNOWN_DRIVERS
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.labfile.writer import write_lab

SHAPES: list[Callable[..., Lab]] = [single, linear, tree, fat_tree]


def graph(lab: Lab) -> "networkx.Graph[str]":
    topology: networkx.Graph[str] = networkx.Graph()
    topology.add_nodes_from(server.name for server in lab.servers)
    topology.add_nodes_from(switch.name for switch in lab.packet_switches)
    topology.add_edges_from(
        (fibre.a.device, fibre.b.device) for fibre in lab.fibres
    )
    return topology


@pytest.mark.parametrize("shape", SHAPES)
@given(hosts=st.integers(1, 150))
@settings(max_examples=12)
def test_every_shape_is_a_good_lab_in_which_all_reach_all(
    shape: Callable[..., Lab], hosts: int
) -> None:
    lab = shape(hosts)
    assert [server.name for server in lab.servers] == [
        f"h{n}" for n in range(1, hosts + 1)
    ]
    assert networkx.is_connected(graph(lab))
    # The reader finds every port used twice or out of range, and every address.
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize("shape", SHAPES)
@given(hosts=st.integers(1, 60), driver=st.sampled_from(KNOWN_DRIVERS))
@settings(max_examples=12)
def test_with_an_ocs_every_host_is_lit_onto_the_switch_it_would_have(
    shape: Callable[..., Lab], hosts: int, driver: str
) -> None:
    lab = shape(hosts, ocs=driver)
    without = shape(hosts)
    assert parse_lab(write_lab(lab)) == lab
    lit = trace_links(lab, lab.initial_maps)
    assert lit.pairs() == trace_links(without, {}).pairs()
    assert 2 * hosts <= lab.circuit_switch("ocs1").ports


def test_an_ocs_that_cannot_be_is_refused() -> None:
    with pytest.raises(
        BadInput,
        match="2049 hosts of an OCS: expected a number from 1 to 2048",
    ):
        tree(2049, ocs="calient-tl1")
    with pytest.raises(BadInput, match="an OCS needs OpenFlow switches"):
        tree(4, ocs="calient-tl1", fabric="bridge")


def test_one_switch_can_have_three_hundred_ports() -> None:
    lab = single(300, rate_bps=10_000_000_000)
    assert [switch.ports for switch in lab.packet_switches] == [300]
    assert str(lab.hosts[299].nic.address) == "10.0.1.44"
    assert lab.fibres[299].b.port == "300"
    assert {fibre.rate_bps for fibre in lab.fibres} == {10_000_000_000}


def test_a_chain_has_its_switches_in_a_row() -> None:
    lab = linear(40, hosts_per_switch=16, uplink_rate_bps=1000, rate_bps=10)
    assert [switch.ports for switch in lab.packet_switches] == [17, 18, 9]
    assert [str(f.a) + "-" + str(f.b) for f in lab.fibres[40:]] == [
        "s1.17-s2.17",
        "s2.18-s3.9",
    ]
    assert {f.rate_bps for f in lab.fibres[40:]} == {1000}
    assert {h.nic.rate_bps for h in lab.hosts} == {10}


def test_a_tree_has_a_root_over_its_leaves() -> None:
    lab = tree(64)
    assert [switch.ports for switch in lab.packet_switches] == [
        4,
        17,
        17,
        17,
        17,
    ]
    assert graph(lab).degree("s1") == 4
    assert networkx.is_tree(graph(lab))
    # The hosts of a leaf have a block of addresses to themselves.
    assert [str(lab.hosts[n].nic.address) for n in (0, 15, 16, 63)] == [
        "10.0.0.1",
        "10.0.0.16",
        "10.0.0.33",
        "10.0.0.112",
    ]


@pytest.mark.parametrize(
    ("hosts", "k"), [(1, 2), (2, 2), (3, 4), (16, 4), (17, 6), (1024, 16)]
)
def test_a_fat_tree_has_the_smallest_even_arity(hosts: int, k: int) -> None:
    assert arity(hosts) == k


def test_a_fat_tree_has_the_papers_counts_and_many_ways() -> None:
    lab = fat_tree(16)
    assert len(lab.packet_switches) == 5 * 4 * 4 // 4
    assert {switch.ports for switch in lab.packet_switches} == {4}
    assert len(lab.fibres) == 3 * 16
    ways = networkx.edge_connectivity(graph(lab), "s7", "s20")
    # Edge switches of different pods: one way over each aggregation switch.
    assert ways == 2
    hops = [
        networkx.shortest_path_length(graph(lab), "h1", h)
        for h in ("h2", "h3", "h16")
    ]
    assert hops == [2, 4, 6]


def test_a_fat_tree_that_is_not_full_leaves_the_last_host_ports_free() -> None:
    full = fat_tree(16)
    part = fat_tree(13)
    assert part.packet_switches == full.packet_switches
    assert set(part.fibres) < set(full.fibres)
    free = {str(f.a) for f in set(full.fibres) - set(part.fibres)}
    assert free == {"h14.nic0", "h15.nic0", "h16.nic0"}


def test_more_hosts_get_a_wider_network() -> None:
    assert single(65000).network == IPv4Network("10.0.0.0/16")
    wide = linear(65535, hosts_per_switch=1000)
    assert wide.network == IPv4Network("10.0.0.0/15")
    assert wide.hosts[-1].nic.address in wide.network


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(
        BadInput, match="loops, in which bridges without OpenFlow flood"
    ):
        fat_tree(16, fabric="bridge")
    with pytest.raises(BadInput, match="expected a number from 1"):
        single(0)
    with pytest.raises(BadInput, match="expected a number from 1"):
        tree(4, hosts_per_switch=0)
    with pytest.raises(
        BadInput, match="would need 70000 ports: expected at most 65279"
    ):
        single(70_000)
    with pytest.raises(BadInput, match="is not a lab's name"):
        single(1, name="a b")
    with pytest.raises(BadInput, match="is not a fabric"):
        single(1, fabric="ovs")


@pytest.mark.parametrize("hosts", [1, 5, 6, 250])
@pytest.mark.parametrize("shape", [single, linear, tree, fat_tree, two_tors])
def test_an_ocs_has_an_address_to_itself(
    shape: Callable[..., Lab], hosts: int
) -> None:
    """And the port that its driver's devices listen at."""
    ports = {
        "polatis-scpi": 5025,
        "polatis-netconf": 830,
        "sonic-ocs": 443,
        "calient-tl1": 3082,
    }
    for driver, port in ports.items():
        lab = shape(
            hosts, **{"driver" if shape is two_tors else "ocs": driver}
        )
        address, _, at = lab.circuit_switches[0].address.rpartition(":")
        assert at == str(port)
        taken = {str(host.nic.address) for host in lab.hosts}
        taken |= {
            str(server.management).rpartition(":")[0] for server in lab.servers
        }
        assert address not in taken
        assert IPv4Address(address) not in lab.network
    dialled_in = shape(
        5, **{"driver" if shape is two_tors else "ocs": "openflow"}
    )
    assert dialled_in.circuit_switches[0].address == "127.0.0.1:6654"
