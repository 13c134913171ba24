"""``patchlight deploy trust``: nobody's key is trusted that nobody looked at."""

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from patchlight.deploy.check import check_servers
from patchlight.deploy.commands.deploy import deploy
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.labfile.reader import read_lab
from patchlight.testbed.labfile.writer import write_lab
from tests.support.terminal import at_terminal

pytestmark = [
    pytest.mark.root,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("home"),
]
COMMENT = "# Our lab; ask Ann.\n"


def trust(file: Path, *options: str) -> Result:
    return CliRunner().invoke(
        deploy, ["trust", str(file), *options], env={"COLUMNS": "120"}
    )


def is_ready(file: Path) -> bool:
    findings = check_servers(read_lab(file), lambda done, of: None)
    return not [f for f in findings if f.ok is False]


def fingerprints(lab: Lab) -> str:
    return "".join(
        f"{s.name} 256 {s.ssh.host_key} (ED25519)\n" for s in lab.servers
    )


@pytest.fixture
def file(lab: Lab, tmp_path: Path) -> Path:
    """A lab file in which no host key stands, and where the other servers are behind the first."""
    first, *others = lab.servers
    behind = [
        replace(s, ssh=replace(s.ssh, jump=first.ssh.address)) for s in others
    ]
    bare = tuple(
        replace(s, ssh=replace(s.ssh, host_key=None)) for s in (first, *behind)
    )
    path = tmp_path / "lab.yaml"
    path.write_text(
        COMMENT + write_lab(lab.with_changes(name="bare", servers=bare))
    )
    return path


@pytest.fixture
def known(lab: Lab, tmp_path: Path) -> Path:
    """What somebody wrote down at the servers, the first of which is also the host before."""
    path = tmp_path / "fingerprints"
    first = lab.servers[0].ssh
    path.write_text(f"{fingerprints(lab)}{first.address} {first.host_key}\n")
    return path


def test_keys_of_a_file_are_written_into_the_lab_file(
    lab: Lab, file: Path, known: Path
) -> None:
    assert not is_ready(file)
    result = trust(file, "--fingerprints", str(known))
    assert result.exit_code == 0, result.output
    assert "4 keys written to" in result.output
    written = read_lab(file)
    assert [s.ssh.host_key for s in written.servers] == [
        s.ssh.host_key for s in lab.servers
    ]
    assert written.servers[1].ssh.jump_host_key == lab.servers[0].ssh.host_key
    assert file.read_text().startswith(COMMENT)
    assert is_ready(file)
    again = trust(file)
    assert (again.exit_code, again.output.splitlines()[-1]) == (
        0,
        "all 4 keys are known",
    )


def test_or_into_known_hosts(file: Path, known: Path, home: Path) -> None:
    before = file.read_text()
    result = trust(file, "--known-hosts", "--fingerprints", str(known))
    assert result.exit_code == 0, result.output
    assert file.read_text() == before
    assert (home / ".ssh/known_hosts").stat().st_mode & 0o777 == 0o600
    assert is_ready(file)


def test_nobody_who_could_look_is_no_yes(file: Path, home: Path) -> None:
    before = file.read_text()
    result = trust(file)
    assert isinstance(result.exception, PatchlightError)
    assert "need confirmation at a terminal" in result.exception.message
    assert "new" in result.output
    assert file.read_text() == before
    assert not (home / ".ssh").exists()


def test_a_key_that_is_not_the_one_written_down_is_left(
    file: Path, known: Path
) -> None:
    lines = known.read_text().splitlines()
    wrong = lines[2].replace(lines[2].split()[2], f"SHA256:{'A' * 43}")
    known.write_text("\n".join([*lines[:2], wrong, *lines[4:]]))
    result = trust(file, "--fingerprints", str(known))
    assert result.exit_code == 1
    assert (
        "server3: its key differs from the file of fingerprints"
        in result.output
    )
    assert "server4: it is not in the file of fingerprints" in result.output
    keys = {s.name: s.ssh.host_key for s in read_lab(file).servers}
    assert [name for name, key in keys.items() if key] == [
        "server1",
        "server2",
    ]


def remembered(lab: Lab, name: str) -> str:
    """The lab file of somebody who knows another key of this server."""
    old = f"SHA256:{'o' * 43}"
    servers = tuple(
        replace(s, ssh=replace(s.ssh, host_key=old)) if s.name == name else s
        for s in lab.servers
    )
    return write_lab(lab.with_changes(name="old", servers=servers))


def test_a_changed_key_is_replaced_only_where_that_is_said(
    lab: Lab, file: Path
) -> None:
    file.write_text(remembered(lab, "server4"))
    before = file.read_text()
    asked = ["deploy", "trust", str(file)]
    status, shown = at_terminal({}, *asked)
    assert (status, file.read_text()) == (1, before)
    assert "changed" in shown
    assert "--replace server4" in shown
    status, shown = at_terminal(
        {"[y/N]: ": "n"}, *asked, "--replace", "server4"
    )
    assert (status, file.read_text()) == (1, before)
    assert "the keys were not confirmed" in shown
    status, shown = at_terminal(
        {"[y/N]: ": "y"}, *asked, "--replace", "server4"
    )
    assert status == 0, shown
    assert read_lab(file).servers == lab.servers


def test_a_key_in_the_lab_file_counts_more_than_known_hosts(
    lab: Lab, file: Path, known: Path, home: Path
) -> None:
    file.write_text(remembered(lab, "server4"))
    result = trust(file, "--known-hosts", "--fingerprints", str(known))
    assert isinstance(result.exception, BadInput)
    assert "another host_key for server4" in result.exception.message
    assert not (home / ".ssh").exists()


def test_what_cannot_be_meant_is_refused(file: Path) -> None:
    result = trust(file, "--replace", "server9")
    assert isinstance(result.exception, BadInput)
    result = CliRunner().invoke(deploy, ["trust", "ofc2022"])
    assert isinstance(result.exception, BadInput)
    assert "is part of Patchlight" in result.exception.message
