"""What real servers answer over SSH: emulated ones with an sshd, a sudo and a disk of their own."""

import contextlib
import logging
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from patchlight.deploy import ssh
from patchlight.deploy.check import check_servers
from patchlight.deploy.check_machine import Finding
from patchlight.deploy.remote import as_root
from patchlight.deploy.ssh import (
    Connections,
    Passwords,
    Unreachable,
    logged_in,
)
from patchlight.testbed.lab.model import Lab, Server
from tests.support.waiting import (
    PATIENCE_S,
    free_ports,
    unix_socket_answers,
    wait_until,
)

# A root file system that is not there yet is made first.
pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("home"),
]
CANARY = "s3cret-canary"
# Refused while something of that user's is still ending.
GUEST_GONE = (
    "for _ in $(seq 100); do "
    "sudo userdel --remove guest 2>/dev/null && break; sleep 0.1; done"
)
GUEST_GONE += "; ! id guest 2>/dev/null"
# Somebody who may not use sudo.
GUEST = (
    f"sudo useradd -m -s /bin/sh guest && echo guest:{CANARY} | sudo chpasswd"
)


def with_ssh(lab: Lab, *names: str, **changes: object) -> Lab:
    """The lab, with something else under ``ssh`` of these servers."""
    return lab.with_changes(
        servers=tuple(
            replace(s, ssh=replace(s.ssh, **changes)) if s.name in names else s  # type: ignore[arg-type]
            for s in lab.servers
        )
    )


def server(lab: Lab, name: str) -> Server:
    return next(server for server in lab.servers if server.name == name)


def checked(
    lab: Lab, passwords: Passwords | None = None
) -> dict[tuple[str, str], Finding]:
    findings = check_servers(lab, lambda done, of: None, passwords)
    assert CANARY not in repr(findings)
    return {(finding.server, finding.check): finding for finding in findings}


def wrong(found: dict[tuple[str, str], Finding]) -> list[tuple[str, str]]:
    return [place for place, finding in found.items() if finding.ok is False]


def said(client: paramiko.SSHClient, command: str) -> str:
    """What a command that succeeds wrote."""
    _, output, _ = client.exec_command(
        f"exec 2>&1; {command}", timeout=PATIENCE_S
    )
    text = output.read().decode()
    assert output.channel.recv_exit_status() == 0, text
    return text.strip()


@contextmanager
def changed(
    lab: Lab, name: str, do: str, undo: str
) -> Iterator[paramiko.SSHClient]:
    """A server that something is done to, and undone again at the end."""
    with logged_in(server(lab, name)) as client:
        said(client, do)
        try:
            yield client
        finally:
            said(client, undo)


def test_servers_that_lack_nothing_are_ready(lab: Lab) -> None:
    found = checked(lab)
    assert wrong(found) == []
    assert {server for server, _ in found} == {
        "server1",
        "server2",
        "server3",
        "server4",
    }
    assert found["server1", "sudo"].ok is True
    assert found["server1", "Python"].ok is True
    assert found["server1", "MTU"].ok is True
    assert found["server1", "NIC nic0"].state == "unknown"  # veth has no rate
    assert (
        found["server1", "GPUs"].found == "1 emulated in /dev/patchlight-gpus"
    )
    assert "Docker engine" in {check for _, check in found}
    engines = check_servers(lab, lambda done, of: None, workers="docker")
    without = [f for f in engines if f.ok is False]
    assert {f.check for f in without} == {"Docker engine"}
    assert len(without) == 4


def test_one_of_four_that_is_wrong_is_named(lab: Lab) -> None:
    do = "sudo ip link set nic0 mtu 1400; sudo chmod 640 /usr/bin/python3.*"
    undo = "sudo chmod 755 /usr/bin/python3.*; sudo ip link set nic0 mtu 1500"
    with changed(
        lab, "server2", f"{do}; sudo mv /usr/bin/python3 /usr/bin/was", "true"
    ) as client:
        try:
            found = checked(lab)
        finally:
            said(client, f"sudo mv /usr/bin/was /usr/bin/python3; {undo}")
    assert wrong(found) == [("server2", "Python"), ("server2", "MTU")]
    assert "ip link set nic0 mtu 1500" in found["server2", "MTU"].remedy


@pytest.mark.parametrize(
    ("changes", "check", "found", "remedy"),
    [
        (
            {"host_key": f"SHA256:{'A' * 43}"},
            "host key",
            ", not SHA256:AAAA",
            "do not continue",
        ),
        (
            {"host_key": None},
            "host key",
            "of server1 is not confirmed",
            "trust",
        ),
        (
            {"user": "nobody"},
            "login",
            "logging in to server1 as nobody",
            "user and identity",
        ),
        (
            {"identity": "/nowhere/key"},
            "login",
            "reading the key /nowhere/key",
            "own",
        ),
        (
            {"identity": "/etc/hostname"},
            "login",
            "it is not a private key",
            "ssh-keygen",
        ),
        (
            {"identity": None},
            "login",
            "logging in to server1 as admin",
            "--ask-password",
        ),
        (
            {"port": 2222},
            "reachable",
            "port 2222",
            "Check that the server is on",
        ),
    ],
)
def test_a_server_that_cannot_be_checked_is_named(
    lab: Lab, changes: dict[str, object], check: str, found: str, remedy: str
) -> None:
    findings = checked(with_ssh(lab, "server1", **changes))
    assert wrong(findings) == [("server1", check)]
    assert found in findings["server1", check].found
    assert remedy in findings["server1", check].remedy


def test_what_a_server_said_instead_of_running_commands_is_shown(
    lab: Lab,
) -> None:
    keys = "/home/guest/.ssh"
    do = f"sudo useradd -m -s /usr/sbin/nologin guest; sudo cp -r /home/admin/.ssh {keys}; "
    do += f"sudo chown -R guest: {keys}"
    with changed(lab, "server1", do, GUEST_GONE):
        found = checked(with_ssh(lab, "server1", user="guest"))
    assert wrong(found) == [("server1", "commands")]
    assert (
        "This account is currently not available"
        in found["server1", "commands"].found
    )
    assert "sudo" not in found["server1", "commands"].remedy


def test_servers_are_found_through_one_of_them(lab: Lab) -> None:
    first = server(lab, "server1").ssh
    ways = {
        "jump": f"{first.user}@{first.address}:22",
        "jump_host_key": first.host_key,
    }
    behind = with_ssh(lab, "server2", "server3", "server4", **ways)
    found = checked(behind)
    assert wrong(found) == []
    assert found["server2", "reachable"].found.endswith(
        f" through {first.address}"
    )
    with Connections() as connections, contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(connections.to(s)) for s in behind.servers[1:]
        ]
        here = {
            said(client, "echo $SSH_CONNECTION").split()[0]
            for client in clients
        }
        assert here == {first.address}
        # One connection to the first serves them all.
        with logged_in(server(lab, "server1")) as client:
            established = "ss -Htn state established sport = :22"
            wait_until(
                lambda: len(said(client, established).splitlines()) == 2,
                "two of them",
            )


@pytest.mark.parametrize(
    ("changes", "check", "found"),
    [
        (
            {"jump_host_key": f"SHA256:{'A' * 43}"},
            "host key",
            "jump host {} presents the host key",
        ),
        ({"jump_host_key": None}, "host key", "of jump host {}"),
        (
            {"jump": "{}:2222"},
            "reachable",
            "connecting to jump host {} at {} port 2222",
        ),
        (
            {"jump": "nobody@{}"},
            "login",
            "logging in to jump host {} as nobody",
        ),
        ({"port": 2222}, "reachable", "port 2222 through jump host {}"),
    ],
)
def test_what_is_wrong_on_the_way_is_told(
    lab: Lab, changes: dict[str, str], check: str, found: str
) -> None:
    first = server(lab, "server1").ssh
    address = str(first.address)
    ways = {"jump": address, "jump_host_key": first.host_key, **changes}
    ways |= {"jump": str(ways["jump"]).replace("{}", address)}
    findings = checked(with_ssh(lab, "server2", "server3", **ways))
    assert wrong(findings) == [("server2", check), ("server3", check)]
    assert found.replace("{}", address) in findings["server2", check].found


@contextmanager
def needs_passwords(lab: Lab, name: str) -> Iterator[Lab]:
    """A server where sudo wants a password; and the lab, without a key to log in there with."""
    keep = "sudo sh -c 'mv /run/nopasswd /etc/sudoers.d/'"
    give = f"echo admin:{CANARY} | sudo chpasswd; sudo mv /etc/sudoers.d/nopasswd /run/"
    with logged_in(server(lab, name)) as client:
        said(client, give)
        try:
            yield with_ssh(lab, name, identity=None)
        finally:
            _, output, _ = as_root(
                client, keep.removeprefix("sudo "), name, CANARY
            )
            assert output.channel.recv_exit_status() == 0


def test_passwords_open_what_keys_do_not(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with needs_passwords(lab, "server3") as other:
        assert wrong(checked(other, Passwords(CANARY, CANARY))) == []
        refused = checked(other, Passwords("wrong"))
        assert wrong(refused) == [("server3", "login")]
        # As the user alone, all else is looked at; what only root can see is not wrong.
        limited = checked(other, Passwords(CANARY))
        assert wrong(limited) == [("server3", "sudo")]
        assert "a password is required" in limited["server3", "sudo"].found
        assert limited["server3", "Python"].ok is True
        mistaken = checked(other, Passwords(CANARY, "wrong"))
        assert wrong(mistaken) == [("server3", "sudo")]
        assert "the password is wrong" in mistaken["server3", "sudo"].found
        assert "--ask-sudo-password" in mistaken["server3", "sudo"].remedy
        # Whose password is right, and who still may not.
        with changed(other, "server2", GUEST, GUEST_GONE):
            guest = with_ssh(lab, "server2", identity=None, user="guest")
            stranger = checked(guest, Passwords(CANARY, CANARY))
        assert wrong(stranger) == [("server2", "sudo")]
        assert (
            "guest is not in the sudoers file"
            in stranger["server2", "sudo"].found
        )
    assert CANARY not in caplog.text
    assert wrong(checked(lab)) == []


def test_a_shell_that_greets_is_in_nobodys_way(lab: Lab) -> None:
    greet = "sed -i '1i echo welcome' .bashrc || echo 'echo welcome' >.bashrc"
    with changed(
        lab,
        "server4",
        f"cp .bashrc .was; {greet}",
        "rm .bashrc; mv .was .bashrc; true",
    ):
        assert wrong(checked(lab)) == []


def test_nobody_else_sees_the_password(lab: Lab) -> None:
    with (
        needs_passwords(lab, "server3"),
        logged_in(server(lab, "server3")) as client,
    ):
        script, output, _ = as_root(client, "cat", "server3", CANARY)
        script.write("over\n")
        assert output.readline() == "over\n"
        watching = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"
        _, seen, _ = as_root(
            client, f"{watching} 2>/dev/null | tr '\\0' ' '; true", "s", CANARY
        )
        text = seen.read().decode(errors="replace")
        assert "cat" in text
        assert CANARY not in text
        script.channel.shutdown_write()
        assert output.read() == b""
    assert CANARY not in repr(Passwords(CANARY, CANARY))


def test_what_sudo_does_not_ask_for_is_not_sent(lab: Lab) -> None:
    with logged_in(server(lab, "server3")) as client:
        script, output, _ = as_root(client, "cat", "server3", CANARY)
        script.channel.shutdown_write()
        assert output.read() == b""
        # Of the ciphers, those that cost least.
        assert (
            vars(client.get_transport())["remote_cipher"]
            == "aes128-gcm@openssh.com"
        )


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """An SSH agent that holds nothing."""
    path = tmp_path / "agent"
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL
    ) as agent:
        wait_until(lambda: unix_socket_answers(path), "the agent to answer")
        yield path
        agent.terminate()


def test_keys_of_an_agent_are_used(
    lab: Lab, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    identity = server(lab, "server1").ssh.identity or ""
    subprocess.run(["ssh-add", "-q", identity], check=True)
    assert wrong(checked(with_ssh(lab, "server1", identity=None))) == []
    # A key that nobody can read without a passphrase, and that the agent holds.
    locked = tmp_path / "locked"
    locked.write_bytes(Path(identity).read_bytes())
    locked.chmod(0o600)
    public = subprocess.check_output(
        ["ssh-keygen", "-y", "-f", str(locked)], text=True
    )
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-N", CANARY, "-f", str(locked)], check=True
    )
    other = with_ssh(lab, "server1", identity=str(locked))
    refused = checked(other)
    assert wrong(refused) == [("server1", "login")]
    assert "it has a passphrase" in refused["server1", "login"].found
    assert f"ssh-add {locked}" in refused["server1", "login"].remedy
    (tmp_path / "locked.pub").write_text(public)
    assert wrong(checked(other)) == []


def test_a_server_that_is_away_stops_no_other(lab: Lab) -> None:
    away = with_ssh(lab, "server4", address="127.0.0.1", port=free_ports(1)[0])
    assert wrong(checked(away)) == [("server4", "reachable")]


def test_one_that_stops_answering_is_not_told_to_refuse_the_login(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "_PATIENCE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def greet() -> None:
            connection, _ = silent.accept()
            connection.sendall(b"SSH-2.0-busy\r\n")
            connection.settimeout(60)
            with connection, contextlib.suppress(ConnectionError):
                while connection.recv(4096):
                    pass

        greeting = threading.Thread(target=greet)
        greeting.start()
        away = with_ssh(
            lab, "server4", address="127.0.0.1", port=silent.getsockname()[1]
        )
        with (
            pytest.raises(Unreachable, match="no answer within 1 s"),
            logged_in(server(away, "server4")),
        ):
            pass
        greeting.join()
