"""The telemetry of packet switches in a lab file."""

import pytest

from patchlight.testbed.lab.rules import Snmp
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_lab

LAB = """
name: short
packet_switches:
  - {name: "tor[1-2]", datapath_id: "[1-2]", ports: 4, telemetry: {snmp: SNMP}}
"""


def test_ranges_reach_into_telemetry_and_what_is_written_is_read_again() -> None:
    lab = parse_lab(LAB.replace("SNMP", '{address: "10.0.0.[2-3]:161", community_env: "C[1-2]"}'))
    assert [switch.snmp for switch in lab.packet_switches] == [
        Snmp("10.0.0.2:161", "C1"),
        Snmp("10.0.0.3:161", "C2"),
    ]
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize(
    ("snmp", "said"),
    [
        ("{}", "SNMP of a packet switch lacks 'address'"),
        ("{address: '10.0.0.[2-4]:161'}", "expands to 3 values"),
        ("{address: '10.0.0.2:161'}", "duplicate SNMP address of a switch 10.0.0.2:161"),
        ("{address: '10.0.0.[2-3]:161', community_env: C, user: u}", "expected 'community_env'"),
        ("{address: '10.0.0.[2-3]:161', priv_env: P, user: u}", "'priv_env' needs 'auth_env'"),
        ("{address: '10.0.0.[2-3]:161', auth_env: A}", "'auth_env' needs 'user'"),
        ("{address: '10.0.0.[2-3]:161', user: u, auth_env: A, auth: crc}", "is not a hash"),
    ],
)
def test_mistakes_are_told(snmp: str, said: str) -> None:
    with pytest.raises(LabFileError) as wrong:
        parse_lab(LAB.replace("SNMP", snmp))
    assert said in str(wrong.value)
