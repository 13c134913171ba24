"""The iterations of a job between changes of its circuits, while it runs and afterwards."""

import asyncio
import json
from pathlib import Path

import pytest

from patchlight.controller.jobs.pacing import IterationCounter
from patchlight.testbed.jobs import JobSpec
from tests.support.job_api import JobCommand
from tests.support.job_cluster import (
    COMPUTE,
    Cluster,
    finish,
    simulated,
    submit_running,
)

SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")


def reports(rank: int, ends: dict[int, float]) -> list[dict[str, float]]:
    return [
        {"rank": rank, "index": index, "finished_at": at}
        for index, at in ends.items()
    ]


def test_an_iteration_lasts_from_the_last_rank_to_the_last_rank() -> None:
    counter = IterationCounter()
    one = reports(0, {0: 1.0, 1: 2.0})
    other = reports(1, {0: 1.5, 1: 3.0})
    assert counter.whole(one + other[:1]) == []
    assert counter.whole(other[1:]) == [(1.5, 3.0)]
    # Repeated reports count once, and one that is missing leaves a gap.
    assert counter.whole(one) == []
    late = reports(0, {3: 6.0, 4: 7.0}) + reports(1, {3: 6.5, 4: 7.5})
    assert counter.whole(late) == [(6.5, 7.5)]


def test_programs_may_report_from_one_rank_alone() -> None:
    counter = IterationCounter()
    told = reports(0, {0: 1.0, 1: 2.0, 2: 3.5})
    assert counter.whole(told) == [(1.0, 2.0), (2.0, 3.5)]


@simulated()
async def test_the_gain_of_a_change_stays_with_the_job(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = JobCommand(cluster)
    spec = JobSpec("spread", 1000, 500_000_000, COMPUTE, hosts=SPREAD)
    (job_id,) = await submit_running(cluster, spec)
    await cluster.until_done(job_id, 5)
    predicted_s = cluster.scheduler.forecasts.running()[job_id][
        "predicted_iteration_s"
    ]
    plan = json.loads(await job("regroup", job_id, "--dry-run", "--json"))
    now_s, then_s = plan["iterations_s"][job_id]
    assert now_s == predicted_s > then_s
    said = await job("regroup", job_id, "--dry-run")
    assert (
        f"{now_s - then_s:.3f} s ({100 - 100 * then_s / now_s:.0f} %)" in said
    )
    change = await cluster.scheduler.rewiring.regroup([job_id])
    done = cluster.table[job_id].iterations_done
    await cluster.until_done(job_id, done + 10)
    await finish(cluster, job_id)
    ended = json.loads(await job("show", job_id, "--json"))
    before, after = ended["paces"]
    assert before["predicted_s"] == predicted_s
    assert after["predicted_s"] == pytest.approx(then_s)
    assert (before["reconfiguration"], after["reconfiguration"]) == (
        None,
        change.id,
    )
    assert after["since"] == change.finished_at
    assert before["iterations"] > 0 < after["iterations"]
    assert ended["measured_iteration_s"] == after["iteration_s"] > 0
    assert ended["predicted_iteration_s"] == after["predicted_s"]
    (row,) = json.loads(await job("list", "--json"))
    assert row["paces"] == ended["paces"]
    followed = await job("show", "--follow", job_id)
    words = (
        f"{ended['iterations_done']} iterations: {after['iteration_s']:.3f} s"
    )
    assert words in followed
    assert f", change {change.id} (regroup {job_id})" in followed
    shown = " ".join((await job("show", job_id)).split())
    assert f"change {change.id} (regroup {job_id})" in shown
    assert f"mean of {after['iterations']}; predicted" in shown


@simulated()
async def test_two_jobs_stand_side_by_side(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = JobCommand(cluster)
    ids = []
    for name in ("one", "other"):
        spec = JobSpec(name, 100, 500_000_000, COMPUTE, hosts=SPREAD)
        ids += await submit_running(cluster, spec)
        await cluster.until_done(ids[-1], 5)
        await finish(cluster, ids[-1])
    picture = tmp_path / "gain.svg"
    shown = await job("show", *ids, "--plot", str(picture))
    assert f"{ids[1]} takes " in shown
    assert f" an iteration than {ids[0]}" in shown
    assert "<svg" in picture.read_text()


@simulated()
async def test_a_job_runs_with_and_without_rewiring(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = JobCommand(cluster)
    picture = tmp_path / "gain.svg"
    words = ("own", "--hosts", ",".join(SPREAD), "--compare", str(picture))
    both = asyncio.create_task(job("submit", *words))
    for number in (1, 2):
        await cluster.until(
            lambda: len(cluster.table.page()) == number  # noqa: B023
        )
        job_id = cluster.table.page()[-1].id
        await cluster.until_done(job_id, 5)
        await finish(cluster, job_id)
    printed = await both
    one, other = cluster.table.page()
    assert (one.topology, other.topology) == ("keep", "regroup")
    assert one.hosts == other.hosts
    assert len(cluster.switches_of(SPREAD)) == 1
    assert f" an iteration than {one.id}" in printed
    assert "<svg" in picture.read_text()
    assert "not with --dry-run" in await job(
        "submit", *words, "--dry-run", code=2
    )
