"""A journal that takes nothing for a while: no job is lost by it, and no host stays taken."""

import asyncio
import contextlib
import json
from collections.abc import Iterator

import pytest

from patchlight.controller.jobs.placement import Placement
from patchlight.controller.storage.database import ADD_EVENT, JournalError
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.jobs import JobState
from tests.support.full_disk import limit_size
from tests.support.job_cluster import Cluster, job, simulated, submit_running


@contextlib.contextmanager
def full_journal(cluster: Cluster) -> Iterator[None]:
    store = cluster.store
    limit_size(store)
    for size in (1000, 1):
        with contextlib.suppress(PatchlightError):
            while True:
                store.write(
                    ADD_EVENT, 0.0, "filler", json.dumps({"text": "x" * size})
                )
    try:
        yield
    finally:
        limit_size(store, 100_000)


@simulated()
async def test_a_job_that_ends_while_the_journal_is_full_is_done_when_there_is_room(
    cluster: Cluster,
) -> None:
    cluster.trains = False
    done, fails = await submit_running(
        cluster, job("done", "gpu0"), job("fails", "gpu1")
    )
    with full_journal(cluster):
        cluster.workers[f"{done}-0"].skip_to(50)
        await asyncio.sleep(3)
        cluster.end(done)
        cluster.end(fails, "failed", "out of memory")
        await asyncio.sleep(5)
        assert {cluster.table[each].state for each in (done, fails)} == {
            JobState.RUNNING
        }
    await cluster.until_state(done, JobState.DONE)
    await cluster.until_state(fails, JobState.FAILED)
    reports, _ = cluster.table.ledger.iterations(done)
    assert [report["index"] for report in reports] == list(range(50))
    await cluster.until(
        lambda: not cluster.table.running and not cluster.workers
    )
    await submit_running(cluster, job("next", workers=6))


@simulated()
async def test_a_job_that_was_to_start_while_the_journal_is_full_starts_when_there_is_room(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0", "gpu1"))
    (waits,) = cluster.submit(job("waits", workers=6))
    cluster.gates["delete"] = asyncio.Event()
    cluster.end(first)
    await cluster.until_state(first, JobState.DONE)
    with full_journal(cluster):
        cluster.gates["delete"].set()
        await asyncio.sleep(5)
        assert cluster.table[waits].state is JobState.QUEUED
    cluster.scheduler.resume()  # look again now, and not in some seconds
    await cluster.until_state(waits, JobState.RUNNING)


@simulated()
async def test_a_job_is_stopped_while_its_end_cannot_be_written_down(
    cluster: Cluster,
) -> None:
    (stopped,) = await submit_running(cluster, job("stopped", "gpu0"))
    with full_journal(cluster):
        cluster.end(stopped, "failed", "out of memory")
        await asyncio.sleep(5)
        stop = asyncio.create_task(cluster.scheduler.stop(stopped))
        await asyncio.sleep(1)
    await stop
    await cluster.until(lambda: cluster.table[stopped].state.is_final)
    await submit_running(cluster, job("next", "gpu0"))


@pytest.mark.parametrize("ends", ["", "failed", "done"])
@simulated()
async def test_a_stop_ends_the_workers_while_the_journal_is_full(
    cluster: Cluster, ends: str
) -> None:
    cluster.trains = False
    (stopped,) = await submit_running(cluster, job("stopped", "gpu0"))
    with full_journal(cluster):
        # These are being written, again and again, when it is stopped.
        cluster.workers[f"{stopped}-0"].skip_to(3)
        await asyncio.sleep(3)
        if ends:
            cluster.end(stopped, ends)
        stop = asyncio.create_task(cluster.scheduler.stop(stopped))
        await cluster.until(lambda: not cluster.workers)
        assert cluster.table[stopped].state is JobState.RUNNING
    await stop
    assert cluster.table[stopped].state in (
        JobState.STOPPED,
        JobState.DONE if ends else None,
    )
    await submit_running(cluster, job("next", "gpu0"))


@simulated()
async def test_a_job_that_was_done_before_its_stop_is_done(
    cluster: Cluster,
) -> None:
    (done,) = await submit_running(cluster, job("done", "gpu0"))
    with full_journal(cluster):
        cluster.end(done)
        await asyncio.sleep(5)
        stop = asyncio.create_task(cluster.scheduler.stop(done))
        await cluster.until(lambda: not cluster.workers)
    await stop
    assert cluster.table[done].state is JobState.DONE


@simulated()
async def test_a_job_that_is_begun_again_while_it_is_prepared_does_not_wait_for_workers(
    cluster: Cluster,
) -> None:
    cluster.get_ready = False
    (again,) = cluster.submit(job("again", "gpu0"))
    await cluster.until(lambda: cluster.workers)
    async with asyncio.timeout(45):  # else for a minute and a half
        await cluster.scheduler.restart(again)
    assert cluster.table[again].attempt == 1


@simulated()
async def test_a_waiting_job_that_cannot_be_stopped_now_waits_on(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", workers=6))
    (waits,) = cluster.submit(job("waits", workers=6))
    await cluster.until(lambda: cluster.scheduler.job(waits).message)
    with full_journal(cluster), pytest.raises(JournalError, match="full"):
        await cluster.scheduler.stop(waits)
    assert cluster.table[waits].state is JobState.QUEUED
    await cluster.scheduler.stop(first)
    await cluster.until_state(waits, JobState.RUNNING)
    await cluster.scheduler.stop(waits)
    assert cluster.table[waits].state is JobState.STOPPED


@simulated()
async def test_a_gang_that_cannot_be_placed_fails_when_that_can_be_written_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = await submit_running(cluster, job("first", workers=6))

    def unplaceable(*_: object, **__: object) -> None:
        raise PatchlightError("the lab has changed")

    (waits,) = cluster.submit(job("waits", workers=6))
    cluster.gates["delete"] = asyncio.Event()
    cluster.end(first)
    await cluster.until_state(first, JobState.DONE)
    monkeypatch.setattr(Placement, "place", unplaceable)
    with full_journal(cluster):
        cluster.gates["delete"].set()
        await asyncio.sleep(5)
        assert cluster.table[waits].state is JobState.QUEUED
    cluster.scheduler.resume()
    await cluster.until_state(waits, JobState.FAILED)
    assert "the lab has changed" in cluster.table[waits].message
