"""What goes wrong while two jobs run: what becomes of the one, and that the other is unharmed."""

import contextlib
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from patchlight import EmulatedLab
from patchlight.controller.client import ControllerClient
from patchlight.controller.jobs.policy_set import PolicyChoice
from patchlight.testbed.jobs import JobSpec
from tests.support.job_campaign import POLICY
from tests.support.jobs_under_faults import OtherJob, begins_again, other_job, victim, victim_spec
from tests.support.lab_faults import (
    SERVER_WITH_SMALL_DISK,
    frozen,
    full,
    gpu_gone,
    kill_a_worker,
    lose_light,
    no_carrier,
    small_disks,
)
from tests.support.lab_jobs import connected, ended
from tests.support.lab_processes import LabProcess, agent_of
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


Fault = Callable[[EmulatedLab, str], AbstractContextManager[None]]


@contextlib.contextmanager
def worker_killed(lab: EmulatedLab, host: str) -> Iterator[None]:
    kill_a_worker(lab, random.Random(0), lab.lab.host(host).server.name)
    yield


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (worker_killed, "ended with exit code 137"),
        (gpu_gone, "its GPU is gone"),
        (no_carrier, "has no carrier for more than 1 s, the job's limit"),
    ],
)
def test_a_job_begins_again_on_spare_hardware_where_it_was(
    lab: EmulatedLab, client: ControllerClient, fault: Fault, why: str
) -> None:
    with victim(client, "victim") as job_id:
        last = client.job(job_id)["hosts"][-1]
        with fault(lab, last):
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
        assert "nic4 of server3 is dark for more than 1 s" in client.job(job_id)["message"]
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
    assert "asks for the image none:latest" in end["message"]


def test_jobs_run_on_without_their_circuit_switch_and_new_ones_wait(
    lab: EmulatedLab, client: ControllerClient
) -> None:
    with victim(client, "lit", hosts=("gpu4", "gpu5"), workers=0) as job_id:
        with frozen(LabProcess(lab, "--ocs=ocs1")):
            waits = client.submit([victim_spec("waits", hosts=("gpu2", "gpu3"), workers=0)])[0]
            wait_until(lambda: "ocs1" in client.job(waits["id"])["message"], deadline_s=60)
            done = client.job(job_id)["iterations_done"]
            wait_until(lambda: client.job(job_id)["iterations_done"] > done + 2)
        wait_until(lambda: client.job(waits["id"])["state"] == "running", deadline_s=60)
        client.stop(waits["id"])


def test_a_job_that_the_policy_never_places_waits_and_others_pass(client: ControllerClient) -> None:
    never = client.submit([victim_spec("never")])[0]["id"]
    wait_until(lambda: "finds no place for it" in client.job(never)["message"])
    client.stop(never)
    assert client.job(never)["state"] == "stopped"
    with victim(client, "hangs-no-more"):
        faults = [e["message"] for e in client.events() if e["kind"] == "policy-fault"]
    assert any("no answer within" in said for said in faults)
