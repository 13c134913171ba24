"""Keys of a lab file about ssh and telemetry."""

import pytest

from patchlight.testbed.lab.rules import JumpHost, Snmp, SshAccess
from patchlight.testbed.labfile.reader import LabFileError, parse_lab
from patchlight.testbed.labfile.writer import write_lab
from tests.support.tables import below, mistakes

KEY = f"SHA256:{'a' * 43}"
OTHER = f"SHA256:{'b' * 43}"
FILE = f"""\
name: x
network: 10.0.0.0/8
defaults:
  ssh: {{user: admin, port: 2222, jump: me@gate, jump_host_key: "{KEY}"}}
servers:
  - name: s[1-2]
    nics: [{{name: nic0, address: "10.0.0.[1-2]"}}]
  - name: s3
    ssh: {{address: there, user: root, host_key: "{KEY}"}}
    nics: [{{name: nic0, address: 10.0.0.3}}]
  - name: s4
    ssh: {{jump: none}}
    nics: [{{name: nic0, address: 10.0.0.4}}]
  - name: s5
    ssh: {{jump: other, port: 22}}
    nics: [{{name: nic0, address: 10.0.0.5}}]
"""


def test_what_a_server_says_goes_before_what_all_have_in_common() -> None:
    lab = parse_lab(FILE)
    first, second, third, fourth, fifth = (
        server.ssh for server in lab.servers
    )
    common = SshAccess(None, 2222, "admin", None, None, "me@gate", KEY)
    assert first == second == common
    assert third == SshAccess("there", 2222, "root", None, KEY, "me@gate", KEY)
    assert fourth == SshAccess(None, 2222, "admin")
    # The key of one host says nothing of another.
    assert fifth == SshAccess(None, 22, "admin", jump="other")
    assert parse_lab(write_lab(lab)) == lab


def test_old_algorithms_are_allowed_one_by_one() -> None:
    switch = (
        "{{name: {0}, driver: {1}, address: '{0}:830', {2}, legacy_ssh: true}}"
    )
    lab = parse_lab(
        FILE.replace("{jump: none}", "{legacy: true}")
        + f"circuit_switches: [{switch.format('ocs1', 'polatis-netconf', 'ports: 16')}]\n"
        + "wavelength_switches: "
        + f"[{switch.format('wss1', 'lumentum-netconf', 'inputs: 1, outputs: 20')}]\n"
    )
    assert [server.name for server in lab.servers if server.ssh.legacy] == [
        "s4"
    ]
    assert all(switch.legacy_ssh for switch in lab.optical_switches)
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize(
    ("jump", "host"),
    [
        ("gate", JumpHost("gate", 22, None)),
        ("me@gate.example.org:2222", JumpHost("gate.example.org", 2222, "me")),
        ("10.0.0.1", JumpHost("10.0.0.1", 22, None)),
        ("[fd00::1]:65535", JumpHost("fd00::1", 65535, None)),
        ("domain\\\\me@[fd00::1]", JumpHost("fd00::1", 22, "domain\\\\me")),
    ],
)
def test_a_host_to_go_through_is_read_as_ssh_reads_it(
    jump: str, host: JumpHost
) -> None:
    text = FILE.replace("jump: other", f"jump: '{jump}'")
    assert parse_lab(text).servers[4].ssh.jump_host == host
    assert SshAccess().jump_host is None


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    mistakes("""
is not a jump host
    jump: other ⇒ jump: gate:0
    jump: other ⇒ jump: "me@"
    jump: other ⇒ jump: "-oProxyCommand=x"
    jump: other ⇒ jump: "a b"
is not a jump host: expected [USER@]HOST
    jump: other ⇒ jump: "gate:65536"
a jump host's key without the host
    jump: none ⇒ jump: none, jump_host_key: "SHA256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
    jump: me@gate,  ⇒
unknown key 'address' in the defaults of a server's SSH
    jump: me@gate ⇒ address: gate
"""),
)
def test_what_is_no_way_in_is_refused(
    right: str, wrong: str, message: str
) -> None:
    with pytest.raises(LabFileError) as error:
        parse_lab(FILE.replace(right, wrong))
    assert message in str(error.value)


LAB = """
name: short
packet_switches:
  - {name: "tor[1-2]", datapath_id: "[1-2]", ports: 4, telemetry: {snmp: SNMP}}
"""


def test_ranges_reach_into_telemetry_and_what_is_written_is_read_again() -> (
    None
):
    lab = parse_lab(
        LAB.replace(
            "SNMP", '{address: "10.0.0.[2-3]:161", community_env: "C[1-2]"}'
        )
    )
    assert [switch.snmp for switch in lab.packet_switches] == [
        Snmp("10.0.0.2:161", "C1"),
        Snmp("10.0.0.3:161", "C2"),
    ]
    assert parse_lab(write_lab(lab)) == lab


@pytest.mark.parametrize(
    ("snmp", "said"),
    below("""
SNMP of a packet switch lacks 'address'
    {}
expands to 3 values
    {address: '10.0.0.[2-4]:161'}
duplicate SNMP address of a switch 10.0.0.2:161
    {address: '10.0.0.2:161'}
expected 'community_env'
    {address: '10.0.0.[2-3]:161', community_env: C, user: u}
'priv_env' needs 'auth_env'
    {address: '10.0.0.[2-3]:161', priv_env: P, user: u}
'auth_env' needs 'user'
    {address: '10.0.0.[2-3]:161', auth_env: A}
is not a hash
    {address: '10.0.0.[2-3]:161', user: u, auth_env: A, auth: crc}
"""),
)
def test_mistakes_are_told(snmp: str, said: str) -> None:
    with pytest.raises(LabFileError) as wrong:
        parse_lab(LAB.replace("SNMP", snmp))
    assert said in str(wrong.value)
