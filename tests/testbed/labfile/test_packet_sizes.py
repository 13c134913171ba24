"""Labs whose network carries smaller packets than their NICs send."""

import pytest

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.labfile.reader import parse_lab

LAB = """\
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
    lab = parse_lab(LAB)
    assert [host.nic.mtu for host in lab.hosts] == [9000, None, 9000]
    parse_lab(LAB.replace("ports: 2}", "ports: 2, mtu: 9216}"))


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
def test_a_path_that_carries_less_is_refused(old: str, new: str, line: int, words: str) -> None:
    with pytest.raises(PatchlightError) as caught:
        parse_lab(LAB.replace(old, new))
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
    parse_lab(LAB.replace(old, new))
