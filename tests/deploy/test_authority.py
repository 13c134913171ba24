"""A lab's authority: what it makes, keeps, renews and refuses."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from patchlight.controller.access.authority import (
    CERTIFICATE_LIFETIME,
    RENEWED_BEFORE_END,
    Authority,
)
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.linux.credentials import read_credentials

FILES = ("ca.pem", "cert.pem", "key.pem")


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _later(days: float) -> Callable[[], datetime]:
    return lambda: datetime.now(UTC) + timedelta(days=days)


def test_each_program_gets_a_name_in_the_lab_and_a_key_of_its_own(
    tmp_path: Path,
) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    agent = authority.for_agent("server1", tmp_path / "server1")
    controller = authority.for_controller(tmp_path / "controller")
    reader = authority.for_prometheus(tmp_path / "prometheus")
    names = [agent.name, controller.name, reader.name]
    assert names == [
        "agent.server1.lab1",
        "controller.lab1",
        "prometheus.lab1",
    ]
    assert (
        len({agent.fingerprint, controller.fingerprint, reader.fingerprint})
        == 3
    )
    assert read_credentials(agent.folder) == agent
    agent.check("agent.server1.lab1")
    for folder in (agent.folder, controller.folder, reader.folder):
        assert sorted(_contents(folder)) == sorted(FILES)
        assert all(
            path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir()
        )
        assert folder.stat().st_mode & 0o777 == 0o700
    assert (authority.folder / "ca-key.pem").stat().st_mode & 0o777 == 0o600


def test_what_is_good_stays_as_it_is(tmp_path: Path) -> None:
    Authority("lab1", tmp_path / "ca").for_agent("server1", tmp_path / "a")
    before = _contents(tmp_path / "a")
    Authority("lab1", tmp_path / "ca").for_agent("server1", tmp_path / "a")
    assert _contents(tmp_path / "a") == before


def test_what_ends_soon_is_renewed_for_the_same_key(tmp_path: Path) -> None:
    first = Authority("lab1", tmp_path / "ca").for_controller(tmp_path / "a")
    before = _contents(tmp_path / "a")
    days = (CERTIFICATE_LIFETIME - RENEWED_BEFORE_END).days + 1
    second = Authority("lab1", tmp_path / "ca", _later(days)).for_controller(
        tmp_path / "a"
    )
    after = _contents(tmp_path / "a")
    assert {file: before[file] == after[file] for file in FILES} == {
        "ca.pem": True,
        "cert.pem": False,
        "key.pem": True,
    }
    assert second.not_after > first.not_after + timedelta(days=days - 1)


def test_an_authority_that_ends_soon_is_renewed_and_what_it_issued_stays_good(
    tmp_path: Path,
) -> None:
    old = Authority("lab1", tmp_path / "ca").for_agent(
        "server1", tmp_path / "a"
    )
    renewed = Authority(
        "lab1", tmp_path / "ca", _later(19 * 365)
    ).for_controller(tmp_path / "b")
    shutil.copy(renewed.folder / "ca.pem", old.folder / "ca.pem")
    assert read_credentials(old.folder) == old


def test_issued_anew_is_another_key(tmp_path: Path) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    authority.for_agent("server1", tmp_path / "a")
    before = _contents(tmp_path / "a")
    authority.for_agent("server1", tmp_path / "a", anew=True)
    assert _contents(tmp_path / "a")["key.pem"] != before["key.pem"]


@pytest.mark.parametrize(
    "lost", [("cert.pem",), ("ca.pem",), FILES, ("key.pem", "cert.pem")]
)
def test_what_an_interrupted_call_left_is_completed(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    authority.for_agent("server1", tmp_path / "a")
    for file in lost:
        (tmp_path / "a" / file).unlink()
    (tmp_path / "a/.cert.pem.new").write_text("half of")
    authority.for_agent("server1", tmp_path / "a").check("agent.server1.lab1")


def test_after_a_new_authority_all_is_issued_anew(tmp_path: Path) -> None:
    Authority("lab1", tmp_path / "ca").for_agent("server1", tmp_path / "a")
    shutil.rmtree(tmp_path / "ca")
    authority = Authority("lab1", tmp_path / "ca")
    authority.for_agent("server1", tmp_path / "a")
    authority_file = (tmp_path / "ca/ca.pem").read_bytes()
    assert (tmp_path / "a/ca.pem").read_bytes() == authority_file
    read_credentials(tmp_path / "a")


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    authority.for_controller(tmp_path / "a")
    before = _contents(tmp_path / "a")
    with pytest.raises(
        BadInput, match=r"has the certificate for controller\.lab1"
    ):
        authority.for_agent("server1", tmp_path / "a")
    with pytest.raises(BadInput, match="another authority"):
        Authority("lab2", tmp_path / "ca")
    assert _contents(tmp_path / "a") == before


def test_what_cannot_be_is_refused_in_words(tmp_path: Path) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(
        PatchlightError, match="other users can put files into"
    ):
        authority.for_controller(tmp_path / "open")
    (tmp_path / "file").touch()
    with pytest.raises(PatchlightError, match="writing certificates to"):
        authority.for_controller(tmp_path / "file")
    (tmp_path / "ca/ca-key.pem").unlink()
    with pytest.raises(BadInput, match="has lost its key"):
        Authority("lab1", tmp_path / "ca")


def test_reading_a_folder_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    authority = Authority("lab1", tmp_path / "ca")
    a = authority.for_agent("server1", tmp_path / "a")
    b = authority.for_agent("server2", tmp_path / "b").folder
    with pytest.raises(
        BadInput, match=r"is for agent\.server1\.lab1: expected agent\.server2"
    ):
        a.check("agent.server2.lab1")
    with pytest.raises(BadInput, match="expired on"):
        a.check(a.name, _later(366)())
    with pytest.raises(BadInput, match="not valid before"):
        a.check(a.name, _later(-2)())
    (a.folder / "key.pem").chmod(0o640)
    with pytest.raises(
        BadInput, match="other users may read or change the key"
    ):
        read_credentials(a.folder)
    with pytest.raises(
        BadInput, match="other users may read or change the key"
    ):
        authority.for_agent("server1", a.folder)
    (a.folder / "key.pem").chmod(0o600)
    shutil.copy(b / "key.pem", a.folder)
    with pytest.raises(BadInput, match="do not match"):
        read_credentials(a.folder)
    Authority("lab1", tmp_path / "other").for_agent("server2", tmp_path / "c")
    shutil.copy(tmp_path / "c/ca.pem", b)
    with pytest.raises(BadInput, match="was not issued by the authority"):
        read_credentials(b)
    for file, words in (
        ("key.pem", "not a private key"),
        ("cert.pem", "not a certificate"),
    ):
        (b / file).write_text("nonsense")
        with pytest.raises(BadInput, match=words):
            read_credentials(b)
    os.unlink(b / "key.pem")
    with pytest.raises(BadInput, match=r"reading .*key\.pem: No such file"):
        read_credentials(b)
