"""What goes wrong while two jobs run: what becomes of the one, and that the other is unharmed.

An upgrade of the controller and the agents, too, which is to do no harm at all.
"""

import contextlib
import os
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from tests.support.jobs_under_faults import (
    OtherJob,
    begins_again,
    other_job,
    victim,
    victim_spec,
)
from tests.support.lab_faults import (
    SERVER_WITH_SMALL_DISK,
    full,
    gpu_gone,
    kill_a_worker,
    no_carrier,
    small_disks,
)
from tests.support.lab_jobs import (
    agent_statuses,
    checked_iterations,
    connected,
    ended,
)
from tests.support.lab_processes import (
    agent_of,
    controller_of,
    until_agent_answers,
    until_controller_answers,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab() -> Iterator[EmulatedLab]:
    with (
        EmulatedLab.from_file(
            "ofc2022", scale=1000, name="faulty", workers="process"
        ) as emulated,
        small_disks(emulated),
        connected(emulated),
    ):
        yield emulated


@pytest.fixture(scope="module")
def other(lab: EmulatedLab) -> Iterator[OtherJob]:
    """Trains through all that happens in this module."""
    with other_job(lab) as job:
        yield job
        job.check_every_iteration()


@pytest.fixture
def client(other: OtherJob) -> Iterator[ControllerClient]:
    yield other.client
    assert other.goes_on()


Fault = Callable[[EmulatedLab, str, str], AbstractContextManager[None]]
"""Something that befalls a host, and a worker on it."""


@contextlib.contextmanager
def worker_killed(lab: EmulatedLab, _: str, worker: str) -> Iterator[None]:
    kill_a_worker(lab, random.Random(0), worker)
    yield


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        pytest.param(
            worker_killed, "ended with exit code 137", id="worker killed"
        ),
        pytest.param(
            lambda lab, host, _: gpu_gone(lab, host),
            "its GPU is gone",
            id="GPU gone",
        ),
        pytest.param(
            lambda lab, host, _: no_carrier(lab, host),
            "no link for more than 1 s, the job's limit: ",
            id="no carrier",
        ),
    ],
)
def test_a_job_begins_again_on_spare_hardware_where_it_was(
    lab: EmulatedLab, client: ControllerClient, fault: Fault, why: str
) -> None:
    with victim(client, "victim") as job_id:
        last = client.job(job_id).hosts[-1]
        with fault(lab, last, f"{job_id}-1"):
            again = begins_again(client, job_id)
            assert last not in again.hosts
        assert again.first_iteration > 0
        (said,) = [
            s.message
            for s in client.history(job_id)
            if "failure 1 of 2" in s.message
        ]
        assert why in said


def test_a_full_disk_fails_the_job_that_needs_it(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with (
        victim(
            client, "full", hosts=("gpu4", "gpu5"), workers=0, retries=0
        ) as job_id,
        full(lab.run_dir / "agents" / SERVER_WITH_SMALL_DISK),
    ):
        end = ended(client, job_id)
    assert end.state == "failed"
    assert "no space left on the disk" in end.message


@pytest.fixture
def next_version(tmp_path: Path) -> Mapping[str, str]:
    """Variables with which a process takes itself for another version of Patchlight."""
    about = tmp_path / "patchlight-99.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text(
        "Metadata-Version: 2.1\nName: patchlight\nVersion: 99.0\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_the_controller_and_then_the_agents_are_upgraded_under_running_jobs(
    lab: EmulatedLab, client: ControllerClient, next_version: Mapping[str, str]
) -> None:
    with victim(
        client, "upgraded", hosts=("gpu4", "gpu5"), workers=0
    ) as job_id:
        (waits,) = client.submit(
            [victim_spec("waits", hosts=("gpu4",), workers=0)]
        )
        controller = controller_of(lab)
        controller.end(signal.SIGTERM)
        controller.start(next_version)
        until_controller_answers(lab)
        assert client.status().version == "99.0"
        agents = [agent_of(lab, server.name) for server in lab.lab.servers]
        for agent in agents:
            agent.end(signal.SIGTERM)
            agent.start(next_version)
        for server in lab.lab.servers:
            until_agent_answers(lab, server.name)
        assert {status.version for status in agent_statuses(lab.lab)} == {
            "99.0"
        }
        done = client.job(job_id).iterations_done
        wait_until(lambda: client.job(job_id).iterations_done > done + 2)
        upgraded = client.job(job_id)
        assert (
            upgraded.state,
            upgraded.attempt,
            upgraded.restarts,
        ) == ("running", 0, 0)
        assert client.job(waits.id).state == "queued"
    wait_until(lambda: client.job(waits.id).state == "running")
    client.stop(waits.id)
    assert checked_iterations(client, job_id)
