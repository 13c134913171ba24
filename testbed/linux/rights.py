"""Giving up rights for good: those of a user, every capability, and system calls."""

import ctypes
import errno
import functools
import os
import socket
import tempfile

from patchlight.testbed.errors import PatchlightError

_SET_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 4, 24, 38
_VERSION_3 = 0x20080522
# As Docker's own profile has it: all that needs a capability that no worker has anyway, or that
# has let programs out of their namespaces before. io_uring would pass by what is refused here.
_REFUSED = (
    *("mount", "umount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("move_mount", "open_tree", "mount_setattr", "unshare", "setns", "bpf", "perf_event_open"),
    *("keyctl", "add_key", "request_key", "userfaultfd", "kexec_load", "kexec_file_load"),
    *("init_module", "finit_module", "delete_module", "create_module", "query_module"),
    *("open_by_handle_at", "io_uring_setup", "io_uring_enter", "io_uring_register", "iopl"),
    *("ioperm", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "settimeofday"),
    *("clock_settime", "clock_adjtime", "adjtimex", "stime", "vhangup", "nfsservctl", "uselib"),
    *("lookup_dcookie", "kcmp", "syslog", "sysfs", "ustat", "fanotify_init", "modify_ldt"),
)
_NAMESPACE_FLAGS = 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x20000
_PERSONALITY_NOW = 0xFFFFFFFF
_FAMILIES = 64
_FAMILIES_OF_WORKERS = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
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


@functools.cache
def refused_calls() -> bytes:
    """A seccomp filter, as the kernel reads it, that refuses what no worker needs.

    ``RuntimeError`` or ``OSError`` where libseccomp is not there or too old.
    """
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    no = seccomp.ERRNO(errno.EPERM)
    for name in _REFUSED:
        rules.add_rule(no, name)
    for flag in _NAMESPACE_FLAGS:
        rules.add_rule(no, "clone", seccomp.Arg(0, seccomp.MASKED_EQ, flag, flag))
    # Its flags are in memory, where no filter looks: the C library takes clone instead.
    rules.add_rule(seccomp.ERRNO(errno.ENOSYS), "clone3")
    # Most others know no network namespaces, or have the kernel load code: vsock, Bluetooth, ALG.
    for family in {*range(_FAMILIES)} - _FAMILIES_OF_WORKERS:
        rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.EQ, family))
    rules.add_rule(no, "socket", seccomp.Arg(0, seccomp.GE, _FAMILIES))
    rules.add_rule(no, "personality", seccomp.Arg(0, seccomp.NE, _PERSONALITY_NOW))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _prctl(option: int, value: int) -> None:
    zero = ctypes.c_ulong(0)
    if _libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero):
        raise OSError(ctypes.get_errno(), "prctl")
