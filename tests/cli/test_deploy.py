"""``patchlight deploy``: what it prints and how it ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.cli.deploy.group import deploy
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.sockets import free_ports

LAB = """
name: closed
network: 192.168.10.0/24
servers:
  - name: server1
    ssh: {address: 127.0.0.1, port: PORT}
    nics: [{name: nic0, address: 192.168.10.11}]
  - name: server2
    nics: [{name: nic0, address: 192.168.10.12}]
"""


@pytest.fixture
def closed(tmp_path: Path) -> str:
    path = tmp_path / "closed.yaml"
    path.write_text(LAB.replace("PORT", str(free_ports(1)[0])))
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(deploy, arguments)


def test_what_is_wrong_is_a_table_and_a_remedy_for_each(closed: str) -> None:
    result = run("check", closed)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    rows = [line.split() for line in lines if line.startswith("wrong")]
    assert [row[1:3] for row in rows] == [["server1", "reachable"], ["server2", "reachable"]]
    assert "reachable (server1): Is the server on, its sshd running" in result.output
    assert "reachable (server2): Write 'ssh: {address: server2}' at the server." in result.output
    assert lines[-1] == "0 of 2 servers of lab closed are ready"


def test_the_same_as_json(closed: str) -> None:
    answer = json.loads(run("check", closed, "--json").stdout)
    assert (answer["lab"], answer["ready"]) == ("closed", False)
    first, second = answer["checks"]
    assert first.keys() == {"server", "check", "state", "found", "remedy"}
    assert first["state"] == second["state"] == "wrong"
    assert "server1 at 127.0.0.1 port" in first["found"]


def test_a_lab_without_servers_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("name: empty\n")
    result = run("check", str(path))
    assert isinstance(result.exception, BadInput)
    assert "has no servers" in result.exception.message


def test_certificates_are_made_once_and_for_whom_they_are_meant(
    closed: str, tmp_path: Path
) -> None:
    where = ("--output", str(tmp_path / "out"), "--authority", str(tmp_path / "ca"))
    result = run("certificates", closed, *where)
    assert result.exit_code == 0, result.output
    rows = [line.split()[0] for line in result.output.splitlines() if ".closed" in line]
    names = ["controller.closed", "prometheus.closed", "agent.server1.closed"]
    assert rows == [*names, "agent.server2.closed"]
    assert (tmp_path / "out/agents/server1/key.pem").stat().st_mode & 0o777 == 0o600
    first = json.loads(run("certificates", closed, *where, "--json").stdout)
    again = json.loads(run("certificates", closed, *where, "--json").stdout)
    assert again == first
    assert (first["lab"], first["authority"]) == ("closed", str(tmp_path / "ca"))
    (anew,) = json.loads(
        run("certificates", closed, *where, "--for", "server1", "--anew", "--json").stdout
    )["certificates"]
    (old,) = [each for each in first["certificates"] if each["name"] == anew["name"]]
    assert anew["fingerprint"] != old["fingerprint"]
    unknown = run("certificates", closed, *where, "--for", "server3")
    assert isinstance(unknown.exception, BadInput)
    assert "controller, prometheus, server1, server2" in str(unknown.exception)
