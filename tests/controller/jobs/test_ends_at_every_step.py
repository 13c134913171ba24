"""A job that is ordered to end at any step of its start ends as ordered.

``PATCHLIGHT_EVERY_STEP=1`` tries every step, which takes minutes; otherwise some are.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, cast

import pytest

from patchlight.controller.hosts.agent_client import AgentClient
from patchlight.controller.jobs.job_table import JobTable
from patchlight.controller.jobs.ledger import JobLedger
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.rules import Discipline, PolicyChoice
from patchlight.testbed.wire.worker_api import WorkerState
from tests.support.job_cluster import Cluster, at_work, job
from tests.support.stepped_loop import Stepwise, pass_steps, run_stepped

EVERY = os.environ.get("PATCHLIGHT_EVERY_STEP") == "1"


class When(NamedTuple):
    """An order comes so many steps of the event loop after the beginning; each agent answers so
    many later than the one before it."""

    steps: int
    uneven: int


TIMES = (
    [When(steps, uneven) for steps in range(160) for uneven in range(3)]
    if EVERY
    else [When(steps, steps % 2) for steps in (*range(0, 30, 6), *range(30, 60, 3), 75)]
)
KEEP, ELASTIC = PolicyChoice(), PolicyChoice(partition="minimum", elasticity="give-and-take")
PREEMPTING = Discipline(preempt=True, quantum_s=0.001)

Case = Callable[[When], Coroutine[Any, Any, None]]


def answer_late(cluster: Cluster, when: When) -> None:
    for number, (name, agent) in enumerate(cluster.fleet.clients.items()):
        late = Stepwise(agent, 1 + when.uneven * number)
        cluster.fleet.clients[name] = cast(AgentClient, late)


async def until(condition: Callable[[], bool], cluster: Cluster) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.05)  # of the loop's time
    raise AssertionError([(s.id, s.state, s.message) for s in cluster.table.page()])


async def until_state(cluster: Cluster, job_id: str, state: JobState) -> None:
    await until(lambda: cluster.table[job_id].state is state, cluster)


def all_six(name: str, **more: int) -> JobSpec:
    return job(name, workers=6, **more)


async def nothing_is_left(cluster: Cluster, *job_ids: str) -> None:
    """These jobs are stopped, on disk too; their workers have ended, their hosts are free."""
    for job_id in job_ids:
        assert cluster.table[job_id].state is JobState.STOPPED
        assert (await cluster.scheduler.stop(job_id)).state is JobState.STOPPED
    assert not cluster.fleet.workers
    assert not cluster.table.running
    assert not cluster.table.live()
    on_disk = JobTable(JobLedger(cluster.store))
    assert not on_disk.live()
    assert {on_disk[job_id].state for job_id in job_ids} <= {JobState.STOPPED}
    (next_job,) = cluster.submit(all_six("next"))
    await until_state(cluster, next_job, JobState.RUNNING)


async def stop(when: When) -> None:
    async with at_work(KEEP) as cluster:
        answer_late(cluster, when)
        (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
        await pass_steps(when.steps)
        await cluster.scheduler.stop(job_id)
        await nothing_is_left(cluster, job_id)


async def stop_a_gang_that_rewires(when: When) -> None:
    async with at_work(KEEP) as cluster:
        answer_late(cluster, when)
        specs = job("a", "gpu0", "gpu2"), job("b", "gpu1", "gpu4")
        job_ids = cluster.submit(*specs, topology="regroup")
        await pass_steps(when.steps)
        await cluster.scheduler.stop(job_ids[0])
        await nothing_is_left(cluster, *job_ids)


async def restart(when: When) -> None:
    async with at_work(KEEP) as cluster:
        answer_late(cluster, when)
        (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
        await pass_steps(when.steps)
        attempts = 1
        try:
            await cluster.scheduler.restart(job_id)
        except BadInput:  # it had not started
            attempts = 0
        await until_state(cluster, job_id, JobState.RUNNING)
        assert cluster.table[job_id].attempt == attempts
        await until(lambda: len(cluster.fleet.workers) == 2, cluster)
        await cluster.scheduler.stop(job_id)
        await nothing_is_left(cluster, job_id)


async def stop_during_a_restart(when: When) -> None:
    async with at_work(KEEP) as cluster:
        answer_late(cluster, when)
        (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
        await until_state(cluster, job_id, JobState.RUNNING)
        restarting = asyncio.create_task(cluster.scheduler.restart(job_id))
        await pass_steps(when.steps)
        await cluster.scheduler.stop(job_id)
        await restarting
        await nothing_is_left(cluster, job_id)


async def drain(when: When) -> None:
    async with at_work(KEEP) as cluster:
        answer_late(cluster, when)
        (job_id,) = cluster.submit(job("one", "gpu0", "gpu1"))
        await pass_steps(when.steps)
        await cluster.scheduler.drain()
        assert not cluster.fleet.workers
        assert not cluster.table.running
        await asyncio.sleep(1)
        state = cluster.table[job_id].state
        assert state in (JobState.QUEUED, JobState.STOPPED)
        assert not cluster.fleet.workers
        cluster.scheduler.resume()
        if state is JobState.QUEUED:
            await until_state(cluster, job_id, JobState.RUNNING)
            await cluster.scheduler.stop(job_id)
        await nothing_is_left(cluster, job_id)


async def preempt(when: When) -> None:
    async with at_work(KEEP, discipline=PREEMPTING) as cluster:
        answer_late(cluster, when)
        (low,) = cluster.submit(all_six("low"))
        await pass_steps(when.steps)
        (high,) = cluster.submit(all_six("high", priority=5))
        await until_state(cluster, high, JobState.RUNNING)
        assert cluster.table[low].state is JobState.QUEUED
        assert len(cluster.fleet.workers) == 6
        await cluster.scheduler.stop(high)
        await until_state(cluster, low, JobState.RUNNING)
        await cluster.scheduler.stop(low)
        await nothing_is_left(cluster, low, high)


async def stop_while_it_is_preempted(when: When) -> None:
    async with at_work(KEEP, discipline=PREEMPTING) as cluster:
        answer_late(cluster, when)
        (low,) = cluster.submit(all_six("low"))
        await until_state(cluster, low, JobState.RUNNING)
        (high,) = cluster.submit(all_six("high", priority=5))
        await pass_steps(when.steps)
        await cluster.scheduler.stop(low)
        await until_state(cluster, high, JobState.RUNNING)
        await cluster.scheduler.stop(high)
        await nothing_is_left(cluster, low, high)


async def stop_during_a_resize(when: When) -> None:
    async with at_work(ELASTIC) as cluster:
        answer_late(cluster, when)
        (other,) = cluster.submit(job("other", workers=4))
        await until_state(cluster, other, JobState.RUNNING)
        auto = job("auto", degrees=(2, 4, 6), iterations=1000, gradient_bytes=4000)
        (job_id,) = cluster.submit(auto)
        await until_state(cluster, job_id, JobState.RUNNING)
        await cluster.scheduler.stop(other)  # so the other grows
        await pass_steps(when.steps)
        await cluster.scheduler.stop(job_id)
        await nothing_is_left(cluster, other, job_id)


async def stop_under_the_next_controller(when: When) -> None:
    async with at_work(KEEP) as first:
        answer_late(first, when)
        (job_id,) = first.submit(job("one", "gpu0", "gpu1"))
        await pass_steps(when.steps)
    async with at_work(KEEP, before=first) as cluster:
        await cluster.scheduler.stop(job_id)
        await until(lambda: not cluster.fleet.workers, cluster)
        await nothing_is_left(cluster, job_id)


async def stop_while_the_next_controller_begins(when: When) -> None:
    async with at_work(KEEP) as first:
        answer_late(first, when)
        (running,) = first.submit(job("one", "gpu0", "gpu1"))
        await until_state(first, running, JobState.RUNNING)
        first.fleet.first_state = WorkerState.STARTING
        (starting,) = first.submit(job("two", "gpu2", "gpu4"))
        await until_state(first, starting, JobState.PREPARING)
        first.fleet.first_state = WorkerState.READY
    async with at_work(KEEP, before=first) as cluster:
        await pass_steps(when.steps)
        await asyncio.gather(*map(cluster.scheduler.stop, (running, starting)))
        await nothing_is_left(cluster, running, starting)


async def end_the_controller(when: When) -> None:
    async with at_work(KEEP) as first:
        answer_late(first, when)
        (job_id,) = first.submit(job("one", "gpu0", "gpu1"))
        await pass_steps(when.steps)
    async with at_work(KEEP, before=first) as cluster:
        await until_state(cluster, job_id, JobState.RUNNING)
        await until(lambda: len(cluster.fleet.workers) == 2, cluster)
        await cluster.scheduler.stop(job_id)
        await nothing_is_left(cluster, job_id)


async def fail_while_it_is_preempted(when: When) -> None:
    async with at_work(KEEP, discipline=PREEMPTING) as cluster:
        answer_late(cluster, when)
        (low,) = cluster.submit(all_six("low", retries=3))
        await until_state(cluster, low, JobState.RUNNING)
        (high,) = cluster.submit(all_six("high", priority=5))
        await pass_steps(when.steps)
        cluster.fleet.put(low, WorkerState.FAILED)
        await until_state(cluster, high, JobState.RUNNING)
        await cluster.scheduler.stop(high)
        await until_state(cluster, low, JobState.RUNNING)
        await cluster.scheduler.stop(low)
        await nothing_is_left(cluster, low, high)


async def cancel_a_change_that_waits(when: When) -> None:
    async with at_work(KEEP) as cluster:
        cluster.flows.open.clear()
        other = PortMap.parse(["15-16"])
        await cluster.transactions.begin(lambda _: {"ocs1": other}, "first")
        beginning = asyncio.create_task(
            cluster.transactions.begin(lambda _: {"ocs1": PortMap.of([])}, "second")
        )
        await pass_steps(when.steps % 10)
        if (second := cluster.transactions.under_way(2)) is not None:
            cluster.transactions.cancel(2, "somebody", "")
        cluster.flows.open.set()
        record = await beginning
        await until(lambda: not cluster.transactions.busy, cluster)
        await until(lambda: cluster.transactions.under_way(record.id) is None, cluster)
        assert record.state == ("committed" if second is None else "refused")
        assert not cluster.store.unfinished_reconfigurations(
            lambda row: row, lambda number, known: known
        )


CASES: list[Case] = [
    fail_while_it_is_preempted,
    cancel_a_change_that_waits,
    stop,
    stop_a_gang_that_rewires,
    restart,
    stop_during_a_restart,
    drain,
    preempt,
    stop_while_it_is_preempted,
    stop_during_a_resize,
    stop_under_the_next_controller,
    stop_while_the_next_controller_begins,
    end_the_controller,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_job_ends_as_ordered_at_each_step(case: Case) -> None:
    wrong = {}
    for when in TIMES:
        try:
            run_stepped(case(when))
        except AssertionError as error:
            wrong[when] = str(error)[:200]
    assert not wrong, f"{len(wrong)} of {len(TIMES)}: {wrong}"
