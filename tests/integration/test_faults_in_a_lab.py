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
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_campaign import POLICY
from tests.support.jobs_under_faults import OtherJob, begins_again, other_job, victim, victim_spec
from tests.support.lab_faults import (
    SERVER_WITH_SMALL_DISK,
    full,
    gpu_gone,
    kill_a_worker,
    killed,
    lose_light,
    no_carrier,
    small_disks,
)
from tests.support.lab_jobs import agent_statuses, checked_iterations, connected, ended
from tests.support.lab_processes import (
    LabProcess,
    agent_of,
    controller_of,
    until_agent_answers,
    until_controller_answers,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    policy = tmp_path_factory.mktemp("policy") / "moody.py"
    policy.write_text(POLICY)
    choice = PolicyChoice(placement=f"{policy}:Moody")
    with (
        EmulatedLab.from_file(
            "ofc2022", scale=1000, name="faulty", workers="process", policies=choice
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
        pytest.param(worker_killed, "ended with exit code 137", id="worker killed"),
        pytest.param(lambda lab, host, _: gpu_gone(lab, host), "its GPU is gone", id="GPU gone"),
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
        last = client.job(job_id)["hosts"][-1]
        with fault(lab, last, f"{job_id}-1"):
            again = begins_again(client, job_id)
            assert last not in again["hosts"]
        assert again["first_iteration"] > 0
        (said,) = [s["message"] for s in client.history(job_id) if "failure 1 of 2" in s["message"]]
        assert why in said


def test_a_job_without_more_attempts_fails_and_says_why(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with victim(client, "dark", hosts=("gpu4", "gpu5"), workers=0, retries=0) as job_id:
        lose_light(lab, "gpu4")
        client.drift()  # the switch is looked at
        wait_until(lambda: client.job(job_id)["state"] == "failed")
        words = "no link for more than 1 s, the job's limit: server3.gpu4: no two-way circuit"
        assert words in client.job(job_id)["message"]
    client.repair(["ocs1"])


def test_a_full_disk_fails_the_job_that_needs_it(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with (
        victim(client, "full", hosts=("gpu4", "gpu5"), workers=0, retries=0) as job_id,
        full(lab.run_dir / "agents" / SERVER_WITH_SMALL_DISK),
    ):
        end = ended(client, job_id)
    assert end["state"] == "failed"
    assert "no space left on the disk" in end["message"]


def test_a_silent_agent_is_told_of_and_its_job_goes_on(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with victim(client, "silent", hosts=("gpu4", "gpu5"), workers=0, retries=0) as job_id:
        agent = agent_of(lab, "server3")
        agent.end(signal.SIGKILL)
        said = "no answer from the agent of server3"
        wait_until(lambda: said in client.job(job_id)["message"])
        agent.start()
        wait_until(lambda: said not in client.job(job_id)["message"])
        done = client.job(job_id)["iterations_done"]
        wait_until(lambda: client.job(job_id)["iterations_done"] > done + 2)
        assert client.job(job_id)["attempt"] == 0


def test_a_missing_image_fails_its_job_alone(client: ControllerClient) -> None:
    image = JobSpec(
        "image", trainer="command", command=("true",), image="none:latest", workers=1, retries=1
    )
    end = ended(client, client.submit([image])[0]["id"])
    assert (end["state"], end["failures"]) == ("failed", 1)
    assert "requests the image none:latest" in end["message"]


def test_jobs_run_on_without_their_circuit_switch_and_new_ones_wait(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with victim(client, "lit", hosts=("gpu4", "gpu5"), workers=0) as job_id:
        with killed(LabProcess(lab, "--ocs=ocs1")):
            waits = client.submit([victim_spec("waits", hosts=("gpu2", "gpu3"), workers=0)])[0]
            wait_until(lambda: "ocs1" in client.job(waits["id"])["message"])
            done = client.job(job_id)["iterations_done"]
            wait_until(lambda: client.job(job_id)["iterations_done"] > done + 2)
        wait_until(lambda: client.job(waits["id"])["state"] == "running")
        client.stop(waits["id"])


def test_a_job_that_the_policy_never_places_waits_and_others_pass(client: ControllerClient) -> None:
    never = client.submit([victim_spec("never")])[0]["id"]
    wait_until(lambda: "finds no placement for it" in client.job(never)["message"])
    client.stop(never)
    assert client.job(never)["state"] == "stopped"
    with victim(client, "hangs-no-more"):
        faults = [e["message"] for e in client.events() if e["kind"] == "policy-fault"]
    assert any("no answer within" in said for said in faults)


@pytest.fixture
def next_version(tmp_path: Path) -> Mapping[str, str]:
    """Variables with which a process takes itself for another version of Patchlight."""
    about = tmp_path / "patchlight-99.0.dist-info" / "METADATA"
    about.parent.mkdir()
    about.write_text("Metadata-Version: 2.1\nName: patchlight\nVersion: 99.0\n")
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}


def test_the_controller_and_then_the_agents_are_upgraded_under_running_jobs(
    lab: EmulatedLab, client: ControllerClient, next_version: Mapping[str, str]
) -> None:
    with victim(client, "upgraded", hosts=("gpu4", "gpu5"), workers=0) as job_id:
        (waits,) = client.submit([victim_spec("waits", hosts=("gpu4",), workers=0)])
        controller = controller_of(lab)
        controller.end(signal.SIGTERM)
        controller.start(next_version)
        until_controller_answers(lab)
        assert client.status()["version"] == "99.0"
        agents = [agent_of(lab, server.name) for server in lab.lab.servers]
        for agent in agents:
            agent.end(signal.SIGTERM)
            agent.start(next_version)
        for server in lab.lab.servers:
            until_agent_answers(lab, server.name)
        assert {status.version for status in agent_statuses(lab.lab)} == {"99.0"}
        done = client.job(job_id)["iterations_done"]
        wait_until(lambda: client.job(job_id)["iterations_done"] > done + 2)
        upgraded = client.job(job_id)
        assert (upgraded["state"], upgraded["attempt"], upgraded["restarts"]) == ("running", 0, 0)
        assert client.job(waits["id"])["state"] == "queued"
    wait_until(lambda: client.job(waits["id"])["state"] == "running")
    client.stop(waits["id"])
    assert checked_iterations(client, job_id)
