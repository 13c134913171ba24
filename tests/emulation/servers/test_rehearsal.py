"""Emulated servers with an sshd are what a deployment takes for a lab's, and go away whole."""

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import paramiko
import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.emulated_lab import down_lab
from patchlight.emulation.lab.options import LabOptions
from patchlight.emulation.servers.rehearsal import prepare_rehearsal
from patchlight.emulation.servers.server import (
    NoRehearsalServers,
    check_overlay,
    server_base,
)
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.linux.processes import command_line, process_ids
from patchlight.testbed.linux.sockets import ssh_answers
from tests.support.emulated_labs import PAUSING, TWO_TORS, left_of, pings
from tests.support.waiting import PATIENCE_S, wait_until

# A root file system that is not there yet is made first.
pytestmark = [pytest.mark.root, pytest.mark.ovs, pytest.mark.timeout(600)]
NAME = f"r{os.getpid()}"
SLEEPS = f"sleep {10_000_000 + os.getpid()}"  # what no other run of these tests looks for


@contextmanager
def logged_in(lab: str, server: str) -> Iterator[paramiko.SSHClient]:
    """An SSH connection made of what the runtime lab file says, and of nothing else."""
    runtime = read_lab(states.run_dir(lab) / "lab.yaml")
    ssh = next(each for each in runtime.servers if each.name == server).ssh
    assert ssh.address is not None

    class OnlyThatKey(paramiko.MissingHostKeyPolicy):
        def missing_host_key(
            self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
        ) -> None:
            assert key.fingerprint == ssh.host_key

    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(OnlyThatKey())
        client.connect(
            ssh.address,
            ssh.port,
            ssh.user,
            key_filename=ssh.identity,
            allow_agent=False,
            look_for_keys=False,
            timeout=PATIENCE_S,
        )
        yield client


def shell(client: paramiko.SSHClient, command: str) -> tuple[int, str]:
    """A command's exit status, and what it wrote."""
    _, output, _ = client.exec_command(
        f"exec 2>&1; {command}", timeout=PATIENCE_S
    )
    text = output.read().decode()
    return output.channel.recv_exit_status(), text.strip()


def said(client: paramiko.SSHClient, command: str) -> str:
    """What a command that succeeds wrote."""
    status, text = shell(client, command)
    assert status == 0, text
    return text


@pytest.fixture(scope="module")
def lab_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lab") / "two-tors.yaml"
    path.write_text(TWO_TORS)
    return path


@pytest.fixture(scope="module")
def lab(lab_file: Path) -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        lab_file, 1000, name=NAME, servers="ssh"
    ) as lab:
        yield lab


def test_each_is_a_machine_of_its_own(lab: EmulatedLab) -> None:
    with logged_in(NAME, "server1") as one, logged_in(NAME, "server2") as two:
        assert (
            said(one, "hostname; cat /etc/hostname").split() == ["server1"] * 2
        )
        assert said(two, "hostname") == "server2"
        assert said(one, "id -un; sudo -n id -un").split() == ["admin", "root"]
        said(one, "sudo touch /etc/mine /opt/mine /var/mine && touch mine")
        status, _ = shell(two, "ls /etc/mine /opt/mine /var/mine mine")
        assert status != 0
        assert not Path("/opt/mine").exists()
        numbers = (
            said(one, "cat /etc/machine-id"),
            said(two, "cat /etc/machine-id"),
        )
        assert len(set(numbers)) == 2
        seen = said(one, "ls /proc | grep -c '^[0-9]'")
        assert int(seen) < 20
        address, name = said(one, "getent hosts server2").split()
        assert name == "server2"
        assert address in said(two, "hostname -I").split()


def test_its_nics_are_those_of_the_lab_file(lab: EmulatedLab) -> None:
    for server in lab.lab.servers:
        with logged_in(NAME, server.name) as client:
            links = said(client, "ip -o link").splitlines()
            shown = {
                line.split()[1].rstrip(":").partition("@")[0]: line
                for line in links
            }
            assert {nic.name for nic in server.nics} | {"lo", "mgmt0"} == {
                *shown,
                *said(client, "ls /sys/class/net").split(),
            }
            for nic in server.nics:
                assert nic.mac in shown[nic.name]
                assert str(nic.address) in said(
                    client, f"ip -o address show {nic.name}"
                )


def test_python_makes_a_virtual_environment(lab: EmulatedLab) -> None:
    with logged_in(NAME, "server1") as client:
        said(client, "sudo python3 -m venv --without-pip /opt/venv")
        assert said(client, "/opt/venv/bin/python -c 'print(1 + 1)'") == "2"


def test_this_machine_is_out_of_reach(lab: EmulatedLab) -> None:
    with logged_in(NAME, "server1") as client:
        for what in (
            "date --set 2020-01-01",
            "sh -c 'echo 1 >/proc/sys/vm/drop_caches'",
            "sh -c 'echo 1 >/proc/sysrq-trigger'",
            "sh -c 'echo >/sys/kernel/mm/ksm/run'",
            f"ls {states.run_dir(NAME)}",
            f"ls {states.DISK_ROOT}",
        ):
            assert shell(client, f"sudo {what}")[0] != 0, what
        before = Path("/proc/sys/net/ipv4/ip_forward").read_text()
        said(client, "sudo sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'")
        assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == before


def test_packets_go_over_the_lab(lab: EmulatedLab) -> None:
    assert pings(lab.host("gpu0"), lab.host("gpu2"))
    assert lab.status()["ssh_config"] == str(lab.run_dir / "ssh/config")


def test_the_controller_runs_and_its_agents_are_silent(
    lab: EmulatedLab,
) -> None:
    agents = {agent.server: agent for agent in lab.controller.status().agents}
    assert [agent.reachable for agent in agents.values()] == [False, False]
    assert not [p for p in lab.state.processes if p.name.startswith("agent")]
    for server in lab.lab.servers:
        assert server.management == f"{server.ssh.address}:8471"


def test_a_server_has_its_own_emulated_gpus(lab: EmulatedLab) -> None:
    for server in lab.lab.servers:
        with logged_in(NAME, server.name) as client:
            sockets = said(client, "sudo ls /dev/patchlight-gpus").split()
        assert sockets == [
            f"{server.name}.{gpu.name}.sock" for gpu in server.gpus
        ]


def test_an_sshd_that_is_ended_comes_back(lab: EmulatedLab) -> None:
    address = lab.lab.servers[0].ssh.address
    assert address is not None
    with logged_in(NAME, "server1") as client:
        before = said(client, "cat /run/sshd.pid")
        said(client, f"sudo kill {before}")
        # The old one may still answer, and for a second there is none.
        again = "cat /run/sshd.pid 2>/dev/null || echo none"
        wait_until(
            lambda: said(client, again) not in (before, "", "none"),
            "another sshd",
        )
        wait_until(lambda: ssh_answers(address), "sshd is back")


def test_another_lab_goes_and_leaves_nothing(
    lab: EmulatedLab, lab_file: Path
) -> None:
    name = f"{NAME}-b"
    options = {"controller": False, "fabric": "bridge", "servers": "ssh"}
    with EmulatedLab.from_file(lab_file, name=name, **options) as other:  # type: ignore[arg-type]
        addresses = [
            s.ssh.address for each in (lab, other) for s in each.lab.servers
        ]
        assert len(set(addresses)) == 4
        with logged_in(name, "server2") as client:
            # Whatever is left running, also in a namespace of its own.
            said(client, "sudo ip netns add worker")
            said(
                client,
                f"sudo ip netns exec worker setsid {SLEEPS} >/dev/null 2>&1 &",
            )
            wait_until(lambda: _runs(SLEEPS), "it runs")
        (Path(other.lab.servers[0].ssh.identity or "")).read_text()
    assert left_of(name) == []
    assert not _runs(SLEEPS)
    assert not [pid for pid in process_ids() if f"/{name}/" in _mounts(pid)]
    with logged_in(NAME, "server1") as client:
        said(client, "true")


def _mounts(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/mountinfo").read_text()
    return ""


def _runs(command: str) -> bool:
    ended = subprocess.run(
        ["pgrep", "-f", f"^{command}"], capture_output=True, check=False
    )
    return ended.returncode == 0


def test_down_removes_what_a_killed_up_left(lab_file: Path) -> None:
    name = f"{NAME}-k"
    up = [
        "emulate",
        "up",
        str(lab_file),
        "--name",
        name,
        "--server-kind",
        "ssh",
    ]
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            PAUSING,
            "servers",
            *up,
            "--no-controller",
            "--fabric",
            "bridge",
        ],
        stdout=subprocess.PIPE,
        text=True,
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "paused\n"
        builder.kill()
    assert (states.DISK_ROOT / name / "server1").is_dir()
    assert down_lab(name)
    assert left_of(name) == []


def test_disks_of_a_lab_that_ended_with_the_machine_are_removed(
    lab_file: Path,
) -> None:
    name = f"{NAME}-f"
    (states.DISK_ROOT / name / "server1/upper/opt").mkdir(parents=True)
    assert not down_lab(name)
    assert left_of(name) == []


def test_without_a_mirror_there_is_no_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATCHLIGHT_CACHE", str(tmp_path))
    monkeypatch.setenv("PATCHLIGHT_MIRROR", "http://127.0.0.1:9/debian")
    heard = list[str]()
    with pytest.raises(
        NoRehearsalServers, match="ended with status 1"
    ) as error:
        server_base(heard.append)
    assert "127.0.0.1" in error.value.message
    assert "PATCHLIGHT_MIRROR" in (error.value.hint or "")
    assert any("once, about a minute" in line for line in heard)
    assert [path.name for path in (tmp_path / "servers").iterdir()] == [
        ".lock"
    ]


def test_a_build_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(line: str) -> None:
        if "apt-get update" in line:
            raise KeyboardInterrupt

    before = set(Path(tempfile.gettempdir()).glob("mmdebstrap.*"))
    monkeypatch.setenv("PATCHLIGHT_CACHE", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        monkeypatch.setenv("PATCHLIGHT_MIRROR", f"http://{host}:{port}/debian")
        with pytest.raises(KeyboardInterrupt):
            server_base(interrupted)
    wait_until(
        lambda: (
            not any(
                str(tmp_path) in command_line(pid) for pid in process_ids()
            )
        )
    )
    assert [path.name for path in (tmp_path / "servers").iterdir()] == [
        ".lock"
    ]
    assert set(Path(tempfile.gettempdir()).glob("mmdebstrap.*")) <= before


def test_one_build_waits_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = list[str]()

    def listening(line: str) -> None:
        heard.append(line)
        if "waiting" in line:
            other.close()
        if "making" in line:
            raise KeyboardInterrupt

    monkeypatch.setenv("PATCHLIGHT_CACHE", str(tmp_path))
    (tmp_path / "servers").mkdir()
    with (tmp_path / "servers/.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(KeyboardInterrupt):
            server_base(listening)
    assert heard[0] == "waiting for another build of it to end"
    assert len(heard) == 2


def test_a_base_that_cannot_be_mounted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        NoRehearsalServers, match=r"mounting a server's root over .*missing"
    ):
        check_overlay(tmp_path / "missing", tmp_path / "trial")
    assert not (tmp_path / "trial").exists()


def test_options_that_exclude_each_other() -> None:
    with pytest.raises(
        BadInput,
        match="agents cannot be combined with servers that have an sshd",
    ):
        LabOptions(agents=True, servers="ssh")
    with pytest.raises(
        BadInput, match="servers 'box': expected namespace, ssh or vm"
    ):
        LabOptions(servers="box")


def test_a_lab_without_servers_is_refused_before_anything_is_made() -> None:
    lab = Lab(f"{NAME}-e")
    with pytest.raises(BadInput, match="has no servers"):
        prepare_rehearsal(
            lab, states.new_state(lab.name, "", 1.0), print, kind="ssh"
        )
    assert left_of(lab.name) == []
