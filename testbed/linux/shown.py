"""What ``ps`` and ``/proc`` show of this process: its arguments and its environment.

Both stand in the process's own memory, in as much room as they took when its program began.
"""

import ctypes
import os
from collections.abc import Iterable

# Which fields of /proc/self/stat after the name say where arguments and environment are.
ARGUMENTS, ENVIRONMENT = slice(45, 47), slice(47, 49)


def show(which: slice, texts: Iterable[str]) -> None:
    """Have ``/proc`` show these, as many as there is room for."""
    start, size = _place(which)
    text = b"".join(os.fsencode(each) + b"\0" for each in texts)
    ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)


def shown(which: slice) -> bytes:
    """What it shows now, byte for byte."""
    return ctypes.string_at(*_place(which))


def show_again(which: slice, before: bytes) -> None:
    """Have it show what it did ``before``."""
    start, size = _place(which)
    ctypes.memmove(start, before, size)


def _place(which: slice) -> tuple[int, int]:
    """Where this process's arguments or environment are in its memory, and in how many bytes."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = map(int, fields[which])
    return start, end - start
