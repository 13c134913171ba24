"""Jobs that get other numbers of workers while they run, in a lab whose agents are in memory."""

from typing import Any

from patchlight.controller.jobs.cluster_view import arguments, plain
from patchlight.controller.policies.degrees import GiveAndTake
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

ELASTIC = PolicyChoice(partition="minimum", elasticity="give-and-take")


def auto(name: str, *degrees: int, **more: Any) -> JobSpec:
    """A job of 1,000 iterations that compute for 0.4 s on one GPU, and move next to nothing."""
    compute = {"Tesla M40": 0.4, "Titan V": 0.4}
    given = {
        "iterations": 1000,
        "compute_s": compute,
        "gradient_bytes": 4000,
        **more,
    }
    return job(name, degrees=degrees, **given)


async def until_degree(cluster: Cluster, job_id: str, workers: int) -> None:
    def has_it() -> bool:
        status = cluster.table[job_id]
        return (
            len(status.hosts) == workers and status.state is JobState.RUNNING
        )

    await cluster.until(has_it)


def degrees(cluster: Cluster, job_id: str) -> list[tuple[int, int]]:
    """From which iteration on a job had how many workers."""
    return [
        (each.iteration, each.workers)
        for each in cluster.table[job_id].degrees
    ]


@simulated(ELASTIC)
async def test_a_job_grows_when_another_ends_and_shrinks_when_one_comes(
    cluster: Cluster,
) -> None:
    (other,) = await submit_running(cluster, job("other", workers=4))
    (job_id,) = await submit_running(cluster, auto("auto", 2, 4, 6))
    await cluster.until_done(job_id, 7)
    await finish(cluster, other)
    await until_degree(cluster, job_id, 6)
    grown = cluster.table[job_id]
    assert (grown.attempt, grown.failures) == (1, 0)
    assert grown.first_iteration >= 7
    for worker in cluster.workers_of(job_id):
        # The 0.4 s of one GPU are shared by six.
        assert worker.task.first_iteration == grown.first_iteration
        assert round(worker.task.compute_s, 6) == round(0.4 / 6, 6)
    await cluster.until_done(job_id, grown.first_iteration + 2)
    (coming,) = cluster.submit(job("coming", workers=2))
    await until_degree(cluster, job_id, 4)
    await cluster.until_trains(coming)
    at = [iteration for iteration, _ in degrees(cluster, job_id)]
    assert degrees(cluster, job_id) == [
        (0, 2),
        (grown.first_iteration, 6),
        (at[2], 4),
    ]
    assert cluster.table[job_id].gpu_s > 0
    # Who was stopped was told where, and gave everything back.
    assert len(cluster.workers_of(job_id)) == 4
    stopped = {name for call, name in cluster.calls if call == "stop-at"}
    assert len(stopped) == 2 + 6
    await finish(cluster, coming)
    await until_degree(cluster, job_id, 6)


@simulated(ELASTIC)
async def test_the_decision_is_kept_with_all_that_was_seen(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, auto("auto", 2, 3))
    await until_degree(cluster, job_id, 3)
    kinds = [
        decision["kind"] for decision in cluster.table.ledger.decisions(job_id)
    ]
    assert kinds == ["partition", "placement", "elasticity", "placement"]
    decision = cluster.table.ledger.decisions(job_id)[2]
    assert decision["answer"] == {job_id: 3}
    saw = arguments("elasticity", decision["saw"], cluster.lab)
    assert plain(GiveAndTake().resize(*saw)) == {job_id: 3}
    states = cluster.table.ledger.history(job_id)
    assert "from 2 to 3 workers, decided by give-and-take" in [
        row["message"] for row in states
    ]


@simulated(PolicyChoice(partition="minimum"))
async def test_nothing_is_resized_where_the_policy_is_rigid(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, auto("auto", 2, 6))
    (other,) = await submit_running(cluster, job("other", workers=1))
    await finish(cluster, other)
    assert degrees(cluster, job_id) == [(0, 2)]
    assert (
        cluster.scheduler.why_rigid(job_id)
        == "the lab's elasticity policy is rigid"
    )


@simulated(ELASTIC)
async def test_who_cannot_change_says_why(cluster: Cluster) -> None:
    program: dict[str, Any] = {
        "trainer": "command",
        "command": ("train",),
        "iterations": 0,
    }
    foreign = auto("foreign", 1, 2, gradient_bytes=0, **program)
    known = auto("known", 1, 2, **{**program, "iterations": 100})
    saving = auto(
        "saving",
        1,
        2,
        **{**program, "iterations": 100},
        checkpoint="/srv/saved",
    )
    first = await submit_running(cluster, auto("a", 1, 2), auto("b", 1, 2))
    ids = [first[0]]
    for spec in (foreign, known, saving):
        ids += await submit_running(cluster, spec)
    whys = [cluster.scheduler.why_rigid(job_id) for job_id in ids]
    assert whys == [
        "it started together with other jobs",
        "its iterations, compute time or gradient are unknown",
        "it has no checkpoint folder to resume from",
        "its program does not support the hold protocol",
    ]
    assert all(len(cluster.table[job_id].degrees) == 1 for job_id in ids)


@simulated(ELASTIC, discipline=Discipline(each_user=Allowance(gpus=3)))
async def test_a_user_gets_no_more_than_the_quota(cluster: Cluster) -> None:
    (anns,) = cluster.scheduler.submit([auto("auto", 2, 4)], by="ann")
    await cluster.until_state(anns.id, JobState.RUNNING)
    (bens,) = cluster.scheduler.submit([auto("other", 2, 3)], by="ben")
    # Both are looked at: four are two more than there are, and three are allowed.
    await until_degree(cluster, bens.id, 3)
    assert degrees(cluster, anns.id) == [(0, 2)]


@simulated(ELASTIC)
async def test_a_job_that_cannot_be_held_goes_on_as_it_is(
    cluster: Cluster,
) -> None:
    cluster.refusals["hold"] = "it is busy"
    (job_id,) = await submit_running(cluster, auto("auto", 2, 3))
    await cluster.until(lambda: ("hold", f"{job_id}-0") in cluster.calls)
    await finish(cluster, job_id)
    assert cluster.table[job_id].state is JobState.DONE
    assert degrees(cluster, job_id) == [(0, 2)]
    del cluster.refusals["hold"]
    # What was kept for it is free again.
    await submit_running(cluster, job("all", workers=6))
