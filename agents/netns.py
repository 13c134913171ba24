"""Network namespaces of workers: made, kept, entered and removed.

A namespace is kept by a bind mount in ``/run/netns``, as ``ip netns`` does, so it outlives
the worker in it: a virtual NIC whose namespace went would be destroyed with it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from patchlight.agents.errors import NamespaceError

T = TypeVar("T")

RUN_DIR = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_MS_BIND, _MS_REC, _MS_SHARED, _MNT_DETACH = 0x1000, 0x4000, 0x100000, 2
_libc = ctypes.CDLL(None, use_errno=True)


def path_of(name: str) -> Path:
    """Where the namespace of that name is mounted."""
    return RUN_DIR / name


def own() -> Path:
    """The namespace this process lives in, whatever namespace its threads are in."""
    return Path(f"/proc/{os.getpid()}/ns/net")


def create(name: str) -> Path:
    """Make a namespace and keep it under this name; ``NamespaceError`` if the name is taken."""

    def unshare_and_mount() -> Path:
        _check(_libc.unshare(_CLONE_NEWNET), f"making the network namespace {name}")
        return _mount("/proc/thread-self/ns/net", name)

    return _in_thread(unshare_and_mount)


def keep(name: str, pid: int) -> Path:
    """Keep the namespace of the process ``pid`` under this name, so that it outlives it."""
    return _mount(f"/proc/{pid}/ns/net", name)


def remove(name: str) -> None:
    """Let go of a namespace; the kernel removes it with the last process in it. Idempotent."""
    path = path_of(name)
    # More than once if mounts were stacked; EINVAL when none is left.
    while _libc.umount2(os.fsencode(path), _MNT_DETACH) == 0:
        pass
    path.unlink(missing_ok=True)


def inside(path: Path, function: Callable[[], T]) -> T:
    """Call ``function`` in the namespace at ``path``, in a thread of its own.

    Sockets opened there belong to that namespace. Blocks; raises what ``function`` raises,
    ``NamespaceError`` if the namespace cannot be entered.
    """

    def enter_and_call() -> T:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            raise NamespaceError(f"opening the network namespace {path}: {exc.strerror}") from exc
        try:
            entered = _libc.setns(descriptor, _CLONE_NEWNET)
            _check(entered, f"entering the network namespace {path}")
        finally:
            os.close(descriptor)
        return function()

    return _in_thread(enter_and_call)


def set_sysctls(values: Mapping[str, str]) -> None:
    """Write ``net.…`` sysctls of the namespace that the calling thread is in."""
    for name, value in values.items():
        path = Path("/proc/sys", *name.split("."))
        try:
            path.write_text(value, encoding="ascii")
        except OSError as exc:
            raise NamespaceError(
                f"setting {name}={value} in a worker's namespace: {exc.strerror}"
            ) from exc


def _mount(source: str, name: str) -> Path:
    path = path_of(name)
    _share_run_dir()
    try:
        path.touch(mode=0o444, exist_ok=False)
    except FileExistsError:
        raise NamespaceError(
            f"the network namespace {name} exists already",
            hint=f"if nothing uses it, remove it: ip netns del {name}",
        ) from None
    try:
        mounted = _libc.mount(source.encode(), os.fsencode(path), b"none", _MS_BIND, None)
        _check(mounted, f"keeping {source} as the network namespace {name}")
    except NamespaceError:
        path.unlink()
        raise
    return path


def _share_run_dir() -> None:
    """Make /run/netns a shared mount, as ``ip netns`` does, unless it is one."""
    RUN_DIR.mkdir(mode=0o755, parents=True, exist_ok=True)
    directory = os.fsencode(RUN_DIR)
    if _libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None) == 0:
        return
    _check(
        _libc.mount(directory, directory, b"none", _MS_BIND | _MS_REC, None),
        f"mounting {RUN_DIR}",
    )
    _check(_libc.mount(b"", directory, b"none", _MS_SHARED | _MS_REC, None), f"sharing {RUN_DIR}")


def _check(result: int, doing: str) -> None:
    if result != 0:
        error = ctypes.get_errno()
        hint = "run it as root" if os.geteuid() != 0 else None
        raise NamespaceError(f"{doing}: {os.strerror(error)}", hint=hint)


def _in_thread(function: Callable[[], T]) -> T:
    """Call it in a fresh thread: a thread's namespace is its own and ends with it."""
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as exc:
            failures.append(exc)

    thread = threading.Thread(target=run, name="netns")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]
