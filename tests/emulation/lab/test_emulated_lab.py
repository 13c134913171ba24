"""Emulated labs come up, carry what they should, and go away whatever happens to them."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric import build
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.emulated_lab import AlreadyThere, down_lab, lab_status
from patchlight.emulation.lab.hosts import EmulatedHost
from patchlight.testbed import generate
from patchlight.testbed.errors import BadInput
from patchlight.testbed.labfile.reader import write_lab
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.netlink import Netlink
from patchlight.testbed.linux.rate_limits import NotShaped, limit_request

pytestmark = [pytest.mark.root, pytest.mark.ovs]

TWO_TORS = """
name: two-tors
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}, {name: gpu1, model: Titan V}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0},
           {name: nic1, address: 192.168.10.12, rate: 40Gbps, gpu: gpu1}]
  - name: server2
    gpus: [{name: gpu2, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.13, rate: 40Gbps, gpu: gpu2}]
packet_switches: [{name: tor1, datapath_id: 1, ports: 3}, {name: tor2, datapath_id: 2, ports: 3}]
fibres:
  - {ends: [server1.nic0, tor1.1], rate: 100Gbps}
  - {ends: [server1.nic1, tor1.2]}
  - {ends: [server2.nic0, tor2.1]}
  - {ends: [tor1.3, tor2.3], rate: 10Gbps}
"""

_numbers = itertools.count()


@pytest.fixture
def new_name() -> Iterator[Callable[[], str]]:
    """Gives lab names that are this run's own, and removes what is left of them."""
    given: list[str] = []

    def name() -> str:
        given.append(f"t{os.getpid()}-{next(_numbers)}")
        return given[-1]

    yield name
    for used in given:
        down_lab(used)


@pytest.fixture
def two_tors(tmp_path: Path) -> Path:
    path = tmp_path / "two-tors.yaml"
    path.write_text(TWO_TORS)
    return path


def tree(tmp_path: Path, hosts: int, fabric: str = "openvswitch") -> Path:
    path = tmp_path / f"tree{hosts}-{fabric}.yaml"
    path.write_text(write_lab(generate.tree(hosts, fabric=fabric)))
    return path


def pings(a: EmulatedHost, b: EmulatedHost) -> bool:
    return a.run(f"ping -c 1 -W 2 {b.address}").exit_status == 0


def left_of(name: str) -> list[str]:
    """Everything on this machine that says it is of this lab."""
    found = namespaces.names_with_prefix(f"pl.{name}.")
    found += [str(path) for path in states.RUN_ROOT.glob(f"*{name}*")]
    for process in Path("/proc").iterdir():
        try:
            if f"/run/patchlight/{name}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


RECEIVE = """
import socket, sys, time
listener = socket.create_server(("0.0.0.0", 5000))
print("listening", flush=True)
client, _ = listener.accept()
client.settimeout(10)
got, first = 0, None
while data := client.recv(1 << 16):
    first = first or time.monotonic()
    got += len(data)
print(got * 8 / (time.monotonic() - first))
"""
SEND = """
import socket, sys, time
client = socket.create_connection((sys.argv[1], 5000))
end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end:
    client.sendall(bytes(1 << 14))
"""


def tcp_bps(sender: EmulatedHost, receiver: EmulatedHost, seconds: float = 2.0) -> float:
    """What one TCP connection carries: payload bits per second at the receiver."""
    with receiver.popen([sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        sent = sender.run([sys.executable, "-c", SEND, receiver.address, str(seconds)], timeout=30)
        assert sent.exit_status == 0, sent.output
        rate_bps = float(listening.stdout.read())
        listening.wait()
    return rate_bps


@pytest.mark.parametrize("fabric", ["openvswitch", "bridge"])
def test_hosts_reach_each_other_at_once(
    tmp_path: Path, new_name: Callable[[], str], fabric: str
) -> None:
    name = new_name()
    with EmulatedLab.from_file(
        tree(tmp_path, 20, fabric), name=name, controller=False, agents=False
    ) as lab:
        assert pings(lab.hosts[0], lab.hosts[-1])
        assert lab.status()["state"] == "up"
        result = lab.host("h2").run(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.exit_status, result.output) == (3, "out\nerr\n")
        assert lab.host("h3").run("cat", input="typed").output == "typed"
        with pytest.raises(BadInput, match="h4"):
            lab.host("h4x")
    assert left_of(name) == []


def test_rates_hold_for_tcp_in_both_directions(two_tors: Path, new_name: Callable[[], str]) -> None:
    with EmulatedLab.from_file(
        two_tors, 1000, name=new_name(), controller=False, agents=False
    ) as lab:
        gpu0, gpu1, gpu2 = (lab.host(f"gpu{n}") for n in range(3))
        # The 10 Gb/s between the switches, divided by 1000; then the NICs' 40 Gb/s. Headers
        # take 4% of what goes over the wire.
        assert 9.0e6 < tcp_bps(gpu0, gpu2) < 10.1e6
        assert 9.0e6 < tcp_bps(gpu2, gpu1) < 10.1e6
        assert 36e6 < tcp_bps(gpu0, gpu1) < 40.4e6


def test_nics_of_one_server_meet_only_through_the_network(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    with EmulatedLab.from_file(
        two_tors, 1000, name=new_name(), controller=False, agents=False
    ) as lab:
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
        assert 36e6 < tcp_bps(gpu1, gpu0, 1.0) < 41e6


def test_a_borrowed_nic_stays_as_long_as_it_is_used(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    with EmulatedLab.from_file(
        two_tors, 1000, name=new_name(), controller=False, agents=False
    ) as lab:
        gpu0, gpu2 = lab.host("gpu0"), lab.host("gpu2")
        server1 = gpu0.namespace()
        # What a command left behind keeps the NIC; the next command shares it with that.
        left = gpu0.run(["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"])
        assert gpu0.namespace() != server1
        assert pings(gpu0, gpu2)
        assert pings(gpu2, gpu0)
        os.kill(int(left.output), signal.SIGKILL)
        wait_for(lambda: states.process_start(int(left.output)) is None)
        assert pings(gpu0, gpu2)
        assert gpu0.namespace() == server1


def test_commands_follow_a_nic_to_its_worker(
    two_tors: Path, new_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_name()
    with EmulatedLab.from_file(two_tors, 1000, name=name, controller=False, agents=False) as lab:
        gpu2 = lab.host("gpu2")
        worker = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        worker.stdout.readline()
        move = ["ip", "-n", f"pl.{name}.server2", "link", "set", "nic0", "netns", str(worker.pid)]
        subprocess.run(move, check=True)
        assert gpu2.run("ip -brief link show nic0").exit_status == 0
        inside = namespaces.inode(f"/proc/{worker.pid}/ns/net")
        assert namespaces.inode(gpu2.namespace()) == inside
        worker.kill()
        worker.wait()


def test_a_lost_limit_is_found(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    with EmulatedLab.from_file(two_tors, 1000, name=name, controller=False, agents=False) as lab:
        build.verify_switch_ports(lab.plan)
        with Netlink(namespaces.namespace_path(lab.plan.fabric)) as netlink:
            end = next(e for c in lab.plan.cables for e in c if e.name == "tor1-3")
            netlink.run([limit_request(end.index, 99e6, end.name)])
        with pytest.raises(NotShaped, match="tor1-3 has 99Mbps instead of 10Mbps"):
            build.verify_switch_ports(lab.plan)


def test_a_switch_with_300_ports(tmp_path: Path, new_name: Callable[[], str]) -> None:
    path = tmp_path / "single.yaml"
    path.write_text(write_lab(generate.single(300)))
    with EmulatedLab.from_file(path, name=new_name(), controller=False, agents=False) as lab:
        assert pings(lab.host("h1"), lab.host("h300"))
        assert pings(lab.host("h300"), lab.host("h150"))


def test_two_labs_with_the_same_addresses_are_apart(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    one, other = new_name(), new_name()
    options = {"controller": False, "agents": False}
    with EmulatedLab.from_file(two_tors, 1000, name=one, **options) as a:
        with EmulatedLab.from_file(two_tors, 1000, name=other, **options) as b:
            for lab in (a, b):
                assert pings(lab.host("gpu0"), lab.host("gpu2"))
            nothing = a.host("gpu2").run("ip neigh show 192.168.10.12").output
            assert pings(b.host("gpu1"), b.host("gpu2"))
            assert a.host("gpu2").run("ip neigh show 192.168.10.12").output == nothing
        assert pings(a.host("gpu0"), a.host("gpu2"))
        assert left_of(other) == []


def host_facts() -> dict[str, str]:
    """What of the host's network a lab could have changed."""
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
    facts = {what: subprocess.getoutput(command) for what, command in commands.items()}
    # What counts or passes by itself, and what other labs do meanwhile.
    facts["sysctls"] = "\n".join(
        line for line in facts["sysctls"].splitlines() if "_count" not in line
    )
    facts["iptables"] = "\n".join(
        line.partition("[")[0]
        for line in facts.get("iptables", "").splitlines()
        if not line.startswith("#")
    )
    facts["namespaces"] = "\n".join(
        line for line in facts["namespaces"].splitlines() if f".t{os.getpid()}-" in line
    )
    return facts


def test_the_host_is_as_before(two_tors: Path, new_name: Callable[[], str]) -> None:
    before = host_facts()
    with EmulatedLab.from_file(
        two_tors, 1000, name=new_name(), controller=False, agents=False
    ) as lab:
        assert pings(lab.host("gpu0"), lab.host("gpu1"))
        during = host_facts()
    for what, facts in before.items():
        if what != "namespaces":
            assert during[what] == facts, what
    assert host_facts() == before


def start_up(path: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "patchlight", "emulate", "up", str(path), "--name", name]
    return subprocess.Popen(
        [*command, "--no-controller", "--no-agents", *more], stderr=subprocess.PIPE, text=True
    )


def wait_for(what: Callable[[], object], deadline_s: float = 10.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def has_namespaces(name: str, count: int) -> Callable[[], bool]:
    return lambda: len(namespaces.names_with_prefix(f"pl.{name}.")) >= count


def runs(name: str, process: str) -> Callable[[], bool]:
    def check() -> bool:
        state = states.read_state(name)
        return state is not None and any(p.name == process for p in state.processes)

    return check


@pytest.mark.parametrize("moment", ["namespaces", "switches"])
def test_down_removes_what_a_killed_up_left(
    tmp_path: Path, new_name: Callable[[], str], moment: str
) -> None:
    name = new_name()
    builder = start_up(tree(tmp_path, 100), name)
    wait_for(has_namespaces(name, 20) if moment == "namespaces" else runs(name, "ovs-vswitchd"))
    builder.kill()
    builder.wait()
    assert left_of(name)
    assert lab_status(name)["state"] == "half-there"
    again = start_up(tree(tmp_path, 100), name)
    said = again.communicate()[1]
    assert again.returncode == 1
    assert "half there" in said
    assert "--replace" in said
    assert down_lab(name)
    assert left_of(name) == []
    assert not down_lab(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["namespaces", "switches"])
def test_an_interrupted_up_leaves_nothing(
    tmp_path: Path, new_name: Callable[[], str], moment: str, number: signal.Signals
) -> None:
    name = new_name()
    builder = start_up(tree(tmp_path, 100), name)
    wait_for(has_namespaces(name, 20) if moment == "namespaces" else runs(name, "ovs-vswitchd"))
    builder.send_signal(number)
    said = builder.communicate()[1]
    assert builder.returncode == 130, said
    assert left_of(name) == []


def test_up_again_is_refused_and_replace_makes_anew(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    options = {"name": name, "controller": False, "agents": False}
    with EmulatedLab.from_file(two_tors, 1000, **options) as lab:
        with pytest.raises(AlreadyThere, match="is up already"):
            EmulatedLab.from_file(two_tors, 1000, **options).up()
        assert pings(lab.host("gpu0"), lab.host("gpu2"))
        switch = next(p for p in lab.state.processes if p.name == "ovs-vswitchd")
        os.kill(switch.pid, signal.SIGKILL)
        wait_for(lambda: not states.is_running(switch))
        with pytest.raises(AlreadyThere, match=r"half there \(gone: process ovs-vswitchd\)"):
            EmulatedLab.from_file(two_tors, 1000, **options).up()
        anew = EmulatedLab.from_file(two_tors, 1000, replace=True, **options)
        anew.up()
        assert pings(anew.host("gpu0"), anew.host("gpu2"))
        assert EmulatedLab.attach(name).status()["state"] == "up"


def test_after_a_reboot_only_files_are_removed(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    state = states.new_state(name, str(two_tors), 1.0)
    state.boot_id = "00000000-0000-0000-0000-000000000000"
    # The number of a process that is not ours to end: this very one.
    started = states.process_start(os.getpid())
    assert started is not None
    state.processes.append(states.ProcessRecord("ovs-vswitchd", os.getpid(), started, "", True))
    state.save()
    assert lab_status(name)["state"] == "down"
    assert down_lab(name)
    assert left_of(name) == []


def test_down_finds_a_lab_whose_record_is_lost(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    EmulatedLab.from_file(two_tors, 1000, name=name, controller=False, agents=False).up()
    shutil.rmtree(states.run_dir(name))
    with pytest.raises(AlreadyThere, match="nothing says what was made"):
        EmulatedLab.from_file(two_tors, 1000, name=name).up()
    assert down_lab(name)
    assert left_of(name) == []


@pytest.mark.docker
def test_down_removes_the_containers_of_its_lab_alone(
    new_name: Callable[[], str], docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    image = subprocess.run(
        "tar cT /dev/null | docker import -", shell=True, check=True, capture_output=True, text=True
    ).stdout.strip()
    name, other = new_name(), new_name()
    made = {
        lab: subprocess.check_output(
            ["docker", "create", "--label", f"patchlight.lab={lab}", image, "nothing"], text=True
        ).strip()
        for lab in (name, other)
    }
    state = states.new_state(name, "lab.yaml", 1.0)
    state.docker = docker_host
    state.save()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")  # Not the one it came up with.
    assert down_lab(name)
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    there = subprocess.check_output(["docker", "ps", "-aq", "--no-trunc"], text=True).split()
    assert made[name] not in there
    assert made[other] in there
    subprocess.run(["docker", "rm", made[other]], check=True, capture_output=True)
    subprocess.run(["docker", "rmi", image], check=True, capture_output=True)


def test_a_reused_process_number_is_not_ours(new_name: Callable[[], str]) -> None:
    other = subprocess.Popen(["sleep", "60"])
    name = new_name()
    state = states.new_state(name, "lab.yaml", 1.0)
    state.processes.append(states.ProcessRecord("agent", other.pid, 1, ""))
    state.save()
    assert down_lab(name)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_switch_that_does_not_start_shows_its_last_words(
    two_tors: Path, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "ovs-vswitchd"
    broken.write_text("#!/bin/sh\necho no room for a switch here >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = new_name()
    lab = EmulatedLab.from_file(two_tors, 1000, name=name, controller=False, agents=False)
    with pytest.raises(Exception, match=r"ovs-vswitchd(.|\n)*status 7(.|\n)*no room for a switch"):
        lab.up()
    assert left_of(name) == []


def test_commands_need_root_and_say_so(two_tors: Path) -> None:
    script = (
        "import os, sys; import patchlight.cli.lab.emulate; from patchlight.cli.main import main; "
        "os.setuid(65534); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "emulate", "up", str(two_tors)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "sudo patchlight emulate up" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_command_line_from_up_to_down(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()

    def patchlight(*arguments: str, typed: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "patchlight", "emulate", *arguments],
            capture_output=True,
            text=True,
            input=typed,
            check=False,
        )

    up = patchlight(
        "up", str(two_tors), "--name", name, "--scale", "1000", "--no-controller", "--no-agents"
    )
    assert up.returncode == 0, up.stderr
    listed = json.loads(patchlight("list", "--json").stdout)
    assert [lab["state"] for lab in listed if lab["name"] == name] == ["up"]
    found = json.loads(patchlight("status", name, "--json").stdout)
    assert [host["name"] for host in found["hosts"]] == [
        "server1.gpu0",
        "server1.gpu1",
        "server2.gpu2",
    ]
    pinged = patchlight("exec", "--lab", name, "gpu2", "--", "ping", "-c", "1", "192.168.10.12")
    assert pinged.returncode == 0, pinged.stdout + pinged.stderr
    assert patchlight("exec", "--lab", name, "gpu2", "--", "sh", "-c", "exit 9").returncode == 9
    shell = patchlight("shell", name, typed="gpu1 ping -c 1 gpu2\nnodes\nnobody ls\nexit\n")
    assert "1 received" in shell.stdout
    assert f"pl.{name}.server1" in shell.stdout
    assert "no host called 'nobody'" in shell.stderr
    assert patchlight("down", name).returncode == 0
    assert patchlight("status", name).returncode == 1
    assert left_of(name) == []


def test_the_whole_lab_with_its_optical_switch(new_name: Callable[[], str]) -> None:
    name = new_name()
    with EmulatedLab.from_file("ofc2022", 1000, name=name, workers="process") as lab:
        hosts = {host.host.gpu.name: host for host in lab.hosts if host.host.gpu}
        # Two NICs of one server, then across the link between the switches: always by light.
        assert pings(hosts["gpu0"], hosts["gpu1"])
        assert pings(hosts["gpu0"], hosts["gpu5"])
        assert 36e6 < tcp_bps(hosts["gpu0"], hosts["gpu4"], 1.5) < 40.4e6
        assert 9e6 < tcp_bps(hosts["gpu5"], hosts["gpu4"], 1.5) < 10.1e6
        assert all(process["running"] for process in lab.status()["processes"])
    assert left_of(name) == []
