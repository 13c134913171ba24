"""Enter a network namespace, for the whole process."""

from __future__ import annotations

import ctypes
import os

from patchlight.testbed.errors import PatchlightError

_CLONE_NEWNET = 0x40000000


def enter(path: str) -> None:
    """Move this process's network into the namespace at ``path`` (``/run/netns/NAME``).

    Call it before any thread starts: ``setns`` moves the calling thread only, and later
    threads inherit. ``PatchlightError`` if there is no such namespace or no permission.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise PatchlightError(
            f"cannot enter the network namespace {path}: {error.strerror}",
            hint="`ip netns list` shows those that are there",
        ) from error
    try:
        if libc.setns(descriptor, _CLONE_NEWNET) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise PatchlightError(
                f"cannot enter the network namespace {path}: {reason}",
                hint="entering a namespace needs root",
            )
    finally:
        os.close(descriptor)
