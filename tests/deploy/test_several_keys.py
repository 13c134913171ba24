"""A real sshd with host keys of two types: any of them may be the one that is known."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from patchlight.deploy.host_keys import HostKeyRefused
from patchlight.deploy.ssh import logged_in
from patchlight.deploy.trust import looks_at_servers, shown_keys
from patchlight.testbed.lab.model import Lab, Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]
PORT, AT = 2223, "/tmp/two-keys"
OTHER = {
    "ssh-rsa": paramiko.RSAKey.generate(1024),
    "ecdsa-sha2-nistp384": paramiko.ECDSAKey.generate(bits=384),
}
LINES = {kind: f"{kind} {key.get_base64()}" for kind, key in OTHER.items()}


@pytest.fixture(scope="module")
def two(lab: Lab) -> Iterator[tuple[Server, str]]:
    """A second sshd of a server with an Ed25519 and an RSA key, and that RSA key."""
    server = lab.servers[0]
    with logged_in(server) as client:

        def said(command: str) -> str:
            _, output, errors = client.exec_command(command, timeout=PATIENCE_S)
            text = output.read().decode()
            assert output.channel.recv_exit_status() == 0, errors.read().decode()
            return text

        said(f"sudo rm -f {AT}*; sudo ssh-keygen -q -N '' -t rsa -f {AT}-rsa")
        said(f"sudo ssh-keygen -q -N '' -t ed25519 -f {AT}-ed25519")
        said(
            f"sudo /usr/sbin/sshd -p {PORT} -h {AT}-ed25519 -h {AT}-rsa -o PidFile={AT}.pid "
            "-o MaxStartups=100"
        )
        wait_until(lambda: said(f"sudo cat {AT}.pid 2>/dev/null || true"), "it to listen")
        key = " ".join(said(f"sudo cat {AT}-rsa.pub").split()[:2])
        yield replace(server, ssh=replace(server.ssh, port=PORT, host_key=None)), key
        said(f"sudo kill $(sudo cat {AT}.pid)")
        wait_until(lambda: not said(f"ss -Hltn sport = :{PORT}"), "it to end")


def known(home: Path, server: Server, *lines: str) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    at = f"[{server.ssh.address}]:{PORT}"
    (home / ".ssh/known_hosts").write_text("".join(f"{at} {line}\n" for line in lines))


def state_of(server: Server, lab: Lab) -> str:
    looks = looks_at_servers(lab.with_changes(servers=(server,)))
    shown = shown_keys(looks, lambda *_: None)[server.name]
    assert not isinstance(shown, Exception), shown
    return shown.state


@pytest.mark.parametrize("before", [(), ("ecdsa-sha2-nistp384",), ("ssh-rsa",)])
def test_the_type_that_known_hosts_has_is_asked_for(
    two: tuple[Server, str], before: tuple[str, ...], home: Path, lab: Lab
) -> None:
    server, key = two
    known(home, server, *(LINES[kind] for kind in before), key)
    with logged_in(server) as client:
        assert client.exec_command("echo here")[1].read() == b"here\n"
    assert state_of(server, lab) == "known"


def test_the_fingerprint_in_the_lab_file_may_be_of_either_key(
    two: tuple[Server, str], home: Path, lab: Lab
) -> None:
    server, key = two
    entry = paramiko.hostkeys.HostKeyEntry.from_line(f"x {key}")
    assert entry is not None
    assert entry.key is not None
    server = replace(server, ssh=replace(server.ssh, host_key=entry.key.fingerprint))
    assert state_of(server, lab) == "known"
    for _ in range(2):
        with logged_in(server) as client:
            assert client.exec_command("echo here")[1].read() == b"here\n"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("ecdsa-sha2-nistp384", "known_hosts has only ecdsa-sha2-nistp384: the types of its keys"),
        ("ssh-rsa", "and not the one in known_hosts"),
    ],
)
def test_another_type_and_another_key_are_told_apart(
    two: tuple[Server, str], kind: str, said: str, home: Path, lab: Lab
) -> None:
    server, _ = two
    known(home, server, LINES[kind])
    with pytest.raises(HostKeyRefused) as caught, logged_in(server):
        pass
    assert said in caught.value.message
    assert "(ssh-ed25519)" in caught.value.message
    assert "(ssh-rsa)" in caught.value.message
    assert ("another machine" in str(caught.value.hint)) == (kind == "ssh-rsa")
    assert state_of(server, lab) == "changed"
