"""Groups of processes with limits (cgroups), of version 2 or 1, whichever the machine has.

A group stands in a folder ``patchlight`` of its own beside those of Docker and systemd. Where the
machine lets nobody make groups, as in some containers, there are none, and nothing is limited.
"""

import errno
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight.testbed.errors import PatchlightError

_OURS = "patchlight"
_PERIOD_US = 100_000


class CgroupError(PatchlightError):
    """A group could not be made, limited or removed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """``processes`` counts threads, too; ``cpus`` is a number of them, ``None`` for all."""

    memory_bytes: int
    processes: int
    cpus: float | None = None


class Cgroups:
    """The groups of one machine; ``root`` is where the kernel shows them."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._root = root
        self._is_v2 = "memory" in _words(root / "cgroup.controllers")
        self.controllers = self._usable()

    def _usable(self) -> tuple[str, ...]:
        """Those of memory, pids and cpu that groups can be made with."""
        usable = []
        for controller in ("memory", "pids", "cpu"):
            folder = self._folder(controller)
            try:
                if self._is_v2:
                    for above in (self._root, folder):
                        above.mkdir(exist_ok=True)
                        (above / "cgroup.subtree_control").write_text(f"+{controller}")
                elif (self._root / controller).is_dir():
                    folder.mkdir(exist_ok=True)
                else:
                    continue
            except OSError:
                continue
            usable.append(controller)
        return tuple(usable)

    def _folder(self, controller: str) -> Path:
        return self._root / _OURS if self._is_v2 else self._root / controller / _OURS

    def _folders(self, name: str) -> dict[str, Path]:
        return {each: self._folder(each) / name for each in self.controllers}

    def make(self, name: str, limits: Limits) -> list[Path]:
        """Make a group: the files that a process writes its number to, to be in it.

        ``CgroupError`` leaves none. Groups share the processors evenly, however many processes are
        in each; of version 1, one for CPUs is not made for real-time processes, which cannot be in
        one, unless CPUs are limited.
        """
        folders = self._folders(name)
        is_real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
        if not self._is_v2 and limits.cpus is None and is_real_time:
            folders.pop("cpu", None)
        try:
            for controller, folder in folders.items():
                folder.mkdir(exist_ok=True)
                for file, value in self._settings(controller, limits).items():
                    with suppress(FileNotFoundError):  # a kernel without swap in its accounts
                        (folder / file).write_text(value)
        except OSError as error:
            with suppress(CgroupError):
                self.remove(name)
            raise CgroupError(
                f"limiting {name} by a cgroup: {error.strerror} ({error.filename})"
            ) from error
        return [folder / "cgroup.procs" for folder in dict.fromkeys(folders.values())]

    def _settings(self, controller: str, limits: Limits) -> Mapping[str, str]:
        memory, most = str(limits.memory_bytes), str(limits.processes)
        quota = "max" if limits.cpus is None else str(round(_PERIOD_US * limits.cpus))
        if controller == "pids":
            return {"pids.max": most}
        if self._is_v2:
            if controller == "memory":
                return {"memory.max": memory, "memory.swap.max": "0"}
            return {"cpu.max": f"{quota} {_PERIOD_US}"}
        if controller == "memory":
            return {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        quota = quota.replace("max", "-1")
        return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}

    def ran_out_of_memory(self, name: str) -> bool:
        """Whether the kernel has ended a process of the group for want of memory."""
        if "memory" not in self.controllers:
            return False
        file = "memory.events" if self._is_v2 else "memory.oom_control"
        words = _words(self._folders(name)["memory"] / file)
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get("oom_kill", "0")) > 0

    def forbid_forks(self, name: str) -> None:
        """Let no process of the group fork any more; harmless if there is none."""
        if "pids" in self.controllers:
            with suppress(OSError):
                (self._folders(name)["pids"] / "pids.max").write_text("0")

    def remove(self, name: str, deadline_s: float = 5.0) -> None:
        """Remove a group whose processes have ended; harmless if there is none."""
        end = time.monotonic() + deadline_s
        for folder in dict.fromkeys(self._folders(name).values()):
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError as error:
                    if error.errno != errno.EBUSY or time.monotonic() > end:
                        raise CgroupError(
                            f"removing the cgroup {folder}: {error.strerror}"
                        ) from error
                    time.sleep(0.01)  # its last process is on its way out
                else:
                    break

    def names(self) -> Iterator[str]:
        """The groups that there are."""
        found = set[str]()
        for controller in self.controllers:
            with suppress(OSError), os.scandir(self._folder(controller)) as entries:
                found |= {entry.name for entry in entries if entry.is_dir()}
        yield from sorted(found)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
