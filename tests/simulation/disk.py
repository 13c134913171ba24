"""Disks that lose what was not synced, fill up, fail, or become read-only.

After a power cut a file has what it had at its last sync, what it has now, or something between;
a name leads to the file of its folder's last sync, or to that of now. SQLite's files are cut as
SQLite promises: with ``synchronous=FULL`` a commit is on the disk when it returns, and of a commit
that the cut interrupted any part of its frames is; otherwise any part of the log since the last
checkpoint is. A process may die before or after each of its writes, within one step.

Left out: sectors that go bad, disks that lie about syncing, power cuts in the middle of a
checkpoint. A file's sync is also that of its name, as on ext4, XFS and Btrfs.
"""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import errno
import io
import os
import resource
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

T = TypeVar("T")

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LOG_HEADER = 32
_FRAME_HEADER = 24
_PAGE = 4096


class Died(BaseException):
    """Ends the step in which a process died."""


class Disk:
    """The files of one machine below a folder."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self._root = root
        self.trouble = 0
        """An ``errno`` for the time of a fault: ``ENOSPC``, ``EIO`` or ``EROFS``."""
        self.boots = 0
        self.connections: list[Connection] = []
        self._synced: dict[int, bytes] = {}
        self._names: dict[Path, int] = {}
        self._safe_frames: dict[Path, int] = {}

    def has(self, path: Any) -> bool:
        """Whether this is a path below the folder."""
        return isinstance(path, str | Path) and Path(path).is_relative_to(
            self._root
        )

    def refuse(self, *troubles: int) -> None:
        """``OSError`` if the disk has one of these troubles."""
        if self.trouble in troubles:
            raise OSError(self.trouble, os.strerror(self.trouble))

    def sync(self, path: Path) -> None:
        """A file's content, or a folder's names, are on the disk."""
        if not path.is_dir():
            self._names[path] = path.stat().st_ino
            self._synced[self._names[path]] = path.read_bytes()
            return
        elsewhere = {
            each: inode
            for each, inode in self._names.items()
            if each.parent != path
        }
        here = {
            file: file.stat().st_ino
            for file in path.iterdir()
            if file.is_file()
        }
        self._names = elsewhere | here

    def close(self, process: Process) -> None:
        """A process that had databases open is dead."""
        contextvars.Context().run(self._close, process)

    def _close(self, process: Process) -> None:
        for connection in [
            each for each in self.connections if each.process is process
        ]:
            self.connections.remove(connection)
            log = connection.log
            if not log.exists():
                continue
            index = LogIndex.of(log)
            self._safe_frames[log] = index.gathered
            if connection.is_full:
                self._safe_frames[log] = min(
                    connection.safe_frames, index.frames
                )
            # The dead have the old files open. The next process finds others, and recovers them.
            for file, size in (
                (log, _size(log, index.frames)),
                (connection.path, None),
            ):
                content = file.read_bytes()[:size]
                mode = file.stat().st_mode
                file.unlink()
                file.write_bytes(content)
                file.chmod(mode)
            log.with_name(f"{connection.path.name}-shm").unlink()

    def cut_power(self) -> None:
        """Lose what was not synced; all processes of the machine are dead."""
        self.boots += 1
        found = {path for path in self._root.rglob("*") if path.is_file()}
        for path in sorted(found | self._names.keys()):
            before = path.read_bytes() if path in found else None
            after = self._left_of(path, before)
            if after == before:
                continue
            self.world.log("disk", f"{path} is as it was before")
            path.unlink(missing_ok=True)
            if after is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(0o600)
                path.write_bytes(after)
        self._names.clear()
        for path in self._root.rglob("*"):
            if path.is_file():
                self.sync(path)

    def _left_of(self, path: Path, now: bytes | None) -> bytes | None:
        draw = self.world.draw
        if path.suffix == ".db":
            return now
        if path.name.endswith("-wal"):
            if now is None or draw.random() < 0.5:
                return now
            safe = _size(path, self._safe_frames.get(path, 0))
            return now[: draw.randint(min(safe, len(now)), len(now))]
        inode = None if now is None else path.stat().st_ino
        chosen = draw.choice((inode, self._names.get(path)))
        if chosen is None:
            return None
        synced = self._synced.get(chosen, b"")
        if chosen != inode or now is None:
            return synced
        if not now.startswith(synced):
            return draw.choice((synced, now))
        pages = now[: draw.randint(0, len(now) // _PAGE) * _PAGE]
        return draw.choice(
            (now, max(synced, pages, key=len), synced.ljust(len(now), b"\0"))
        )


class LogIndex(NamedTuple):
    """What SQLite's index of a write-ahead log says (https://sqlite.org/walformat.html).

    ``gathered``: how many frames the database has already.
    """

    frames: int
    salt: bytes
    gathered: int

    @classmethod
    def of(cls, log: Path) -> LogIndex:
        """The index of this log."""
        index = log.with_name(log.name.removesuffix("-wal") + "-shm")
        head = index.read_bytes()[:100] if index.exists() else b""
        return cls(*struct.unpack("=16xI12x8s56xI", head.ljust(100, b"\0")))


def _size(log: Path, frames: int) -> int:
    """How long a log with so many frames is."""
    with log.open("rb") as file:
        page = int.from_bytes(file.read(_LOG_HEADER)[8:12], "big")
    return _LOG_HEADER + frames * (_FRAME_HEADER + page)


class Connection(sqlite3.Connection):
    """A connection to a database, whose commits are writes to its process's disk."""

    process: Process
    path: Path
    _is_new = True
    safe_frames = 1 << 32
    """Frames that a power cut leaves, if the process died within a commit."""

    @property
    def log(self) -> Path:
        """The write-ahead log."""
        return self.path.with_name(f"{self.path.name}-wal")

    @property
    def is_full(self) -> bool:
        """Whether a commit is on the disk when it returns."""
        level: int = super().execute("PRAGMA synchronous").fetchone()[0]
        return level >= 2

    def close(self) -> None:
        """As in ``sqlite3``."""
        if self.process.alive:
            self.process.disk.connections.remove(self)
        super().close()

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """As in ``sqlite3``."""
        if not self.process.alive:
            raise Died
        if sql == "COMMIT":
            return write(self.process, self._commit)
        if sql == "BEGIN IMMEDIATE":
            super().execute(
                f"PRAGMA query_only={self.process.disk.trouble == errno.EROFS:d}"
            )
        return super().execute(sql, *values)

    def _commit(self) -> sqlite3.Cursor:
        disk = self.process.disk
        if self._is_new and self.is_full:
            self._is_new = False
            disk.sync(self.path.parent)  # SQLite does, with a new log
        if _is_dying(self.process):
            before = LogIndex.of(self.log)
            try:
                return super().execute("COMMIT")
            finally:
                begun_again = LogIndex.of(self.log).salt != before.salt
                self.safe_frames = 0 if begun_again else before.frames
        if disk.trouble not in (errno.ENOSPC, errno.EIO):
            return super().execute("COMMIT")
        usual = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(
            resource.RLIMIT_FSIZE, (self.log.stat().st_size, usual[1])
        )
        try:
            return super().execute("COMMIT")  # SQLite's own writes fail
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def _is_dying(process: Process) -> bool:
    return (
        process.dies_at_write is not None
        and process.writes >= process.dies_at_write
    )


def write(process: Process, do: Callable[[], T]) -> T:
    """One write of a process, before or after which it may die."""
    if not process.alive:
        raise Died
    process.writes += 1
    if not _is_dying(process):
        return do()
    if process.world.draw.random() < 0.5:
        with contextlib.suppress(OSError, sqlite3.Error):
            do()
    process.kill()
    raise Died


def hooks(
    current: Callable[[], Process | None],
) -> Iterator[tuple[Any, str, Any]]:
    """What takes the place of functions that touch a disk: modules, names, functions."""
    real_open = io.open
    real_connect = sqlite3.connect
    real_sync = os.fsync

    def process_with(path: Any) -> Process | None:
        process = current()
        return (
            process
            if process and process.disk and process.disk.has(path)
            else None
        )

    def fsync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if (process := process_with(path)) is None:
            real_sync(descriptor)
        else:
            process.disk.refuse(errno.EIO)
            write(process, lambda: process.disk.sync(path))

    def opened(path: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        if str(path) == _BOOT_ID and (process := current()) and process.disk:
            return io.StringIO(f"boot {process.disk.boots}")
        if (process := process_with(path)) is None:
            return real_open(path, mode, *more, **options)
        process.disk.refuse(errno.EIO)
        if not set(mode) & set("wax+"):
            return real_open(path, mode, *more, **options)
        process.disk.refuse(errno.EROFS)
        file = write(process, lambda: real_open(path, mode, *more, **options))
        if process.disk.trouble != errno.ENOSPC:
            return file
        file.close()
        return real_open("/dev/full", mode.replace("x", "w"), *more, **options)

    def changing(real: Callable[..., None]) -> Callable[..., None]:
        def change(path: Any, *more: Any, **options: Any) -> None:
            if (process := process_with(path)) is None:
                return real(path, *more, **options)
            process.disk.refuse(errno.EROFS)
            return write(process, lambda: real(path, *more, **options))

        return change

    def connect(database: str, *more: Any, **options: Any) -> Any:
        if (process := process_with(database)) is None:
            return real_connect(database, *more, **options)
        made = real_connect(database, *more, factory=Connection, **options)
        made.process = process
        made.path = Path(database)
        process.disk.connections.append(made)
        return made

    yield os, "fsync", fsync
    yield os, "replace", changing(os.replace)
    yield os, "unlink", changing(os.unlink)
    yield io, "open", opened
    yield builtins, "open", opened
    yield sqlite3, "connect", connect
