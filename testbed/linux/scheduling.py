"""Letting processes run before others; what they begin later inherits it."""

import os
from collections.abc import Iterator
from contextlib import suppress

_NICENESS = -10
_LOOKS = 8
"""So often a process's threads are listed at most: one may begin and end threads for ever."""


def favour(pid: int, *, real_time: bool) -> None:
    """Let a process with its threads run before others, as far as the kernel permits.

    ``real_time``: before every ordinary process (``SCHED_RR``; the kernel leaves these 5 % of each
    core). Else by niceness alone, which does little against processes of another terminal
    session where the kernel groups sessions (``sched_autogroup_enabled``).
    """
    for thread in _threads(pid):
        with suppress(OSError):  # some containers do not let root do that either
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
            if real_time:
                os.sched_setscheduler(thread, os.SCHED_RR, os.sched_param(1))


def favour_like_this_process(pid: int) -> None:
    """Let a process that somebody else began, with its threads, run as this one does."""
    for thread in _threads(pid):
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0))
            # Refused in a control group that has no budget for it.
            os.sched_setscheduler(thread, os.sched_getscheduler(0), os.sched_getparam(0))


def _threads(pid: int) -> Iterator[int]:
    """The threads of a process, also those that it begins meanwhile; none of one that is gone."""
    seen = set[int]()
    for _ in range(_LOOKS):
        new = set[int]()
        with suppress(OSError):
            new = {int(thread) for thread in os.listdir(f"/proc/{pid}/task")} - seen
        if not new:
            return
        yield from sorted(new)
        seen |= new
