"""The ``/sys`` of a network namespace, whichever is mounted at ``/sys``.

Interfaces and RDMA devices are shown by the namespace that a sysfs was mounted in. One is mounted
here for the calling thread's namespace, at no place that anybody else sees.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patchlight.testbed.errors import PatchlightError

# The same numbers on every architecture that got them after they were unified.
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOEXEC, _CREATE = 1, 6
_libc = ctypes.CDLL(None, use_errno=True)


class NoSysfs(PatchlightError):
    """A namespace's sysfs could not be read."""


@contextmanager
def sysfs() -> Iterator[Path]:
    """Where the calling thread's namespace has its ``/sys``, for the length of the block."""
    opened = _call(_FSOPEN, b"sysfs", _CLOEXEC)
    try:
        _call(_FSCONFIG, opened, _CREATE, None, None, 0)
        mounted = _call(_FSMOUNT, opened, _CLOEXEC, 0)
    finally:
        os.close(opened)
    try:
        yield Path(f"/proc/self/fd/{mounted}")
    finally:
        os.close(mounted)


def _call(number: int, *arguments: object) -> int:
    result = int(_libc.syscall(number, *arguments))
    if result < 0:
        code = ctypes.get_errno()
        hint = "run it as root" if code == errno.EPERM else "Linux 5.2 or newer is needed"
        raise NoSysfs(f"reading the /sys of a network namespace: {os.strerror(code)}", hint=hint)
    return result
