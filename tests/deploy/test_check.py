"""What the facts of servers say of a lab, and what is done about it."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from patchlight.deploy.check import judge
from patchlight.deploy.check_machine import Finding
from patchlight.deploy.facts import DockerFacts, NicFacts, ServerFacts
from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.ssh import Unreachable
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.labfile.reader import parse_lab

LAB = parse_lab("""
name: two
network: 192.168.10.0/24
servers:
  - name: server1
    management: 10.0.0.11:8471
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, interface: enp1s0}]
  - name: server2
    ssh: {address: server2, port: 2222}
    nics: [{name: nic0, address: 192.168.10.12}]
""")
GOOD = ServerFacts(
    clock_offset_s=0.2,
    clock_uncertainty_s=0.01,
    python=(3, 11, 2),
    has_venv=True,
    free_bytes=100 << 30,
    docker=DockerFacts("unix:///run/docker.sock", True, "1.44"),
    nics={
        "enp1s0": NicFacts("ixgbe", 9000, 40 * 10**9),
        "nic0": NicFacts("ixgbe", 9000, 10 * 10**9),
    },
)


def findings(
    facts: Mapping[str, ServerFacts | PatchlightError],
) -> dict[tuple[str, str], Finding]:
    return {
        (f.server, f.check): f
        for f in judge(LAB, {"server1": GOOD, "server2": GOOD, **facts})
    }


def test_servers_that_lack_nothing_are_ready() -> None:
    found = findings({})
    assert {finding.ok for finding in found.values()} == {True}
    assert found["server1", "reachable"].found == "10.0.0.11 port 22"
    assert found["server2", "reachable"].found == "server2 port 2222"
    assert found["server2", "host key"].found == "the one in known_hosts"
    assert found["server1", "clock"].found == "0.200 s ahead, ± 0.010 s"


@pytest.mark.parametrize(
    ("changed", "check", "ok", "found", "remedy"),
    [
        ({"sudo_refusal": "no"}, "sudo", False, "no", "without a password"),
        ({"python": None}, "Python", False, "none", "apt-get install python3"),
        ({"python": (3, 10, 9)}, "Python", False, "3.10.9", "3.11 or newer"),
        (
            {"nics": {}, "claims": ("pl.small.server1.w-a-0",) * 2},
            "NIC nic0",
            None,
            "a worker may have it",
            "",
        ),
        (
            {"has_venv": False},
            "Python",
            False,
            "3.11.2, without venv",
            "python3-venv",
        ),
        (
            {"free_bytes": 1 << 30},
            "free disk",
            False,
            "1.0 GiB in /opt",
            "free 2 GiB",
        ),
        ({"free_bytes": None}, "free disk", None, "not told", ""),
        (
            {"nics": {}},
            "NIC nic0",
            False,
            "no interface enp1s0",
            "interface: NAME",
        ),
        (
            {"nics": {"enp1s0": NicFacts("mlx5_core", 9000, 25 * 10**9)}},
            "NIC nic0",
            False,
            "enp1s0 (mlx5_core), 25Gbps, not 40Gbps",
            "correct its rate",
        ),
        (
            {"nics": {"enp1s0": NicFacts("i40e", 9000, None)}},
            "NIC nic0",
            None,
            "no link",
            "up",
        ),
        (
            {"nics": {"enp1s0": NicFacts(None, 9000, None)}},
            "NIC nic0",
            None,
            "is virtual",
            "",
        ),
        (
            {"nics": {"enp1s0": NicFacts("mlx5_core", 1500, 40 * 10**9)}},
            "MTU",
            False,
            "enp1s0 has 1500",
            "ip link set enp1s0 mtu 9000, on server1",
        ),
        (
            {"clock_offset_s": -1.02},
            "clock",
            False,
            "1.020 s behind",
            "chrony",
        ),
        (
            {"clock_offset_s": 5.0, "clock_uncertainty_s": 4.5},
            "clock",
            True,
            "± 4.500",
            "",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_remedy(
    changed: dict[str, object],
    check: str,
    ok: bool | None,
    found: str,
    remedy: str,
) -> None:
    finding = findings({"server1": replace(GOOD, **changed)})["server1", check]  # type: ignore[arg-type]
    assert finding.ok is ok
    assert found in finding.found
    assert remedy in finding.remedy


def test_a_server_that_fails_stops_no_other() -> None:
    refused = HostKeyRefused("another key", hint="do not go on")
    found = findings({"server1": refused, "server2": Unreachable("nobody")})
    assert set(found) == {("server1", "host key"), ("server2", "reachable")}
    assert found["server1", "host key"].remedy == "do not go on"
    assert found["server1", "host key"].state == "wrong"
    assert len(findings({"server1": refused})) > 2
