"""Jobs that get other numbers of workers while they run, in a lab whose agents are in memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from patchlight.controller.jobs.cluster_view import arguments, plain
from patchlight.controller.policies.degrees import GiveAndTake
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from patchlight.testbed.wire.worker_api import SyntheticTask, WorkerState
from tests.support.job_cluster import Cluster, at_work, finish, job, submit_running

ELASTIC = PolicyChoice(partition="minimum", elasticity="give-and-take")


def auto(name: str, *degrees: int, **more: Any) -> JobSpec:
    """A job of 1,000 iterations that compute for 0.4 s on one GPU, and move next to nothing."""
    compute = {"Tesla M40": 0.4, "Titan V": 0.4}
    given = {"iterations": 1000, "compute_s": compute, "gradient_bytes": 4000, **more}
    return job(name, degrees=degrees, **given)


def workers_of(cluster: Cluster, job_id: str) -> list[str]:
    """The workers that a job has now, whatever its attempt."""
    return sorted(name for name in cluster.fleet.workers if name.startswith(job_id))


async def train(cluster: Cluster, job_id: str, iterations: int) -> None:
    """All workers of a job have done so many iterations."""
    for name in workers_of(cluster, job_id):
        spec = cluster.fleet.specs[name]
        for index in range(getattr(spec.task, "first_iteration", 0), iterations):
            cluster.fleet.report(name, index)
    await cluster.until(lambda: cluster.table[job_id].iterations_done == iterations)


async def until_degree(cluster: Cluster, job_id: str, workers: int) -> None:
    def has_it() -> bool:
        status = cluster.table[job_id]
        return len(status.hosts) == workers and status.state is JobState.RUNNING

    await cluster.until(has_it)


def degrees(cluster: Cluster, job_id: str) -> list[tuple[int, int]]:
    """From which iteration on a job had how many workers."""
    return [(each.iteration, each.workers) for each in cluster.table[job_id].degrees]


@pytest.fixture
async def elastic() -> AsyncIterator[Cluster]:
    async with at_work(ELASTIC) as cluster:
        yield cluster


async def test_a_job_grows_when_another_ends_and_shrinks_when_one_comes(elastic: Cluster) -> None:
    (other,) = await submit_running(elastic, job("other", workers=4))
    (job_id,) = await submit_running(elastic, auto("auto", 2, 4, 6))
    await train(elastic, job_id, 7)
    await finish(elastic, other)
    await until_degree(elastic, job_id, 6)
    grown = elastic.table[job_id]
    assert (grown.attempt, grown.first_iteration, grown.failures) == (1, 7, 0)
    for name in workers_of(elastic, job_id):
        task = elastic.fleet.specs[name].task
        assert isinstance(task, SyntheticTask)
        # The 0.4 s of one GPU are shared by six.
        assert (task.first_iteration, round(task.compute_s, 6)) == (7, round(0.4 / 6, 6))
    await train(elastic, job_id, 9)
    (coming,) = elastic.submit(job("coming", workers=2))
    await until_degree(elastic, job_id, 4)
    await elastic.until_state(coming, JobState.RUNNING)
    assert degrees(elastic, job_id) == [(0, 2), (7, 6), (9, 4)]
    assert elastic.table[job_id].gpu_s > 0
    # Who was stopped was told where, and gave everything back.
    assert len(workers_of(elastic, job_id)) == 4
    stopped = [name for call, name in elastic.fleet.calls if call == "stop-at"]
    assert len(stopped) == 2 + 6
    await finish(elastic, coming)
    await until_degree(elastic, job_id, 6)


async def test_the_decision_is_kept_with_all_that_was_seen(elastic: Cluster) -> None:
    (job_id,) = await submit_running(elastic, auto("auto", 2, 3))
    await until_degree(elastic, job_id, 3)
    kinds = [decision["kind"] for decision in elastic.table.ledger.decisions(job_id)]
    assert kinds == ["partition", "placement", "elasticity", "placement"]
    decision = elastic.table.ledger.decisions(job_id)[2]
    assert decision["answer"] == {job_id: 3}
    saw = arguments("elasticity", decision["saw"], elastic.lab)
    assert plain(GiveAndTake().resize(*saw)) == {job_id: 3}
    states = elastic.table.ledger.history(job_id)
    assert "from 2 to 3 workers, decided by give-and-take" in [row["message"] for row in states]


async def test_nothing_is_resized_where_the_policy_is_rigid() -> None:
    async with at_work(PolicyChoice(partition="minimum")) as cluster:
        (job_id,) = await submit_running(cluster, auto("auto", 2, 6))
        (other,) = await submit_running(cluster, job("other", workers=1))
        await finish(cluster, other)
        assert degrees(cluster, job_id) == [(0, 2)]
        assert cluster.scheduler.why_rigid(job_id) == "the lab's elasticity policy is rigid"


async def test_who_cannot_change_says_why(elastic: Cluster) -> None:
    program: dict[str, Any] = {"trainer": "command", "command": ("train",), "iterations": 0}
    foreign = auto("foreign", 1, 2, gradient_bytes=0, **program)
    known = auto("known", 1, 2, **{**program, "iterations": 100})
    saving = auto("saving", 1, 2, **{**program, "iterations": 100}, checkpoint="/srv/saved")
    first = await submit_running(elastic, auto("a", 1, 2), auto("b", 1, 2))
    ids = [first[0]]
    for spec in (foreign, known, saving):
        ids += await submit_running(elastic, spec)
    whys = [elastic.scheduler.why_rigid(job_id) for job_id in ids]
    assert whys == [
        "it started together with others",
        "its iterations, compute time or gradient are not known",
        "it has no checkpoint folder to resume from",
        "its program does not support the hold protocol",
    ]
    assert all(len(elastic.table[job_id].degrees) == 1 for job_id in ids)


async def test_a_user_gets_no_more_than_the_quota() -> None:
    rules = Discipline(each_user=Allowance(gpus=3))
    async with at_work(ELASTIC, discipline=rules) as cluster:
        (anns,) = cluster.scheduler.submit([auto("auto", 2, 4)], by="ann")
        await cluster.until_state(anns.id, JobState.RUNNING)
        (bens,) = cluster.scheduler.submit([auto("other", 2, 3)], by="ben")
        # Both are looked at: four are two more than there are, and three are allowed.
        await until_degree(cluster, bens.id, 3)
        assert degrees(cluster, anns.id) == [(0, 2)]


async def test_a_job_that_cannot_be_held_goes_on_as_it_is(elastic: Cluster) -> None:
    elastic.fleet.refusals["hold"] = "it is busy"
    (job_id,) = await submit_running(elastic, auto("auto", 2, 3))
    await elastic.until(lambda: ("hold", workers_of(elastic, job_id)[0]) in elastic.fleet.calls)
    await finish(elastic, job_id)
    assert elastic.table[job_id].state is JobState.DONE
    assert degrees(elastic, job_id) == [(0, 2)]
    del elastic.fleet.refusals["hold"]
    # What was kept for it is free again.
    await submit_running(elastic, job("all", workers=6))


async def test_a_job_whose_new_workers_cannot_begin_is_queued_again(elastic: Cluster) -> None:
    (other,) = await submit_running(elastic, job("other", workers=4))
    (job_id,) = await submit_running(elastic, auto("auto", 2, 6))
    await train(elastic, job_id, 5)
    elastic.fleet.bugs.add(f"worker {job_id}.1-5")
    await finish(elastic, other)
    await elastic.until(lambda: elastic.table[job_id].attempt >= 2)
    states = [row["message"] for row in elastic.table.ledger.history(job_id)]
    assert any("its 6 workers could not begin" in message for message in states), states
    status = elastic.table[job_id]
    assert (status.failures, status.first_iteration) == (0, 5)
    await until_degree(elastic, job_id, 6)


async def test_a_job_can_be_stopped_while_it_changes(elastic: Cluster) -> None:
    (job_id,) = await submit_running(elastic, auto("auto", 2, 3))
    elastic.fleet.may_delete.clear()
    await elastic.until_state(job_id, JobState.PREPARING)
    elastic.fleet.may_delete.set()
    await elastic.scheduler.stop(job_id)
    assert elastic.table[job_id].state is JobState.STOPPED
    assert workers_of(elastic, job_id) == []
    await submit_running(elastic, job("all", workers=6))


@pytest.mark.parametrize("at", ["stop", "start"])
async def test_a_controller_that_is_killed_in_the_middle_loses_no_job(at: str) -> None:
    async with at_work(ELASTIC) as first:
        (other,) = await submit_running(first, job("other", workers=4))
        (job_id,) = await submit_running(first, auto("auto", 2, 6))
        await train(first, job_id, 5)
        if at == "stop":
            first.fleet.stops = False
        else:
            first.fleet.first_state = WorkerState.STARTING  # its new workers do not get ready
        await finish(first, other)
        if at == "stop":
            await first.until(lambda: ("stop-at", f"{job_id}-0") in first.fleet.calls)
        else:
            await first.until(lambda: len(workers_of(first, job_id)) == 6)
        assert first.table[job_id].state is JobState.PREPARING
    first.fleet.first_state, first.fleet.stops = WorkerState.READY, True
    async with at_work(ELASTIC, first) as second:
        await until_degree(second, job_id, 6)
        assert second.table[job_id].first_iteration == 5
        assert second.table[job_id].failures == 0
        await second.until(lambda: len(workers_of(second, job_id)) == 6)
