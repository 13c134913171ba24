"""Favoured processes, and what they begin."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from patchlight.testbed.linux.processes import favour

pytestmark = pytest.mark.root

# Favours itself, starts one that is not its child's child, and favours it alike.
BEGINNING = """
import os, subprocess, sys
from patchlight.testbed.linux.processes import favour, favour_like_this_process
other = int(sys.argv[1])
favour(os.getpid(), real_time=True)
favour_like_this_process(other)
subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"])
"""


@pytest.fixture
def sleeping() -> Iterator[int]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process.pid
        process.kill()


def test_niceness_alone(sleeping: int) -> None:
    favour(sleeping, real_time=False)
    assert os.getpriority(os.PRIO_PROCESS, sleeping) == -10
    assert os.sched_getscheduler(sleeping) == os.SCHED_OTHER


def test_threads_that_are_there_already_are_favoured_too() -> None:
    code = "import threading, time; [threading.Thread(target=time.sleep, args=(60,)).start()"
    code += " for _ in range(3)]; print('up', flush=True)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        favour(process.pid, real_time=False)
        threads = [
            int(thread) for thread in os.listdir(f"/proc/{process.pid}/task")
        ]
        assert len(threads) == 4
        assert {
            os.getpriority(os.PRIO_PROCESS, thread) for thread in threads
        } == {-10}
        process.kill()


def test_real_time_is_inherited_and_handed_on(sleeping: int) -> None:
    command = [sys.executable, "-c", BEGINNING, str(sleeping)]
    try:
        os.sched_setscheduler(sleeping, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pytest.skip("this machine lets nobody make a process real-time")
    os.sched_setscheduler(sleeping, os.SCHED_OTHER, os.sched_param(0))
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) == os.SCHED_RR
    assert os.sched_getscheduler(sleeping) == os.SCHED_RR
    assert os.getpriority(os.PRIO_PROCESS, sleeping) == -10
