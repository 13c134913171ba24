"""One program at a time commands a device: a lock on its address, held while it runs.

The lock is a locked file named after the address. The kernel lets go of it with the process
that holds it, however that ends. It keeps apart what runs on one machine; two machines that
command one device have to be kept apart by whoever runs them.
"""

import contextlib
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab import CircuitSwitch

_LOCK_DIR = Path("/run/lock")
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")

CONTROLLER, DIRECT = "the controller of lab", "patchlight ocs --direct"
"""The kinds of programs that hold devices: what such a holder calls itself begins with this."""


class DeviceLocked(PatchlightError):
    """Another program commands the device; ``holder`` is what it calls itself."""

    def __init__(self, message: str, *, holder: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


@contextlib.contextmanager
def device_lock(switches: Iterable[CircuitSwitch], holder: str) -> Iterator[None]:
    """Hold these devices for the block; ``DeviceLocked`` names who holds one already.

    ``holder`` is what others are told, like ``the controller of lab ofc2022``.
    """
    with contextlib.ExitStack() as stack:
        for switch in switches:
            descriptor = stack.enter_context(_locked(switch))
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{holder} (pid {os.getpid()})\n".encode(), 0)
        yield


def refuse_beside(switches: Iterable[CircuitSwitch], kind: str) -> None:
    """``DeviceLocked`` if one of these devices is held by this kind of program."""
    for switch in switches:
        try:
            with _locked(switch):
                continue
        except DeviceLocked as error:
            if error.holder.startswith(kind):
                raise


@contextlib.contextmanager
def _locked(switch: CircuitSwitch) -> Iterator[int | None]:
    """The switch's lock file, locked; ``None`` for a rehearsal, which commands no device."""
    if switch.driver == "dry-run":
        yield None
        return
    path = _path(switch.address)
    try:
        descriptor = _open(path)
    except OSError as error:
        raise PatchlightError(f"claiming {switch.name} with {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
            holder = text or "another program"
            raise DeviceLocked(
                f"{switch.name} at {switch.address} is held by {holder}",
                holder=holder,
                hint="stop that first; commands without --direct go through the controller",
            ) from error
        yield descriptor
    finally:
        # The file stays: removing it while somebody waits for it would let two hold it.
        os.close(descriptor)


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        # Without O_CREAT: kernels refuse that for files of others in a sticky directory.
        return os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        # Anybody may hold a device, whatever the umask of who came first.
        os.fchmod(descriptor, 0o666)
        return descriptor


def _path(address: str) -> Path:
    key = address
    if address.startswith(_LOOPBACK):
        # Each network namespace has a loopback of its own.
        key += f"/{os.stat('/proc/self/ns/net').st_ino}"
    name = f"patchlight-{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock"
    return (_LOCK_DIR if os.access(_LOCK_DIR, os.W_OK) else Path(tempfile.gettempdir())) / name
