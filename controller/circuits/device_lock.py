"""One program at a time commands a device: a lock on its address, held while it runs.

The lock is a locked file named after the address, in a folder in which nobody else can make
files: root's, or the user's own. The kernel lets go of it with the process that holds it, however
that ends. Root and users see one another's locks in the kernel's list; two plain users do not see
each other's, nor do two machines: they have to be kept apart by whoever runs them.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import OpticalSwitch
from patchlight.testbed.linux.files import user_folder

ROOT_FOLDER = Path("/run/patchlight-locks")
USER_FOLDERS = Path("/run/user")
"""Where each user that is logged in has a folder of its own, by number."""
_BELOW_USER = Path("patchlight", "locks")
_KERNEL_LIST = Path("/proc/locks")
_LISTED = re.compile(r"^\d+: FLOCK +\w+ +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")

CONTROLLER, DIRECT = "the controller of lab", "patchlight ocs --direct"
"""The kinds of programs that hold devices: what such a holder calls itself begins with this."""


class DeviceLocked(PatchlightError):
    """Another program commands the device; ``holder`` is what it calls itself."""

    def __init__(self, message: str, *, holder: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


@contextlib.contextmanager
def device_lock(switches: Iterable[OpticalSwitch], holder: str) -> Iterator[None]:
    """Hold these devices for the block; ``DeviceLocked`` names who holds one already.

    ``holder`` is what others are told, like ``the controller of lab ofc2022``.
    """
    with contextlib.ExitStack() as stack:
        for switch in switches:
            if (descriptor := stack.enter_context(_locked(switch))) is not None:
                text = f"{holder} (pid {os.getpid()})\n".encode()
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text, 0)
        yield


def refuse_beside(switches: Iterable[OpticalSwitch], kind: str) -> None:
    """``DeviceLocked`` if one of these devices is held by this kind of program."""
    for switch in switches:
        try:
            with _locked(switch):
                continue
        except DeviceLocked as error:
            if error.holder.startswith(kind):
                raise


@contextlib.contextmanager
def _locked(switch: OpticalSwitch) -> Iterator[int | None]:
    """The switch's lock file, locked; ``None`` for a rehearsal, which commands no device."""
    if switch.driver == "dry-run":
        yield None
        return
    path = _own_folder() / _name(switch.address)
    descriptor = _open(switch.name, path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(switch, _words(path) or "another program") from error
        # Whoever else takes its own lock at this moment looks here only after that.
        if other := _holder_elsewhere(path.name):
            raise _held(switch, other)
        yield descriptor
    finally:
        # The file stays: removing it while somebody waits for it would let two hold it.
        os.close(descriptor)


def _held(switch: OpticalSwitch, holder: str) -> DeviceLocked:
    return DeviceLocked(
        f"{switch.name} at {switch.address} is held by {holder}",
        holder=holder,
        hint="stop that first; commands without --direct go through the controller",
    )


def _own_folder() -> Path:
    """Where this user's locks are; ``PatchlightError`` if others could make files there."""
    user = os.geteuid()
    session = USER_FOLDERS / str(user)
    if user == 0:
        folder, mode = ROOT_FOLDER, 0o755
    else:
        above = session if session.is_dir() else user_folder("XDG_STATE_HOME", ".local/state")
        folder, mode = above / _BELOW_USER, 0o700
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(mode)
        found = folder.lstat()
    except OSError as error:
        raise PatchlightError(f"making the folder of locks {folder}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o022:
        raise PatchlightError(
            f"{folder} is not a folder in which this user alone can make files",
            hint=f"remove it (rm -r {folder}) while nothing of Patchlight runs; it is made anew",
        )
    return folder


def _open(name: str, path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Nobody else may open it, and so lock it.
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise PatchlightError(
            f"claiming {name} with {path}: {error.strerror}", hint=f"remove {path}"
        ) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PatchlightError(
            f"claiming {name} with {path}: that is no plain file of this user's",
            hint=f"remove {path}",
        )
    return descriptor


def _holder_elsewhere(name: str) -> str:
    """Who holds the device with a lock in another user's folder; empty if nobody does."""
    if os.geteuid() == 0:
        folders = [found / _BELOW_USER for found in USER_FOLDERS.glob("[1-9]*")]
    else:
        folders = [ROOT_FOLDER]
    for folder in folders:
        path = folder / name
        try:
            found = path.lstat()
        except OSError:
            continue
        if pid := _locked_by(found):
            owner = _user_name(found.st_uid)
            return f"{_words(path) or _command(pid)}, which {owner} runs"
    return ""


def _locked_by(found: os.stat_result) -> int:
    """The process that has this file locked; 0 if none has."""
    try:
        listed = _KERNEL_LIST.read_text()
    except OSError:
        return 0
    wanted = os.major(found.st_dev), os.minor(found.st_dev), found.st_ino
    for pid, major, minor, inode in _LISTED.findall(listed):
        if (int(major, 16), int(minor, 16), int(inode)) == wanted:
            return int(pid)
    return 0


def _words(path: Path) -> str:
    """What the holder calls itself; empty if that cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        text = os.read(descriptor, 200).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)
    return "".join(c for c in text if c.isprintable()).strip()


def _command(pid: int) -> str:
    """The same, of a process whose lock cannot be read: by its command."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        words = []
    kind = DIRECT if "--direct" in words else CONTROLLER if "controller" in words else "a program"
    return f"{kind} (pid {pid})"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _name(address: str) -> str:
    key = address
    if address.startswith(_LOOPBACK):
        # Each network namespace has a loopback of its own.
        key += f"/{os.stat('/proc/self/ns/net').st_ino}"
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock"
