"""Folders of one user; private ones, into which nobody else can put files."""

import os
import stat
from pathlib import Path

from patchlight.testbed.errors import PatchlightError


class NoHome(PatchlightError):
    """A user without a home folder, as in a container under any user id."""


def user_folder(variable: str, usual: str) -> Path:
    """The folder that an XDG variable names, else ``usual`` in the user's home, or ``NoHome``."""
    # The XDG specification has relative paths ignored.
    if (named := os.environ.get(variable, "")).startswith("/"):
        return Path(named)
    try:
        return Path.home() / usual
    except RuntimeError as error:
        raise NoHome(
            f"user {os.geteuid()} has no home folder for {usual}",
            hint=f"set HOME or {variable} to a folder that can be written to",
        ) from error


def private_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder where there is none, and see that no other user but root can write in it.

    ``PatchlightError`` where one could, or could have; ``OSError`` if it cannot be made.
    """
    folder.mkdir(mode=mode, parents=True, exist_ok=True)
    found = folder.stat()
    # A link, too: whoever made it says where it leads.
    owners = {found.st_uid, folder.lstat().st_uid}
    if not owners <= {os.geteuid(), 0} or stat.S_IMODE(found.st_mode) & 0o022:
        raise PatchlightError(
            f"other users can put files into the folder {folder}",
            hint="name another one; or, if all that is in it is yours, make it yours alone: "
            f"chown {os.geteuid()} {folder} && chmod go-w {folder}",
        )
