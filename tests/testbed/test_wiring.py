"""Links through circuit switches."""

import pytest

from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import CrossConnect, PortMap
from patchlight.testbed.lab.wiring import circuit_ports, trace_links
from patchlight.testbed.labfile.reader import load_lab, parse_lab

TWO_OCSES = """
name: two
network: 10.0.0.0/24
servers:
  - {name: a, nics: [{name: n, address: 10.0.0.1}]}
  - {name: b, nics: [{name: n, address: 10.0.0.2}]}
packet_switches: [{name: t, datapath_id: 1, ports: 4}]
circuit_switches:
  - {name: o1, driver: dry-run, address: "h:1", ports: 8, insertion_loss: 1dB}
  - {name: o2, driver: dry-run, address: "h:2", ports: 8, insertion_loss: 2dB}
fibres:
  - {ends: [a.n, o1.1], rate: 40Gbps, loss: 0.1dB}
  - {ends: [o1.2, o2.1], rate: 25Gbps, loss: 0.2dB}
  - {ends: [o2.2, t.1], loss: 0.4dB}
  - {ends: [b.n, t.2], rate: 10Gbps}
"""


@pytest.fixture(scope="module")
def two() -> Lab:
    return parse_lab(TWO_OCSES)


def end(text: str) -> Endpoint:
    return Endpoint.parse(text)


def test_light_through_two_switches_has_the_slowest_rate_and_every_loss(
    two: Lab,
) -> None:
    maps = {"o1": PortMap.duplex([(1, 2)]), "o2": PortMap.duplex([(1, 2)])}
    links = trace_links(two, maps)
    path = links.paths[end("a.n")]
    assert path.sink == end("t.1")
    assert path.hops == (
        ("o1", CrossConnect(1, 2)),
        ("o2", CrossConnect(1, 2)),
    )
    assert path.rate_bps == 25_000_000_000
    assert path.loss_db == pytest.approx(0.1 + 1 + 0.2 + 2 + 0.4)
    assert links.peer(end("t.1")) == end("a.n")
    assert links.pairs() == (
        (end("a.n"), end("t.1")),
        (end("b.n"), end("t.2")),
    )
    assert links.switch_of(two, end("a.n")) == "t"


def test_one_way_light_is_a_path_but_no_link(two: Lab) -> None:
    maps = {"o1": PortMap.of([(1, 2)]), "o2": PortMap.duplex([(1, 2)])}
    links = trace_links(two, maps)
    assert links.paths[end("a.n")].sink == end("t.1")
    assert end("t.1") not in links.paths
    assert links.peer(end("a.n")) is None
    assert links.switch_of(two, end("a.n")) is None


def test_light_that_leaves_by_another_port_is_no_link() -> None:
    lab = load_lab("ofc2022")
    links = trace_links(
        lab, {"ocs1": PortMap.of([(1, 7), (7, 2), (2, 8), (8, 1)])}
    )
    assert links.paths[end("server1.nic0")].sink == end("tor1.1")
    assert links.paths[end("tor1.1")].sink == end("server1.nic1")
    assert links.peer(end("server1.nic0")) is None


def test_without_circuits_only_plain_fibres_are_lit(two: Lab) -> None:
    for maps in ({}, {"o1": PortMap.duplex([(1, 3)]), "o2": PortMap()}):
        links = trace_links(two, maps)
        assert set(links.paths) == {end("b.n"), end("t.2")}


def test_circuit_ports_are_those_plugged_straight_into_an_ocs(
    two: Lab,
) -> None:
    found = circuit_ports(
        two, [end("a.n"), end("b.n"), end("t.1"), end("t.4")]
    )
    assert found == {end("a.n"): ("o1", 1), end("t.1"): ("o2", 2)}
