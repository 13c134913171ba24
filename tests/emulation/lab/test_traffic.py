"""What emulated labs carry: between hosts, at which rates, and nothing of the machine's own."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric import build
from patchlight.emulation.servers.rehearsal import ManagementNetwork
from patchlight.testbed.errors import BadInput
from patchlight.testbed.generate import generate
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.processes import process_start
from patchlight.testbed.linux.rate_limits import NotShaped, limit_request
from tests.support.emulated_labs import (
    SWITCHES_ONLY,
    check_tcp_rate,
    left_of,
    pings,
    tree,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.mark.parametrize("fabric", ["openvswitch", "bridge"])
def test_hosts_reach_each_other_at_once(
    tmp_path: Path, new_name: Callable[[], str], fabric: str
) -> None:
    name = new_name()
    with EmulatedLab.from_file(
        tree(tmp_path, 20, fabric), name=name, **SWITCHES_ONLY
    ) as lab:
        assert pings(lab.hosts[0], lab.hosts[-1])
        assert lab.status()["state"] == "up"
        result = lab.host("h2").run(
            ["sh", "-c", "echo out; echo err >&2; exit 3"]
        )
        assert (result.exit_status, result.output) == (3, "out\nerr\n")
        assert lab.host("h3").run("cat", input="typed").output == "typed"
        with pytest.raises(BadInput, match="h4"):
            lab.host("h4x")
    assert left_of(name) == []


def test_rates_hold_for_tcp_in_both_directions(lab: EmulatedLab) -> None:
    gpu0, gpu1, gpu2 = (lab.host(f"gpu{n}") for n in range(3))
    # The 10 Gb/s between the switches, divided by 1000; then the NICs' 40 Gb/s. Headers
    # take 4% of what goes over the wire.
    check_tcp_rate(gpu0, gpu2, 9.0e6, 10.1e6)
    check_tcp_rate(gpu2, gpu1, 9.0e6, 10.1e6)
    check_tcp_rate(gpu0, gpu1, 36e6, 40.4e6)


def test_nics_of_one_server_meet_only_through_the_network(
    lab: EmulatedLab,
) -> None:
    gpu0, gpu1, gpu2 = (lab.host(f"gpu{n}") for n in range(3))
    server1 = gpu0.namespace()
    counters = "cat /proc/net/dev"
    before = gpu0.run(counters).output
    assert "nic1" not in before
    assert pings(gpu0, gpu1)
    assert pings(gpu1, gpu0)
    # Idle NICs of a server with several answer others, each on its own wire.
    assert pings(gpu2, gpu0)
    assert pings(gpu2, gpu1)
    assert pings(gpu1, gpu2)
    # Two commands at once share the NIC that the first one borrowed.
    with gpu0.popen("sleep 30") as first:
        assert gpu0.namespace() != server1
        assert pings(gpu0, gpu1)
        assert gpu0.namespace() != server1
        first.kill()
    assert gpu0.namespace() == gpu1.namespace() == server1
    assert pings(gpu2, gpu0)
    # Still limited after all that moving.
    check_tcp_rate(gpu1, gpu0, 36e6, 41e6)


def test_a_borrowed_nic_stays_as_long_as_it_is_used(lab: EmulatedLab) -> None:
    gpu0 = lab.host("gpu0")
    gpu2 = lab.host("gpu2")
    server1 = gpu0.namespace()
    # What a command left behind keeps the NIC; the next command shares it with that.
    left = gpu0.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
    assert gpu0.namespace() != server1
    assert pings(gpu0, gpu2)
    assert pings(gpu2, gpu0)
    os.kill(int(left.output), signal.SIGKILL)
    wait_until(
        lambda: process_start(int(left.output)) is None, "the command to end"
    )
    assert pings(gpu0, gpu2)
    assert gpu0.namespace() == server1


def test_commands_follow_a_nic_to_its_worker(lab: EmulatedLab) -> None:
    gpu2 = lab.host("gpu2")
    worker = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec sleep 60"],
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    server2 = f"pl.{lab.lab.name}.server2"
    move = [
        "ip",
        "-n",
        server2,
        "link",
        "set",
        "nic0",
        "netns",
        str(worker.pid),
    ]
    subprocess.run(move, check=True)
    assert gpu2.run("ip -brief link show nic0").exit_status == 0
    inside = namespaces.inode(f"/proc/{worker.pid}/ns/net")
    assert namespaces.inode(gpu2.namespace()) == inside
    worker.kill()
    worker.wait()


def test_a_lost_limit_is_found(lab: EmulatedLab) -> None:
    build.verify_switch_ports(lab.plan)
    with Netlink(namespaces.namespace_path(lab.plan.fabric)) as netlink:
        end = next(e for c in lab.plan.cables for e in c if e.name == "tor1-3")
        netlink.run([limit_request(end.index, end.name, 99e6)])
    with pytest.raises(NotShaped, match="tor1-3 has 99Mbps instead of 10Mbps"):
        build.verify_switch_ports(lab.plan)


def test_a_switch_with_300_ports(
    tmp_path: Path, new_name: Callable[[], str]
) -> None:
    path = tmp_path / "single.yaml"
    path.write_text(write_lab(generate.single(300)))
    with EmulatedLab.from_file(path, name=new_name(), **SWITCHES_ONLY) as lab:
        assert pings(lab.host("h1"), lab.host("h300"))
        assert pings(lab.host("h300"), lab.host("h150"))


def test_two_labs_with_the_same_addresses_are_apart(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    one = new_name()
    other = new_name()
    with EmulatedLab.from_file(two_tors, 1000, name=one, **SWITCHES_ONLY) as a:
        with EmulatedLab.from_file(
            two_tors, 1000, name=other, **SWITCHES_ONLY
        ) as b:
            for lab in (a, b):
                assert pings(lab.host("gpu0"), lab.host("gpu2"))
            nothing = a.host("gpu2").run("ip neigh show 192.168.10.12").output
            assert pings(b.host("gpu1"), b.host("gpu2"))
            assert (
                a.host("gpu2").run("ip neigh show 192.168.10.12").output
                == nothing
            )
        assert pings(a.host("gpu0"), a.host("gpu2"))
        assert left_of(other) == []


def host_facts(own: str) -> dict[str, list[str]]:
    commands = {
        "links": "ip -o link show",
        "addresses": "ip -o addr show",
        "routes": "ip route show table all",
        "queues": "tc qdisc show",
        "sysctls": "sysctl -a -r ^net",
        "namespaces": "ls /run/netns",
    }
    if shutil.which("iptables-save"):
        commands["iptables"] = "iptables-save"
    facts = {
        what: subprocess.getoutput(command)
        for what, command in commands.items()
    }
    # What counts or passes by itself, and what other labs do meanwhile: theirs are the links of
    # management networks, which a lab without an sshd has none of.
    others = re.compile(rf"\b(?!{re.escape(own)}\b)pl-\w+|^Error: Peer netns")
    lines = {
        what: [line for line in text.splitlines() if not others.search(line)]
        for what, text in facts.items()
    }
    sysctls = [line for line in lines["sysctls"] if "_count" not in line]
    rules = [
        line.partition("[")[0]
        for line in lines.get("iptables", ())
        if line[:1] != "#"
    ]
    spaces = [
        line for line in lines["namespaces"] if f".t{os.getpid()}-" in line
    ]
    return {
        **lines,
        "sysctls": sysctls,
        "iptables": rules,
        "namespaces": spaces,
    }


def test_the_host_is_as_before(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    own = ManagementNetwork(name, IPv4Network("198.18.0.0/24"), ()).interface
    before = host_facts(own)
    with EmulatedLab.from_file(
        two_tors, 1000, name=name, **SWITCHES_ONLY
    ) as lab:
        assert pings(lab.host("gpu0"), lab.host("gpu1"))
        during = host_facts(own)
    for what, facts in before.items():
        if what != "namespaces":
            assert during[what] == facts, what
    assert host_facts(own) == before


def test_flows_share_equal_links_and_leave_one_that_is_cut(
    tmp_path: Path, new_name: Callable[[], str]
) -> None:
    path = tmp_path / "lab.yaml"
    name = new_name()
    path.write_text(
        "name: pair\nnetwork: 10.0.0.0/24\necmp: true\n"
        "servers: [{name: 'h[1-2]', nics: [{name: nic0, address: '10.0.0.[1-2]'}]}]\n"
        "packet_switches: [{name: 'tor[1-2]', datapath_id: '[1-2]', ports: 4}]\n"
        "fibres: ['h[1-2].nic0 - tor[1-2].1', 'tor1.[2-4] - tor2.[2-4]']\n"
    )
    with EmulatedLab.from_file(path, name=name, agents=False) as lab:
        h1, h2 = lab.hosts
        wait_until(lambda: pings(h1, h2), "h2 answers")

        def sent() -> list[int]:
            """The bytes that tor1 has sent by each uplink."""
            counters = [
                f"/sys/class/net/tor1-{port}/statistics/tx_bytes"
                for port in (2, 3, 4)
            ]
            command = [
                "ip",
                "netns",
                "exec",
                f"pl.{name}.fabric",
                "cat",
                *counters,
            ]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True
            )
            return list(map(int, done.stdout.split()))

        def send_flows() -> None:
            # h2 refuses them: a frame goes there, and one comes back.
            h1.run(
                'python3 -c "import socket\nfor port in range(20000, 20400):\n'
                " s = socket.socket(); s.bind(('', port)); s.connect_ex(('10.0.0.2', 9))\""
            )

        def shares() -> list[float]:
            before = sent()
            send_flows()
            grown = [
                now - then for now, then in zip(sent(), before, strict=True)
            ]
            return [each / sum(grown) for each in grown]

        # Open vSwitch has 16 hashes here, and one port has 6 of them.
        assert all(0.2 < share < 0.5 for share in shares())
        fibre = lab.wires.between("tor1.3", "tor2.3")
        lab.wires.set_up(fibre, up=False)
        wait_until(
            lambda: shares()[1] == 0, "no flow to go over the cut fibre"
        )
        assert all(share > 0.3 for share in (shares()[0], shares()[2]))
        told = {
            each.name: each.ports_down
            for each in lab.controller.status().switches
        }
        assert told == {"tor1": [3], "tor2": [3]}
        assert pings(h1, h2)
        lab.wires.set_up(fibre, up=True)
        wait_until(
            lambda: all(share > 0.2 for share in shares()),
            "flows over all fibres again",
        )
        metric = 'patchlight_packet_switch_uplink_transmit_bytes_per_second{switch="tor1",port="%d"'

        def counted() -> list[int]:
            told = lab.controller.metrics()
            return [port for port in range(1, 5) if metric % port in told]

        # A rate takes two readings since the fibre is back.
        wait_until(lambda: counted() == [2, 3, 4], "the rates of all uplinks")
