"""Keys of hosts: what known_hosts and lab files say, and which of several keys is requested."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest

from patchlight.deploy.host_keys import HostKeyRefused, read_known_hosts
from patchlight.deploy.ssh import SshHost, logged_in
from patchlight.deploy.trust import (
    Shown,
    looks_at_servers,
    read_fingerprints,
    shown_keys,
    vouch_in_known_hosts,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.host_keys import KnownHosts, known_name
from patchlight.testbed.lab.model import Lab, Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.root, pytest.mark.timeout(600)]


KEYS = [paramiko.ECDSAKey.generate() for _ in range(3)]
LINES = [f"{key.get_name()} {key.get_base64()}" for key in KEYS]
FINGERPRINT = f"SHA256:{'a' * 43}"


def shown(
    name: str, key: paramiko.PKey, port: int = 22, *, changed: bool = False
) -> Shown:
    place = SshHost(name, name, port, None, None, None)
    return Shown(name, place, key, "changed" if changed else "new")


def test_keys_are_known_by_plain_and_by_hashed_names(tmp_path: Path) -> None:
    hashed = paramiko.HostKeys.hash_host(known_name("there", 2222))
    file = tmp_path / "known_hosts"
    file.write_text(
        f"# ours\n\nhere,10.0.0.1 {LINES[0]}\n{hashed} {LINES[1]} comment\n"
        f"@cert-authority *.example.org {LINES[2]}\nhere nonsense\nhere ssh-rsa AAAA\n"
        f"|1|broken|hash= {LINES[2]}\nhere ssh-unheard-of {KEYS[0].get_base64()}\n"
    )
    known = KnownHosts.read(file, tmp_path / "missing")
    assert known.of("here", 22) == known.of("10.0.0.1", 22) == [KEYS[0]]
    assert known.of("there", 2222) == [KEYS[1]]
    assert known.of("there", 22) == known.of("a.example.org", 22) == []


def test_a_key_that_is_revoked_is_not_known(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        f"here {LINES[0]}\nthere {LINES[1]}\n@revoked * {LINES[0]}\n"
    )
    known = KnownHosts.read(file)
    assert (known.of("here", 22), known.of("there", 22)) == ([], [KEYS[1]])
    assert known.revoked == {KEYS[0].asbytes()}


@pytest.mark.parametrize(
    ("names", "is_known"),
    [
        ("tor1.lab", True),
        ("*.lab", True),
        ("tor?.lab,other", True),
        ("[*.lab]:22", True),
        ("*", True),
        ("TOR1.lab", True),
        ("*.lab,!tor1.lab", False),
        ("!tor?.lab,*", False),
        ("!tor2.lab,*", True),
        ("[tor1.lab", False),
        ("tor.lab", False),
        ("*.la", False),
    ],
)
def test_names_are_patterns_as_in_openssh(
    tmp_path: Path, names: str, is_known: bool
) -> None:
    file = tmp_path / "known_hosts"
    for gap in (" ", "  ", "\t \t"):
        file.write_text(f"{gap}{names}{gap}{LINES[0].replace(' ', gap)}\r\n")
        for host in ("tor1.lab", "Tor1.lab"):
            assert KnownHosts.read(file).of(host, 22) == [KEYS[0]] * is_known
        on_another_port = KnownHosts.read(file).of("tor1.lab", 2222)
        assert on_another_port == [KEYS[0]] * (names.split(",")[-1] == "*")
        file.write_text(f"@revoked{gap}*{gap}{LINES[0].replace(' ', gap)}\n")
        assert KnownHosts.read(file).revoked == {KEYS[0].asbytes()}


def test_known_hosts_that_cannot_be_read_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh/known_hosts").mkdir(parents=True)
    with pytest.raises(HostKeyRefused, match="reading the known host keys in"):
        read_known_hosts()


def test_new_keys_come_last_and_a_changed_one_takes_the_place_of_the_old(
    tmp_path: Path,
) -> None:
    file = tmp_path / "new/known_hosts"
    vouch_in_known_hosts(
        [shown("here", KEYS[0]), shown("there", KEYS[1], 2222)], file
    )
    assert file.read_text() == f"here {LINES[0]}\n[there]:2222 {LINES[1]}\n"
    assert (
        file.parent.stat().st_mode & 0o777,
        file.stat().st_mode & 0o777,
    ) == (0o700, 0o600)
    hashed = paramiko.HostKeys.hash_host("here")
    others = f"# mine\n10.0.0.1 {LINES[0]}\nthere {LINES[1]}"
    file.write_text(
        f"# mine\nhere,10.0.0.1 {LINES[0]}\nthere {LINES[1]}\n{hashed} {LINES[0]}"
    )
    file.chmod(0o644)
    vouch_in_known_hosts([shown("here", KEYS[2], changed=True)], file)
    assert file.read_text() == f"{others}\nhere {LINES[2]}\n"
    assert file.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in file.parent.iterdir()] == ["known_hosts"]


def test_known_hosts_that_cannot_be_written_are_an_error(
    tmp_path: Path,
) -> None:
    with pytest.raises(PatchlightError, match="writing host keys into"):
        vouch_in_known_hosts([shown("here", KEYS[0])], tmp_path)


def test_fingerprints_are_read_as_people_write_them_down(
    tmp_path: Path,
) -> None:
    file = tmp_path / "fingerprints"
    file.write_text(
        f"# at the consoles\n\nserver1 256 {FINGERPRINT} root@server1 (ED25519)\n"
        f"server2 {FINGERPRINT}  # rsa\nserver2 SHA256:{'b' * 43}\n"
    )
    assert read_fingerprints(file) == {
        "server1": {FINGERPRINT},
        "server2": {FINGERPRINT, f"SHA256:{'b' * 43}"},
    }


@pytest.mark.parametrize(
    "line",
    [
        "server1",
        "server1 SHA256:short",
        f"s {FINGERPRINT} {FINGERPRINT}",
        FINGERPRINT,
    ],
)
def test_a_line_without_a_server_and_its_key_is_a_mistake(
    tmp_path: Path, line: str
) -> None:
    file = tmp_path / "fingerprints"
    file.write_text(f"server9 {FINGERPRINT}\n{line}\n")
    with pytest.raises(
        BadInput,
        match=r"fingerprints:2: expected a server and the fingerprint",
    ):
        read_fingerprints(file)
    with pytest.raises(BadInput, match="cannot read the fingerprints"):
        read_fingerprints(tmp_path / "missing")


PORT = 2223
AT = "/tmp/two-keys"
OTHER = {
    "ssh-rsa": paramiko.RSAKey.generate(1024),
    "ecdsa-sha2-nistp384": paramiko.ECDSAKey.generate(bits=384),
}
KNOWN_LINES = {
    kind: f"{kind} {key.get_base64()}" for kind, key in OTHER.items()
}


@pytest.fixture(scope="module")
def two(lab: Lab) -> Iterator[tuple[Server, str]]:
    """A second sshd of a server with an Ed25519 and an RSA key, and that RSA key."""
    server = lab.servers[0]
    with logged_in(server) as client:

        def said(command: str) -> str:
            _, output, errors = client.exec_command(
                command, timeout=PATIENCE_S
            )
            text = output.read().decode()
            assert output.channel.recv_exit_status() == 0, (
                errors.read().decode()
            )
            return text

        said(f"sudo rm -f {AT}*; sudo ssh-keygen -q -N '' -t rsa -f {AT}-rsa")
        said(f"sudo ssh-keygen -q -N '' -t ed25519 -f {AT}-ed25519")
        said(
            f"sudo /usr/sbin/sshd -p {PORT} -h {AT}-ed25519 -h {AT}-rsa -o PidFile={AT}.pid "
            "-o MaxStartups=100"
        )
        wait_until(
            lambda: said(f"sudo cat {AT}.pid 2>/dev/null || true"),
            "it to listen",
        )
        key = " ".join(said(f"sudo cat {AT}-rsa.pub").split()[:2])
        yield (
            replace(server, ssh=replace(server.ssh, port=PORT, host_key=None)),
            key,
        )
        said(f"sudo kill $(sudo cat {AT}.pid)")
        wait_until(lambda: not said(f"ss -Hltn sport = :{PORT}"), "it to end")


def known(home: Path, server: Server, *lines: str) -> None:
    (home / ".ssh").mkdir(exist_ok=True)
    at = f"[{server.ssh.address}]:{PORT}"
    (home / ".ssh/known_hosts").write_text(
        "".join(f"{at} {line}\n" for line in lines)
    )


def state_of(server: Server, lab: Lab) -> str:
    looks = looks_at_servers(lab.with_changes(servers=(server,)))
    shown = shown_keys(looks, lambda *_: None)[server.name]
    assert not isinstance(shown, Exception), shown
    return shown.state


@pytest.mark.parametrize(
    "before", [(), ("ecdsa-sha2-nistp384",), ("ssh-rsa",)]
)
def test_the_type_that_known_hosts_has_is_asked_for(
    two: tuple[Server, str], before: tuple[str, ...], home: Path, lab: Lab
) -> None:
    server, key = two
    known(home, server, *(KNOWN_LINES[kind] for kind in before), key)
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
    server = replace(
        server, ssh=replace(server.ssh, host_key=entry.key.fingerprint)
    )
    assert state_of(server, lab) == "known"
    for _ in range(2):
        with logged_in(server) as client:
            assert client.exec_command("echo here")[1].read() == b"here\n"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            "ecdsa-sha2-nistp384",
            "known_hosts has only ecdsa-sha2-nistp384: the types of its keys",
        ),
        ("ssh-rsa", ", not the one in known_hosts"),
    ],
)
def test_another_type_and_another_key_are_told_apart(
    two: tuple[Server, str], kind: str, said: str, home: Path, lab: Lab
) -> None:
    server, _ = two
    known(home, server, KNOWN_LINES[kind])
    with pytest.raises(HostKeyRefused) as caught, logged_in(server):
        pass
    assert said in caught.value.message
    assert "(ssh-ed25519)" in caught.value.message
    assert "(ssh-rsa)" in caught.value.message
    assert ("another machine" in str(caught.value.hint)) == (kind == "ssh-rsa")
    assert state_of(server, lab) == "changed"
