"""A user's folder on its way to a worker: packed, and unpacked as plain files."""

import hashlib
import io
import os
import zipfile
from pathlib import Path

import pytest

from patchlight.agents.errors import BadRequest
from patchlight.agents.workers.workdir import unpack
from patchlight.client.workdir import packed
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import MOST_WORKDIR_BYTES


def users_folder(folder: Path) -> Path:
    for name in (
        "train.py",
        "model/net.py",
        "data/samples",
        "data/kept/samples",
        "env/pyvenv.cfg",
        "env/lib.py",
        ".git/config",
        "model/__pycache__/net.pyc",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "run.sh").write_text("#!/bin/sh")
    (folder / "run.sh").chmod(0o700)
    (folder / "again.py").symlink_to("train.py")
    return folder


def files_in(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_what_git_ignores_and_what_leads_out_stays_behind(
    tmp_path: Path,
) -> None:
    folder = users_folder(tmp_path / "home")
    (folder / ".gitignore").write_text("data/*\n!data/kept/\n")
    (folder / "passwords").symlink_to("/etc/passwd")
    (folder / "root").symlink_to("/")
    found = packed(folder)
    assert sorted(found.left_out) == ["passwords", "root"]
    assert packed(folder) == found
    there = tmp_path / "there"
    there.mkdir()
    unpack(found.archive, found.digest, there)
    assert files_in(there) == {
        ".gitignore",
        "again.py",
        "data/kept/samples",
        "model/net.py",
        "run.sh",
        "train.py",
    }
    assert not (there / "again.py").is_symlink()
    assert os.access(there / "run.sh", os.X_OK)
    assert (there / "train.py").stat().st_mode & 0o777 == 0o644


def test_a_large_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with (tmp_path / "samples").open("wb") as file:
        file.truncate(MOST_WORKDIR_BYTES + 1)
    with pytest.raises(BadInput, match="more than 64 MiB") as refused:
        packed(tmp_path)
    assert ".gitignore" in str(refused.value.hint)
    (tmp_path / ".gitignore").write_text("samples\n")
    assert not packed(tmp_path).left_out


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", ".."])
def test_no_file_is_written_outside(name: str, tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr(zipfile.ZipInfo(name), "out")
    folder = tmp_path / "folder"
    folder.mkdir()
    data = archive.getvalue()
    with pytest.raises(BadRequest):
        unpack(data, hashlib.sha256(data).hexdigest(), folder)
    assert files_in(tmp_path) == set()


def test_links_and_other_bytes_are_not_unpacked(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        link = zipfile.ZipInfo("link")
        link.external_attr = 0o120777 << 16
        files.writestr(link, "/etc")
        files.writestr("link/passwd", "mine")
    data = archive.getvalue()
    with pytest.raises(BadRequest):
        unpack(data, hashlib.sha256(data).hexdigest(), tmp_path)
    assert (tmp_path / "link").read_text() == "/etc"
    with pytest.raises(BadRequest, match="as it was sent"):
        unpack(data + b"x", hashlib.sha256(data).hexdigest(), tmp_path)
