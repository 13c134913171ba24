"""Finds drivers by name: built-in (``testbed/lab/ocs_drivers.py``), and of other packages.

A package adds one with an entry point in the group ``patchlight.ocs_drivers``: its name is the
driver's, and it loads a callable ``(CircuitSwitch, password) -> CircuitDriver``. In the group
``patchlight.wss_drivers`` it is ``(WavelengthSwitch, password) -> WavelengthDriver``.
"""

import contextlib
import difflib
import fcntl
import hashlib
import os
import pwd
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast, overload

from patchlight.controller.circuits.contract import (
    CircuitDriver,
    WavelengthDriver,
)
from patchlight.controller.circuits.dialect import DeviceLinks
from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.lab import ocs_drivers
from patchlight.testbed.lab.model import (
    CircuitSwitch,
    OpticalSwitch,
    PacketSwitch,
)
from patchlight.testbed.lab.wavelengths import WavelengthSwitch
from patchlight.testbed.linux.credentials import secret_of
from patchlight.testbed.linux.files import user_folder

DriverFactory = Callable[[CircuitSwitch, str], CircuitDriver]
_AnyFactory = Callable[[OpticalSwitch, str], CircuitDriver | WavelengthDriver]


@dataclass(frozen=True)
class PlugIns:
    """Factories by name: built-in (``module:name``), and those that packages add to ``group``.

    Loaded on first use: each driver's libraries are optional.
    """

    group: str
    ours: Mapping[str, str]

    def names(self) -> tuple[str, ...]:
        """All of them, built-in ones first."""
        return tuple(dict.fromkeys((*self.ours, *sorted(self._theirs()))))

    def load(self, name: str) -> object:
        """The factory; ``KeyError`` if the name is unknown.

        ``PatchlightError`` if it is another package's and cannot be loaded.
        """
        if name in self.ours:
            return resolve_name(self.ours[name])
        theirs = self._theirs()[name]
        try:
            return theirs.load()
        except Exception as error:
            raise PatchlightError(
                f"loading {name!r}: {reason(error)}",
                hint=f"it is an entry point of the group {self.group}: check that package's "
                "installation",
            ) from error

    def require(
        self,
        device: str,
        name: str,
        hint: str = "",
    ) -> object:
        """The factory; ``BadInput`` about the device if the name is unknown."""
        try:
            return self.load(name)
        except KeyError:
            known = self.names()
            near = difflib.get_close_matches(name, known, n=1)
            hint = hint or (
                f"did you mean {near[0]}?"
                if near
                else f"known: {', '.join(known)}"
            )
            raise BadInput(
                f"{device}: unknown driver {name!r}: {hint}"
            ) from None

    def _theirs(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def _plug_ins(
    group: str, rows: Mapping[str, ocs_drivers.OcsDriver]
) -> PlugIns:
    return PlugIns(group, {row.name: row.place for row in rows.values()})


_DRIVERS = _plug_ins(ocs_drivers.DRIVER_GROUP, ocs_drivers.OCS_DRIVERS)
_WSS_DRIVERS = _plug_ins(ocs_drivers.WSS_DRIVER_GROUP, ocs_drivers.WSS_DRIVERS)
driver_names = _DRIVERS.names


@overload
def open_driver(
    switch: CircuitSwitch,
    password: str = "",
    links: DeviceLinks | None = None,
) -> CircuitDriver: ...
@overload
def open_driver(
    switch: WavelengthSwitch,
    password: str = "",
    links: DeviceLinks | None = None,
) -> WavelengthDriver: ...
def open_driver(
    switch: OpticalSwitch,
    password: str = "",
    links: DeviceLinks | None = None,
) -> CircuitDriver | WavelengthDriver:
    """The driver of this switch, not yet connected: call ``await driver.open()``.

    ``links``: how it reaches its device, if it has a client of ``circuits.protocols``. ``BadInput``
    if no driver has that name, ``PatchlightError`` if it cannot be loaded.
    """
    name = switch.driver
    drivers = _DRIVERS
    other = _WSS_DRIVERS
    kind = "wavelength"
    if isinstance(switch, WavelengthSwitch):
        drivers = _WSS_DRIVERS
        other = _DRIVERS
        kind = "circuit"
    hint = ""
    if name not in drivers.ours and name in other.names():
        hint = (
            f"it is for {kind} switches; known: {', '.join(drivers.names())}"
        )
    driver = cast(_AnyFactory, drivers.require(switch.name, name, hint))(
        switch, password
    )
    client: Any = getattr(driver, "client", None)
    if links is not None and hasattr(client, "links"):
        client.links = links
    return driver


def password_of(switch: OpticalSwitch | PacketSwitch) -> str:
    """The switch's password from the environment variable in the lab file, or ``""``."""
    return secret_of(switch.password_env, f"the password of {switch.name}")


ROOT_FOLDER = Path("/run/patchlight-locks")
USER_FOLDERS = Path("/run/user")
"""The folders of logged-in users, by number."""
_BELOW_USER = Path("patchlight", "locks")
_KERNEL_LIST = Path("/proc/locks")
_LISTED = re.compile(
    r"^\d+: FLOCK +\w+ +WRITE +(\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ",
    re.MULTILINE,
)
_LOOPBACK = ("127.", "localhost", "[::1]", "::1")

CONTROLLER = "the controller of lab"
DIRECT = "patchlight ocs --direct"
"""Kinds of programs that lock devices: the start of a holder's name."""


class DeviceLocked(PatchlightError):
    """Another program controls the device; ``holder`` is its name."""

    def __init__(
        self,
        message: str,
        *,
        holder: str = "",
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


@contextlib.contextmanager
def device_lock(
    switches: Iterable[OpticalSwitch],
    holder: str,
    folder: Path | None = None,
) -> Iterator[None]:
    """Lock these devices for the block; ``DeviceLocked`` names the holder of one.

    ``holder`` is shown to others, like ``the controller of lab ofc2022``. The locks are in
    ``folder``; ``None``: this user's.
    """
    with contextlib.ExitStack() as stack:
        for switch in switches:
            if (
                descriptor := stack.enter_context(_locked(switch, folder))
            ) is not None:
                text = f"{holder} (pid {os.getpid()})\n".encode()
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, text, 0)
        yield


def refuse_beside(switches: Iterable[OpticalSwitch], kind: str) -> None:
    """``DeviceLocked`` if one of these devices is locked by this kind of program."""
    for switch in switches:
        try:
            with _locked(switch):
                continue
        except DeviceLocked as error:
            if error.holder.startswith(kind):
                raise


@contextlib.contextmanager
def _locked(
    switch: OpticalSwitch, folder: Path | None = None
) -> Iterator[int | None]:
    """The switch's lock file, locked; ``None`` for a rehearsal, which has no device."""
    if switch.driver == "dry-run":
        yield None
        return
    path = (folder or _own_folder()) / _name(switch.address)
    descriptor = _open(switch.name, path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _held(switch, _words(path) or "another program") from error
        # A concurrent program checks this after taking its own lock.
        if other := _holder_elsewhere(path.name):
            raise _held(switch, other)
        yield descriptor
    finally:
        # The file stays: removing it while another program waits for it would let two hold it.
        os.close(descriptor)


def _held(switch: OpticalSwitch, holder: str) -> DeviceLocked:
    return DeviceLocked(
        f"{switch.name} at {switch.address} is in use by {holder}",
        holder=holder,
        hint="stop it first; commands without --direct go through the controller",
    )


def _own_folder() -> Path:
    """The folder of this user's locks; ``PatchlightError`` if others could create files there."""
    user = os.geteuid()
    session = USER_FOLDERS / str(user)
    if user == 0:
        folder = ROOT_FOLDER
        mode = 0o755
    else:
        above = (
            session
            if session.is_dir()
            else user_folder("XDG_STATE_HOME", ".local/state")
        )
        folder = above / _BELOW_USER
        mode = 0o700
    try:
        folder.parent.mkdir(
            parents=True,
            exist_ok=True,
        )
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(mode)
        found = folder.lstat()
    except OSError as error:
        raise PatchlightError(
            f"making the folder of locks {folder}: {error.strerror}"
        ) from error
    if (
        not stat.S_ISDIR(found.st_mode)
        or found.st_uid != user
        or found.st_mode & 0o022
    ):
        raise PatchlightError(
            f"{folder} is not a private folder of this user",
            hint=f"remove it (rm -r {folder}) while Patchlight is not running; it is created again",
        )
    return folder


def _open(name: str, path: Path) -> int:
    flags = (
        os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    )
    try:
        # Nobody else may open it, and so lock it.
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise PatchlightError(
            f"locking {name} with {path}: {error.strerror}",
            hint=f"remove {path}",
        ) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise PatchlightError(
            f"locking {name} with {path}: that is not a plain file of this user",
            hint=f"remove {path}",
        )
    return descriptor


def _holder_elsewhere(name: str) -> str:
    """The holder of the device's lock in another user's folder; empty if there is none."""
    if os.geteuid() == 0:
        folders = [
            found / _BELOW_USER for found in USER_FOLDERS.glob("[1-9]*")
        ]
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
            return f"{_words(path) or _command(pid)}, run by {owner}"
    return ""


def _locked_by(found: os.stat_result) -> int:
    """The process that has locked this file; 0 if none."""
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
    """The holder's name for itself; empty if that cannot be read."""
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
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
    """The same for a process whose lock file cannot be read: from its command."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        words = []
    kind = (
        DIRECT
        if "--direct" in words
        else CONTROLLER
        if "controller" in words
        else "a program"
    )
    return f"{kind} (pid {pid})"


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _name(address: str) -> str:
    key = address
    if address.startswith(_LOOPBACK):
        # Each network namespace has its own loopback.
        key += f"/{os.stat('/proc/self/ns/net').st_ino}"
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock"
