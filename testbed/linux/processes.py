"""Reads and changes processes: ``/proc``, CPUs, priority, and cgroups."""

import ctypes
import errno
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from patchlight.testbed.errors import PatchlightError


def boot_id() -> str:
    """The kernel's id of the present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own_program() -> str:
    """The command ``patchlight`` of this Python as a shell takes it, by its path, for sudo."""
    program = os.path.join(os.path.dirname(sys.executable), "patchlight")
    if os.path.exists(program):
        return shlex.quote(program)
    return f"{shlex.quote(sys.executable)} -m patchlight"


def process_ids() -> list[int]:
    """The process ids that exist now."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` if it does not exist."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def may_run(pid: int) -> bool:
    """Whether a thread of a process runs or may run; not if it is stopped or has ended."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                # A process that waits for a disk or child (D) handles its signals on return.
                if _stat(f"{pid}/task/{thread}")[0] in ("R", "S"):
                    return True
    return False


def processor_ticks(pid: int) -> int:
    """The CPU time of a process, in clock ticks; 0 if it does not exist."""
    with suppress(OSError):
        return _ticks(_stat(pid))
    return 0


def session_processor_ticks(session: int) -> int:
    """The CPU time in clock ticks of a session's processes; it falls when one ends."""
    ticks = 0
    for pid in process_ids():
        with suppress(OSError):
            fields = _stat(pid)
            if int(fields[3]) == session:
                ticks += _ticks(fields)
    return ticks


def ancestors() -> set[int]:
    """This process and its ancestors."""
    pids = set()
    pid = os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        with suppress(OSError):
            pid = int(_stat(pid)[1])
    return pids


def command_line(pid: int) -> str:
    """The command and its arguments; empty for a kernel thread or if unreadable."""
    with suppress(OSError):
        arguments = (
            Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        )
        return " ".join(filter(None, arguments.split("\0")))
    return ""


def environment(pid: int) -> list[str]:
    """The environment at the start of a process, as ``NAME=value``; empty if unreadable."""
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/environ")
            .read_bytes()
            .decode(errors="replace")
            .split("\0")
        )
    return []


def _ticks(stat: list[str]) -> int:
    return int(stat[11]) + int(stat[12])


def _stat(process: int | str) -> list[str]:
    # The command's name, in parentheses, may contain parentheses too.
    return (
        Path(f"/proc/{process}/stat")
        .read_text(errors="replace")
        .rpartition(")")[2]
        .split()
    )


# Fields of /proc/self/stat after the name with the addresses of arguments and environment.
ARGUMENTS = slice(45, 47)
ENVIRONMENT = slice(47, 49)


def show(which: slice, texts: Iterable[str]) -> None:
    """Make ``/proc`` show these values, as far as they fit."""
    start, size = _place(which)
    text = b"".join(os.fsencode(each) + b"\0" for each in texts)
    ctypes.memmove(start, text[: size - 1].ljust(size, b"\0"), size)


def shown(which: slice) -> bytes:
    """The bytes that it shows now."""
    return ctypes.string_at(*_place(which))


def show_again(which: slice, before: bytes) -> None:
    """Restore what it showed ``before``."""
    start, size = _place(which)
    ctypes.memmove(start, before, size)


def _place(which: slice) -> tuple[int, int]:
    start, end = map(int, _stat("self")[which])
    return start, end - start


def busy_threads(over_s: float = 0.5) -> float:
    """How many other threads run or wait for a processor, on average over that time."""
    found = list[int]()
    ends = time.monotonic() + over_s
    while time.monotonic() < ends:
        lines = Path("/proc/stat").read_text().splitlines()
        found += [
            int(line.split()[1]) - 1
            for line in lines
            if line.startswith("procs_running")
        ]
        time.sleep(over_s / 20)
    return sum(found) / len(found)


_NICENESS = -10
_LOOKS = 8
"""How often a process's threads are listed at most: it may start and end threads forever."""


def favour(pid: int, *, real_time: bool) -> None:
    """Let a process with its threads run before others, as far as the kernel permits: with
    ``real_time`` before every ordinary one (``SCHED_RR``; 5 % of each core is left to those), else
    by niceness, which has little effect if the kernel groups sessions
    (``sched_autogroup_enabled``)."""
    for thread in _threads(pid):
        with suppress(OSError):  # some containers forbid it even to root
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
            if real_time:
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def favour_like_this_process(pid: int) -> None:
    """Give a process of another parent, with its threads, the priority of this one."""
    for thread in _threads(pid):
        with suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0)
            )
            # Refused in a cgroup without a real-time budget.
            os.sched_setscheduler(
                thread, os.sched_getscheduler(0), os.sched_getparam(0)
            )


def _threads(pid: int) -> Iterator[int]:
    seen = set[int]()
    for _ in range(_LOOKS):
        new = set[int]()
        with suppress(OSError):
            new = {
                int(thread) for thread in os.listdir(f"/proc/{pid}/task")
            } - seen
        if not new:
            return
        yield from sorted(new)
        seen |= new


def cpus_of(text: str) -> frozenset[int]:
    """The numbers in a Linux list; ``ValueError`` if invalid."""
    found = set[int]()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def cpu_list(cpus: Iterable[int]) -> str:
    """The numbers as a Linux list, without ranges."""
    return ",".join(map(str, sorted(cpus)))


_LOOK_S = 1.0
_TELL_S = 5.0


class ProgressWatch:
    """Watches a ``sign`` of progress, at most once a second."""

    def __init__(self, sign: Callable[[], object]) -> None:
        self._sign = sign
        self._last = sign()
        self._began = self._changed = self._looked = self._told = (
            time.monotonic()
        )

    def quiet_s(self) -> float:
        """For how many seconds nothing has changed."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            if (sign := self._sign()) != self._last:
                self._last = sign
                self._changed = now
        return now - self._changed

    @property
    def age_s(self) -> float:
        """For how many seconds it has watched."""
        return time.monotonic() - self._began

    def to_tell(self) -> float | None:
        """Its age, every five seconds: time to tell the user."""
        now = time.monotonic()
        if now - self._told < _TELL_S:
            return None
        self._told = now
        return self.age_s


_OURS = "patchlight"
_PERIOD_US = 100_000
_MEMORY_FOR_WORKERS = 0.9
_PIDS_FOR_WORKERS = 0.5


def memory_for_workers() -> int:
    """Bytes of this machine's memory that all workers may use together."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(_MEMORY_FOR_WORKERS * memory)


def _pids_for_workers() -> int:
    numbers = [
        Path("/proc/sys/kernel", each).read_text()
        for each in ("pid_max", "threads-max")
    ]
    return int(_PIDS_FOR_WORKERS * min(map(int, numbers)))


class CgroupError(PatchlightError):
    """A cgroup could not be created, limited or removed."""


@dataclass(
    frozen=True,
    slots=True,
)
class Limits:
    """``processes`` includes threads; ``cpus`` is a number of them, ``None`` for all."""

    memory_bytes: int
    processes: int
    cpus: float | None = None


def remove_group(
    folder: Path,
    ends_s: float,
    hint: str | None = None,
) -> None:
    """Remove one group, by ``ends_s`` of ``time.monotonic``; harmless if it is missing."""
    while True:
        try:
            return folder.rmdir()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > ends_s:
                failure = f"removing the cgroup {folder}: {error.strerror}"
                raise CgroupError(failure, hint=hint) from error
        time.sleep(0.01)  # its last process is still exiting


class Cgroups:
    """Cgroups, of version 2 or 1, in a folder ``patchlight``, which limits what all workers of this
    machine use together. If none can be created, as in some containers, nothing is limited."""

    PARENT = f"/{_OURS}"
    """The path of that folder in every hierarchy."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        self._root = root
        self._is_v2 = "memory" in _words(root / "cgroup.controllers")
        self.controllers = self._usable()

    def _usable(self) -> tuple[str, ...]:
        usable = []
        for controller in ("memory", "pids", "cpu"):
            folder = self._folder(controller)
            try:
                if self._is_v2:
                    for above in (self._root, folder):
                        above.mkdir(exist_ok=True)
                        (above / "cgroup.subtree_control").write_text(
                            f"+{controller}"
                        )
                elif (self._root / controller).is_dir():
                    folder.mkdir(exist_ok=True)
                else:
                    continue
            except OSError:
                continue
            usable.append(controller)
            together = Limits(memory_for_workers(), _pids_for_workers())
            for file, value in self._settings(controller, together).items():
                # CPUs need no limit: the folder has the weight of one process beside the others.
                if controller != "cpu":
                    with suppress(
                        OSError
                    ):  # no swap accounting, or they use more at present
                        (folder / file).write_text(value)
        return tuple(usable)

    def _folder(self, controller: str) -> Path:
        return (
            self._root / _OURS
            if self._is_v2
            else self._root / controller / _OURS
        )

    def _folders(self, name: str) -> dict[str, Path]:
        return {each: self._folder(each) / name for each in self.controllers}

    def make(self, name: str, limits: Limits) -> list[Path]:
        """Create a group, or raise ``CgroupError`` and leave none. Returns the files to which a
        process writes its number. Groups share the CPUs evenly. With version 1, a CPU group for
        real-time processes is made only if CPUs are limited: they could not join otherwise."""
        folders = self._folders(name)
        is_real_time = os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR)
        if not self._is_v2 and limits.cpus is None and is_real_time:
            folders.pop("cpu", None)
        try:
            for controller, folder in folders.items():
                folder.mkdir(exist_ok=True)
                for file, value in self._settings(controller, limits).items():
                    with suppress(
                        FileNotFoundError
                    ):  # a kernel without swap accounting
                        (folder / file).write_text(value)
        except OSError as error:
            with suppress(CgroupError):
                self.remove(name)
            raise CgroupError(
                f"limiting {name} by a cgroup: {error.strerror} ({error.filename})"
            ) from error
        return [
            folder / "cgroup.procs"
            for folder in dict.fromkeys(folders.values())
        ]

    def _settings(self, controller: str, limits: Limits) -> Mapping[str, str]:
        memory = str(limits.memory_bytes)
        most = str(limits.processes)
        quota = (
            "max"
            if limits.cpus is None
            else str(round(_PERIOD_US * limits.cpus))
        )
        if controller == "pids":
            return {"pids.max": most}
        if self._is_v2:
            if controller == "memory":
                return {"memory.max": memory, "memory.swap.max": "0"}
            return {"cpu.max": f"{quota} {_PERIOD_US}"}
        if controller == "memory":
            return {
                "memory.limit_in_bytes": memory,
                "memory.memsw.limit_in_bytes": memory,
            }
        quota = quota.replace("max", "-1")
        return {
            "cpu.cfs_period_us": str(_PERIOD_US),
            "cpu.cfs_quota_us": quota,
        }

    def ran_out_of_memory(self, name: str) -> bool:
        """Whether the kernel has killed a process of the group because of its memory limit."""
        if "memory" not in self.controllers:
            return False
        file = "memory.events" if self._is_v2 else "memory.oom_control"
        words = _words(self._folders(name)["memory"] / file)
        counts = dict(zip(words[::2], words[1::2], strict=False))
        return int(counts.get("oom_kill", "0")) > 0

    def kill(self, name: str) -> None:
        """Forbid forks in the group, and kill its processes if the kernel can (version 2, Linux
        5.14); else the caller has to. Harmless if it is missing."""
        files = {"pids.max": "0", "cgroup.kill": "1"}
        for folder in dict.fromkeys(self._folders(name).values()):
            for file, value in files.items():
                with (
                    suppress(OSError),
                    open(
                        os.open(folder / file, os.O_WRONLY | os.O_TRUNC), "w"
                    ) as opened,
                ):
                    opened.write(value)

    def remove(self, name: str, deadline_s: float = 5.0) -> None:
        """Remove a group whose processes have ended; harmless if it is missing."""
        ends_s = time.monotonic() + deadline_s
        for folder in dict.fromkeys(self._folders(name).values()):
            remove_group(folder, ends_s)

    def names(self) -> Iterator[str]:
        """The names of the existing groups."""
        found = set[str]()
        for controller in self.controllers:
            with (
                suppress(OSError),
                os.scandir(self._folder(controller)) as entries,
            ):
                found |= {entry.name for entry in entries if entry.is_dir()}
        yield from sorted(found)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
