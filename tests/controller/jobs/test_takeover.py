"""Jobs outlive their controller: the next one queues, follows and clears up."""

import asyncio

import pytest

from patchlight.controller.hosts import agent_client
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from patchlight.testbed.wire.agent_status import AgentStatus
from patchlight.testbed.wire.worker_api import WorkerState, WorkerStatus
from tests.support.job_cluster import Cluster, at_work, job, submit_running


def calls(cluster: Cluster, call: str) -> list[str]:
    return [worker for name, worker in cluster.fleet.calls if name == call]


async def until_reported(cluster: Cluster, job_id: str, count: int) -> None:
    """Wait until so many reports of a job's ranks are in."""
    await cluster.until(lambda: len(cluster.table.ledger.iterations(job_id)[0]) == count)


async def test_jobs_go_on_and_are_followed_by_the_next_controller() -> None:
    async with at_work(PolicyChoice()) as first:
        ran, ends = await submit_running(first, job("ran", "gpu0", "gpu1"), job("ends", "gpu2"))
        (waits,) = first.submit(job("waits", "gpu0"))
        first.fleet.report(f"{ran}-0", 0)
        await first.until(lambda: first.table[ran].iterations_done == 1)
        created = calls(first, "create")
    first.fleet.report(f"{ran}-0", 1)
    first.fleet.put(ends, WorkerState.DONE)
    async with at_work(PolicyChoice(), first) as second:
        await second.until_state(ends, JobState.DONE)
        await second.until(lambda: second.table[ran].iterations_done == 2)
        # What a job was is told before its workers are given back.
        await second.until(lambda: calls(second, "delete") == [f"{ends}-0"])
        assert calls(second, "create") == created
        assert second.table[waits].state is JobState.QUEUED
        assert second.table[ran].restarts == 0
        second.fleet.put(ran, WorkerState.DONE)
        await second.until_state(waits, JobState.RUNNING)
        reports, _ = second.table.ledger.iterations(ran)
        assert [report["index"] for report in reports] == [0, 1]


async def test_a_job_that_was_being_started_begins_again() -> None:
    async with at_work(PolicyChoice()) as first:
        first.fleet.first_state = WorkerState.STARTING
        (half,) = first.submit(job("half", "gpu0", "gpu1"))
        await first.until(lambda: len(first.fleet.workers) == 2)
    first.fleet.first_state = WorkerState.READY
    async with at_work(PolicyChoice(), first) as second:
        await second.until_state(half, JobState.RUNNING)
        assert second.fleet.job_workers(half) == []
        assert sorted(second.fleet.workers) == [f"{half}.1-0", f"{half}.1-1"]


async def test_gangs_that_wait_stay_together_and_in_their_order() -> None:
    async with at_work(PolicyChoice()) as first:
        (busy,) = await submit_running(first, job("busy", "gpu0"))
        both = first.submit(job("a", "gpu0"), job("b", "gpu1"))
        (last,) = first.submit(job("last", "gpu0"))
    async with at_work(PolicyChoice(), first) as second:
        second.fleet.put(busy, WorkerState.DONE)
        for job_id in both:
            await second.until_state(job_id, JobState.RUNNING)
        assert second.table[last].state is JobState.QUEUED


async def test_paused_workers_are_let_go_on() -> None:
    async with at_work(PolicyChoice()) as first:
        (held,) = await submit_running(first, job("held", "gpu0", "gpu1"))
    first.fleet.put(held, WorkerState.HELD)  # its controller died while the light moved
    async with at_work(PolicyChoice(), first) as second:
        states = second.fleet.workers
        await second.until(lambda: {s.state for s in states.values()} == {WorkerState.RUNNING})


async def test_workers_that_were_not_told_to_start_yet_are() -> None:
    async with at_work(PolicyChoice()) as first:
        (half,) = await submit_running(first, job("half", "gpu0", "gpu1"))
    first.fleet.put_worker(f"{half}-1", WorkerState.READY)
    async with at_work(PolicyChoice(), first) as second:
        workers = second.fleet.workers
        await second.until(lambda: workers[f"{half}-1"].state is WorkerState.RUNNING)


async def test_a_worker_that_is_nobodys_is_ended(cluster: Cluster) -> None:
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    stray = WorkerStatus(id="gone-1-0", job="gone-1", state=WorkerState.HELD, nic="nic1")
    ours = cluster.fleet.workers[f"{ran}-0"].model_copy(update={"job": ran})
    old = WorkerStatus(id=f"{ran}.9-0", job=ran, state=WorkerState.RUNNING)
    cluster.fleet.workers |= {stray.id: stray, old.id: old}
    agent = AgentStatus(
        server="server1",
        version="1",
        runner="process",
        gpus=[],
        nics=[],
        workers=[ours, stray, old],
    )
    await cluster.until(lambda: cluster.fleet.on_status)
    assert cluster.fleet.on_status is not None
    # They may take their time, and neither their agent nor other jobs wait for that.
    cluster.fleet.may_delete.clear()
    await cluster.fleet.on_status(agent)
    await cluster.fleet.on_status(agent)
    (waits,) = cluster.submit(job("waits", "gpu1"))
    await cluster.until(lambda: cluster.scheduler.message(cluster.table[waits]))
    assert cluster.scheduler.message(cluster.table[waits]) == "worker gone-1-0 is still ending"
    await submit_running(cluster, job("other", "gpu2"))
    assert calls(cluster, "delete") == ["gone-1-0", f"{ran}.9-0"]
    cluster.fleet.may_delete.set()
    await cluster.until_state(waits, JobState.RUNNING)
    swept = [each["message"] for each in cluster.store.events() if each["kind"] == "worker-swept"]
    assert [message.split()[0] for message in swept] == ["gone-1-0", f"{ran}.9-0"]


async def test_a_failed_job_begins_again_elsewhere_where_it_was(cluster: Cluster) -> None:
    (tries,) = await submit_running(cluster, job("tries", workers=2, retries=1))
    before = cluster.table[tries].hosts
    for index in range(3):
        for name in cluster.fleet.job_workers(tries):
            cluster.fleet.report(name, index)
    await until_reported(cluster, tries, 3 * 2)
    assert cluster.table[tries].iterations_done == 3
    cluster.fleet.put_worker(f"{tries}-1", WorkerState.FAILED, "GPU fell off")
    await cluster.until(lambda: cluster.table[tries].attempt == 1)
    said = [event["message"] for event in cluster.store.events() if event["kind"] == "job-queued"]
    assert "failure 1 of 2: " in said[-1]
    await cluster.until_state(tries, JobState.RUNNING)
    again = cluster.table[tries]
    assert again.first_iteration == 3
    assert before[1] not in again.hosts
    cluster.fleet.put_worker(f"{tries}.1-0", WorkerState.FAILED, "once more")
    await cluster.until_state(tries, JobState.FAILED)
    assert "once more" in cluster.table[tries].message


async def test_a_job_that_is_stopped_while_it_gives_back_does_not_begin_again(
    cluster: Cluster,
) -> None:
    (tries,) = await submit_running(cluster, job("tries", "gpu0", retries=1))
    cluster.fleet.may_delete.clear()
    cluster.fleet.put(tries, WorkerState.FAILED, "GPU fell off")
    await cluster.until(lambda: calls(cluster, "delete"))
    stop = asyncio.create_task(cluster.scheduler.stop(tries))
    await asyncio.sleep(0)
    cluster.fleet.may_delete.set()
    assert (await stop).state is JobState.STOPPED
    (other,) = await submit_running(cluster, job("other", "gpu0"))
    assert cluster.table[tries].state is JobState.STOPPED
    assert other in cluster.table.running


async def test_what_a_failed_job_had_counts_for_its_user_no_more() -> None:
    rules = Discipline(users=(("ann", Allowance(gpus=2)),))
    async with at_work(PolicyChoice(), discipline=rules) as cluster:
        (tries,) = cluster.scheduler.submit([job("tries", workers=2, retries=1)], by="ann")
        await cluster.until_state(tries.id, JobState.RUNNING)
        cluster.fleet.may_delete.clear()
        cluster.fleet.put(tries.id, WorkerState.FAILED, "GPU fell off")
        await cluster.until(lambda: calls(cluster, "delete"))
        # A pass of the queue sees the job without hosts, before it has given them back.
        await submit_running(cluster, job("other", workers=1))
        cluster.fleet.may_delete.set()
        await cluster.until_state(tries.id, JobState.RUNNING)


async def test_a_drained_controller_starts_nothing_until_it_resumes() -> None:
    async with at_work(PolicyChoice()) as first:
        (ran,) = await submit_running(first, job("ran", "gpu0"))
        (waits,) = first.submit(job("waits", "gpu0"))
        assert await first.scheduler.drain("maintenance") == [ran]
        assert first.table[ran].state is JobState.STOPPED
        assert first.fleet.workers == {}
    async with at_work(PolicyChoice(), first) as second:
        await asyncio.sleep(0.1)
        assert second.scheduler.drained
        assert second.table[waits].state is JobState.QUEUED
        second.scheduler.resume()
        await second.until_state(waits, JobState.RUNNING)


async def test_a_running_job_can_begin_again_and_an_ended_one_anew(cluster: Cluster) -> None:
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    assert (await cluster.scheduler.restart(ran)).attempt == 1
    await cluster.until_state(ran, JobState.RUNNING)
    cluster.fleet.put_worker(f"{ran}.1-0", WorkerState.DONE)
    await cluster.until_state(ran, JobState.DONE)
    new = await cluster.scheduler.restart(ran)
    assert new.id != ran
    await cluster.until_state(new.id, JobState.RUNNING)


async def test_a_job_whose_agent_stays_silent_begins_again_elsewhere(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_client, "INTERVAL_S", 0.05)
    (lost,) = await submit_running(cluster, job("lost", workers=1, retries=1))
    (host,) = cluster.table[lost].hosts
    server = cluster.lab.host(host).server.name
    cluster.fleet.quiet = {server}
    said = f"no answer from the agent of {server}"
    await cluster.until(lambda: cluster.scheduler.job(lost).message == said)
    await cluster.until(lambda: cluster.table[lost].attempt == 1)
    await cluster.until_state(lost, JobState.RUNNING)
    assert host not in cluster.table[lost].hosts


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("rank 2 is gone: it closed the connection", {"lost_rank": 2}),
        ("lost rank 2 while receiving from it in step 1 of 4", {}),  # an agent without the field
    ],
)
async def test_the_worker_that_failed_first_is_blamed_and_not_who_lost_it(
    cluster: Cluster, message: str, field: dict[str, int]
) -> None:
    spec = job("blame", workers=3, retries=1)
    (job_id,) = await submit_running(cluster, spec)
    hosts = cluster.table[job_id].hosts
    for rank in (0, 1):
        cluster.fleet.put_worker(f"{job_id}-{rank}", WorkerState.FAILED, message, **field)
    await asyncio.sleep(0.5)
    assert cluster.table[job_id].attempt == 0
    cluster.fleet.put_worker(f"{job_id}-2", WorkerState.FAILED, "its GPU is gone")
    await cluster.until(lambda: cluster.table[job_id].attempt == 1)
    assert cluster.table[job_id].avoid == (hosts[2],)
    said = [each["message"] for each in cluster.table.ledger.history(job_id)]
    assert any("worker 2 on " in each and "failed: its GPU is gone" in each for each in said)


async def test_a_job_that_fails_after_its_last_iteration_trains_that_once_more(
    cluster: Cluster,
) -> None:
    (late,) = await submit_running(cluster, job("late", workers=2, retries=1))
    for index in range(5):
        for name in cluster.fleet.job_workers(late):
            cluster.fleet.report(name, index)
    await until_reported(cluster, late, 5 * 2)
    assert cluster.table[late].iterations_done == 5
    cluster.fleet.put_worker(f"{late}-1", WorkerState.FAILED, "its NIC is gone")
    await cluster.until(lambda: cluster.table[late].attempt == 1)
    await cluster.until_state(late, JobState.RUNNING)
    assert cluster.table[late].first_iteration == 4
