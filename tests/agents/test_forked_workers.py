"""Workers that are forked instead of started: as any other process, with the same little rights."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from patchlight.agents.workers.contract import RunningWorker, WorkerLaunch
from patchlight.agents.workers.forking import ForkRequest, NotForked, fork
from patchlight.agents.workers.process import ProcessRunner
from patchlight.testbed.linux.namespaces import processes_in
from patchlight.testbed.linux.processes import command_line
from tests.support.waiting import eventually, unix_socket_answers, wait_until
from tests.support.worker_desk import Desk, open_desk

pytestmark = pytest.mark.root

OURS = {
    "iterations": 3,
    "gradient_bytes": 1000,
    "compute_s": 0.0,
    "device": "sleep",
}
RIGHTS = "Umask Groups CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs SigBlk SigIgn SigPnd "
RIGHTS += "Cpus_allowed_list Threads"


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk() as made:
        yield made


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """The socket of a process that forks workers, and that process."""
    path = tmp_path / "workers.sock"
    command = [
        sys.executable,
        "-m",
        "patchlight.agents.workers.forking",
        "--socket",
        str(path),
    ]
    with subprocess.Popen(command) as process:
        wait_until(lambda: unix_socket_answers(path))
        yield path, process
        process.terminate()


async def ready(launch: WorkerLaunch, runner: ProcessRunner) -> RunningWorker:
    """A worker of ours that waits to be told to start."""
    await runner.open()
    worker = await runner.launch(launch)

    def state() -> str:
        with suppress(FileNotFoundError):
            return str(
                json.loads((launch.directory / "state.json").read_text())[
                    "state"
                ]
            )
        return ""

    await eventually(lambda: state() == "ready")
    return worker


def trainer_of(launch: WorkerLaunch) -> int:
    keeper, trainer = sorted(processes_in(launch.namespace))[-2:]
    assert "patchlight-keeper" in command_line(keeper)
    assert " -m patchlight.agents.training --task " in command_line(trainer)
    assert "patchlight-keeper" not in command_line(trainer)
    return trainer


def seen(launch: WorkerLaunch) -> list[dict[str, Any]]:
    """What the kernel says of a worker's keeper and trainer, without what is each worker's own."""
    return [
        _seen(pid, launch)
        for pid in sorted(processes_in(launch.namespace))[-2:]
    ]


def _seen(pid: int, launch: WorkerLaunch) -> dict[str, Any]:
    folder = Path(f"/proc/{pid}")
    status = dict(
        re.findall(r"(\w+):[ \t]*(.*)", (folder / "status").read_text())
    )
    user = status["Uid"].split()
    variables = (
        (folder / "environ").read_bytes().decode().rstrip("\0").split("\0")
    )
    files = {
        each.name: os.readlink(each) for each in (folder / "fd").iterdir()
    }
    own = {
        str(launch.directory): "FOLDER",
        launch.namespace: "NAME",
        user[0]: "USER",
    }
    found: dict[str, Any] = {
        **{name: status[name] for name in RIGHTS.split()},
        "users": [
            user,
            status["Gid"].split(),
            str(folder.joinpath("environ").stat().st_uid),
        ],
        "environment": sorted(
            each for each in variables if "PWD=" not in each
        ),
        "limits": (folder / "limits").read_text(),
        "groups": (folder / "cgroup").read_text(),
        "out of memory": (folder / "oom_score_adj").read_text(),
        "files": sorted(
            re.sub(r"\[\d+\]", "", name) for name in files.values()
        ),
        "order": (
            os.getpriority(os.PRIO_PROCESS, pid),
            os.sched_getscheduler(pid),
        ),
        "leads": (os.getsid(pid) == pid, os.getpgid(pid) == os.getsid(pid)),
    }
    text = json.dumps(found)
    for value, name in own.items():
        if value != "0":
            text = text.replace(value, name)
    told: dict[str, Any] = json.loads(text)
    return told


@pytest.mark.parametrize("user", ["root", "dynamic"])
async def test_a_forked_worker_is_as_little_allowed_as_a_started_one(
    desk: Desk, forks: tuple[Path, subprocess.Popen[bytes]], user: str
) -> None:
    found = []
    for path in (None, forks[0]):
        launch = desk.launch(task=OURS)
        worker = await ready(launch, ProcessRunner(user, path))
        found.append(seen(launch))
        assert os.getpgid(trainer_of(launch)) == worker.handle.pid
        await worker.dispose()
        assert (await worker.ended()).exit_code == 137
    started, forked = found
    # A started keeper has none of a job's.
    started[0]["environment"] = forked[0]["environment"]
    assert forked == started
    for process in started:
        assert (
            process["CapEff"],
            process["CapBnd"],
            process["NoNewPrivs"],
        ) == (16 * "0",) * 2 + ("1",)
    # What the keeper has forked is in its control groups, too.
    assert started[1]["groups"] == started[0]["groups"]


async def test_how_a_forked_worker_ended_is_known(
    desk: Desk, forks: tuple[Path, subprocess.Popen[bytes]]
) -> None:
    runner = ProcessRunner("root", forks[0])
    told = desk.launch(task=OURS)
    killed = desk.launch(task=OURS)
    worker = await ready(told, runner)
    await worker.stop(grace_s=20)
    assert (await worker.ended()).exit_code == 0
    assert (
        json.loads((told.directory / "state.json").read_text())["state"]
        == "stopped"
    )
    worker = await ready(killed, runner)
    os.kill(trainer_of(killed), signal.SIGSEGV)
    assert (await worker.ended()).exit_code == 128 + signal.SIGSEGV
    await worker.dispose()


async def test_where_nobody_forks_workers_are_started(
    desk: Desk, forks: tuple[Path, subprocess.Popen[bytes]]
) -> None:
    path, process = forks
    nobody = ForkRequest(
        str(path.parent), "/no/such/namespace", 0, 0, None, [], [], {}, []
    )
    with pytest.raises(NotForked, match="no/such/namespace"):
        fork(path, nobody)
    process.kill()
    process.wait()
    launch = desk.launch(task=OURS)
    worker = await ready(launch, ProcessRunner("root", path))
    assert "sh -c" in command_line(worker.handle.pid or 0)
    await worker.dispose()
