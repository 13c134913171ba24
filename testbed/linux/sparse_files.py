"""Files whose beginning is given back to the disk while they keep growing at their end.

What is left keeps its place: byte offsets stay what they were, and whoever writes at the end
notices nothing.
"""

import ctypes
import errno
import os

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
