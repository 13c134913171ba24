"""``patchlight job`` commands on jobs that wait, run and end: what they print, how they end."""

import asyncio
import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from patchlight.client.client import ControllerClient
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.wire.rest.jobs import (
    DecisionShape,
    IterationReport,
    JobAnswer,
    JobInList,
    StateOfJob,
)
from tests.support.job_api import JobCommand
from tests.support.job_cluster import COMPUTE, ITERATIONS, Cluster, simulated


def spec(name: str, *hosts: str) -> JobSpec:
    return JobSpec(name, ITERATIONS, 4_000_000, COMPUTE, hosts=hosts)


async def running(cluster: Cluster, name: str, *hosts: str) -> str:
    (job_id,) = cluster.submit(spec(name, *hosts))
    await cluster.until_trains(job_id)
    return job_id


@simulated()
async def test_the_list_shows_the_latest_and_says_that_there_are_more(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    ids = [cluster.submit(spec(f"job{n}", "gpu0"))[0] for n in range(4)]
    printed = await job("list", "-n", "2")
    rows = {line.split(" ")[0] for line in printed.splitlines()}
    assert [job_id in rows for job_id in ids] == [False, False, True, True]
    assert "showing the last 2 jobs" in printed
    listed = json.loads(await job("list", "--all", "--json"))
    assert [status["id"] for status in listed] == ids
    assert "latest" not in await job("list")


@simulated()
async def test_the_list_can_be_of_a_state_a_name_or_a_user(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    first = await running(cluster, "first", "gpu0")
    (second,) = cluster.submit(spec("second", "gpu0"))
    for words, found in (
        (("--status", "running"), [first]),
        (("--name", "second"), [second]),
        (("--user", "nobody"), []),
    ):
        listed = json.loads(await job("list", *words, "--json"))
        assert [status["id"] for status in listed] == found


@simulated()
async def test_show_says_why(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "first", "gpu0")
    decision = {"kind": "placement", "policy": "packed", "seconds": 0.002}
    decision |= {"answer": ["server1.gpu0"], "digest": "abc", "saw": {}}
    taken = {
        "option": "server1.gpu0 (1 under tor1)",
        "score": 0.25,
        "chosen": True,
    }
    left = {
        "option": "server3.gpu0 (1 under tor2)",
        "score": -1.5,
        "chosen": False,
    }
    times = {
        "lasts_s": 12.0,
        "delays_others_s": None,
        "also_of": ["first-fit", "best-fit"],
    }
    decision["weighed"] = {
        "saw": {"gpus": 6, "free": 4},
        "options": [taken | times, left | times],
    }
    cluster.table.ledger.add_decision(job_id, 1.0, decision)
    shown = json.loads(await job("show", "first", "--history", "--json"))
    assert [row["state"] for row in shown["states"]] == [
        "queued",
        "preparing",
        "running",
    ]
    assert shown["decisions"][0]["policy"] == "packed"
    printed = await job("show", "first", "--history")
    assert max(map(len, printed.splitlines())) <= 80
    for words in (
        "preparing",
        "placement",
        "packed",
        "2.0 ms",
        "server1.gpu0",
    ):
        assert words in printed
    for words in (
        "saw 6 gpus, 4 free",
        "→ 0.250",
        "-1.500",
        "12.0 s",
        "(1 under tor2)",
    ):
        assert words in printed


@simulated()
async def test_show_says_what_gpus_have_used_over_all_attempts(
    cluster: Cluster,
) -> None:
    job_id = await running(cluster, "green", "gpu0", "gpu1")
    used_j = {"server1.gpu0": 120.5, "server1.gpu1": 2000.0}
    cluster.table.keep(replace(cluster.table[job_id], energy_j=used_j))
    printed = await JobCommand(cluster)("show", "green")
    assert "2,120 J: server1.gpu0 120 J, server1.gpu1 2,000 J" in " ".join(
        printed.split()
    )


@simulated()
async def test_logs_are_those_of_every_worker_or_of_one(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "talks", "gpu0", "gpu1")
    for worker in cluster.workers_of(job_id):
        worker.prints(f"I am {worker.spec.rank}\nno line break")
    assert (await job("logs", "talks")).splitlines() == [
        "[0] I am 0",
        "[1] I am 1",
        "[0] no line break",
        "[1] no line break",
    ]
    assert (
        await job("logs", "talks", "--worker", "1")
        == "I am 1\nno line break\n"
    )
    lines = (
        await job("logs", "talks", "--worker", "0", "--json")
    ).splitlines()
    assert json.loads(lines[0]) == {"worker": 0, "line": "I am 0"}
    assert "has no worker 2: expected 0 to 1" in await job(
        "logs", "talks", "--worker", "2", code=2
    )


@simulated()
async def test_a_worker_that_is_not_made_yet_has_printed_nothing(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    cluster.gates["create"] = asyncio.Event()
    (job_id,) = cluster.submit(spec("slow", "gpu0"))
    await cluster.until(lambda: ("create", f"{job_id}-0") in cluster.calls)
    assert await job("logs", "slow") == ""
    cluster.gates["create"].set()
    await cluster.until_state(job_id, JobState.RUNNING)


@simulated()
async def test_logs_are_followed_to_the_end_of_the_job(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "talks", "gpu0")
    (worker,) = cluster.workers_of(job_id)
    worker.prints("first\nsec")
    following = asyncio.create_task(job("logs", "-f", "talks"))
    await cluster.until(lambda: ("log", worker.id) in cluster.calls)
    worker.prints("ond\n")
    await asyncio.sleep(5)  # simulated: costs no time
    cluster.end(job_id)
    assert (await following).splitlines() == [
        "first",
        "second",
        f"{job_id} done",
    ]


@simulated()
async def test_of_a_job_that_failed_the_last_lines_are_kept(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "fails", "gpu0")
    cluster.end(job_id, "failed", "no such file")
    await cluster.until_state(job_id, JobState.FAILED)
    await cluster.until(lambda: job_id not in cluster.table.running)
    printed = await job("logs", "fails")
    assert printed.startswith("no such file\n")
    assert f"{job_id} failed: " in printed


@simulated()
async def test_follow_ends_with_the_result_of_the_jobs(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    good = await running(cluster, "good", "gpu0")
    bad = await running(cluster, "bad", "gpu1")
    following = asyncio.create_task(job("show", "--follow", "good"))
    await cluster.until_done(good, 1)
    cluster.end(good)
    iteration, *_, end = (await following).splitlines()
    assert iteration.startswith("[0] iteration 0: compute")
    assert end.startswith(f"{good} done in ")
    cluster.end(bad, "failed", "why not")
    assert f"{bad} failed: worker 0 on " in await job(
        "show", "--follow", good, bad, code=1
    )


@simulated()
async def test_follow_shows_the_output_of_a_program(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    program = JobSpec(
        "mine",
        0,
        0,
        {},
        hosts=("gpu0",),
        trainer="command",
        command=("train",),
    )
    (job_id,) = cluster.submit(program)
    await cluster.until_state(job_id, JobState.RUNNING)
    (worker,) = cluster.workers_of(job_id)
    worker.prints("epoch 1\nepo")
    following = asyncio.create_task(job("show", "--follow", "mine"))
    await cluster.until(lambda: ("log", worker.id) in cluster.calls)
    worker.prints("ch 2")
    await asyncio.sleep(5)  # simulated: costs no time
    cluster.end(job_id)
    *output, end = (await following).splitlines()
    assert output == ["[0] epoch 1", "[0] epoch 2"]
    assert end.startswith(f"{job_id} done")


@simulated()
async def test_follow_says_why_a_job_waits_and_how_to_stop_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = JobCommand(cluster)
    await running(cluster, "first", "gpu0")
    (waits,) = cluster.submit(spec("second", "gpu0"))
    await cluster.until(lambda: cluster.scheduler.job(waits).message)

    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("patchlight.cli.job.follow.time.sleep", interrupt)
    said, goes_on = (
        await job("show", "--follow", "second", code=130)
    ).splitlines()
    assert said == f"{waits} queued: server1.gpu0 is busy"
    assert (
        goes_on
        == f"job {waits} continues; stop it with: patchlight job stop {waits}"
    )


@simulated()
async def test_a_job_that_ended_is_restarted_as_a_new_one(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "again", "gpu0")
    assert await job("stop", "again") == "stopped\n"
    new, state = (await job("restart", job_id)).split()
    assert (new != job_id, state) == (True, "queued")
    await cluster.until_state(new, JobState.RUNNING)


@pytest.mark.parametrize(
    "words", [("show",), ("logs",), ("restart",), ("stop",)]
)
@simulated()
async def test_a_job_that_there_is_not_is_told_with_those_there_are(
    cluster: Cluster, words: tuple[str, ...]
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "vgg", "gpu0")
    printed = await job(*words, job_id[:-1] + "~", code=2)
    assert f"did you mean {job_id!r}?" in printed


@simulated()
async def test_answers_on_a_job_that_runs_are_as_described(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    job_id = await running(cluster, "described", "gpu0", "gpu1")
    await cluster.until_done(job_id, 1)
    with ControllerClient(job.api) as client:
        TypeAdapter(JobAnswer).validate_python(
            await job.run(lambda: client.job(job_id))
        )
        TypeAdapter(list[JobInList]).validate_python(
            await job.run(client.jobs)
        )
        reports, _ = await job.run(lambda: client.recent_iterations(job_id, 2))
        TypeAdapter(list[IterationReport]).validate_python(reports)
        assert reports[0].model_fields_set == {*IterationReport.model_fields}
        TypeAdapter(list[DecisionShape]).validate_python(
            await job.run(lambda: client.decisions(job_id))
        )
        TypeAdapter(list[StateOfJob]).validate_python(
            await job.run(lambda: client.history(job_id))
        )
