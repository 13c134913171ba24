"""`emulate up` of a lab that has lost processes starts them, under a running job."""

import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.emulation.lab.teardown import lab_status
from tests.support.lab_jobs import SPREAD, connected, ended
from tests.support.lab_jobs import spread_spec as spec
from tests.support.programs import patchlight
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]
NAME = f"gone{os.getpid()}"


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        "ofc2022", 4000, name=NAME, workers="process"
    ) as emulated:
        yield emulated


@pytest.fixture
def client(lab: EmulatedLab) -> Iterator[ControllerClient]:
    with connected(lab) as controller:
        yield controller


def kill(name: str) -> None:
    (pid,) = [
        p["pid"] for p in lab_status(NAME)["processes"] if p["name"] == name
    ]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: f"process {name}" in lab_status(NAME)["missing"])


def has_done(client: ControllerClient, job: str, iterations: int) -> bool:
    return client.job(job).iterations_done >= iterations


def up_again() -> str:
    """What the command says that `emulate status` recommends: a lab goes by its name, too."""
    done = patchlight("emulate", "status", NAME)
    assert done.returncode == 1
    command = next(
        line
        for line in done.stdout.splitlines()
        if line.startswith("start these")
    )
    done = patchlight(*command.split()[-3:])
    assert done.returncode == 0, done.stderr
    assert lab_status(NAME)["state"] == "up"
    return done.stderr


def test_a_job_goes_on_whichever_process_is_killed(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    names = [
        "ocs1",
        "agent-server1",
        "workers",
        "ovsdb-server",
        "ovs-vswitchd",
        "controller",
    ]
    job = client.submit([spec("goes-on", SPREAD, 100_000)])[0].id
    before = 0
    for name in names:
        wait_until(partial(has_done, client, job, before + 2))
        kill(name)
        assert f"has lost process {name}:" in up_again()
        before = client.job(job).iterations_done
    wait_until(partial(has_done, client, job, before + 2))
    assert client.job(job).state == "running"
    client.stop(job)
    after = client.submit([spec("after", SPREAD, 3)])[0]
    assert ended(client, after.id).state == "done"
