"""Files and folders beside other users': private folders, plain files only, sparse files."""

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from patchlight.testbed.errors import PatchlightError


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


def open_plain(path: Path, *, change: bool = False) -> BinaryIO:
    """Open a plain file to be read, or changed in place; ``OSError`` for anything else.

    A link could lead anywhere on the machine, and a pipe could make the reader wait for ever.
    """
    flags = os.O_RDWR if change else os.O_RDONLY
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is no plain file")
    return os.fdopen(descriptor, "r+b" if change else "rb")


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def first_kept(descriptor: int) -> int:
    """The offset of the first byte that has not been given back; the size if there is none."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole, or empty
            return os.fstat(descriptor).st_size
        return 0


def give_back(descriptor: int, until: int) -> None:
    """Free the disk of the bytes before ``until``; whole blocks only. ``OSError`` if it cannot."""
    offset, length = ctypes.c_int64(0), ctypes.c_int64(until)
    if _libc.fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, length):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
