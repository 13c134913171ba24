"""Jobs outlive their controller: the next one queues, follows and clears up."""

import asyncio

import pytest

from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Allowance, Discipline
from tests.simulation.servers import Worker
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)


def calls(cluster: Cluster, call: str) -> list[str]:
    return [worker for name, worker in cluster.calls if name == call]


@simulated()
async def test_jobs_go_on_and_are_followed_by_the_next_controller(
    cluster: Cluster,
) -> None:
    ran, ends = await submit_running(
        cluster, job("ran", "gpu0", "gpu1"), job("ends", "gpu2")
    )
    (waits,) = cluster.submit(job("waits", "gpu0"))
    await cluster.until_done(ran, 1)
    created = calls(cluster, "create")
    cluster.controller.kill()
    await asyncio.sleep(1)  # simulated: costs no time
    cluster.end(ends)
    await cluster.start()
    await cluster.until_state(ends, JobState.DONE)
    await cluster.until_done(ran, 12)
    assert calls(cluster, "create") == created
    assert cluster.table[waits].state is JobState.QUEUED
    assert cluster.table[ran].restarts == 0
    await finish(cluster, ran)
    await cluster.until_state(waits, JobState.RUNNING)
    reports, _ = cluster.table.ledger.iterations(ran)
    indices = [report["index"] for report in reports if report["rank"] == 0]
    assert indices == list(range(len(indices)))


@pytest.mark.parametrize(
    "moment", ["launched", "ready", "start", "running", "held"]
)
@simulated()
async def test_a_job_goes_on_whatever_its_controller_did_as_it_died(
    cluster: Cluster, moment: str
) -> None:
    def die(worker: Worker, what: str) -> None:
        if what == moment and cluster.controller.alive:
            cluster.controller.kill()

    cluster.on_worker.append(die)
    (job_id,) = cluster.submit(job("job", "gpu0", "gpu2", iterations=50))
    if moment == "held":
        await cluster.until_trains(job_id)
        change = asyncio.create_task(
            cluster.scheduler.rewiring.regroup([job_id])
        )
    await cluster.until(lambda: not cluster.controller.alive)
    if moment == "held":
        change.cancel()
    cluster.on_worker.remove(die)
    await cluster.start()
    await cluster.until_state(job_id, JobState.DONE)
    assert cluster.table[job_id].failures == 0
    await cluster.until(lambda: not cluster.workers)


@simulated()
async def test_gangs_that_wait_stay_together_and_in_their_order(
    cluster: Cluster,
) -> None:
    (busy,) = await submit_running(cluster, job("busy", "gpu0"))
    both = cluster.submit(job("a", "gpu0"), job("b", "gpu1"))
    (last,) = cluster.submit(job("last", "gpu0"))
    await cluster.kill_and_restart()
    cluster.end(busy)
    for job_id in both:
        await cluster.until_state(job_id, JobState.RUNNING)
    assert cluster.table[last].state is JobState.QUEUED


@simulated()
async def test_a_worker_that_is_nobodys_is_ended_and_nobody_waits_for_it_but_its_hosts_next(
    cluster: Cluster,
) -> None:
    (stray,) = await submit_running(cluster, job("stray", "gpu1"))
    cluster.store.write("DELETE FROM jobs")
    cluster.controller.kill()
    cluster.gates["delete"] = asyncio.Event()
    await cluster.start()
    (waits,) = cluster.submit(job("waits", "gpu1"))
    words = f"worker {stray}-0 is still ending"
    await cluster.until(
        lambda: cluster.scheduler.message(cluster.table[waits]) == words
    )
    await submit_running(cluster, job("other", "gpu2"))
    assert calls(cluster, "delete") == [f"{stray}-0"]
    cluster.gates["delete"].set()
    await cluster.until_state(waits, JobState.RUNNING)
    (swept,) = cluster.events("worker-swept")
    assert swept["message"].startswith(f"{stray}-0 ")


@simulated()
async def test_a_failed_job_begins_again_elsewhere_where_it_was(
    cluster: Cluster,
) -> None:
    (tries,) = await submit_running(
        cluster, job("tries", workers=2, retries=1)
    )
    before = cluster.table[tries].hosts
    await cluster.until_done(tries, 3)
    cluster.workers[f"{tries}-1"].end("failed", "GPU fell off")
    await cluster.until(lambda: cluster.table[tries].attempt == 1)
    assert "failure 1 of 2: " in cluster.events("job-queued")[-1]["message"]
    await cluster.until_trains(tries)
    again = cluster.table[tries]
    of_ranks = cluster.table.ledger.reports_by_rank(tries, 0).values()
    assert again.first_iteration == min(of_ranks) > 0
    assert before[1] not in again.hosts
    cluster.end(tries, "failed", "once more")
    await cluster.until_state(tries, JobState.FAILED)
    assert "once more" in cluster.table[tries].message


@simulated()
async def test_a_job_that_is_stopped_while_it_gives_back_does_not_begin_again(
    cluster: Cluster,
) -> None:
    (tries,) = await submit_running(cluster, job("tries", "gpu0", retries=1))
    cluster.gates["delete"] = asyncio.Event()
    cluster.end(tries, "failed", "GPU fell off")
    await cluster.until(lambda: calls(cluster, "delete"))
    stop = asyncio.create_task(cluster.scheduler.stop(tries))
    await asyncio.sleep(0)
    cluster.gates["delete"].set()
    assert (await stop).state is JobState.STOPPED
    (other,) = await submit_running(cluster, job("other", "gpu0"))
    assert cluster.table[tries].state is JobState.STOPPED
    assert other in cluster.table.running


@simulated(discipline=Discipline(users=(("ann", Allowance(gpus=2)),)))
async def test_what_a_failed_job_had_counts_for_its_user_no_more(
    cluster: Cluster,
) -> None:
    (tries,) = cluster.scheduler.submit(
        [job("tries", workers=2, retries=1)], by="ann"
    )
    await cluster.until_trains(tries.id)
    cluster.gates["delete"] = asyncio.Event()
    cluster.end(tries.id, "failed", "GPU fell off")
    await cluster.until(lambda: calls(cluster, "delete"))
    # A pass of the queue sees the job without hosts, before it has given them back.
    await submit_running(cluster, job("other", workers=1))
    cluster.gates["delete"].set()
    await cluster.until_state(tries.id, JobState.RUNNING)


@simulated()
async def test_a_drained_controller_starts_nothing_until_it_resumes(
    cluster: Cluster,
) -> None:
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    (waits,) = cluster.submit(job("waits", "gpu0"))
    assert await cluster.scheduler.drain("maintenance") == [ran]
    assert cluster.table[ran].state is JobState.STOPPED
    assert cluster.workers == {}
    await cluster.kill_and_restart()
    await asyncio.sleep(20)  # simulated: costs no time
    assert cluster.scheduler.drained
    assert cluster.table[waits].state is JobState.QUEUED
    cluster.scheduler.resume()
    await cluster.until_state(waits, JobState.RUNNING)


@simulated()
async def test_a_running_job_can_begin_again_and_an_ended_one_anew(
    cluster: Cluster,
) -> None:
    (ran,) = await submit_running(cluster, job("ran", "gpu0"))
    assert (await cluster.scheduler.restart(ran)).attempt == 1
    await cluster.until_trains(ran)
    await finish(cluster, ran)
    new = await cluster.scheduler.restart(ran)
    assert new.id != ran
    await cluster.until_state(new.id, JobState.RUNNING)


@simulated()
async def test_a_job_whose_agent_stays_silent_begins_again_elsewhere(
    cluster: Cluster,
) -> None:
    (lost,) = await submit_running(cluster, job("lost", workers=1, retries=1))
    (host,) = cluster.table[lost].hosts
    server = cluster.lab.host(host).server.name
    cluster.machines[server].agent.kill()
    said = f"no answer from the agent of {server}"
    await cluster.until(lambda: cluster.scheduler.job(lost).message == said)
    await cluster.until(lambda: cluster.table[lost].attempt == 1)
    await cluster.until_state(lost, JobState.RUNNING)
    assert host not in cluster.table[lost].hosts


@simulated()
async def test_the_worker_that_failed_first_is_blamed_and_not_who_lost_it(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(
        cluster, job("blame", workers=3, retries=1)
    )
    hosts = cluster.table[job_id].hosts
    # Its own agent says so later than those of the ranks that lost it.
    cluster.gates[f"worker {job_id}-2"] = asyncio.Event()
    cluster.workers[f"{job_id}-2"].end("failed", "its GPU is gone")
    await asyncio.sleep(5)  # simulated: costs no time
    assert cluster.table[job_id].attempt == 0
    cluster.gates[f"worker {job_id}-2"].set()
    await cluster.until(lambda: cluster.table[job_id].attempt == 1)
    assert cluster.table[job_id].avoid == (hosts[2],)
    said = [each["message"] for each in cluster.table.ledger.history(job_id)]
    assert any(
        "worker 2 on " in each and "failed: its GPU is gone" in each
        for each in said
    )


@simulated()
async def test_a_job_that_fails_after_its_last_iteration_trains_that_once_more(
    cluster: Cluster,
) -> None:
    cluster.trains = False
    (late,) = await submit_running(
        cluster, job("late", workers=2, retries=1, iterations=50)
    )
    cluster.trains = True
    for worker in cluster.workers_of(late):
        worker.skip_to(50)
    ledger = cluster.table.ledger
    await cluster.until(
        lambda: sum(ledger.reports_by_rank(late, 0).values()) == 100
    )
    cluster.workers[f"{late}-1"].end("failed", "its NIC is gone")
    await cluster.until(lambda: cluster.table[late].attempt == 1)
    assert cluster.table[late].first_iteration == 49
    await cluster.until_state(late, JobState.DONE)
