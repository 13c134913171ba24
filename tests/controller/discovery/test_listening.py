"""Whose LLDP it is."""

import pytest

from patchlight.controller.discovery.window import end_of
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.wire.probe_frames import LldpNeighbour

LAB = load_lab("ofc2022")
MAC = LAB.host("gpu2").nic.mac


@pytest.mark.parametrize(
    ("device", "port", "end"),
    [
        ("tor1", "3", "tor1.3"),
        ("tor1", "8", "tor1 port 8"),  # it has seven
        ("tor1", "Ethernet3", "tor1 port Ethernet3"),
        ("leaf7", "3", "leaf7 port 3"),
        ("worker-2", MAC, "server2.nic2"),
        (MAC.upper(), "enp3s0", "server2.nic2"),
    ],
)
def test_lldp_is_told_by_the_mac_of_a_nic_or_the_number_of_a_port(
    device: str, port: str, end: str
) -> None:
    assert end_of(LAB, LldpNeighbour(device, port)) == end
