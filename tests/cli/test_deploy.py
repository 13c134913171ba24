"""``patchlight deploy``: what it prints and how it ends."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.console.commands import say_what_stays
from patchlight.controller.access.authority import Authority, authority_folder
from patchlight.deploy.commands.deploy import deploy
from patchlight.deploy.commands.options import read_password
from patchlight.testbed.errors import BadInput
from tests.support.terminal import at_terminal
from tests.support.waiting import closed_port

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
def closed(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "closed.yaml"
    with closed_port() as port:
        path.write_text(LAB.replace("PORT", str(port)))
        yield str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(deploy, arguments)


def test_what_is_wrong_is_a_table_and_a_remedy_for_each(closed: str) -> None:
    result = run("push", "--dry-run", closed)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    rows = [line.split() for line in lines if line.startswith("wrong")]
    assert [row[1:3] for row in rows] == [
        ["server1", "reachable"],
        ["server2", "reachable"],
    ]
    assert (
        "reachable (server1): Check that the server is on, its sshd"
        in result.output
    )
    assert (
        "reachable (server2): Write 'ssh: {address: HOST}' at server2."
        in result.output
    )
    assert lines[-1] == "0 of 2 servers of lab closed are ready"


def test_the_same_as_json(closed: str) -> None:
    answer = json.loads(run("push", "--dry-run", closed, "--json").stdout)
    assert (answer["lab"], answer["ok"]) == ("closed", False)
    first, second = answer["checks"]
    assert first.keys() == {"server", "check", "state", "found", "remedy"}
    assert first["state"] == second["state"] == "wrong"
    assert "server1 at 127.0.0.1 port" in first["found"]


def test_a_lab_without_servers_is_bad_input(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("name: empty\n")
    result = run("push", "--dry-run", str(path))
    assert isinstance(result.exception, BadInput)
    assert "has no servers" in result.exception.message


def test_certificates_are_made_once_and_for_whom_they_are_meant(
    closed: str, tmp_path: Path
) -> None:
    where = (
        "--output",
        str(tmp_path / "out"),
        "--authority",
        str(tmp_path / "ca"),
    )
    result = run("certificates", closed, *where)
    assert result.exit_code == 0, result.output
    rows = [
        line.split()[0]
        for line in result.output.splitlines()
        if ".closed" in line
    ]
    names = ["controller.closed", "prometheus.closed", "agent.server1.closed"]
    assert rows == [*names, "agent.server2.closed"]
    assert (
        tmp_path / "out/agents/server1/key.pem"
    ).stat().st_mode & 0o777 == 0o600
    first = json.loads(run("certificates", closed, *where, "--json").stdout)
    again = json.loads(run("certificates", closed, *where, "--json").stdout)
    assert again == first
    assert (first["lab"], first["authority"]) == (
        "closed",
        str(tmp_path / "ca"),
    )
    (anew,) = json.loads(
        run(
            "certificates",
            closed,
            *where,
            "--for",
            "server1",
            "--new-keys",
            "--json",
        ).stdout
    )["certificates"]
    (old,) = [
        each for each in first["certificates"] if each["name"] == anew["name"]
    ]
    assert anew["fingerprint"] != old["fingerprint"]
    unknown = run("certificates", closed, *where, "--for", "server3")
    assert isinstance(unknown.exception, BadInput)
    assert "controller, prometheus, server1, server2" in str(unknown.exception)


def test_passwords_come_from_a_file_of_ones_own_alone(
    closed: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("s3cret-canary\n")
    file.chmod(0o640)
    result = run("push", "--dry-run", closed, "--password-file", str(file))
    assert isinstance(result.exception, BadInput)
    assert "others may read the password" in result.exception.message
    file.chmod(0o600)
    assert read_password(file) == "s3cret-canary"
    result = run(
        "push",
        "--dry-run",
        closed,
        "--password-file",
        str(file),
        "--sudo-password-file",
        str(file),
    )
    assert result.exit_code == 1
    assert "server1" in result.output
    assert "s3cret" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ask-password"], "--ask-password needs a terminal"),
        (
            ["--ask-sudo-password"],
            "--ask-sudo-password needs a terminal",
        ),
        (["--ask-password", "--password-file", "x"], "exclude each other"),
        (
            ["--password-file", "/nowhere/password"],
            "cannot read the password in /nowhere/password",
        ),
        (["--sudo-password-file", "/dev/null"], "is not a plain file"),
        (
            ["--password-file", "EMPTY"],
            "is empty: expected a password on its first line",
        ),
    ],
)
def test_no_password_is_guessed(
    closed: str, tmp_path: Path, options: list[str], message: str
) -> None:
    empty = tmp_path / "empty"
    empty.touch(mode=0o600)
    result = run(
        "push",
        "--dry-run",
        closed,
        *(str(empty) if word == "EMPTY" else word for word in options),
    )
    assert isinstance(result.exception, BadInput)
    assert message in result.exception.message


def test_a_password_that_is_typed_is_not_shown(closed: str) -> None:
    options = ["--ask-password", "--ask-sudo-password"]
    answers = {"log in with: ": "s3cret-canary", "same): ": ""}
    status, shown = at_terminal(
        answers, "deploy", "push", closed, "--dry-run", *options
    )
    assert status == 1
    assert "Password to log in with: " in shown
    assert "Password of sudo (empty: the same): " in shown
    assert "s3cret" not in shown


@pytest.mark.parametrize(
    "verb", ["push", "status", "restart", "stop", "rollback", "remove"]
)
def test_each_server_that_fails_is_named_with_its_remedy(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    result = run(verb, closed)
    assert result.exit_code == 1
    assert "connecting to server1 at 127.0.0.1 port" in result.output
    assert "Write 'ssh: {address: HOST}' at server2." in result.output
    answer = json.loads(
        run(verb, closed, "--json", "--server", "server2").stdout
    )
    assert (answer["lab"], answer["ok"]) == ("closed", False)
    (told,) = answer["servers"]
    assert (told["server"], told["ok"]) == ("server2", False)
    assert "server2 has no SSH address" in told.get(
        "error", told.get("problem")
    )


def test_logs_of_servers_that_do_not_answer(closed: str) -> None:
    result = run("logs", closed, "--server", "server2")
    assert result.exit_code == 1
    assert "server2 has no SSH address" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("status", "--server", "server9"),
            "no server 'server9': it has server1, server2",
        ),
        (
            ("push", "--controller", "tor1"),
            "expected one of the servers to push to",
        ),
    ],
)
def test_servers_that_there_are_not(
    closed: str, arguments: tuple[str, ...], message: str
) -> None:
    verb, *rest = arguments
    result = run(verb, closed, *rest)
    assert isinstance(result.exception, BadInput)
    assert message in result.exception.message


def test_a_bundle_that_is_none_is_refused_before_anything_is_done(
    closed: str, tmp_path: Path
) -> None:
    file = tmp_path / "bundle"
    file.write_text("no tar")
    result = run("push", closed, "--bundle", str(file))
    assert isinstance(result.exception, BadInput)
    assert "reading the bundle" in result.exception.message


def test_an_emulated_lab_without_ssh_is_refused_once(tmp_path: Path) -> None:
    path = tmp_path / "emulated.yaml"
    path.write_text(
        LAB.replace(
            "ssh: {address: 127.0.0.1, port: PORT}", "management: unix:/agent"
        )
    )
    result = run("push", "--dry-run", str(path))
    assert isinstance(result.exception, BadInput)
    assert (
        result.exception.message
        == "no server of lab closed has an SSH address"
    )
    assert "emulate up closed --server-kind ssh" in str(result.exception.hint)


def test_a_second_controller_of_an_emulated_lab_is_refused(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchlight.console.connection.RUN_ROOT", tmp_path)
    (tmp_path / "closed").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as controller:
        port = controller.getsockname()[1]
        (tmp_path / "closed/lab.yaml").write_text(
            f"{Path(closed).read_text()}controller:\n  api: 127.0.0.1:{port}\n"
        )
        result = run("push", "closed", "--controller", "server1")
    assert isinstance(result.exception, BadInput)
    assert result.exception.message.startswith(
        "emulated lab closed has a controller on this machine"
    )
    assert "--no-controller" in str(result.exception.hint)


def test_the_certificates_of_a_lab_that_is_gone_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    say_what_stays("gone")
    assert capsys.readouterr().err == ""
    Authority("gone", authority_folder("gone"))
    say_what_stays("gone")
    assert f"stay in {tmp_path}/patchlight/labs/gone:" in (
        capsys.readouterr().err.replace("\n", " ")
    )
