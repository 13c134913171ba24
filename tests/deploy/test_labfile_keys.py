"""Fingerprints are written into a lab file's text, and nothing else in it changes."""

import difflib
from collections.abc import Callable
from dataclasses import replace

import pytest

from patchlight.deploy.trust import with_host_keys
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.rules import SshAccess
from patchlight.testbed.labfile.reader import load_lab, parse_lab
from patchlight.testbed.labfile.writer import write_commented_lab, write_lab

KEY = f"SHA256:{'a' * 43}"
OTHER = f"SHA256:{'B+/' * 14}B"
BLOCK = """\
# Our lab.
name: x
network: 10.0.0.0/8
defaults:
  ssh:
    user: admin
    jump: me@gate  # ask Ann for an account
servers:
  # The first one.
  - name: a
    # its agent
    management: a:8471
    nics: [{name: nic0, address: 10.0.0.1}]
  - name: b
    ssh:   # odd port
      port: 2222
      # for us
      user: root
    nics: [{name: nic0, address: 10.0.0.2}]
  - {name: c, ssh: {address: cc, }, nics: [{name: nic0, address: 10.0.0.3}]}  # short
  - {name: d, nics: [{name: nic0, address: 10.0.0.4}]}
  - nics: [{name: nic0, address: 10.0.0.5}]
    name: e
    ssh: {host_key: SHA256:OLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOLDOLDO}
"""


def added(before: str, after: str) -> list[str]:
    changes = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:].strip() for line in changes if line.startswith("+ ")]


@pytest.mark.parametrize(
    ("server", "line"),
    [
        ("a", f"ssh: {{host_key: {KEY}}}"),
        ("b", f"host_key: {KEY}"),
        (
            "c",
            f"- {{name: c, ssh: {{address: cc, host_key: {KEY}, }}, "
            "nics: [{name: nic0, address: 10.0.0.3}]}  # short",
        ),
        (
            "d",
            f"- {{name: d, ssh: {{host_key: {KEY}}}, nics: [{{name: nic0, address: 10.0.0.4}}]}}",
        ),
        ("e", f"ssh: {{host_key: {KEY}}}"),
    ],
)
def test_a_key_stands_at_its_server(server: str, line: str) -> None:
    written = with_host_keys(BLOCK, {server: KEY}, {})
    assert added(BLOCK, written) == [line]
    assert [
        s.name for s in parse_lab(written).servers if s.ssh.host_key == KEY
    ] == [server]
    assert with_host_keys(written, {server: KEY}, {}) == written


def test_all_at_once_with_the_host_before_them() -> None:
    keys = dict.fromkeys("abcde", KEY)
    lab = parse_lab(with_host_keys(BLOCK, keys, {"me@gate": OTHER}))
    assert [s.ssh.host_key for s in lab.servers] == [KEY] * 5
    assert [s.ssh.jump_host_key for s in lab.servers] == [OTHER] * 5
    text = BLOCK.replace("# odd port", "# odd port\n      jump: other")
    lab = parse_lab(with_host_keys(text, {}, {"other": KEY, "me@gate": OTHER}))
    assert [s.ssh.jump_host_key for s in lab.servers] == [
        OTHER,
        KEY,
        OTHER,
        OTHER,
        OTHER,
    ]


@pytest.mark.parametrize(
    ("server", "ssh"), [("[1-2]", ""), ("1", "    ssh: &way {user: me}\n")]
)
def test_a_file_without_a_place_for_one_server_is_refused(
    server: str, ssh: str
) -> None:
    text = (
        f"name: x\nnetwork: 10.0.0.0/8\nservers:\n  - name: s{server}\n{ssh}"
        f'    nics: [{{name: nic0, address: "10.0.0.{server}"}}]\n'
    )
    if ssh:
        text += "  - {name: t, ssh: *way, nics: [{name: nic0, address: 10.0.0.9}]}\n"
    parse_lab(text)
    with pytest.raises(
        BadInput,
        match=rf"no place for 'ssh'[^:]*:\n    s1.*{KEY}",
    ):
        with_host_keys(text, {"s1": KEY}, {})


@pytest.mark.parametrize("write", [write_lab, write_commented_lab])
def test_files_that_are_written_here_have_a_place_for_every_key(
    write: Callable[[Lab], str],
) -> None:
    ways = [
        SshAccess(),
        SshAccess(user="me"),
        SshAccess(jump="gate", jump_host_key=KEY),
    ]
    for ssh in [*ways, SshAccess(host_key=KEY)]:
        lab = load_lab("ofc2022")
        servers = [replace(server, ssh=ssh) for server in lab.servers]
        text = write(lab.with_changes(servers=tuple(servers)))
        written = parse_lab(
            with_host_keys(
                text, {s.name: OTHER for s in servers}, {"gate": OTHER}
            )
        )
        expected = replace(
            ssh, host_key=OTHER, jump_host_key=OTHER if ssh.jump else None
        )
        assert {server.ssh for server in written.servers} == {expected}
