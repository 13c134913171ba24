"""The processes of a network namespace, whoever started them: found, stopped, continued, ended.

What a program forks stays in its namespace, in whatever session or process group it hides.
"""

import os
import signal
import time
from collections.abc import Container, Iterable
from contextlib import suppress

from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.processes import may_run, process_ids


class StillThere(PatchlightError):
    """Processes of a namespace that would not end or stop."""


def is_in(pid: int, inodes: Container[int]) -> bool:
    """Whether a process is in one of the namespaces; a kernel thread and a dead one is in none."""
    # The link reads "net:[4026532281]".
    with suppress(OSError, ValueError):
        return int(os.readlink(f"/proc/{pid}/ns/net")[5:-1]) in inodes
    return False


def processes_in(namespace: str) -> list[int]:
    """The processes in the namespace of that name; none where it is this process's own."""
    inode = namespaces.inode(namespaces.namespace_path(namespace))
    if inode is None or inode == namespaces.inode(namespaces.process_namespace()):
        return []
    return [pid for pid in process_ids() if is_in(pid, {inode})]


def stop_all(namespace: str, deadline_s: float = 5.0) -> None:
    """Stop every process (SIGSTOP), also those that are being forked meanwhile.

    On return none of them has anything left to do; ``StillThere`` if that takes too long.
    """
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

    Stopped first: one with a signal on its way forks no more, however fast it did before. On a busy
    machine thousands take their time to end.
    """
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
