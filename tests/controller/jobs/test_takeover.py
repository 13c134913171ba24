"""Jobs outlive their controller: the next one queues, follows and clears up."""

import asyncio

from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Allowance, Discipline
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
    cluster.workers[f"{job_id}-2"].end("failed", "its GPU failed")
    await asyncio.sleep(5)  # simulated: costs no time
    assert cluster.table[job_id].attempt == 0
    cluster.gates[f"worker {job_id}-2"].set()
    await cluster.until(lambda: cluster.table[job_id].attempt == 1)
    assert cluster.table[job_id].avoid == (hosts[2],)
    said = [each["message"] for each in cluster.table.ledger.history(job_id)]
    assert any(
        "worker 2 on " in each and "failed: its GPU failed" in each
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
