"""Files that others may have put there, or write to as well."""

import os
import stat
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
        raise OSError(f"{path} is no plain file")
    return os.fdopen(descriptor, "r+b" if change else "rb")


def append_line(path: Path, line: str) -> None:
    """Add a line to a file; where there is none it is made, for this user alone.

    In one write, as others may do so at the same time. A last line that somebody wrote by hand,
    without its end, stays a line of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "r+b", 0) as file:
        size = os.fstat(file.fileno()).st_size
        begin = "\n" if size and os.pread(file.fileno(), 1, size - 1) != b"\n" else ""
        file.write(f"{begin}{line}\n".encode())
