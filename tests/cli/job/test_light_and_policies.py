"""Commands on the light under running jobs, and on who decides; against the real API."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from patchlight.testbed.jobs import JobSpec, JobState
from tests.support.job_api import JobCommand
from tests.support.job_cluster import (
    COMPUTE,
    Cluster,
    simulated,
    submit_running,
)

SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")


def spread(gradient_bytes: int) -> JobSpec:
    return JobSpec("spread", 1000, gradient_bytes, COMPUTE, hosts=SPREAD)


@simulated()
async def test_regrouping_is_shown_before_it_is_done(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    (job_id,) = await submit_running(cluster, spread(500_000_000))
    before = cluster.ocs.map
    shown = json.loads(await job("regroup", "spread", "--dry-run", "--json"))
    assert shown["makes"]["ocs1"]
    assert shown["objections"] == []
    assert "ocs1: " in await job("regroup", "spread", "--dry-run")
    assert cluster.ocs.map == before
    assert "committed" in await job("regroup", "spread")
    assert len(cluster.switches_of(SPREAD)) == 1
    assert "The circuits are already right." in await job(
        "regroup", job_id, "--dry-run"
    )


@simulated()
async def test_jobs_are_regrouped_where_that_pays(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    (job_id,) = await submit_running(cluster, spread(500_000_000))
    shown = json.loads(await job("regroup", "--dry-run", "--json"))
    assert shown["jobs"] == [job_id]
    assert shown["gain_s"] > 10
    assert f"{job_id} ends" in await job("regroup", "--dry-run")
    assert "committed" in await job("regroup")
    assert len(cluster.switches_of(SPREAD)) == 1
    (event,) = [
        e for e in cluster.store.events() if e["kind"] == "defragmented"
    ]
    assert event["gains_s"] == shown["gains_s"]
    assert "No running job would gain more" in await job("regroup")


@simulated()
async def test_one_need_not_wait_for_a_regroup(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    await submit_running(cluster, spread(500_000_000))
    assert "change 1 has started: " in await job("regroup", "--detach")
    await cluster.until(lambda: not cluster.transactions.under_way(1))
    assert len(cluster.switches_of(SPREAD)) == 1
    (event,) = [
        e for e in cluster.store.events() if e["kind"] == "defragmented"
    ]
    assert (event["reconfiguration"], event["state"]) == (1, "committed")
    assert "No running job would gain more" in await job("regroup", "--detach")


@simulated()
async def test_what_a_move_of_light_gained_stands_beside_the_job(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    (job_id,) = await submit_running(cluster, spread(500_000_000))
    await cluster.until_done(job_id, 3)
    cluster.workers_of(job_id)[0].hold_at = 10
    await cluster.until(lambda: cluster.workers_of(job_id)[0].state == "held")
    await asyncio.sleep(10)  # until nothing is reported any more
    shown = json.loads(await job("show", job_id, "--json"))
    measured_s = shown["measured_iteration_s"]
    off = shown["measured_iteration_s"] / shown["predicted_iteration_s"] - 1
    words = f"{measured_s:.3f} s an iteration, {-100 * off:.1f} % less than predicted"
    assert words in await one_line(job, job_id)
    assert "committed" in await job("regroup")
    (move,) = json.loads(await job("show", job_id, "--json"))["light_moves"]
    assert move["predicted_before_s"] == shown["predicted_iteration_s"]
    printed = " ".join((await job("show", job_id, "--history")).split())
    assert "by defragment (change" in printed
    change = f"predicted {move['predicted_before_s']:.3f} s → {move['predicted_after_s']:.3f} s"
    assert change in printed
    assert f"measured {measured_s:.3f} s → not known" in printed
    policy = JobCommand(cluster, "policy")
    assert json.loads(await policy("replay", job_id, "--json")) == []
    shown = json.loads(await job("show", job_id, "--json"))
    (waits,) = cluster.submit(spread(8))
    for message in ("", "half a character: \ud800"):
        cluster.table.keep(replace(cluster.table[waits], message=message))
        rows = {
            row["id"]: row for row in json.loads(await job("list", "--json"))
        }
        assert rows[job_id].items() <= shown.items()
        assert "predicted_iteration_s" in rows[job_id]
        assert "predicted_iteration_s" not in rows[waits]
    cluster.table.end([waits], JobState.STOPPED, "")


@simulated()
async def test_light_is_told_to_follow_and_to_stay(cluster: Cluster) -> None:
    policy = JobCommand(cluster, "policy")
    assert json.loads(await policy("use", "--json"))["defragment"] is False
    rows = [
        line.split()
        for line in (await policy("use", "--defragment", "on")).splitlines()
    ]
    assert ["defragment", "on"] in [
        [w for w in row if w.isalpha()] for row in rows
    ]
    assert cluster.scheduler.rewiring.status()["defragment"]
    assert not json.loads(
        await policy("use", "--defragment", "off", "--json")
    )["defragment"]
    assert not cluster.scheduler.rewiring.status()["defragment"]


@simulated()
async def test_jobs_are_let_send_in_turns_and_at_any_time(
    cluster: Cluster,
) -> None:
    policy = JobCommand(cluster, "policy")
    assert json.loads(await policy("use", "--json"))["interleave"] is False
    for said, is_on in (("on", True), ("off", False)):
        assert (
            json.loads(await policy("use", "--interleave", said, "--json"))[
                "interleave"
            ]
            is is_on
        )
        assert cluster.scheduler.policies.choice.interleave is is_on


@simulated()
async def test_where_little_is_sent_no_light_moves(cluster: Cluster) -> None:
    job = JobCommand(cluster)
    await submit_running(cluster, spread(4))
    before = cluster.ocs.map
    assert "No running job would gain more" in await job(
        "regroup", "--dry-run"
    )
    assert "No running job would gain more" in await job("regroup")
    assert cluster.ocs.map == before


@simulated()
async def test_what_is_predicted_stands_beside_the_job(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    first = spread(500_000_000)
    (row,) = json.loads(
        await job("submit", *_flags(first), "--dry-run", "--json")
    )
    (job_id,) = await submit_running(cluster, first)
    shown = json.loads(await job("show", job_id, "--json"))
    assert shown["predicted_iteration_s"] == row["predicted_iteration_s"]
    # 2 · 3/4 · 4 Gbit on an edge, and two edges of the ring share the trunk each way. Headers and
    # acknowledgements take 9 % more.
    assert 0.1 + 0.6 <= shown["predicted_iteration_s"] <= 0.1 + 1.1 * 1.2
    assert (
        shown["predicted_completion_s"] > 900 * shown["predicted_iteration_s"]
    )
    assert "s an iteration" in await job("show", job_id)


def _flags(spec: JobSpec) -> list[str]:
    compute = [
        word
        for model, s in spec.compute_s.items()
        for word in ("--compute", f"{model}={s}s")
    ]
    size = [
        "--iterations",
        str(spec.iterations),
        "--gradient",
        f"{spec.gradient_bytes}B",
    ]
    return [spec.name, "--hosts", ",".join(spec.hosts), *size, *compute]


@simulated()
async def test_other_policies_are_used_and_decisions_asked_again(
    cluster: Cluster, tmp_path: Path
) -> None:
    policy = JobCommand(cluster, "policy")
    assert (
        json.loads(await policy("use", "--json"))["placement"]
        == "consolidated"
    )
    assert "rack-aware" in await policy("use", "--placement", "rack-aware")
    (job_id,) = await submit_running(
        cluster,
        JobSpec("two", 5, 4_000_000, COMPUTE, workers=2),
        topology="regroup",
    )
    rows = json.loads(await policy("replay", job_id, "--json"))
    assert [(row["kind"], row["same"]) for row in rows] == [
        ("placement", True),
        ("topology", True),
    ]
    (other,) = json.loads(
        await policy(
            "replay", job_id, "--with", "placement:random:seed=7", "--json"
        )
    )
    assert (other["policy"], other["asked"]) == (
        "rack-aware",
        "placement:random:seed=7",
    )
    assert "placement" in await policy("replay", job_id)
    bad = tmp_path / "bad.py"
    bad.write_text(
        "class Raises:\n    def place(self, cluster, job, workers):\n        return [][0]\n"
        "class Short:\n    def place(self, cluster, job, workers):\n        return [0]\n"
    )
    for name, fault in (
        ("Raises", f"it raised IndexError: list index out of range ({bad}:3)"),
        (
            "Short",
            "it answered 1 GPUs: expected 2 different free GPUs, or None",
        ),
    ):
        (row,) = json.loads(
            await policy("replay", job_id, "--with", f"{bad}:{name}", "--json")
        )
        assert (row["fault"], row["answer"], row["same"]) == (
            fault,
            None,
            False,
        )
        assert fault[:9] in await policy(
            "replay", job_id, "--with", f"{bad}:{name}"
        )
    assert "unknown policy" in await policy(
        "use", "--order", "nonsense", code=2
    )


@simulated()
async def test_a_job_that_grows_shows_its_workers_now_and_before(
    cluster: Cluster,
) -> None:
    job = JobCommand(cluster)
    policy = JobCommand(cluster, "policy")
    await policy("use", "--partition", "minimum")
    compute = {model: 4 * seconds for model, seconds in COMPUTE.items()}
    auto = JobSpec("auto", 1000, 4000, compute, degrees=(2, 4))
    (job_id,) = await submit_running(cluster, auto)
    assert (
        "2 now; stays so: the lab's elasticity policy is rigid"
        in await one_line(job, job_id)
    )
    assert "give-and-take" in await policy(
        "use", "--elasticity", "give-and-take"
    )
    await cluster.until(lambda: len(cluster.table[job_id].degrees) == 2)
    await cluster.until_trains(job_id)
    then = cluster.table[job_id].degrees[1].iteration
    changed = f"2 from iteration 0 on, 4 from iteration {then} on"
    assert f"4 now; {changed}" in await one_line(job, job_id)
    shown = await job("show", job_id, "--history")
    assert "from 2 to 4 workers" in " ".join(shown.split())
    (row,) = json.loads(
        await policy("replay", job_id, "--with", "elasticity:rigid", "--json")
    )
    assert (row["decided"], row["answer"], row["same"]) == (
        {job_id: 4},
        {},
        False,
    )
    assert f"{job_id}: 4" in " ".join((await policy("replay", job_id)).split())
    cluster.end(job_id)
    await cluster.until_state(job_id, JobState.DONE)
    assert f"workers {changed} submitted" in await one_line(job, job_id)
    (listed,) = json.loads(await job("list", "--json"))
    assert len(listed["hosts"]) == 4


async def one_line(job: JobCommand, job_id: str) -> str:
    """What ``job show`` prints, without the breaks of its lines."""
    return " ".join((await job("show", job_id)).split())
