"""Patchlight is put on servers over SSH, whatever goes wrong on the way, and taken off again."""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from patchlight import EmulatedLab
from patchlight.deploy.commands.deploy import deploy as deploy_commands
from patchlight.deploy.remote import Remote
from patchlight.deploy.ssh import logged_in
from patchlight.emulation.lab.services import reboot
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.labfile.writer import write_lab
from tests.support.cut_line import line_that_breaks
from tests.support.waiting import PATIENCE_S, wait_until

# A root file system that is not there yet is made first.
pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one who deploys keeps certificates and packed wheels."""
    return tmp_path_factory.mktemp("home")


class Deployer:
    """Runs ``patchlight deploy``."""

    def __init__(self, lab: Lab, home: Path) -> None:
        self.lab = lab
        names = ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
        self._environment = dict.fromkeys(names, str(home))

    def run(
        self, *words: str, lab: str | None = None
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        """A command's exit code, and what it says of each server."""
        verb, *options = words
        if "--server" not in options:
            options += [
                f"--server={server.name}" for server in self.lab.servers[:2]
            ]
        done = self.invoke(verb, lab or self.lab.name, "--json", *options)
        return done.exit_code, {
            s["server"]: s for s in json.loads(done.stdout)["servers"]
        }

    def shell(self, command: str) -> str:
        """What a command line of this machine prints."""
        environment = {**os.environ, **self._environment}
        done = subprocess.run(
            command,
            shell=True,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def invoke(self, *arguments: str) -> Result:
        return CliRunner().invoke(
            deploy_commands, arguments, env=self._environment
        )

    def bundle_bytes(self, file: Path) -> int:
        """How much there is to copy to a server, give or take what a tar file adds."""
        assert self.invoke("bundle", "--output", str(file)).exit_code == 0
        return file.stat().st_size

    def all_well(self, *words: str) -> dict[str, dict[str, Any]]:
        code, servers = self.run(*words)
        assert (code, [s for s in servers.values() if not s["ok"]]) == (0, [])
        return servers

    @contextmanager
    def changed(self, folder: Path, server: Server) -> Iterator[str]:
        """A lab file in which one server is reached in another way."""
        servers = [
            server if s.name == server.name else s for s in self.lab.servers
        ]
        path = folder / "lab.yaml"
        path.write_text(
            write_lab(self.lab.with_changes(servers=tuple(servers)))
        )
        yield str(path)


@pytest.fixture
def deploy(lab: Lab, home: Path) -> Deployer:
    return Deployer(lab, home)


def on(server: Server, command: str) -> str:
    """What a command on a server writes, by root."""
    with logged_in(server) as client:
        stdin, output, _ = client.exec_command(
            "exec 2>&1; sudo sh -e", timeout=PATIENCE_S
        )
        stdin.write(command)
        stdin.channel.shutdown_write()
        text = output.read().decode()
        assert output.channel.recv_exit_status() == 0, text
        return text


# What `remove` may leave nothing of: files with modes, owners and contents, packages, units,
# settings of the kernel, interfaces, processes.
EVERYTHING = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /tmp \) -prune -o -printf '%p %y %m %u %l\n' |
    grep -v -e '^/run/\(sshd\|motd\|utmp\|sudo\)' -e '^/var/log/\(btmp\|lastlog\|wtmp\)' \
        -e '^/var/lib/sudo' -e '^/dev/pts/' | sort
find /etc /usr/local /home -xdev -type f -exec sha256sum {} + | sort
dpkg-query --show
find /proc/sys/net -type f -readable ! -path '*random*' ! -path '*/route/flush' \
    ! -name stable_secret -exec grep -Hs '' {} + | sort
ip -brief link
ip -brief address
ps -eo args= | grep -v -e '^sshd' -e '^sudo' -e '^ps ' -e '^grep' -e '^sh -e' -e '^sort' | sort
"""


def test_deployed_changed_and_removed(
    lab: Lab, deploy: Deployer, tmp_path: Path
) -> None:
    one, two, *_ = lab.servers
    only = ("--server", one.name)

    def did(*words: str) -> dict[str, Any]:
        return deploy.all_well(*words, *only)[one.name]

    before = on(one, EVERYTHING)
    first = did("push", "--controller", one.name)
    assert (first["version"], first["changed"]) == ("0.1.0", True)
    assert first["copied_bytes"] > 1_000_000
    again = did("push")  # the controller stays
    assert (again["changed"], again["copied_bytes"]) == (False, 0)
    status = did("status")
    assert (status["release"], status["controller"]) == (
        first["release"],
        True,
    )
    assert status["problem"] == ""
    # It keeps the key to itself.
    key = f"/opt/patchlight/{lab.name}/configuration/agent-tls/key.pem"
    assert on(one, f"stat -c '%a %U' {key}").strip() == "600 root"
    agent = f"cat /run/patchlight-services/{lab.name}/agent.child"
    killed = on(one, f"{agent}; kill -9 $({agent})")
    wait_until(lambda: on(one, agent) != killed, "it is started again")
    wait_until(
        lambda: deploy.run("status", *only)[1][one.name]["version"],
        "it answers again",
    )
    assert did("status")["restarts"] == 1
    a_job_outlives_no_reboot(lab, one)
    wait_until(lambda: deploy.run("status", *only)[0] == 0, "both are back")
    behind: dict[str, Any] = {
        "jump": f"{two.ssh.user}@{two.ssh.address}:22",
        "jump_host_key": two.ssh.host_key,
    }
    with deploy.changed(
        tmp_path, replace(one, ssh=replace(one.ssh, **behind))
    ) as path:
        assert deploy.run("restart", *only, lab=path)[0] == 0
    did("stop")
    code, servers = deploy.run("status", *only)
    assert code == 1
    assert (
        servers[one.name]["problem"]
        == "its agent is down; its controller is down"
    )
    assert did("remove")["removed"]
    assert not did("remove")["removed"]
    assert on(one, EVERYTHING) == before


def test_a_server_without_gpus_emulates_them_and_its_controller_is_reached_by_the_printed_lines(
    lab: Lab, deploy: Deployer, tmp_path: Path
) -> None:
    one = lab.servers[0]
    there = lab.with_changes(controller_api=f"{one.ssh.address}:8470")
    said = replace(one, emulated_gpus=True)
    bare = tmp_path / "bare.yaml"
    file = tmp_path / "lab.yaml"
    bare.write_text(write_lab(there))
    file.write_text(
        write_lab(there.with_changes(servers=(said, *lab.servers[1:])))
    )
    on(one, "umount /dev/patchlight-gpus; rmdir /dev/patchlight-gpus")
    try:
        refused = deploy.invoke(
            "push", str(bare), "--dry-run", "--worker-kind", "process"
        )
        assert refused.exit_code == 1
        assert "emulated_gpus: true" in refused.stdout
        checked = deploy.invoke(
            "push", str(file), "--dry-run", "--worker-kind", "process"
        )
        assert checked.exit_code == 0, checked.stdout
        words = [
            "--server",
            one.name,
            "--controller",
            one.name,
            "--worker-kind",
            "process",
        ]
        pushed = deploy.invoke("push", str(file), *words)
        assert pushed.exit_code == 0, pushed.stdout
        on_server, over_ssh, login, over_tls = pushed.stdout.splitlines()[-4:]
        # The other servers have no agent yet, and status exits with 1.
        assert f"lab {lab.name}, Patchlight" in on(
            one, f"{command_in(on_server)} || true"
        )
        for line in (over_ssh, login, over_tls):
            answer = deploy.shell(
                command_in(line) + " || true" * (line != login)
            )
            assert (
                "logged in to"
                if line == login
                else f"lab {lab.name}, Patchlight"
            ) in answer
        job = f"job submit trains --hosts {one.name}.gpu0 --iterations 2 --follow"
        assert "done in " in deploy.shell(
            command_in(over_tls).replace(" status ", f" {job} ")
        )
        assert (
            deploy.run("status", "--server", one.name, lab=str(file))[0] == 0
        )
        assert (
            deploy.run("remove", "--server", one.name, lab=str(file))[0] == 0
        )
        assert (
            on(one, "ps -eo args= | grep emulation.lab.gpu[s] || true") == ""
        )
    finally:
        emulated = EmulatedLab.attach(lab.name)
        reboot(emulated.lab, emulated.plan, one.name, print)


def command_in(line: str) -> str:
    return line.partition(": ")[2]


def a_job_outlives_no_reboot(lab: Lab, server: Server) -> None:
    """The power fails under a job, of which the controller on that same server says so."""

    def job(*words: str) -> str:
        program = f"/opt/patchlight/{lab.name}/current/bin/patchlight"
        command = shlex.join(
            [program, "job", *words, "--controller", lab.controller_api]
        )
        return on(server, f"{command} || true")

    agent = f"/var/lib/patchlight/{lab.name}/agent"
    job(
        "submit",
        "long",
        "--hosts",
        f"{server.name}.gpu0",
        "--iterations",
        "100000",
    )
    reports = f"cat {agent}/workers/*/reports.jsonl 2>/dev/null || true"
    wait_until(lambda: on(server, reports), "it trains")
    emulated = EmulatedLab.attach(lab.name)
    reboot(emulated.lab, emulated.plan, server.name, print)
    # Nobody has started them, but the server's boot.
    api = f"ss --listening --tcp --numeric | grep -c {lab.controller_api} || true"
    wait_until(
        lambda: on(server, api).strip() == "1", "the controller is back"
    )
    assert "its server was restarted" in job("show", "--follow", "long")
    wait_until(
        lambda: not on(server, f"ls {agent}/leases"), "all is given back"
    )
    assert str(server.nics[0].address) in on(
        server, "ip -brief address show dev nic0"
    )


def test_a_push_that_was_cut_goes_on(
    lab: Lab, deploy: Deployer, tmp_path: Path
) -> None:
    first = lab.servers[0]
    assert first.ssh.address is not None
    only = ("--server", "server1")
    for after_bytes, what in (
        (10_000, "starting"),
        (12_000_000, "copying files"),
    ):
        with line_that_breaks(
            first.ssh.address, first.ssh.port, after_bytes
        ) as port:
            there = replace(
                first, ssh=replace(first.ssh, address="127.0.0.1", port=port)
            )
            with deploy.changed(tmp_path, there) as path:
                code, servers = deploy.run("push", *only, lab=path)
        assert code == 1
        assert (
            f"the connection to server1 was lost ({what})"
            in servers["server1"]["error"]
        )
        assert (
            servers["server1"]["remedy"]
            == "Run the command again: it continues."
        )
    with (
        logged_in(first) as client,
        Remote(client, "server1", lab.name) as remote,
    ):
        partial = remote.ask("look")["partial"]
    assert len(partial) == 1
    # What was on the way when the line broke is lost.
    whole = deploy.bundle_bytes(tmp_path / "bundle")
    rest = deploy.all_well("push", *only)["server1"]["copied_bytes"]
    assert whole - 12_500_000 <= rest < whole - 8_000_000
    deploy.all_well("remove", *only)


def test_servers_that_fail_are_named_and_stop_no_other(
    lab: Lab, deploy: Deployer, tmp_path: Path
) -> None:
    first, second, *_ = lab.servers
    on(first, "mount -t tmpfs -o size=4m full /opt")
    try:
        code, servers = deploy.run("push")
    finally:
        # On a busy machine what worked for the push may end a moment after it.
        on(
            first,
            "for _ in $(seq 100); do umount /opt && exit; sleep 0.1; done; umount /opt",
        )
    assert (code, servers["server2"]["ok"]) == (1, True)
    assert "No space left on device" in servers["server1"]["error"]
    assert servers["server1"]["remedy"].startswith("Free space")

    with (
        logged_in(first) as client,
        Remote(client, "server1", lab.name) as remote,
    ):
        remote.ask("lock", who="Ada on desk")
        code, servers = deploy.run("push")
    assert (code, servers["server2"]["ok"], servers["server2"]["changed"]) == (
        1,
        True,
        False,
    )
    assert "Ada on desk, since " in servers["server1"]["error"]

    key = "/home/guest/.ssh"
    on(
        second,
        f"useradd --create-home guest; cp -r /home/admin/.ssh {key}; chown -R guest: {key}",
    )
    try:
        guest = replace(second, ssh=replace(second.ssh, user="guest"))
        with deploy.changed(tmp_path, guest) as path:
            code, servers = deploy.run("push", "--server", "server2", lab=path)
    finally:
        # It is refused while what worked for the push is still ending.
        gone = "userdel --remove guest 2>/dev/null"
        on(
            second,
            f"for _ in $(seq 100); do {gone} && exit; sleep 0.1; done; {gone}",
        )
    assert code == 1
    assert servers["server2"]["error"].startswith(
        "becoming root on server2: sudo: "
    )
    assert "--ask-sudo-password" in servers["server2"]["remedy"]
    deploy.all_well("remove")
