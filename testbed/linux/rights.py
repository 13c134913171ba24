"""Giving up rights for good: those of a user, and every capability."""

import ctypes
import os

from patchlight.testbed.errors import PatchlightError

_SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 4, 24, 38
_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class RightsKept(PatchlightError):
    """The kernel would not take a right away."""


def give_up(uid: int, gid: int) -> None:
    """Be this user, without other groups and capabilities, and without a way to get any.

    As ``setpriv --reuid --regid --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all``
    before a program: root is left without capabilities, too. ``RightsKept`` if any of it fails.
    """
    try:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        for capability in range(last + 1):
            _prctl(_DROP_BOUND, capability)
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        none = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, 2 x 32 of each
        if _libc.capset(header, none):
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(_NO_NEW_PRIVILEGES, 1)
        # As after the start of a program: its own files in /proc are this user's.
        _prctl(_SET_DUMPABLE, 1)
    except OSError as error:
        raise RightsKept(f"giving up rights: {os.strerror(error.errno or 0)}") from error


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl")
