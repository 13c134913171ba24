"""Whose LLDP it is."""

import pytest

from patchlight.controller.discovery.window import NeighbourNames
from patchlight.testbed.labfile.reader import load_lab
from patchlight.testbed.wire.probe_frames import LldpNeighbour

LAB = load_lab("ofc2022")
MAC = LAB.host("gpu2").nic.mac
ALL = "52:54:00:12:34:56"


@pytest.mark.parametrize(
    ("device", "port", "end"),
    [
        ("tor1", "3", "tor1.3"),
        ("tor1", "8", "tor1 port 8"),  # it has seven
        ("tor1", "Ethernet3", "tor1 port Ethernet3"),
        ("leaf7", "3", "leaf7 port 3"),
        ("worker-2", MAC, "server2.nic2"),
        (MAC.upper(), "nic3", "server2.nic3"),
        # It has two NICs: the MAC of a chassis may be that of any.
        (MAC.upper(), "enp3s0", f"{MAC.upper()} port enp3s0"),
    ],
)
def test_lldp_is_told_by_the_mac_of_a_nic_or_the_number_of_a_port(
    device: str, port: str, end: str
) -> None:
    assert NeighbourNames(LAB).end_of(LldpNeighbour(device, port)) == end


# What switches report of their ports: three of tor1 with one MAC, each with a MAC of its own.
ONE_MAC = [(ALL, f"tor1.{n}") for n in range(1, 8)]
NAMES = [(f"tor1 Ethernet{4 * n - 4}", f"tor1.{n}") for n in range(1, 8)]
OWN = [(f"52:54:00:00:00:0{n}", f"tor1.{n}") for n in range(1, 8)]


@pytest.mark.parametrize(
    ("claims", "device", "port", "about", "end"),
    [
        (ONE_MAC, "tor1", ALL, "", f"tor1 port {ALL}"),
        (ONE_MAC, "tor1", ALL, "3", "tor1.3"),
        ([*ONE_MAC, *NAMES], "tor1", ALL, "Ethernet8", "tor1.3"),
        ([*ONE_MAC, *NAMES], "tor1", "Ethernet8", "", "tor1.3"),
        # Without a name of its own, the switch is known by that MAC.
        ([*ONE_MAC, *NAMES], ALL, "Ethernet8", "", "tor1.3"),
        ([*ONE_MAC, *NAMES], ALL, ALL, "Ethernet8", "tor1.3"),
        ([*ONE_MAC, (ALL, "tor2.1")], ALL, "3", "", f"{ALL} port 3"),
        (OWN, "sonic", OWN[2][0].upper(), "", "tor1.3"),
        (OWN, "sonic", OWN[2][0], "anything", "tor1.3"),
        # Two that contradict each other name none.
        (OWN, "tor1", OWN[2][0], "4", f"tor1 port {OWN[2][0]}"),
        ([(OWN[2][0], "tor2.3"), *OWN], "x", OWN[2][0], "", f"x port {OWN[2][0]}"),
        ([(MAC, "tor1.3")], "x", MAC, "", f"x port {MAC}"),
        ([("tor1 uplink", "tor1.1"), ("tor1 uplink", "tor1.2")], "tor1", "uplink", "",
         "tor1 port uplink"),
        # The index of an interface that is another port's number.
        ([("tor1 3", "tor1.1")], "tor1", "3", "", "tor1 port 3"),
        ([("00:00:00:00:00:00", "tor1.1")], "x", "00:00:00:00:00:00", "",
         "x port 00:00:00:00:00:00"),
        ([("01:80:c2:00:00:0e", "tor1.1")], "x", "01:80:c2:00:00:0e", "",
         "x port 01:80:c2:00:00:0e"),
    ],
)  # fmt: skip
def test_a_mac_or_a_name_of_several_ports_names_none(
    claims: list[tuple[str, str]], device: str, port: str, about: str, end: str
) -> None:
    neighbour = LldpNeighbour(device, port, about)
    assert NeighbourNames(LAB, claims).end_of(neighbour) == end
