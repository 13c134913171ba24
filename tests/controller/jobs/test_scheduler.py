"""Jobs in the queue, on hosts and at their end. Each worker does what the test says."""

import asyncio
import json
import math
from dataclasses import replace
from typing import Any

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobSpec, JobState
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")


# -- the queue and the gangs -------------------------------------------------------------------


@simulated()
async def test_a_job_trains_and_its_workers_go(cluster: Cluster) -> None:
    (job_id,) = await submit_running(
        cluster, job("one", "gpu0", "gpu1", iterations=2)
    )
    await cluster.until_state(job_id, JobState.DONE)
    status = cluster.scheduler.job(job_id)
    assert status.hosts == ("server1.gpu0", "server1.gpu1")
    assert status.restarts == 0
    assert (
        status.submitted_at
        <= (status.started_at or 0)
        <= (status.finished_at or 0)
    )
    await cluster.until(lambda: not cluster.workers)
    reports, _ = cluster.table.ledger.iterations(job_id)
    found = sorted((report["rank"], report["index"]) for report in reports)
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


@simulated()
async def test_gangs_have_their_turn_in_the_order_of_submission(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    second, third = (
        *cluster.submit(job("second", "gpu0")),
        *cluster.submit(job("third", "gpu1")),
    )
    await asyncio.sleep(0.05)  # simulated: costs no time
    # The third could run, but nobody overtakes.
    assert {cluster.table[job_id].state for job_id in (second, third)} == {
        JobState.QUEUED
    }
    await finish(cluster, first)
    for job_id in (second, third):
        await cluster.until_state(job_id, JobState.RUNNING)
    assert [status.id for status in cluster.table.page()] == [
        first,
        second,
        third,
    ]


@simulated()
async def test_a_job_that_left_its_gang_is_stopped_alone(
    cluster: Cluster,
) -> None:
    specs = job("a", "gpu0", retries=1), job("b", "gpu1")
    first, second = await submit_running(cluster, *specs)
    cluster.end(first, "failed", "GPU fell off")
    await cluster.until(lambda: cluster.table[first].attempt == 1)
    await cluster.until_state(first, JobState.RUNNING)
    await cluster.scheduler.restart(first)
    assert cluster.table[first].attempt == 2
    await cluster.scheduler.stop(first)
    await finish(cluster, second)
    # One that has ended takes nobody with it either.
    print(cluster.table[second].message)
    assert [cluster.table[each].state for each in (first, second)] == [
        JobState.STOPPED,
        JobState.DONE,
    ]


@simulated()
async def test_the_jobs_of_a_gang_start_together(cluster: Cluster) -> None:
    cluster.get_ready = False
    first, second = cluster.submit(job("a", "gpu0", "gpu1"), job("b", "gpu2"))
    await cluster.until(lambda: len(cluster.workers) == 3)
    for worker in cluster.workers_of(first):
        worker.ready.set()
    await asyncio.sleep(5)  # simulated: costs no time
    assert cluster.table[first].state is JobState.PREPARING
    assert not [call for call, _ in cluster.calls if call == "start"]
    for worker in cluster.workers_of(second):
        worker.ready.set()
    for job_id in (first, second):
        await cluster.until_state(job_id, JobState.RUNNING)


@simulated()
async def test_a_job_that_fails_leaves_the_others_of_its_gang_alone(
    cluster: Cluster,
) -> None:
    fails, goes_on = await submit_running(
        cluster, job("a", "gpu0", "gpu1"), job("b", "gpu2")
    )
    cluster.workers[f"{fails}-1"].end("failed", "out of memory")
    await cluster.until_state(fails, JobState.FAILED)
    status = cluster.scheduler.job(fails)
    assert "worker 1 on server1.gpu1 failed: out of memory" in status.message
    assert status.last_lines == ("out of memory",)
    await cluster.until(lambda: not cluster.workers_of(fails))
    assert cluster.table[goes_on].state is JobState.RUNNING
    await finish(cluster, goes_on)


@simulated()
async def test_a_worker_that_was_started_again_is_counted(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("again", "gpu0"))
    await cluster.until_done(job_id, 2)
    (worker,) = cluster.workers_of(job_id)
    worker.prints_report(0)
    await cluster.until(lambda: cluster.table[job_id].restarts == 1)
    assert cluster.table[job_id].iterations_done >= 2


@simulated()
async def test_what_nobody_foresaw_of_a_job_fails_that_job_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.refusals["create"] = ZeroDivisionError()
    (fails,) = cluster.submit(job("fails", "gpu0"))
    await cluster.until_state(fails, JobState.FAILED)
    assert "unexpected ZeroDivisionError" in cluster.table[fails].message
    cluster.refusals.clear()
    first, second = await submit_running(
        cluster, job("first", "gpu0"), job("second", "gpu1")
    )
    cluster.refusals[f"worker {first}-0"] = ZeroDivisionError()
    await cluster.until_state(first, JobState.FAILED)
    cluster.refusals.clear()
    await finish(cluster, second)
    with monkeypatch.context() as patch:
        patch.setattr(
            cluster.parts.drivers["ocs1"], "read_map", lambda: 1 // 0
        )
        (unplaced,) = cluster.submit(job("unplaced", workers=1))
        await cluster.until(
            lambda: (
                "ZeroDivisionError" in cluster.scheduler.job(unplaced).message
            )
        )
    await submit_running(cluster, job("next", workers=1))
    await cluster.until_state(unplaced, JobState.RUNNING)


# -- hosts -------------------------------------------------------------------------------------


@simulated()
async def test_a_job_waits_until_there_is_room_for_it(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    (all_six,) = cluster.submit(job("six", workers=6))
    await asyncio.sleep(0.05)  # simulated: costs no time
    assert cluster.table[all_six].state is JobState.QUEUED
    await finish(cluster, first)
    await cluster.until_state(all_six, JobState.RUNNING)
    assert len(set(cluster.table[all_six].hosts)) == 6


@simulated()
async def test_jobs_of_a_gang_get_hosts_of_their_own(cluster: Cluster) -> None:
    gang = job("named", "gpu0"), job("three", workers=3), job("two", workers=2)
    job_ids = await submit_running(cluster, *gang)
    hosts = [
        host for job_id in job_ids for host in cluster.table[job_id].hosts
    ]
    assert len(hosts) == len(set(hosts)) == 6


@simulated()
async def test_a_job_that_can_never_run_is_not_taken(cluster: Cluster) -> None:
    for specs, why in (
        ((), "no job given"),
        ((job("seven", workers=7),), "the lab has 6 suitable GPUs"),
        (
            (job("five", workers=5), job("two", workers=2)),
            "7 workers requested, but",
        ),
        ((job("none"),), "expected 'workers'"),
        ((job("a", "gpu0"), job("b", "gpu0")), "requested twice: by a and b"),
        (
            (JobSpec("slow", 1, 400, {"A100": 1.0}, workers=1),),
            "compute_s names 'A100'",
        ),
        (
            (job("a", "gpu0"), replace(job("b"), seed=-1, iterations=-1)),
            "job b: iterations: .*seed",
        ),
        (
            (replace(job("a"), compute_s={"Titan V": math.nan}),),
            "compute_s.Titan V: .*finite",
        ),
        (
            (replace(job("a"), compute_s={"Titan V": -1.0}),),
            "compute_s.Titan V: -1.0 is not more than 0",
        ),
        (
            (replace(job("a"), iterations=10**400),),
            "iterations: 10.* is more than 10000000",
        ),
    ):
        with pytest.raises(BadInput, match=why):
            cluster.submit(*specs)
    assert cluster.table.page() == []


@simulated()
async def test_a_job_waits_for_hosts_that_a_full_packet_switch_does_not_serve(
    cluster: Cluster,
) -> None:
    for switch in cluster.plant.switches.values():
        switch.reboot(None)
        switch.refuse(1000)
    await cluster.kill_and_restart()
    (waits,) = cluster.submit(job("waits", workers=2))
    await cluster.until(
        lambda: "table full" in cluster.scheduler.job(waits).message
    )
    for switch in cluster.plant.switches.values():
        switch.refuse(0)
    await cluster.until_state(waits, JobState.RUNNING)


@simulated()
async def test_hosts_at_ports_that_their_packet_switch_has_not_are_not_used(
    cluster: Cluster,
) -> None:
    tor1 = cluster.plant.switches["tor1"]

    def come_again(numbers: dict[int, int]) -> None:
        tor1.kill()
        tor1.numbers = numbers
        tor1.start()

    numbers = tor1.numbers
    come_again({1: 1})
    (waits,) = cluster.submit(job("waits", "gpu1", "gpu4"))
    await cluster.until(
        lambda: "tor1 has no port 2" in cluster.scheduler.job(waits).message
    )
    come_again(numbers)
    await cluster.until_state(waits, JobState.RUNNING)


@simulated()
async def test_a_worker_that_dies_while_it_is_prepared_says_why(
    cluster: Cluster,
) -> None:
    cluster.get_ready = False
    (job_id,) = cluster.submit(job("dies", "gpu0"))
    await cluster.until(lambda: cluster.workers)
    cluster.end(job_id, "failed", "no such GPU")
    await cluster.until_state(job_id, JobState.FAILED)
    assert "no such GPU" in cluster.table[job_id].message
    assert cluster.table[job_id].started_at is None


@simulated()
async def test_a_worker_that_cannot_be_stopped_is_an_event(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("stays", "gpu0"))
    cluster.refusals = {"delete": "the NIC does not come back"}
    await finish(cluster, job_id)
    await cluster.until(lambda: job_id not in cluster.table.running)
    left = [
        e["message"]
        for e in cluster.store.events()
        if e["kind"] == "worker-left-behind"
    ]
    assert left == ["the agent of server1: the NIC does not come back"]


# -- stopping ----------------------------------------------------------------------------------


@simulated()
async def test_a_job_that_waits_is_stopped_with_its_gang(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    second, third = cluster.submit(job("second", "gpu0"), job("third", "gpu1"))
    assert (await cluster.scheduler.stop(third)).state is JobState.STOPPED
    assert cluster.table[second].message == "stopped by the user"
    await finish(cluster, first)
    assert cluster.table[second].started_at is None


@simulated()
async def test_a_job_that_has_ended_stays_as_it_ended(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("done", "gpu0"))
    await finish(cluster, job_id)
    assert (await cluster.scheduler.stop(job_id)).state is JobState.DONE
    with pytest.raises(BadInput, match="unknown job 'nobody'"):
        await cluster.scheduler.stop("nobody")


@simulated()
async def test_a_job_of_another_user_is_stopped_and_restarted_only_by_force(
    cluster: Cluster,
) -> None:
    (status,) = cluster.scheduler.submit(
        [job("mine", "gpu0")], "keep", by="eva"
    )
    with pytest.raises(Refused, match="belongs to eva, and you are otto"):
        await cluster.scheduler.stop(status.id, "otto")
    await cluster.until_state(status.id, JobState.RUNNING)
    with pytest.raises(Refused, match="--force"):
        await cluster.scheduler.stop(status.id, "otto")
    assert (
        await cluster.scheduler.stop(status.id, "otto", force=True)
    ).state is JobState.STOPPED
    (status,) = cluster.scheduler.submit(
        [job("mine", "gpu0")], "keep", by="eva"
    )
    assert (
        await cluster.scheduler.stop(status.id, "eva")
    ).state is JobState.STOPPED
    with pytest.raises(Refused, match="it was not restarted"):
        await cluster.scheduler.restart(status.id, "otto")
    assert (
        await cluster.scheduler.restart(status.id, "otto", force=True)
    ).by == "otto"


# -- circuits ----------------------------------------------------------------------------------


@simulated()
async def test_a_job_is_regrouped_before_it_has_workers(
    cluster: Cluster,
) -> None:
    assert len(cluster.switches_of(SPREAD)) == 2
    (job_id,) = await submit_running(
        cluster, job("four", *SPREAD), topology="regroup"
    )
    assert len(cluster.switches_of(SPREAD)) == 1
    (change,) = cluster.store.reconfigurations()
    assert change.why == f"regroup {job_id}"


@simulated()
async def test_a_job_whose_circuits_cannot_be_switched_fails(
    cluster: Cluster,
) -> None:
    cluster.circuits.stop.press("maintenance", "eva")
    (job_id,) = cluster.submit(job("four", *SPREAD), topology="regroup")
    await cluster.until_state(job_id, JobState.FAILED)
    assert (
        "the circuits could not be changed (refused)"
        in cluster.table[job_id].message
    )
    assert not cluster.calls


@simulated()
async def test_who_asks_for_what_cannot_be_regrouped_is_told_so(
    cluster: Cluster,
) -> None:
    # Two of its NICs may not move, and they are under different switches.
    ports = [
        int(cluster.lab.fibre_ends[cluster.lab.host(h).endpoint][0].port)
        for h in SPREAD
    ]
    cluster.circuits.locks.lock("ocs1", ports, "locked", "eva", "mine")
    (job_id,) = cluster.submit(job("four", *SPREAD), topology="regroup")
    await cluster.until_state(job_id, JobState.FAILED)
    assert (
        "no packet switch has enough usable ports"
        in cluster.table[job_id].message
    )
    assert cluster.faults() == []


@simulated()
async def test_the_text_of_a_job_is_that_of_its_record_as_it_is_now(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("four", *SPREAD))
    (waits,) = cluster.submit(job("waits", *SPREAD))
    table = cluster.table

    def texts() -> list[dict[str, Any]]:
        return [json.loads(table.text(status)) for status in table.page(10)]

    def records() -> list[dict[str, Any]]:
        rows = [table[name].as_record for name in (job_id, waits)]
        plain: list[dict[str, Any]] = json.loads(json.dumps(rows))
        return [
            {key: row[key] for key in row if key != "message"} for row in plain
        ]

    assert texts() == records()
    table.move(waits, JobState.BLOCKED, "no GPUs")
    assert [row["state"] for row in texts()] == ["running", "blocked"]
    await finish(cluster, job_id)
    await cluster.until_state(waits, JobState.RUNNING)
    assert texts() == records()


@simulated()
async def test_running_jobs_are_regrouped_while_they_run(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, job("four", *SPREAD))
    change = await cluster.scheduler.rewiring.regroup([job_id])
    assert change.state == "committed"
    assert len(cluster.switches_of(SPREAD)) == 1
    calls = [call for call, _ in cluster.calls]
    assert calls.index("hold") < calls.index("release")
    await finish(cluster, job_id)
    await cluster.until(lambda: job_id not in cluster.table.running)
    with pytest.raises(BadInput, match="is not running: done"):
        await cluster.scheduler.rewiring.regroup([job_id])
