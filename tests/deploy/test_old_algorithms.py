"""SSH with what has only old algorithms, as a real sshd is told to: refused, or allowed by name."""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from patchlight.controller.circuits.contract import LoginRefused
from patchlight.controller.circuits.dialect import Session
from patchlight.controller.circuits.protocols.ssh import FILE_VARIABLE, log_in
from patchlight.deploy.ssh import SshLoginRefused, Unreachable, logged_in
from patchlight.testbed.lab.model import Lab, Server
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("home"),
]
OLD = {
    "ssh-rsa alone": "-o HostKeyAlgorithms=ssh-rsa",
    "group 1 alone": "-o KexAlgorithms=diffie-hellman-group1-sha1",
    "group 14 with SHA-1, and ssh-rsa": "-o HostKeyAlgorithms=ssh-rsa "
    "-o KexAlgorithms=diffie-hellman-group14-sha1",
}
PORT = 2222
AT = "/tmp/old-sshd"


@pytest.fixture(params=OLD.values(), ids=list(OLD))
def old(request: pytest.FixtureRequest, lab: Lab) -> Iterator[Server]:
    """A second sshd of a server, with an RSA key."""
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

        said(f"sudo rm -f {AT}*; sudo ssh-keygen -q -N '' -t rsa -f {AT}")
        said(
            f"sudo /usr/sbin/sshd -p {PORT} -h {AT} -o PidFile={AT}.pid {request.param}"
        )
        # It goes to the background before it listens, and writes its number after that.
        wait_until(
            lambda: said(f"sudo cat {AT}.pid 2>/dev/null || true"),
            "it to listen",
        )
        shown = said(f"sudo ssh-keygen -lf {AT}").split()[1]
        yield replace(
            server,
            name="old",
            ssh=replace(server.ssh, port=PORT, host_key=shown),
        )
        said(f"sudo kill $(sudo cat {AT}.pid)")
        listens = f"ss -Hltn sport = :{PORT}"
        wait_until(lambda: not said(listens), "it to end")


def allowed(server: Server) -> Server:
    return replace(server, ssh=replace(server.ssh, legacy=True))


def test_a_server_is_logged_in_to_if_the_lab_file_allows_it(
    old: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with (
        pytest.raises(
            Unreachable, match=r"Incompatible ssh peer.*'ssh: {legacy: true}'"
        ) as caught,
        logged_in(old),
    ):
        pass
    assert "~/.ssh/config" not in str(caught.value.hint)
    with logged_in(allowed(old)) as client:
        assert client.exec_command("echo here")[1].read() == b"here\n"
    assert "old: the lab file allows insecure SSH algorithms" in caplog.text
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host old\n")
    other = replace(allowed(old), ssh=replace(allowed(old).ssh, user="nobody"))
    with pytest.raises(SshLoginRefused) as denied, logged_in(other):
        pass
    assert "~/.ssh/config is not read" in str(denied.value.hint)


async def test_a_switch_is_reached_if_the_lab_file_allows_it(
    old: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As far as its login, which shells and NETCONF share."""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "known_hosts"))
    session = Session(
        "ocs1", str(old.ssh.address), PORT, "admin", os.urandom(8).hex()
    )
    async with asyncio.timeout(60):
        with pytest.raises(
            ConnectionError, match="'legacy_ssh: true' in the lab file"
        ):
            await asyncio.to_thread(log_in, session)
        with pytest.raises(LoginRefused):
            await asyncio.to_thread(log_in, replace(session, legacy_ssh=True))
