"""Running jobs pause while circuits that they use change, and go on afterwards."""

from __future__ import annotations

from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab import Endpoint
from patchlight.testbed.worker_api import WorkerState
from tests.support.job_cluster import COMPUTE, Cluster


def nic_of(cluster: Cluster, host: str) -> frozenset[Endpoint]:
    return frozenset({cluster.lab.host(host).endpoint})


async def running_job(cluster: Cluster, *hosts: str) -> str:
    (job_id,) = cluster.submit(JobSpec("job", 5, 4_000_000, COMPUTE, hosts=hosts))
    await cluster.until_state(job_id, JobState.RUNNING)
    return job_id


def states(cluster: Cluster, job_id: str) -> set[WorkerState]:
    return {cluster.fleet.workers[name].state for name in cluster.fleet.job_workers(job_id)}


async def test_only_the_jobs_on_the_ports_that_move_pause(cluster: Cluster) -> None:
    moved, stays = (await running_job(cluster, "gpu0", "gpu2"), await running_job(cluster, "gpu1"))
    ports = nic_of(cluster, "gpu2") | nic_of(cluster, "gpu4")
    assert cluster.traffic.jobs_using(ports) == [moved]
    assert cluster.traffic.jobs_using(nic_of(cluster, "gpu4")) == []
    assert await cluster.traffic.drain(ports) == []
    assert states(cluster, moved) == {WorkerState.HELD}
    assert states(cluster, stays) == {WorkerState.RUNNING}
    await cluster.traffic.undrain()
    assert states(cluster, moved) == {WorkerState.RUNNING}
    assert [call for call, name in cluster.fleet.calls if name.startswith(stays)] == [
        "create",
        "start",
    ]


async def test_a_job_that_has_no_traffic_yet_is_not_asked(cluster: Cluster) -> None:
    cluster.fleet.first_state = WorkerState.STARTING
    (job_id,) = cluster.submit(JobSpec("job", 5, 4_000_000, COMPUTE, hosts=("gpu0",)))
    await cluster.until(lambda: cluster.fleet.job_workers(job_id))
    assert cluster.traffic.jobs_using(nic_of(cluster, "gpu0")) == []


async def test_who_does_not_pause_in_time_is_named_and_let_go(cluster: Cluster) -> None:
    job_id = await running_job(cluster, "gpu0")
    cluster.fleet.pauses = False
    (note,) = await cluster.traffic.drain(nic_of(cluster, "gpu0"))
    assert note.startswith(f"job {job_id} did not pause in time")
    await cluster.traffic.undrain()
    assert ("release", f"{job_id}-0") in cluster.fleet.calls


async def test_all_ranks_pause_before_an_iteration_that_none_has_begun(cluster: Cluster) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu1")
    cluster.fleet.report(f"{job_id}-0", 6)
    cluster.fleet.report(f"{job_id}-1", 7)
    await cluster.traffic.drain(nic_of(cluster, "gpu0"))
    assert cluster.fleet.held_before == {f"{job_id}-0": 9, f"{job_id}-1": 9}


async def test_where_a_rank_was_too_fast_a_later_iteration_is_tried(cluster: Cluster) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu1")
    cluster.fleet.too_late = 1
    assert await cluster.traffic.drain(nic_of(cluster, "gpu0")) == []
    calls = [call for call, name in cluster.fleet.calls if name == f"{job_id}-0"]
    assert calls == ["create", "start", "hold", "release", "hold"]
