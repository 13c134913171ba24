"""The lab's queue: order and rules, what waits and why, and what was decided and seen."""

import asyncio
import gc
import uuid
from pathlib import Path
from typing import Any

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.controller.jobs.cluster_view import arguments, digest, plain
from patchlight.controller.jobs.entries import GangEntry
from patchlight.controller.policies.contract import METHODS
from patchlight.controller.policies.registry import load_policy
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from tests.support.job_cluster import (
    LAB,
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)


async def says(cluster: Cluster, job_id: str, words: str) -> None:
    await cluster.until(lambda: words in cluster.scheduler.job(job_id).message)


@simulated()
async def test_who_waits_says_for_what(cluster: Cluster) -> None:
    await submit_running(cluster, job("five", workers=5))
    (three,) = cluster.submit(job("three", workers=3))
    (last,) = cluster.submit(job("last", workers=1))
    await says(
        cluster,
        three,
        "it needs 3 GPUs of Tesla M40, Titan V, and 1 of them are free",
    )
    await says(cluster, last, f"it depends on {three}")
    (named,) = cluster.submit(job("named", "gpu0"))
    await says(cluster, named, "it depends on")


@simulated()
async def test_no_job_gets_the_id_of_another(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = iter(
        uuid.UUID(int=number << 104) for number in (1, 2, 3, 2, 3, 3, 4)
    )
    monkeypatch.setattr("uuid.uuid4", drawn.__next__)
    (first,) = cluster.submit(job("train", workers=6))
    again = cluster.submit(job("train", workers=3), job("train", workers=3))
    monkeypatch.undo()
    assert len({first, *again}) == 3
    assert (
        cluster.table[first].submitted_at
        <= cluster.table[again[0]].submitted_at
    )


@simulated()
async def test_of_jobs_stopped_while_the_lab_is_drained_nothing_stays_in_memory(
    cluster: Cluster,
) -> None:
    await cluster.scheduler.drain()
    for number in range(3):
        (job_id,) = cluster.submit(job(f"never-{number}", workers=1))
        await cluster.scheduler.stop(job_id)
    gc.collect()
    kept = [
        each.gang.ids
        for each in gc.get_objects()
        if isinstance(each, GangEntry)
    ]
    assert not [ids for ids in kept if ids[0].startswith("never")]


@simulated()
async def test_a_job_waits_for_those_it_comes_after(cluster: Cluster) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    (then,) = cluster.submit(job("then", "gpu1", after=("first",)))
    (other,) = await submit_running(cluster, job("other", "gpu2"))
    await says(cluster, then, f"it depends on {first}, which is not done yet")
    await finish(cluster, first)
    await cluster.until_state(then, JobState.RUNNING)
    (never,) = cluster.submit(job("never", "gpu3", after=(other,)))
    await finish(cluster, other, "failed")
    await cluster.until_state(never, JobState.BLOCKED)
    assert (
        "which can no longer succeed" in cluster.scheduler.job(never).message
    )
    with pytest.raises(BadInput, match="it depends on unknown job"):
        cluster.submit(job("lost", "gpu3", after=("nobody",)))
    # The start of an id, as long as it is that of one.
    (fourth,) = cluster.submit(job("fourth", "gpu3", after=("fi",)))
    assert cluster.table[fourth].spec.after == (first,)
    with pytest.raises(BadInput, match="start of several ids") as caught:
        cluster.submit(job("lost", "gpu3", after=("f",)))
    assert f"{fourth}, {first}" in str(caught.value)


@simulated(discipline=Discipline(users=(("ann", Allowance(gpus=2, jobs=3)),)))
async def test_quotas_hold_and_others_pass(cluster: Cluster) -> None:
    submit = cluster.scheduler.submit
    (first,) = submit([job("first", workers=2)], by="ann")
    await cluster.until_state(first.id, JobState.RUNNING)
    (second,) = submit([job("second", workers=1)], by="ann")
    await says(
        cluster,
        second.id,
        "user ann has 2 of at most 2 GPUs, and it needs 1",
    )
    (bens,) = submit([job("bens", workers=1)], by="ben")
    await cluster.until_state(bens.id, JobState.RUNNING)
    assert cluster.table[second.id].state is JobState.BLOCKED
    submit([job("third", workers=1)], by="ann")
    with pytest.raises(Refused, match="the limit is 3"):
        submit([job("fourth", workers=1)], by="ann")
    with pytest.raises(Refused, match="may have 2 at once"):
        submit([job("big", workers=4)], by="ann")
    await finish(cluster, first.id)
    await cluster.until_state(second.id, JobState.RUNNING)


@simulated()
async def test_a_preview_says_where_jobs_would_go_and_changes_nothing(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, job("busy", "gpu0", "gpu1", "gpu2", "gpu3"))
    spread = job("spread", "gpu4", "gpu5")
    preview = cluster.scheduler.preview
    (row,) = await preview([spread], "keep")
    assert (row["hosts"], row["waits_for"]) == (
        ["server3.gpu4", "server4.gpu5"],
        "",
    )
    (row,) = await preview([job("three", workers=3)])
    assert row["waits_for"].endswith("and 2 of them are free")
    (row,) = await preview([spread], "regroup")
    assert isinstance(row["circuits"], list)
    assert len(cluster.table.live()) == 1


@simulated()
async def test_decisions_are_kept_with_all_that_was_seen(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, job("busy", workers=2))
    (job_id,) = await submit_running(
        cluster, job("two", workers=2, graph="alexnet"), topology="regroup"
    )
    decisions = cluster.table.ledger.decisions(job_id)
    assert [decision["kind"] for decision in decisions] == [
        "placement",
        "topology",
    ]
    for decision in decisions:
        assert decision["digest"] == digest(decision["saw"])
        assert decision["seconds"] < 10
        policy: Any = load_policy(decision["policy"], decision["kind"])
        saw = arguments(decision["kind"], decision["saw"], cluster.lab)
        again = getattr(policy, METHODS[decision["kind"]])(*saw)
        assert plain(again) == decision["answer"]
    assert decisions[0]["saw"]["job"]["graph"] == "alexnet"
    assert (
        decisions[1]["reconfiguration"]
        == cluster.store.reconfigurations()[-1].id
    )


@simulated()
async def test_policies_change_while_the_controller_runs(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, job("before", workers=1))
    await cluster.scheduler.policies.use(
        PolicyChoice(placement="random", order="srpt")
    )
    (then,) = await submit_running(cluster, job("then", workers=1))
    assert cluster.table.ledger.decisions(then)[0]["policy"] == "random"
    with pytest.raises(BadInput, match=r"unknown policy .nonsense."):
        await cluster.scheduler.policies.use(
            PolicyChoice(placement="nonsense")
        )
    assert cluster.scheduler.policies.choice.placement == "random"
    await cluster.kill_and_restart()
    assert cluster.scheduler.policies.choice.order == "srpt"
    cluster.policies = PolicyChoice(order="las")
    await cluster.kill_and_restart()
    choice = cluster.scheduler.policies.choice
    assert (choice.placement, choice.order) == ("consolidated", "las")


SAYS = PolicyChoice(order="srpt", topology="regroup", defragment=True)


@simulated(PolicyChoice(order="las"), lab=LAB.with_changes(policies=SAYS))
async def test_the_lab_file_says_what_nobody_else_does(
    cluster: Cluster,
) -> None:
    def decide() -> list[Any]:
        words = cluster.scheduler.policies.words
        return [
            words[name]
            for name in ("placement", "order", "topology", "defragment")
        ]

    assert decide() == ["consolidated", "las", "regroup", True]
    await cluster.scheduler.policies.use(
        PolicyChoice(topology="keep", defragment=False)
    )
    assert decide() == ["consolidated", "las", "keep", False]
    await cluster.kill_and_restart()
    assert decide() == ["consolidated", "las", "keep", False]
    cluster.policies = PolicyChoice(topology="cheapest")
    await cluster.kill_and_restart()
    assert decide() == ["consolidated", "srpt", "cheapest", True]
    cluster.controller.kill()
    cluster.lab = LAB.with_changes(policies=PolicyChoice(order="nonsense"))
    cluster.start_controller()
    await asyncio.sleep(1)  # simulated: costs no time
    assert "unknown policy 'nonsense'" in cluster.world.lines[-2]


@simulated()
async def test_a_job_may_ask_for_a_built_in_policy_only(
    cluster: Cluster, tmp_path: Path
) -> None:
    (job_id,) = await submit_running(
        cluster, job("own", workers=1, placement="rack-aware")
    )
    assert cluster.table.ledger.decisions(job_id)[0]["policy"] == "rack-aware"
    mine = tmp_path / "mine.py"
    mine.write_text("raise SystemExit('this ran next to the controller")
    with pytest.raises(
        BadInput, match="not a built-in policy and not the lab's"
    ):
        cluster.submit(job("evil", workers=1, placement=f"{mine}:Mine"))
    with pytest.raises(BadInput, match="unknown built-in graph"):
        cluster.submit(job("graph", workers=1, graph="/etc/shadow"))
