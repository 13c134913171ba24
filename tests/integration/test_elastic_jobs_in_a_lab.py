"""A job in an emulated lab grows when GPUs come free and shrinks for who waits, its sums right."""

from collections.abc import Iterator

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.lab_jobs import checked_iterations, connected, ended
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]

ON_ONE_GPU = {"Tesla M40": 0.4, "Titan V": 0.4}
ITERATIONS = 100


@pytest.fixture(scope="module")
def client() -> Iterator[ControllerClient]:
    policies = PolicyChoice(partition="minimum", elasticity="give-and-take")
    with (
        EmulatedLab.from_file(
            "ofc2022",
            scale=1000,
            name="elastic",
            workers="process",
            policies=policies,
        ) as lab,
        connected(lab) as controller,
    ):
        yield controller


def until_workers(client: ControllerClient, job_id: str, workers: int) -> None:
    """Wait until the job trains with so many."""

    def does() -> bool:
        status = client.job(job_id)
        assert status.finished_at is None, status.message
        return status.state == "running" and len(status.hosts) == workers

    wait_until(does)


def test_a_job_grows_when_another_ends_and_shrinks_when_one_comes(
    client: ControllerClient,
) -> None:
    rigid = JobSpec("rigid", 1000, 4_000_000, ON_ONE_GPU, workers=4)
    other = client.submit([rigid])[0].id
    auto = JobSpec(
        "auto", ITERATIONS, 4_000_000, ON_ONE_GPU, degrees=(2, 4), seed=3
    )
    job_id = client.submit([auto])[0].id
    until_workers(client, job_id, 2)
    assert client.job(job_id).rigid_because is None
    client.stop(other)
    until_workers(client, job_id, 4)
    short = JobSpec(
        "short", 2, 4_000_000, dict.fromkeys(ON_ONE_GPU, 0.01), workers=4
    )
    coming = client.submit([short])[0].id
    assert ended(client, coming).state == "done"

    job = ended(client, job_id)
    assert job.state == "done", job.message
    assert job.failures == 0
    changes = job.degrees
    assert [workers for _, _, workers in changes[:3]] == [2, 4, 2]
    begins = [iteration for _, iteration, _ in changes]
    assert begins == sorted(begins)
    assert begins[1] > 0
    # Each iteration was done once by each worker that there was then, and its sum was right.
    wanted = sorted(
        (rank, index)
        for (_, begin, workers), end in zip(
            changes, [*begins[1:], ITERATIONS], strict=True
        )
        for index in range(begin, end)
        for rank in range(workers)
    )
    assert checked_iterations(client, job_id) == wanted
    kinds = [decision.kind for decision in client.decisions(job_id)]
    # Workers that could not be held in time train on as they were, and it is decided again.
    assert kinds.count("elasticity") >= len(changes) - 1
