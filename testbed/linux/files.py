"""Handles files that other users could tamper with: private folders, plain and sparse files."""

import ctypes
import errno
import itertools
import os
import stat
import subprocess
from collections import deque
from pathlib import Path
from typing import BinaryIO

from patchlight.testbed.errors import PatchlightError


class NoHome(PatchlightError):
    """A user without a home folder, as in a container with any user id."""


def user_folder(variable: str, usual: str) -> Path:
    """The folder of an XDG variable, else ``usual`` in the user's home, or ``NoHome``."""
    # The XDG specification says to ignore relative paths.
    if (named := os.environ.get(variable, "")).startswith("/"):
        return Path(named)
    try:
        return Path.home() / usual
    except RuntimeError as error:
        raise NoHome(
            f"user {os.geteuid()} has no home folder for {usual}",
            hint=f"set HOME or {variable} to a writable folder",
        ) from error


def private_folder(folder: Path, mode: int = 0o700) -> None:
    """Make a folder if missing; ``PatchlightError`` if a user other than root could write there."""
    folder.mkdir(
        mode=mode,
        parents=True,
        exist_ok=True,
    )
    found = folder.stat()
    # Also a link: its owner decides where it leads.
    owners = {found.st_uid, folder.lstat().st_uid}
    if not owners <= {os.geteuid(), 0} or stat.S_IMODE(found.st_mode) & 0o022:
        raise PatchlightError(
            f"other users can put files into the folder {folder}",
            hint="choose another folder, or, if its files are yours, make it private: chown "
            f"{os.geteuid()} {folder} && chmod go-w {folder}",
        )


def open_plain(path: Path, *, change: bool = False) -> BinaryIO:
    """Open a plain file to read or change it, or raise ``OSError``: a link could lead anywhere, and
    a pipe could block the reader."""
    flags = os.O_RDWR if change else os.O_RDONLY
    descriptor = os.open(
        path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "r+b" if change else "rb")


def append_line(path: Path, line: str) -> None:
    """Append a line in one write to a private file, completing an unfinished last line first."""
    path.parent.mkdir(
        parents=True,
        exist_ok=True,
        mode=0o700,
    )
    with open(
        os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b", 0
    ) as file:
        size = os.fstat(file.fileno()).st_size
        begin = (
            "\n"
            if size and os.pread(file.fileno(), 1, size - 1) != b"\n"
            else ""
        )
        file.write(f"{begin}{line}\n".encode())


_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def first_kept(descriptor: int) -> int:
    """The offset of the first byte that was not freed; the size if all were."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # the file is a hole, or empty
            return os.fstat(descriptor).st_size
        return 0


def give_back(descriptor: int, until: int) -> None:
    """Free the disk space before ``until``, in whole blocks. ``OSError`` if that fails."""
    offset = ctypes.c_int64(0)
    length = ctypes.c_int64(until)
    if _libc.fallocate(
        descriptor,
        _KEEP_SIZE | _PUNCH_HOLE,
        offset,
        length,
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def used_bytes(
    folder: Path,
    most_folders: int = 100,
    most_files: int = 10_000,
) -> int:
    """The disk usage of a folder's files; only the first count if there are very many."""
    used = 0
    folders = deque([str(folder)])
    for _ in range(most_folders):
        if not folders:
            break
        try:
            with os.scandir(folders.popleft()) as entries:
                for entry in itertools.islice(entries, most_files):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        used += (
                            512 * entry.stat(follow_symlinks=False).st_blocks
                        )
        except OSError:  # files may disappear meanwhile
            continue
    return used


def remove_half_written(folder: Path) -> None:
    """Remove the ``.new`` files of a folder: their writer died before they replaced others. Nobody
    may be writing there now. ``PatchlightError`` if the disk fails."""
    for path in folder.glob("*.new"):
        try:
            path.unlink()
        except OSError as error:
            raise PatchlightError(
                f"removing {path}, half written before a crash: {error.strerror}"
            ) from error


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that is in it, however deep. Blocks."""
    subprocess.run(
        [
            "/bin/rm",
            "-rf",
            "--",
            folder,
        ],
        check=False,
        stderr=subprocess.DEVNULL,
    )
