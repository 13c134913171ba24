"""Which hosts have a link, which reach each other, and the reasons."""

import pytest

from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.reach import Reach, as_text
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import load_lab, parse_lab

LAB = load_lab("ofc2022")
NIC_TO_TOR1 = {1: 7, 2: 8, 3: 9, 4: 10, 5: 11, 6: 12}


def reach(
    pairs: dict[int, int],
    one_way: tuple[str, ...] = (),
    lab: Lab = LAB,
    **lost: str,
) -> Reach:
    port_map = PortMap.duplex(pairs.items()).joined(PortMap.parse(one_way))
    named = {name.replace("_", "."): why for name, why in lost.items()}
    return Reach(lab, trace_links(lab, {"ocs1": port_map}), named)


def test_links_that_are_not_known_are_no_reason() -> None:
    unknown = Reach(LAB, None, {"server1.gpu0": "nic0 has no carrier"})
    assert not unknown.is_known
    assert unknown.without_link == unknown.apart(LAB.hosts) == {}


@pytest.mark.parametrize(
    ("circuits", "one_way", "why"),
    [
        ({}, (), "no circuit at ocs1 port 1"),
        ({}, ("1>7",), "no two-way circuit at ocs1 port 1"),
        ({}, ("1>7", "8>1"), "no two-way circuit at ocs1 port 1"),
        (
            {1: 300},
            (),
            "its circuit ends at ocs1 port 300, which has no fibre",
        ),
        ({1: 7}, (), ""),
    ],
)
def test_why_a_host_has_no_circuit(
    circuits: dict[int, int], one_way: tuple[str, ...], why: str
) -> None:
    others = {
        nic: tor for nic, tor in NIC_TO_TOR1.items() if nic != 1 and tor != 8
    }
    found = reach(others | circuits, one_way).without_link
    assert found.get("server1.gpu0", "") == why
    assert "server2.gpu2" not in found


def test_two_hosts_that_are_connected_to_each_other_reach_nobody_else() -> (
    None
):
    found = reach({**NIC_TO_TOR1, 1: 3, 3: 1})
    assert found.without_link == {
        "server1.gpu0": "its NIC is connected to server2.nic2 by ocs1 1-3",
        "server2.gpu2": "its NIC is connected to server1.nic0 by ocs1 3-1",
    }
    one, other, third = (LAB.host(name) for name in ("gpu0", "gpu2", "gpu4"))
    assert found.apart([one, other]) == {}
    assert [*found.apart([one, third, LAB.host("gpu5")])] == ["server1.gpu0"]
    assert set(found.apart([one, other, third])) == {"server3.gpu4"}, (
        "the fewest are named"
    )


def test_a_nic_without_carrier_is_cut_off_though_its_circuit_stands() -> None:
    found = reach(NIC_TO_TOR1, server1_gpu0="nic0 has no carrier")
    assert found.without_link == {"server1.gpu0": "nic0 has no carrier"}
    assert found.apart(LAB.hosts) == {"server1.gpu0": "nic0 has no carrier"}


TWO_SWITCHES = """
name: two
network: 10.0.0.0/24
servers:
  - {name: a, nics: [{name: n, address: 10.0.0.1}]}
  - {name: b, nics: [{name: n, address: 10.0.0.2}]}
  - {name: c, nics: [{name: n, address: 10.0.0.3}]}
packet_switches:
  - {name: t, datapath_id: 1, ports: 4}
  - {name: u, datapath_id: 2, ports: 4}
fibres:
  - {ends: [a.n, t.1]}
  - {ends: [b.n, t.2]}
  - {ends: [c.n, u.1]}
"""


def test_packet_switches_without_a_trunk_are_apart() -> None:
    lab = parse_lab(TWO_SWITCHES)
    found = Reach(lab, trace_links(lab, {}))
    assert found.without_link == {
        "c.n": "it is connected to u, from which no other host can be reached"
    }
    assert found.apart(lab.hosts) == found.without_link
    joined = parse_lab(TWO_SWITCHES + "  - {ends: [t.4, u.4]}\n")
    assert Reach(joined, trace_links(joined, {})).without_link == {}


def test_a_lab_whose_nics_are_connected_to_each_other_is_well() -> None:
    text = (
        TWO_SWITCHES.partition("packet_switches")[0]
        + "fibres: [{ends: [a.n, b.n]}]\n"
    )
    lab = parse_lab(text)
    found = Reach(lab, trace_links(lab, {}))
    assert found.without_link == {"c.n": "its NIC has no fibre"}


def test_of_many_hosts_the_first_are_named() -> None:
    assert as_text({}) == ""
    assert (
        as_text({str(n): "x" for n in range(5)})
        == "0, 1, 2, 3: x; and 1 more host"
    )
    assert as_text({str(n): "x" for n in range(6)}).endswith(
        "and 2 more hosts"
    )
