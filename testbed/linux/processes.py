"""What ``/proc`` tells of processes; one that ends while it is looked at is as good as gone."""

import os
import sys
from contextlib import suppress
from pathlib import Path


def boot_id() -> str:
    """What the kernel calls this run of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own_program() -> str:
    """The command ``patchlight`` of this Python, by its whole path: sudo has a PATH of its own."""
    program = os.path.join(os.path.dirname(sys.executable), "patchlight")
    return program if os.path.exists(program) else f"{sys.executable} -m patchlight"


def process_ids() -> list[int]:
    """The processes that there are now."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; ``None`` if there is none (any more)."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])


def may_run(pid: int) -> bool:
    """Whether a thread of a process runs or may at any time; not if it is stopped or has ended."""
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                # One that waits for a disk or a child (D) hears of its signals on its way back.
                if _stat_at(f"/proc/{pid}/task/{thread}/stat")[0] in ("R", "S"):
                    return True
    return False


def processor_ticks(pid: int) -> int:
    """The processor time of a process, in clock ticks; 0 if there is none (any more)."""
    with suppress(OSError):
        return _ticks(_stat(pid))
    return 0


def session_processor_ticks(session: int) -> int:
    """The processor time of all processes of a session that run now, in clock ticks.

    Fewer than before when one of them has ended: what tells of work is that it changes.
    """
    ticks = 0
    for pid in process_ids():
        with suppress(OSError):
            fields = _stat(pid)
            if int(fields[3]) == session:
                ticks += _ticks(fields)
    return ticks


def ancestors() -> set[int]:
    """This process and those that it descends from."""
    pids, pid = set(), os.getpid()
    while pid > 0 and pid not in pids:
        pids.add(pid)
        with suppress(OSError):
            pid = int(_stat(pid)[1])
    return pids


def command_line(pid: int) -> str:
    """The command and its arguments; empty for a kernel thread and where it cannot be read."""
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return " ".join(filter(None, arguments.split("\0")))
    return ""


def environment(pid: int) -> list[str]:
    """The variables that a process was started with, as ``NAME=value``; none if unreadable."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return []


def _ticks(stat: list[str]) -> int:
    return int(stat[11]) + int(stat[12])


def _stat(pid: int) -> list[str]:
    return _stat_at(f"/proc/{pid}/stat")


def _stat_at(path: str) -> list[str]:
    # The name of the command, in parentheses, may hold anything, parentheses too.
    return Path(path).read_text(errors="replace").rpartition(")")[2].split()
