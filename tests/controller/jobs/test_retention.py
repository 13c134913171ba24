"""What a lab remembers of jobs that have ended: so much as its settings say, and their output."""

import asyncio
from pathlib import Path

import pytest

from patchlight.controller.jobs.ledger import (
    MOST_KEPT_BYTES,
    JobLedger,
    JobOutputs,
    Retention,
)
from patchlight.controller.storage.store import Store
from patchlight.testbed.jobs import JobSpec, JobState, JobStatus
from patchlight.testbed.lab.rules import Discipline
from tests.support.job_api import JobCommand
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)


def done(job_id: str, finished_at: float) -> JobStatus:
    spec = JobSpec("j", 1, 4, {"A100": 0.1})
    return JobStatus(job_id, spec, JobState.DONE, finished_at=finished_at)


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        (Discipline(), ["j-0", "j-1", "j-2"]),
        (Discipline(keep_jobs=1), ["j-2"]),
        (Discipline(keep_for_s=150.0), ["j-1", "j-2"]),
        (Discipline(keep_jobs=0), []),
    ],
)
def test_so_many_jobs_are_kept_and_for_so_long(
    tmp_path: Path, settings: Discipline, left: list[str]
) -> None:
    store = Store(tmp_path / "controller.db")
    ledger = JobLedger(store)
    outputs = JobOutputs(tmp_path / "outputs")
    ledger.save([done(f"j-{n}", 100.0 * n) for n in range(3)])
    retention = Retention(
        store, ledger, outputs, settings, clock=lambda: 200.0
    )
    while retention.forget_some():
        pass
    assert [each.id for each in ledger.page(9)] == left


def test_events_and_changes_go_with_the_time_but_not_those_that_are_open(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    numbers = [store.prepared_intent(0, {"why": str(n)})() for n in range(4)]
    for number, state in zip(
        numbers, ("committed", "unknown", "refused"), strict=False
    ):
        store.update_reconfiguration(
            number, state, {"why": "", "finished_at": float(number)}
        )
    store.add_event(2.0, "job-done", {"job": "j-1"})
    store.add_event(50.0, "test", {})
    assert store.forget(before=10.0) > 0
    assert store.forget(before=10.0) == 0
    assert [row.id for row in store.reconfigurations()] == [
        numbers[1],
        numbers[3],
    ]
    assert [event["kind"] for event in store.events()] == ["job-done", "test"]


@simulated()
async def test_what_workers_printed_is_there_after_their_end(
    cluster: Cluster,
) -> None:
    run = JobCommand(cluster)
    (job_id,) = await submit_running(cluster, job("talks", workers=2))
    first, second = cluster.workers_of(job_id)
    first.prints("half a line")
    second.prints("x" * MOST_KEPT_BYTES + "\nthe end\n")
    await finish(cluster, job_id)
    await cluster.until(lambda: job_id not in cluster.table.running)
    assert (await run("logs", job_id, "--worker", "0")).startswith(
        "half a line"
    )
    said = await run("logs", job_id, "--worker", "1")
    assert "\n[9 bytes of output were dropped]\n" in f"\n{said}"
    assert "\nthe end\n" in said
    both = await run("logs", job_id)
    assert "[0] half a line\n" in both
    assert "[1] the end\n" in both
    assert "has no worker 2" in await run(
        "logs", job_id, "--worker", "2", code=2
    )
    assert cluster.table.outputs is not None
    cluster.table.outputs.forget(job_id)
    assert "half a line" not in await run("logs", job_id)


@simulated()
async def test_workers_left_behind_by_a_job_that_ended_are_heard_out(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("tidy", workers=1))
    (worker,) = cluster.workers_of(job_id)
    # Its agent answers nothing until the job is over.
    cluster.refusals.update(dict.fromkeys(("end", "log", "delete"), "not now"))
    await cluster.scheduler.stop(job_id)
    await cluster.until(lambda: job_id not in cluster.table.running)
    cluster.refusals.clear()
    worker.prints("saved")
    outputs = cluster.table.outputs
    assert outputs is not None
    await cluster.until(lambda: outputs.read(job_id, 0, 0, 100))
    kept = outputs.read(job_id, 0, 0, 100)
    assert kept is not None
    assert kept.text == "saved"
    await cluster.until(lambda: not cluster.workers)


@simulated()
async def test_of_workers_that_were_never_made_no_output_is_missed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.refusals["create"] = "the lab names no such folder"
    (refused,) = cluster.submit(job("refused", workers=4))
    await cluster.until_state(refused, JobState.FAILED)
    await cluster.until(lambda: refused not in cluster.table.running)
    assert "could not be kept" not in caplog.text
    del cluster.refusals["create"]
    cluster.refusals["log"] = "no output here"
    (mute,) = await submit_running(cluster, job("mute", workers=4))
    await finish(cluster, mute)
    await cluster.until(lambda: mute not in cluster.table.running)
    assert cluster.table[mute].state is JobState.DONE
    assert caplog.text.count("could not be kept") == 1
    assert (
        f"job {mute}: the output of 4 workers could not be kept: "
        in caplog.text
    )


@simulated()
async def test_a_disk_that_is_full_keeps_no_job_from_ending(
    cluster: Cluster,
) -> None:
    (cluster.state / "outputs").write_text("no folder")
    (job_id,) = await submit_running(cluster, job("talks", workers=1))
    cluster.workers_of(job_id)[0].prints("words")
    await finish(cluster, job_id)
    assert cluster.table[job_id].state is JobState.DONE


def test_a_character_is_not_cut_in_two(tmp_path: Path) -> None:
    folder = tmp_path / "j-1"
    folder.mkdir()
    (folder / "0.5").write_text("aé漢b", encoding="utf-8")
    outputs = JobOutputs(tmp_path)
    after = 5
    text = ""
    while (
        part := outputs.read("j-1", 0, after, 4)
    ) is not None and part.next > after:
        text = text + part.text
        after = part.next
    assert text == "aé漢b"


@simulated()
async def test_show_says_how_each_worker_can_be_held(cluster: Cluster) -> None:
    run = JobCommand(cluster)
    program = JobSpec("own", trainer="command", command=("train",), workers=2)
    ours, own = cluster.submit(job("ours", workers=2), program)
    await cluster.until_trains(ours)
    assert "between two iterations, by Patchlight" in await run(
        "show", ours, "--wide"
    )
    worker = cluster.table.running[own].workers[1]
    await cluster.until(lambda: worker.status.holds_by == "freeze")
    said = " ".join((await run("show", own, "--wide")).split())
    assert "pause method immediately" in said


async def test_old_records_stay_while_nothing_can_be_written(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "controller.db")
    ledger = JobLedger(store)
    ledger.save([done("j-0", 100.0)])
    outputs = JobOutputs(tmp_path / "outputs")
    store.rows("PRAGMA query_only = 1")
    running = asyncio.create_task(
        Retention(store, ledger, outputs, Discipline(keep_jobs=0)).run(),
        name="retention",
    )
    await asyncio.wait({running}, timeout=0.3)
    assert not running.done()
    running.cancel()
