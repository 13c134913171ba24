"""Keys of a lab file about NICs and packet sizes: what they say, and each mistake at its place."""

from ipaddress import IPv4Address, IPv4Interface, IPv4Network

import pytest

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import Nic, Rendezvous, Route, default_mac
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_commented_lab, write_lab
from tests.support.tables import mistakes, unmarked

LAB = """\
name: roce
network: 192.168.10.0/24
defaults:
  nic: {mode: sriov, mtu: 9000, vlan: 100, dscp: 26, rdma: auto, relock: 2s}
servers:
  - name: s1
    nics:
      - name: nic0
        address: 192.168.10.11
        routes: [10.2.0.0/16 via 192.168.10.1]
        rendezvous: {interface: eno1, address: 10.0.0.51/24}
        rdma: exclusive
  - name: s2
    nics:
      - {name: nic0, address: 192.168.10.12, mode: macvlan, relock: 500ms, interface: ens1}
"""


def test_how_a_nic_is_given_is_read_and_written_again() -> None:
    lab = parse_lab(LAB)
    first, second = (host.nic for host in lab.hosts)
    address = IPv4Address("192.168.10.11")
    assert first == Nic(
        "nic0",
        address,
        default_mac(address),
        mode="sriov",
        mtu=9000,
        vlan=100,
        routes=(
            Route(IPv4Network("10.2.0.0/16"), IPv4Address("192.168.10.1")),
        ),
        dscp=26,
        rdma="exclusive",
        relock_s=2.0,
        rendezvous=Rendezvous("eno1", IPv4Interface("10.0.0.51/24")),
    )
    assert (second.mode, second.mtu, second.relock_s) == ("macvlan", 9000, 0.5)
    assert parse_lab(write_lab(lab)) == lab
    assert parse_lab(write_commented_lab(lab)) == lab


@pytest.mark.parametrize(
    ("said", "mac", "keeps"),
    [
        ("", "02:4c:c0:a8:0a:0b", True),
        (", mac: hardware", "02:4c:c0:a8:0a:0b", True),
        (", mac: lab", "02:4c:c0:a8:0a:0b", False),
        (", mac: '02:4c:c0:a8:0a:0b'", "02:4c:c0:a8:0a:0b", False),
        (", mac: '0c:42:a1:00:00:01'", "0c:42:a1:00:00:01", False),
        (", mode: macvlan", "02:4c:c0:a8:0a:0b", False),
    ],
)
def test_whose_mac_workers_have(said: str, mac: str, keeps: bool) -> None:
    text = f"""\
name: lab
network: 192.168.10.0/24
servers: [{{name: s1, nics: [{{name: nic0, address: 192.168.10.11{said}}}]}}]
"""
    lab = parse_lab(text)
    (host,) = lab.hosts
    assert (host.nic.mac, host.nic.keeps_mac) == (mac, keeps)
    assert parse_lab(write_lab(lab)) == lab


# Below each message: what stands there, and what stands there instead; ‸ is where the mistake is.
MISTAKES = mistakes("""
'srov' is not a NIC mode: did you mean 'sriov'?
    mode: sriov ⇒ mode: ‸srov
expected an MTU, a whole number from 576 to 65535
    mtu: 9000 ⇒ mtu: ‸90
expected a VLAN, a whole number from 1 to 4094
    vlan: 100 ⇒ vlan: ‸4095
expected a DSCP, a whole number from 0 to 63
    dscp: 26 ⇒ dscp: ‸64
'always' is not an RDMA mode: expected one of
    rdma: exclusive ⇒ rdma: ‸always
is not a route: expected one like '10.2.0.0/16
    10.2.0.0/16 via ⇒ ‸10.2.0.0/16 over
is not an address with its network: expected one like
    10.0.0.51/24 ⇒ ‸10.0.0.51
a macvlan cannot use the NIC's MAC
    mode: macvlan ⇒ mode: macvlan, mac: ‸hardware
expected one like '02:4c:c0:a8:0a:0b', 'hard
    mode: macvlan ⇒ mode: macvlan, mac: ‸theirs
a macvlan cannot own an RDMA device
    mode: macvlan ⇒ mode: macvlan, rdma: ‸exclusive
a veth has no RDMA device
    mode: macvlan ⇒ mode: veth, rdma: ‸shared
relock is more than 20 s: expected less
    500ms ⇒ ‸1min
the rendezvous uses the NIC itself
    interface: ens1 ⇒ interface: ens1, rendezvous: {interface: ‸ens1, address: 10.0.0.52/24}
duplicate address of a rendezvous 10.0.0.51/24
    interface: ens1 ⇒ interface: ens1, rendezvous: {interface: eno1, address: ‸10.0.0.51/24}
""")


@pytest.mark.parametrize(("good", "bad", "message"), MISTAKES)
def test_every_mistake_has_its_line_and_column(
    good: str, bad: str, message: str
) -> None:
    text, line, column = unmarked(LAB.replace(good, bad, 1))
    with pytest.raises(LabFileError) as caught:
        parse_lab(text)
    (issue,) = caught.value.issues
    assert (issue.line, issue.column) == (line, column), str(issue)
    assert message in issue.message


SIZES = """\
name: sizes
network: 10.0.0.0/24
servers:
  - name: server1
    nics:
      - {name: nic0, address: 10.0.0.1, mtu: 9000}
      - {name: nic1, address: 10.0.0.2}
  - name: server2
    nics: [{name: nic0, address: 10.0.0.3, mtu: 9000}]
packet_switches:
  - {name: tor1, datapath_id: 1, ports: 2}
  - {name: tor2, datapath_id: 2, ports: 2}
circuit_switches:
  - {name: ocs1, driver: calient-tl1, address: "127.0.0.1:3082", ports: 8}
fibres:
  - server1.nic0 - ocs1.1
  - tor1.1 - ocs1.2
  - server2.nic0 - ocs1.3
  - server1.nic1 - tor2.1
"""


def test_one_size_along_the_whole_path_is_good() -> None:
    lab = parse_lab(SIZES)
    assert [host.nic.mtu for host in lab.hosts] == [9000, None, 9000]
    parse_lab(SIZES.replace("ports: 2}", "ports: 2, mtu: 9216}"))


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("10.0.0.3, mtu: 9000", "10.0.0.3, mtu: 1500", 18,
         "server2.nic0 has mtu 1500, but server1.nic0 sends 9000 bytes"),
        # No circuit is there, but one may be made.
        ("datapath_id: 1, ports: 2", "datapath_id: 1, ports: 2, mtu: 1500", 17,
         "tor1 carries 1500 bytes, but server1.nic0 sends 9000"),
    ],
)  # fmt: skip
def test_a_path_that_carries_less_is_refused(
    old: str, new: str, line: int, words: str
) -> None:
    with pytest.raises(PatchlightError) as caught:
        parse_lab(SIZES.replace(old, new))
    assert f"lab:{line}:" in caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # Other VLANs, and networks that no fibre joins.
        ("10.0.0.3, mtu: 9000", "10.0.0.3, mtu: 1500, vlan: 7"),
        ("10.0.0.2}", "10.0.0.2, mtu: 1500}"),
        ("datapath_id: 2, ports: 2", "datapath_id: 2, ports: 2, mtu: 1500"),
    ],
)
def test_nics_that_never_meet_may_differ(old: str, new: str) -> None:
    parse_lab(SIZES.replace(old, new))
