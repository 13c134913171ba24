"""Workers in containers run before what else runs on the machine, as the rest of their lab does."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.testbed.linux import docker_engine
from tests.support.lab_jobs import SPREAD, connected, spread_spec
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs, pytest.mark.docker]

_ENGINE_OF_OURS = "unix:///run/patchlight-docker/docker.sock"
_OUR_GROUP = Path("/sys/fs/cgroup/cpu/patchlight")
_SHARES_OF_THE_LAB = 9548  # of one process with a niceness of -10


@pytest.fixture(scope="module")
def lab(docker_host: str) -> Iterator[EmulatedLab]:
    with EmulatedLab.from_file(
        "ofc2022",
        scale=4000,
        name="favoured",
        workers="docker",
        real_time=True,
    ) as emulated:
        yield emulated


@pytest.fixture(scope="module")
def workers(lab: EmulatedLab) -> Iterator[list[int]]:
    """The first processes of the containers of a job that runs."""
    with connected(lab) as client:
        job = client.submit([spread_spec("favoured", SPREAD, 10_000)])[0].id
        wait_until(lambda: client.job(job).iterations_done)
        containers = docker_engine.ask("GET", "/containers/json").json()
        ids = [
            c["Id"]
            for c in containers
            if c["Labels"].get("patchlight.job") == job
        ]
        assert len(ids) == len(SPREAD)
        shown = [
            docker_engine.ask("GET", f"/containers/{each}/json").json()
            for each in ids
        ]
        yield [each["State"]["Pid"] for each in shown]


def threads(pid: int) -> list[int]:
    return [int(number) for number in os.listdir(f"/proc/{pid}/task")]


def processor_group(pid: int) -> Path | None:
    """The control group (version 1) that a process's share of the processor is counted in."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return Path("/sys/fs/cgroup/cpu") / path.lstrip("/")
    return None


def test_every_thread_of_a_worker_has_the_lab_s_niceness(
    workers: list[int],
) -> None:
    for pid in workers:
        assert {
            os.getpriority(os.PRIO_PROCESS, thread) for thread in threads(pid)
        } == {-10}


def test_every_thread_of_a_worker_is_real_time_or_its_group_counts_for_more(
    workers: list[int],
) -> None:
    policies = {
        os.sched_getscheduler(thread)
        for pid in workers
        for thread in threads(pid)
    }
    if policies == {os.SCHED_RR}:
        return
    # Never some of them, and only because the kernel lets nobody do it.
    assert policies == {os.SCHED_OTHER}
    for pid in workers:
        with pytest.raises(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(1))
    groups = [processor_group(pid) for pid in workers]
    if (
        docker_engine.engine_url() != _ENGINE_OF_OURS
        or not all(groups)
        or not _OUR_GROUP.exists()
    ):
        pytest.skip(
            "the kernel makes no container real-time, and no group of ours holds them"
        )
    assert all(_OUR_GROUP in group.parents for group in groups if group)
    assert (
        int((_OUR_GROUP / "cpu.shares").read_text()) > 3 * _SHARES_OF_THE_LAB
    )
