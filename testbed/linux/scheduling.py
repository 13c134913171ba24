"""Letting processes run before others; what they begin later inherits it."""

import os
from contextlib import suppress
from pathlib import Path

_NICENESS = -10
_CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
_BUDGET_US = 150_000  # of each second on each core


def favour(pid: int, *, real_time: bool) -> None:
    """Let a process run before others, as far as the kernel permits.

    ``real_time``: before every ordinary process (``SCHED_RR``; the kernel leaves these 5 % of each
    core). Else by niceness alone, which does little against processes of another terminal
    session where the kernel groups sessions (``sched_autogroup_enabled``).
    """
    with suppress(OSError):  # some containers do not let root do that either
        os.setpriority(os.PRIO_PROCESS, pid, _NICENESS)
        if real_time:
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))


def favour_like_this_process(pid: int) -> None:
    """Let a process that somebody else began in a control group of its own run as this one does."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    if policy == os.SCHED_RR:
        _give_budget(pid)
    with suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0))
            os.sched_setscheduler(thread, policy, parameters)


def _give_budget(pid: int) -> None:
    """Some kernels let a control group run nothing real-time but within a budget for each second.

    That of the groups above it must cover it: an engine that ``docker-engine.sh`` started has some.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if "cpu" in controllers.split(",") and group != "/":
                budget = _CPU_GROUPS / group.lstrip("/") / "cpu.rt_runtime_us"
                if budget.read_text().strip() == "0":
                    budget.write_text(str(_BUDGET_US))
