"""Makes, enters and deletes named network namespaces, and stops the processes inside.

A namespace is named as ``ip netns`` names it, by a file in ``/run/netns`` that it is mounted on,
so ``ip netns exec`` and ``nsenter --net=`` work with ours, too. Only the calling thread changes its
namespace, and it comes back. The children of a program stay in its namespace.
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.processes import may_run, process_ids

T = TypeVar("T")

DIRECTORY = Path("/run/netns")
_CLONE_NEWNS, _CLONE_NEWNET = 0x20000, 0x40000000
_MS_BIND, _MS_REC, _MS_SLAVE, _MS_SHARED = 0x1000, 0x4000, 0x80000, 0x100000
_MNT_DETACH = 2
_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(PatchlightError):
    """A network namespace could not be made, entered or deleted."""


def namespace_path(name: str) -> Path:
    """The file in ``/run/netns`` that names the namespace."""
    return DIRECTORY / name


def inode(path: Path | str) -> int | None:
    """The kernel's number of the namespace at ``path``; ``None`` if none is there."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def is_one(path: Path) -> bool:
    """Whether a namespace is at ``path``; one that was never finished is a plain file."""
    with suppress(OSError):
        return os.stat(path).st_dev == os.stat(_OWN).st_dev
    return False


def process_namespace() -> Path:
    """The namespace this process lives in, whatever namespace its threads are in."""
    return Path(f"/proc/{os.getpid()}/ns/net")


def own_inode() -> int:
    """The number of the namespace that this thread is in."""
    return os.stat(_OWN).st_ino


def prepare_directory() -> None:
    """Make ``/run/netns`` its own shared mount, as ``ip netns`` does: that would mount it over a
    plain directory, and hide a second copy of every mount in it, which keeps deleted namespaces
    alive."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    directory, shared = str(DIRECTORY), _MS_SHARED | _MS_REC
    if _mount(None, directory, shared):
        bound = _mount(directory, directory, _MS_BIND | _MS_REC) == 0
        if not bound or _mount(None, directory, shared):
            raise _failed(f"making {DIRECTORY} a shared mount")


@contextmanager
def kept_namespace() -> Iterator[None]:
    """Bring this thread back into its present namespace at the end of the block."""
    with opened(_OWN) as own:
        try:
            yield
        finally:
            enter(own)


@contextmanager
def entered(namespace: Path | str | int) -> Iterator[None]:
    """Run the block inside a namespace, given by path or open descriptor. What is made in it
    belongs there for good. Async code must not yield to its loop within the block."""
    with kept_namespace():
        enter(namespace)
        yield


def inside(namespace: Path | str | int, function: Callable[[], T]) -> T:
    """Call ``function`` inside a namespace, as ``entered`` does, and return its result."""
    with entered(namespace):
        return function()


@contextmanager
def opened(path: Path | str) -> Iterator[int]:
    """A descriptor of the namespace at ``path``, which keeps it alive."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise NamespaceError(
            f"cannot enter the network namespace {path}: {error.strerror}",
            hint="`ip netns list` shows those that are there",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def enter(namespace: Path | str | int) -> None:
    """Move this thread into a namespace, by path or open descriptor, for good. Threads that it
    starts afterwards begin there too."""
    if not isinstance(namespace, int):
        with opened(namespace) as descriptor:
            enter(descriptor)
    elif _libc.setns(namespace, _CLONE_NEWNET):
        raise _failed("entering a network namespace")


def unshare_namespace() -> None:
    """Move this thread into a fresh namespace without a name; use in ``kept_namespace``."""
    if _libc.unshare(_CLONE_NEWNET):
        raise _failed("making a network namespace")


def create_here(name: str) -> int:
    """Make a namespace, move this thread into it (within ``kept_namespace``), and return its inode;
    ``NamespaceError`` if the name is taken."""
    with _reserved(name) as path:
        unshare_namespace()
        _bind(_OWN, path)
    return own_inode()


def create(name: str) -> Path:
    """Make a namespace called ``name``; ``NamespaceError`` if the name is taken."""
    prepare_directory()
    with kept_namespace():
        create_here(name)
    return namespace_path(name)


def keep(name: str, pid: int) -> Path:
    """Name the namespace of the process ``pid``, so that it outlives the process."""
    prepare_directory()
    with _reserved(name) as path:
        _bind(f"/proc/{pid}/ns/net", path)
    return path


@contextmanager
def _reserved(name: str) -> Iterator[Path]:
    """A new empty file to mount the namespace on; gone again if that fails."""
    path = namespace_path(name)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    except FileExistsError:
        raise NamespaceError(
            f"making the network namespace {name}: {path} is there already",
            hint=f"If nothing uses it, remove it with: ip netns delete {name}",
        ) from None
    try:
        yield path
    except NamespaceError:
        path.unlink()
        raise


def _bind(namespace: str, path: Path) -> None:
    if _mount(namespace, str(path), _MS_BIND):
        raise _failed(f"naming a network namespace {path}")


def delete(name: str) -> None:
    """Take the name away. The kernel ends the namespace once no process or socket uses it."""
    path = namespace_path(name)
    # Twice mounted (see prepare_directory) or not mounted yet: both must end in no file.
    for _ in range(8):
        if _libc.umount2(str(path).encode(), _MNT_DETACH):
            break
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NamespaceError(f"deleting the network namespace {name}: {error.strerror}") from error


def names_with_prefix(prefix: str) -> list[str]:
    """The names in ``/run/netns`` that begin with ``prefix``, sorted."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    return []


def set_sysctl(key: str, value: str | int) -> bool:
    """Set ``net/…`` in this thread's namespace, which is what ``/proc/sys/net`` shows to it;
    ``False`` where the kernel has no such key."""
    try:
        with open(f"/proc/sys/net/{key}", "w") as file:
            file.write(str(value))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise NamespaceError(
            f"setting the sysctl net/{key} to {value}: {error.strerror}"
        ) from error
    return True


def see_file_at(file: Path, path: Path) -> None:
    """Have this process, and those it starts, see ``file`` at ``path``; no other does."""
    if _libc.unshare(_CLONE_NEWNS):
        raise _failed("making a mount namespace")
    # Without this the mount would show outside too.
    if _mount("none", "/", _MS_REC | _MS_SLAVE) or _mount(str(file), str(path), _MS_BIND):
        raise _failed(f"showing {file} as {path}")


def _mount(source: str | None, target: str, flags: int) -> int:
    encoded = source.encode() if source else b""
    return int(_libc.mount(encoded, target.encode(), b"none", ctypes.c_ulong(flags), None))


def _failed(doing: str) -> NamespaceError:
    code = ctypes.get_errno()
    hint = "This needs root: run the command with sudo." if code == 1 else None
    return NamespaceError(f"{doing}: {os.strerror(code)}", hint=hint)


class StillThere(PatchlightError):
    """Processes of a namespace that would not end or stop."""


def is_in(pid: int, inodes: Container[int]) -> bool:
    """Whether a process is in one of the namespaces; a kernel thread and a dead one is in none."""
    # The link reads "net:[4026532281]".
    with suppress(OSError, ValueError):
        return int(os.readlink(f"/proc/{pid}/ns/net")[5:-1]) in inodes
    return False


def processes_in(namespace: str) -> list[int]:
    """The processes in the namespace of that name; none if it is this process's own."""
    own = inode(namespace_path(namespace))
    if own is None or own == inode(process_namespace()):
        return []
    return [pid for pid in process_ids() if is_in(pid, {own})]


def stop_all(namespace: str, deadline_s: float = 5.0) -> None:
    """Stop every process, also those that are being forked, until none has anything left to do;
    ``StillThere`` if that takes too long."""
    end = time.monotonic() + deadline_s
    stopped = set[int]()
    while True:
        found = set(processes_in(namespace))
        fresh = found - stopped
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
        # A signal is only sent; on a busy machine a process hears of it when it is its turn.
        going_on = fresh or {pid for pid in found if may_run(pid)}
        if not going_on:
            return
        if time.monotonic() > end:
            raise StillThere(f"stopping the processes of {namespace}: {len(going_on)} go on")
        if not fresh:
            time.sleep(0.002)


def continue_all(namespace: str) -> None:
    """Let stopped processes go on."""
    _signal(processes_in(namespace), signal.SIGCONT)


def end_all(namespace: str, quiet_s: float = 10.0) -> None:
    """End every process by force; ``StillThere`` if for ``quiet_s`` seconds there are not fewer.
    Stopped first: one with a signal on its way forks no more. Thousands take their time to end."""
    end, stopped = time.monotonic() + quiet_s, set[int]()
    while (fresh := set(processes_in(namespace)) - stopped) and time.monotonic() < end:
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
    end, fewest = time.monotonic() + quiet_s, 0
    while running := processes_in(namespace):
        _signal(running, signal.SIGKILL)
        if not fewest or len(running) < fewest:
            end, fewest = time.monotonic() + quiet_s, len(running)
        if time.monotonic() > end:
            raise StillThere(f"ending the processes of {namespace}: {running} will not go")
        time.sleep(0.005)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
