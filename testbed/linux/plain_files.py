"""Files that somebody else may have put there: opened, if they are plain; removed, however many."""

import errno
import os
import stat
import subprocess
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path, *, change: bool = False) -> BinaryIO:
    """Open a plain file to be read, or changed in place; ``OSError`` for anything else.

    A link could lead anywhere on the machine, and a pipe could make the reader wait for ever.
    """
    flags = os.O_RDWR if change else os.O_RDONLY
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "r+b" if change else "rb")


def remove_folder(folder: Path) -> None:
    """Remove a folder with all that somebody left in it, however deep. Blocks."""
    subprocess.run(["/bin/rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)
