"""Light that follows running jobs by itself, and what it gained: predicted and measured."""

import asyncio
from collections.abc import Sequence

import pytest

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.jobs.job_table import durations_s
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_cluster import (
    COMPUTE,
    Cluster,
    finish,
    simulated,
    submit_running,
)

FOLLOWS = PolicyChoice(defragment=True, defragment_every_s=3600.0)
SPREAD = ("gpu0", "gpu2", "gpu4", "gpu5")
OTHER = ("gpu1", "gpu3")


def large(name: str, hosts: Sequence[str]) -> JobSpec:
    """A job for which it matters where its light goes."""
    return JobSpec(name, 1000, 500_000_000, COMPUTE, hosts=tuple(hosts))


def small(name: str, hosts: Sequence[str]) -> JobSpec:
    """One that sends next to nothing."""
    return JobSpec(name, 1000, 4, COMPUTE, hosts=tuple(hosts))


def words(cluster: Cluster) -> str:
    return str(cluster.scheduler.rewiring.status()["words"])


@simulated(FOLLOWS)
async def test_light_follows_when_a_job_has_ended(cluster: Cluster) -> None:
    spread, other = await submit_running(
        cluster, large("spread", SPREAD), small("b", OTHER)
    )
    assert len(cluster.switches_of(SPREAD)) == 2
    await finish(cluster, other)
    await cluster.until(lambda: cluster.events("defragmented"))
    assert len(cluster.switches_of(SPREAD)) == 1
    # At an iteration's end.
    assert "hold" in {call for call, _ in cluster.calls}
    (event,) = cluster.events("defragmented")
    assert (event["state"], event["jobs"]) == ("committed", [spread])
    await cluster.until(lambda: "committed" in words(cluster))
    (decision,) = cluster.table.ledger.decisions(spread)
    assert (decision["kind"], decision["answer"]) == (
        "defragment",
        event["maps"],
    )
    assert decision["reconfiguration"] == event["reconfiguration"]


@simulated(PolicyChoice(defragment=True, defragment_every_s=0.05))
async def test_light_follows_on_a_timer(cluster: Cluster) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    await cluster.until(lambda: cluster.events("defragmented"))
    await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
    assert len(cluster.events("defragmented")) == 1


@simulated(PolicyChoice(defragment_every_s=0.05))
async def test_light_stays_unless_somebody_has_it_follow(
    cluster: Cluster,
) -> None:
    _, other = await submit_running(
        cluster, large("spread", SPREAD), small("b", OTHER)
    )
    await finish(cluster, other)
    assert not cluster.scheduler.rewiring.status()["defragment"]
    assert not cluster.events("defragmented")
    await cluster.scheduler.policies.use(PolicyChoice(defragment=True))
    await cluster.until(lambda: cluster.events("defragmented"))
    await cluster.scheduler.policies.use(PolicyChoice(defragment=False))
    assert words(cluster) == "circuits stay until the next change"


@simulated(
    PolicyChoice(defragment=True, defragment_every_s=0.05, minimum_gain_s=1e6)
)
async def test_light_follows_only_where_the_gain_is_large_enough(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
    await cluster.scheduler.policies.use(PolicyChoice(minimum_gain_s=1.0))
    await cluster.until(lambda: cluster.events("defragmented"))


@simulated(FOLLOWS)
async def test_light_stays_against_locks_and_the_stop_button(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    before = cluster.ocs.map
    preflight = cluster.circuits.preflight
    preflight.stop.press("ann", "works at the rack")
    cluster.scheduler.rewiring.look_soon()
    await cluster.until(lambda: "works at the rack" in words(cluster))
    preflight.stop.clear("ann", "done")
    preflight.locks.lock(
        "ocs1", range(1, 7), "locked", "ann", "measures there"
    )
    cluster.scheduler.rewiring.look_soon()
    await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
    assert cluster.ocs.map == before
    preflight.locks.unlock("ocs1", range(1, 7), "ann", "done")
    cluster.scheduler.rewiring.look_soon()
    await cluster.until(lambda: cluster.events("defragmented"))


@simulated(FOLLOWS)
async def test_a_change_under_way_is_waited_for(cluster: Cluster) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    operators = asyncio.create_task(
        cluster.transactions.change(lambda maps: {}, "by ann")
    )
    await cluster.until(lambda: cluster.transactions.busy)
    cluster.scheduler.rewiring.look_soon()
    await operators
    await cluster.until(lambda: cluster.events("defragmented"))
    first, second = cluster.store.reconfigurations()
    assert first.finished_at is not None
    assert second.started_at >= first.finished_at


@simulated(FOLLOWS)
async def test_a_drained_controller_moves_no_light(cluster: Cluster) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    cluster.store.set_mark("drained", {"why": "", "at": 0.0})
    cluster.scheduler.rewiring.look_soon()
    await cluster.until(lambda: words(cluster) == "the controller is drained")
    assert not cluster.events("defragmented")


@simulated()
async def test_what_earlier_changes_took_is_a_cost(cluster: Cluster) -> None:
    (job_id,) = await submit_running(cluster, large("spread", SPREAD))
    first = await cluster.scheduler.rewiring.proposal()
    assert first is not None
    changes = {"ocs1": {"breaks": [], "makes": ["1>7", "7>1"]}}
    row = {"why": "", "state": "committed", "changes": changes}
    for spent_s in (20.0, 30.0, 1000.0):
        stages = {
            "read": 500.0,
            "drain": 100.0,
            "make": 0.025,
            "verify": spent_s,
        }
        record = {**row, "finished_at": 0.0, "stages_s": stages}
        number = cluster.store.prepared_intent(0, record)()
        cluster.store.update_reconfiguration(number, "committed", record)
    then = await cluster.scheduler.rewiring.proposal()
    assert then is not None
    # The median of them; how long jobs took to their iteration's end is counted by itself.
    assert then.costs_s[job_id] == pytest.approx(first.costs_s[job_id] + 30.0)


@simulated()
async def test_changes_of_a_switch_that_the_lab_has_no_more_end_nothing(
    cluster: Cluster,
) -> None:
    await submit_running(cluster, large("spread", SPREAD))
    changes = {"gone": {"breaks": ["1>2@193.100"], "makes": []}}
    record = {
        "why": "",
        "changes": changes,
        "finished_at": 0.0,
        "stages_s": {},
    }
    number = cluster.store.prepared_intent(0, record)()
    cluster.store.update_reconfiguration(number, "committed", record)
    assert await cluster.scheduler.rewiring.proposal() is not None


@simulated()
async def test_a_device_that_is_away_ends_nothing(cluster: Cluster) -> None:
    choice = PolicyChoice(defragment=True, defragment_every_s=0.05)
    await submit_running(cluster, large("spread", SPREAD))
    cluster.ocs.kill()
    await cluster.scheduler.policies.use(choice)
    await cluster.until(
        lambda: cluster.scheduler.rewiring.status()["looked_at"]
    )
    assert not cluster.events("defragmented")
    cluster.ocs.start()
    await cluster.until(lambda: cluster.events("defragmented"))


@simulated()
async def test_what_was_predicted_and_measured_is_kept(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(cluster, large("spread", SPREAD))
    await cluster.until_done(job_id, 5)
    measured_s = cluster.scheduler.gains.shown(cluster.table[job_id])[
        "measured_iteration_s"
    ]
    assert 0.1 < measured_s < 1
    before_s = cluster.scheduler.forecasts.running()[job_id][
        "predicted_iteration_s"
    ]
    change = await cluster.scheduler.rewiring.defragment()
    assert change is not None
    after_s = cluster.scheduler.forecasts.running()[job_id][
        "predicted_iteration_s"
    ]
    assert after_s < before_s
    (found,) = cluster.scheduler.gains.of(cluster.table[job_id])
    expected = {
        "policy": "defragment",
        "reconfiguration": change.id,
        "moved_at": change.finished_at,
        "predicted_before_s": before_s,
        "predicted_after_s": after_s,
        "measured_before_s": pytest.approx(measured_s, rel=0.2),
        "unsettled_before": False,
        "measured_after_s": None,
    }
    assert found == expected
    # The one during which the light moved counts for neither.
    done = cluster.table[job_id].iterations_done
    await cluster.until_done(job_id, done + 10)
    (found,) = cluster.scheduler.gains.of(cluster.table[job_id])
    assert found == {
        **expected,
        "measured_after_s": pytest.approx(measured_s, rel=0.2),
    }
    await finish(cluster, job_id)
    await cluster.until(lambda: cluster.events("light-measured"))
    (event,) = cluster.events("light-measured")
    assert event["job"] == job_id
    assert event["measured_after_s"] == pytest.approx(measured_s, rel=0.2)


@simulated()
async def test_a_regroup_on_request_is_measured_as_well(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(
        cluster, large("spread", SPREAD), topology="keep"
    )
    change = await cluster.scheduler.rewiring.regroup([job_id])
    (move,) = cluster.scheduler.gains.of(cluster.table[job_id])
    assert (move["policy"], move["reconfiguration"]) == ("regroup", change.id)
    assert move["predicted_after_s"] < move["predicted_before_s"]
    await cluster.scheduler.rewiring.regroup([job_id])  # nothing moves
    assert len(cluster.scheduler.gains.of(cluster.table[job_id])) == 1
    assert cluster.table[job_id].state is JobState.RUNNING


@simulated()
async def test_a_regroup_that_nobody_waits_for_is_kept_with_its_jobs_at_its_end(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(
        cluster, large("spread", SPREAD), topology="keep"
    )
    eva = ChangeOptions(by="eva")
    begun = await cluster.scheduler.rewiring.regroup(
        [job_id], eva, detach=True
    )
    assert (begun.state, cluster.transactions.under_way(begun.id)) == (
        "intent",
        begun,
    )
    await cluster.until(lambda: not cluster.transactions.under_way(begun.id))
    row = cluster.store.reconfiguration(begun.id)
    assert row is not None
    assert (row.state, row.by) == ("committed", "eva")
    (move,) = cluster.scheduler.gains.of(cluster.table[job_id])
    assert (move["policy"], move["reconfiguration"]) == ("regroup", begun.id)


def test_iterations_last_from_the_last_rank_to_the_last_rank() -> None:
    ends = {
        0: (1.0, 1.5),
        1: (2.0, 3.0),
        2: (4.0, 4.0),
        4: (8.0, 9.0),
        5: (9.5, 10.0),
    }
    reports = [
        {"index": index, "finished_at": at}
        for index, each in ends.items()
        for at in each
    ]
    assert durations_s(reports, 2) == [1.5, 1.0, 1.0]
    assert durations_s(reports, 2, since=2.0) == [1.0, 1.0]
    assert durations_s(reports, 2, until=4.0) == [1.5, 1.0]
    # One rank has not reported the last one yet.
    assert durations_s(reports[:-1], 2) == [1.5, 1.0]
    again = [{**report, "attempt": 1} for report in reports[:4]]
    assert durations_s([*reports, *again], 2) == [1.5]
    assert durations_s([], 2) == []
