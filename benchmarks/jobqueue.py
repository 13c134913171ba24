"""The job service under many jobs: 1,000 that wait behind a running one, 10,000 that have ended.

The waiting ones are in the emulated OFC 2022 lab, whose six GPUs one job has. Times are those of a
client in a process of its own, over HTTP; a pass of the scheduler is timed by the controller. The
ended ones are in a lab without agents, as each was submitted and stopped. Of a start, the time is
that of the command until the API answers, beside the same with nothing in its state folder.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import figure
from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobfile.reader import JobBatch
from patchlight.testbed.jobs import JobSpec, JobState
from tests.support.controller_process import ControllerProcess
from tests.support.lab_jobs import connected
from tests.support.waiting import wait_until

WAITING = 1000
ENDED = 10_000
AT_ONCE = 500
ROUNDS = 15


def run() -> list[dict[str, Any]]:
    """The figures."""
    with (
        EmulatedLab.from_file(
            "ofc2022", scale=1000, name="bench-queue", workers="process"
        ) as lab,
        connected(lab) as client,
    ):
        models = {
            host.gpu.model: 0.5
            for host in lab.lab.hosts
            if host.gpu is not None
        }
        waiting = _waiting(
            client, JobSpec("all", 100_000, 4_000, models, workers=6)
        )
    with tempfile.TemporaryDirectory() as folder:
        return [*waiting, *_ended(Path(folder))]


def _waiting(
    client: ControllerClient, everything: JobSpec
) -> list[dict[str, Any]]:
    first = client.submit([everything], "keep")[0].id
    wait_until(lambda: client.job(first).state == JobState.RUNNING)
    spec = JobSpec("waits", 2, 4_000, everything.compute_s, workers=2)
    submits_s = [
        _seconds(lambda: client.submit([spec], "keep")) for _ in range(WAITING)
    ]
    listing_s = _median(lambda: client.jobs(WAITING))
    page_s = _median(lambda: client.jobs(21))
    passes_s = []
    for _ in range(ROUNDS):
        client.submit([spec], "keep")
        time.sleep(0.3)
        passes_s.append(client.status().queue_pass_s or 0.0)
    _stop_all(client)
    name = f"{WAITING:,} jobs wait"
    return [
        figure(
            f"{name}: submitting each",
            1e3 * _mid(submits_s),
            "ms",
            "at most 5",
        ),
        figure(
            f"{name}: submitting the last 100",
            1e3 * _mid(submits_s[-100:]),
            "ms",
        ),
        figure(f"{name}: listing all", 1e3 * listing_s, "ms", "at most 50"),
        figure(f"{name}: listing the latest 21", 1e3 * page_s, "ms"),
        figure(
            f"{name}: a pass of the scheduler",
            1e3 * _mid(passes_s),
            "ms",
            "at most 20",
        ),
    ]


def _ended(folder: Path) -> list[dict[str, Any]]:
    controller = ControllerProcess(folder)
    start_s = _seconds(controller.start)
    try:
        client = controller.client
        client.drain("for a benchmark")
        spec = JobSpec("ended", 2, 4_000, {"M": 0.1}, workers=2)
        memory_mib = []
        for _ in range(ENDED // AT_ONCE):
            for row in client.submit(
                JobBatch((spec,) * AT_ONCE, together=False)
            ):
                client.stop(row.id)
            memory_mib.append(_memory_mib(controller.process.pid))
        page_s = _median(lambda: client.jobs(21))
        started_s = [_restarted_s(controller) for _ in range(3)]
        after_mib = _memory_mib(controller.process.pid)
    finally:
        controller.stop()
    name = f"{ENDED:,} jobs have ended"
    grown = f"{name}: growth of the controller's memory from the {AT_ONCE}th to the last"
    return [
        figure(grown, memory_mib[-1] - memory_mib[0], "MiB", "at most 20"),
        figure(
            f"{name}: the controller's memory after a start", after_mib, "MiB"
        ),
        figure(f"{name}: listing the latest 21", 1e3 * page_s, "ms"),
        figure(
            f"{name}: start",
            _mid(started_s),
            "s",
            "at most 1",
            peer="with an empty state",
            peer_value=start_s,
        ),
    ]


def _restarted_s(controller: ControllerProcess) -> float:
    controller.stop()
    return _seconds(controller.start)


def _memory_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (
        line for line in status.splitlines() if line.startswith("VmRSS:")
    )
    return int(line.split()[1]) / 1024


def _stop_all(client: ControllerClient) -> None:
    for job in client.jobs():
        if not JobState(job.state).is_final:
            client.stop(job.id)


def _seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _median(call: Callable[[], object]) -> float:
    return _mid([_seconds(call) for _ in range(ROUNDS)])


def _mid(values: Sequence[float]) -> float:
    return statistics.median(values)
