"""A job that is ordered to end at any moment of its start, its move or its end ends as ordered.

``PATCHLIGHT_EVERY_STEP=1`` tries 100 moments, otherwise some are.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import Discipline, PolicyChoice
from tests.support.job_cluster import LAB, Cluster, job, play, submit_running

EVERY = os.environ.get("PATCHLIGHT_EVERY_STEP") == "1"
MOMENTS_S = [
    n / 100 for n in (range(100) if EVERY else (0, 1, 5, 12, 25, 40, 60))
]
KEEP = PolicyChoice()
ELASTIC = PolicyChoice(partition="minimum", elasticity="give-and-take")

Case = Callable[[Cluster, float], Coroutine[Any, Any, None]]


def all_six(name: str, **more: int) -> JobSpec:
    return job(name, workers=6, **more)


async def nothing_is_left(cluster: Cluster, *job_ids: str) -> None:
    """These jobs are stopped, on disk too; their workers have ended, their hosts are free."""
    for job_id in job_ids:
        assert cluster.table[job_id].state is JobState.STOPPED
        assert (await cluster.scheduler.stop(job_id)).state is JobState.STOPPED
    assert not cluster.workers
    assert not cluster.table.running
    assert not cluster.table.live()
    on_disk = JobTable(JobLedger(cluster.store))
    assert not on_disk.live()
    assert {on_disk[job_id].state for job_id in job_ids} <= {JobState.STOPPED}
    (next_job,) = await submit_running(cluster, all_six("next"))
    await cluster.scheduler.stop(next_job)


async def stop(cluster: Cluster, after_s: float) -> None:
    (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.stop(job_id)
    await nothing_is_left(cluster, job_id)


async def stop_a_gang_that_rewires(cluster: Cluster, after_s: float) -> None:
    specs = job("a", "gpu0", "gpu2"), job("b", "gpu1", "gpu4")
    job_ids = cluster.submit(*specs, topology="regroup")
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.stop(job_ids[0])
    await nothing_is_left(cluster, *job_ids)
    await cluster.until(lambda: not cluster.transactions.busy)
    await cluster.transactions.change(lambda _: LAB.initial_maps, "as it was")


async def restart(cluster: Cluster, after_s: float) -> None:
    (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
    await asyncio.sleep(after_s)  # the moment that is tried
    attempts = 1
    try:
        await cluster.scheduler.restart(job_id)
    except BadInput:  # it had not started
        attempts = 0
    await cluster.until_trains(job_id)
    assert cluster.table[job_id].attempt == attempts
    assert len(cluster.workers) == 2
    await cluster.scheduler.stop(job_id)
    await nothing_is_left(cluster, job_id)


async def stop_during_a_restart(cluster: Cluster, after_s: float) -> None:
    (job_id,) = await submit_running(cluster, job("one", "gpu0", "gpu1"))
    restarting = asyncio.create_task(cluster.scheduler.restart(job_id))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.stop(job_id)
    await restarting
    await nothing_is_left(cluster, job_id)


async def drain(cluster: Cluster, after_s: float) -> None:
    (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.drain()
    assert not cluster.workers
    assert not cluster.table.running
    await asyncio.sleep(10)  # the job runs
    state = cluster.table[job_id].state
    assert state in (JobState.QUEUED, JobState.STOPPED)
    assert not cluster.workers
    cluster.scheduler.resume()
    if state is JobState.QUEUED:
        await cluster.until_trains(job_id)
        await cluster.scheduler.stop(job_id)
    await nothing_is_left(cluster, job_id)


async def preempt(cluster: Cluster, after_s: float) -> None:
    (low,) = cluster.submit(all_six("low"))
    await asyncio.sleep(after_s)  # the moment that is tried
    (high,) = await submit_running(cluster, all_six("high", priority=5))
    assert cluster.table[low].state is JobState.QUEUED
    assert len(cluster.workers) == 6
    await cluster.scheduler.stop(high)
    await cluster.until_trains(low)
    await cluster.scheduler.stop(low)
    await nothing_is_left(cluster, low, high)


async def stop_while_it_is_preempted(cluster: Cluster, after_s: float) -> None:
    (low,) = await submit_running(cluster, all_six("low"))
    (high,) = cluster.submit(all_six("high", priority=5))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.stop(low)
    await cluster.until_trains(high)
    await cluster.scheduler.stop(high)
    await nothing_is_left(cluster, low, high)


async def fail_while_it_is_preempted(cluster: Cluster, after_s: float) -> None:
    (low,) = await submit_running(cluster, all_six("low", retries=3))
    (high,) = cluster.submit(all_six("high", priority=5))
    await asyncio.sleep(after_s)  # the moment that is tried
    cluster.end(low, "failed")
    await cluster.until_trains(high)
    await cluster.scheduler.stop(high)
    await cluster.until_trains(low)
    await cluster.scheduler.stop(low)
    await nothing_is_left(cluster, low, high)


async def stop_during_a_resize(cluster: Cluster, after_s: float) -> None:
    (other,) = await submit_running(cluster, job("other", workers=4))
    auto = job("auto", degrees=(2, 4, 6), iterations=1000, gradient_bytes=4000)
    (job_id,) = await submit_running(cluster, auto)
    await cluster.scheduler.stop(other)  # so the other grows
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.scheduler.stop(job_id)
    await nothing_is_left(cluster, other, job_id)


async def stop_under_the_next_controller(
    cluster: Cluster, after_s: float
) -> None:
    (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.kill_and_restart()
    await cluster.scheduler.stop(job_id)
    await cluster.until(lambda: not cluster.workers)
    await nothing_is_left(cluster, job_id)


async def end_the_controller(cluster: Cluster, after_s: float) -> None:
    (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
    await asyncio.sleep(after_s)  # the moment that is tried
    await cluster.kill_and_restart()
    await cluster.until_trains(job_id)
    assert len(cluster.workers) == 2
    await cluster.scheduler.stop(job_id)
    await nothing_is_left(cluster, job_id)


async def cancel_a_change_that_waits(cluster: Cluster, after_s: float) -> None:
    other = PortMap.parse(["15-16"])
    begin = cluster.transactions.begin
    first = await begin(lambda _: {"ocs1": other}, "first")
    beginning = asyncio.create_task(
        begin(lambda _: {"ocs1": PortMap.of([])}, "second")
    )
    await asyncio.sleep(after_s / 100)  # the moment that is tried
    if (second := cluster.transactions.under_way(first.id + 1)) is not None:
        cluster.transactions.cancel(first.id + 1, "somebody", "")
    record = await beginning
    await cluster.until(lambda: not cluster.transactions.busy)
    await cluster.until(
        lambda: cluster.transactions.under_way(record.id) is None
    )
    assert record.state in (
        ("committed", "intent") if second is None else ("refused",)
    )
    assert not cluster.store.unfinished_reconfigurations(
        lambda row: row, lambda number, known: known
    )


CASES: list[Case] = [
    cancel_a_change_that_waits,
    drain,
    end_the_controller,
    fail_while_it_is_preempted,
    preempt,
    restart,
    stop,
    stop_a_gang_that_rewires,
    stop_during_a_resize,
    stop_during_a_restart,
    stop_under_the_next_controller,
    stop_while_it_is_preempted,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_job_ends_as_ordered_at_each_moment(case: Case) -> None:
    async def story(cluster: Cluster) -> None:
        for after_s in MOMENTS_S:
            await case(cluster, after_s)

    preempts = Discipline(preempt=True, quantum_s=0.001)
    lab = (
        LAB.with_changes(queue=preempts) if "preempt" in case.__name__ else LAB
    )
    play(lab, ELASTIC if "resize" in case.__name__ else KEEP, story)
