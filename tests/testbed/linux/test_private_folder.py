"""Folders into which nobody else can put files."""

import os
import stat
from pathlib import Path

import pytest

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.files import private_folder


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    private_folder(tmp_path / "above" / "mine")
    private_folder(tmp_path / "above" / "mine")
    assert stat.S_IMODE((tmp_path / "above" / "mine").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702, 0o1777])
def test_one_that_others_write_in_is_refused(
    tmp_path: Path, mode: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(mode)
    with pytest.raises(
        PatchlightError, match="other users can put files into the folder"
    ) as error:
        private_folder(shared)
    assert f"chmod go-w {shared}" in (error.value.hint or "")


@pytest.mark.root
def test_one_of_somebody_else_is_refused_and_a_link_to_ours_too(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "theirs"
    ours = tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    os.chown(theirs, 65534, 65534)
    link = tmp_path / "link"
    own_link = tmp_path / "own-link"
    link.symlink_to(ours)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    own_link.symlink_to(ours)
    for folder in (theirs, link):
        with pytest.raises(PatchlightError, match="other users can put files"):
            private_folder(folder)
    private_folder(own_link)
