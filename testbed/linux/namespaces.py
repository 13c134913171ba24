"""Creates, enters and deletes named network namespaces, and stops the processes inside.

Like ``ip netns``, a namespace is mounted on a file in ``/run/netns``, so ``ip netns exec`` and
``nsenter --net=`` work. Only the calling thread changes its namespace, and it returns. Child
processes stay in theirs.
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
_CLONE_NEWNS = 0x20000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_MS_SHARED = 0x100000
_MNT_DETACH = 2
_OWN = "/proc/thread-self/ns/net"
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceError(PatchlightError):
    """A network namespace could not be created, entered or deleted."""


def namespace_path(name: str) -> Path:
    """The file in ``/run/netns`` of the namespace."""
    return DIRECTORY / name


def inode(path: Path | str) -> int | None:
    """The inode of the namespace at ``path``; ``None`` if there is none."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def is_one(path: Path) -> bool:
    """Whether a namespace is at ``path``; an unfinished one is a plain file."""
    with suppress(OSError):
        return os.stat(path).st_dev == os.stat(_OWN).st_dev
    return False


def process_namespace() -> Path:
    """The namespace of this process, regardless of its threads'."""
    return Path(f"/proc/{os.getpid()}/ns/net")


def own_inode() -> int:
    """The inode of this thread's namespace."""
    return os.stat(_OWN).st_ino


def prepare_directory() -> None:
    """Make ``/run/netns`` a shared mount. ``ip netns`` would do so over a plain directory, and hide
    a second copy of every mount in it, which keeps deleted namespaces alive."""
    DIRECTORY.mkdir(
        parents=True,
        exist_ok=True,
    )
    directory = str(DIRECTORY)
    shared = _MS_SHARED | _MS_REC
    if _mount(None, directory, shared):
        bound = _mount(directory, directory, _MS_BIND | _MS_REC) == 0
        if not bound or _mount(None, directory, shared):
            raise _failed(f"making {DIRECTORY} a shared mount")


@contextmanager
def kept_namespace() -> Iterator[None]:
    """Return this thread to its present namespace at the end of the block."""
    with opened(_OWN) as own:
        try:
            yield
        finally:
            enter(own)


@contextmanager
def entered(namespace: Path | str | int) -> Iterator[None]:
    """Run the block inside a namespace, given by path or open descriptor. What is created in it
    stays there. Async code must not yield to its loop within the block."""
    with kept_namespace():
        enter(namespace)
        yield


def inside(namespace: Path | str | int, function: Callable[[], T]) -> T:
    """Call ``function`` inside a namespace and return its result."""
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
            hint="`ip netns list` shows existing ones",
        ) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def enter(namespace: Path | str | int) -> None:
    """Move this thread, and those that it starts, into a namespace permanently."""
    if not isinstance(namespace, int):
        with opened(namespace) as descriptor:
            enter(descriptor)
    elif _libc.setns(namespace, _CLONE_NEWNET):
        raise _failed("entering a network namespace")


def unshare_namespace() -> None:
    """Move this thread into a new unnamed namespace; use in ``kept_namespace``."""
    if _libc.unshare(_CLONE_NEWNET):
        raise _failed("making a network namespace")


def create_here(name: str) -> int:
    """Create a namespace, move this thread into it (within ``kept_namespace``), and return its
    inode; ``NamespaceError`` if the name is taken."""
    with _reserved(name) as path:
        unshare_namespace()
        _bind(_OWN, path)
    return own_inode()


def create(name: str) -> Path:
    """Create a namespace called ``name``; ``NamespaceError`` if the name is taken."""
    prepare_directory()
    with kept_namespace():
        create_here(name)
    return namespace_path(name)


def keep(name: str, pid: int) -> Path:
    """Name the namespace of process ``pid``, so that it outlives the process."""
    prepare_directory()
    with _reserved(name) as path:
        _bind(f"/proc/{pid}/ns/net", path)
    return path


@contextmanager
def _reserved(name: str) -> Iterator[Path]:
    """A new empty file to mount the namespace on; removed if that fails."""
    path = namespace_path(name)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0o444))
    except FileExistsError:
        raise NamespaceError(
            f"making the network namespace {name}: {path} already exists",
            hint=f"If it is unused, remove it with: ip netns delete {name}",
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
    """Remove the name. The kernel deletes the namespace when no process or socket uses it."""
    path = namespace_path(name)
    # It may be mounted twice (see prepare_directory) or not yet; the file must be removed anyway.
    for _ in range(8):
        if _libc.umount2(str(path).encode(), _MNT_DETACH):
            break
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise NamespaceError(
            f"deleting the network namespace {name}: {error.strerror}"
        ) from error


def names_with_prefix(prefix: str) -> list[str]:
    """The names in ``/run/netns`` that start with ``prefix``, sorted."""
    with suppress(FileNotFoundError):
        return sorted(
            name for name in os.listdir(DIRECTORY) if name.startswith(prefix)
        )
    return []


def set_sysctl(key: str, value: str | int) -> bool:
    """Set ``net/…`` in this thread's namespace, which is what ``/proc/sys/net`` shows; ``False`` if
    the kernel lacks the key."""
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
    """Show ``file`` at ``path`` to this process and its children only."""
    if _libc.unshare(_CLONE_NEWNS):
        raise _failed("making a mount namespace")
    # Otherwise the mount would be visible outside.
    if _mount("none", "/", _MS_REC | _MS_SLAVE) or _mount(
        str(file), str(path), _MS_BIND
    ):
        raise _failed(f"showing {file} as {path}")


def _mount(
    source: str | None,
    target: str,
    flags: int,
) -> int:
    encoded = source.encode() if source else b""
    return int(
        _libc.mount(
            encoded,
            target.encode(),
            b"none",
            ctypes.c_ulong(flags),
            None,
        )
    )


def _failed(doing: str) -> NamespaceError:
    code = ctypes.get_errno()
    hint = "This needs root: run the command with sudo." if code == 1 else None
    return NamespaceError(f"{doing}: {os.strerror(code)}", hint=hint)


class StillThere(PatchlightError):
    """Processes of a namespace that did not end or stop."""


def is_in(pid: int, inodes: Container[int]) -> bool:
    """Whether a process is in one of the namespaces; kernel threads and zombies are in none."""
    # The link reads "net:[4026532281]".
    with suppress(OSError, ValueError):
        return int(os.readlink(f"/proc/{pid}/ns/net")[5:-1]) in inodes
    return False


def processes_in(namespace: str) -> list[int]:
    """The processes in the namespace of that name; empty if it is this process's own."""
    own = inode(namespace_path(namespace))
    if own is None or own == inode(process_namespace()):
        return []
    return [pid for pid in process_ids() if is_in(pid, {own})]


def stop_all(namespace: str, deadline_s: float = 5.0) -> None:
    """Freeze every process, also those being forked; ``StillThere`` on timeout."""
    end = time.monotonic() + deadline_s
    stopped = set[int]()
    while True:
        found = set(processes_in(namespace))
        fresh = found - stopped
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
        # On a busy machine a process receives the signal later.
        going_on = fresh or {pid for pid in found if may_run(pid)}
        if not going_on:
            return
        if time.monotonic() > end:
            raise StillThere(
                f"stopping the processes of {namespace}: {len(going_on)} continue"
            )
        if not fresh:
            time.sleep(0.002)


def continue_all(namespace: str) -> None:
    """Let stopped processes continue."""
    _signal(processes_in(namespace), signal.SIGCONT)


def end_all(namespace: str, quiet_s: float = 10.0) -> None:
    """Kill every process; ``StillThere`` if their number has not fallen for ``quiet_s`` seconds.
    They are stopped first, so that they cannot fork. Thousands take a while."""
    end = time.monotonic() + quiet_s
    stopped = set[int]()
    while (
        fresh := set(processes_in(namespace)) - stopped
    ) and time.monotonic() < end:
        _signal(fresh, signal.SIGSTOP)
        stopped |= fresh
    end = time.monotonic() + quiet_s
    fewest = 0
    while running := processes_in(namespace):
        _signal(running, signal.SIGKILL)
        if not fewest or len(running) < fewest:
            end = time.monotonic() + quiet_s
            fewest = len(running)
        if time.monotonic() > end:
            raise StillThere(
                f"ending the processes of {namespace}: {running} remain"
            )
        time.sleep(0.005)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
