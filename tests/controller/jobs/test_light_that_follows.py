"""Light that follows running jobs by itself, and what it gained: predicted and measured."""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import pytest

from patchlight.controller.changes.record import ChangeOptions
from patchlight.controller.jobs.job_table import durations_s
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_cluster import COMPUTE, Cluster, at_work, finish, report_of, submit_running

FOLLOWS = PolicyChoice(defragment=True, defragment_every_s=3600.0)
SPREAD, OTHER = ("gpu0", "gpu2", "gpu4", "gpu5"), ("gpu1", "gpu3")


def large(name: str, hosts: Sequence[str]) -> JobSpec:
    """A job for which it matters where its light goes."""
    return JobSpec(name, 1000, 500_000_000, COMPUTE, hosts=tuple(hosts))


def small(name: str, hosts: Sequence[str]) -> JobSpec:
    """One that sends next to nothing."""
    return JobSpec(name, 1000, 4, COMPUTE, hosts=tuple(hosts))


def events(cluster: Cluster, kind: str) -> list[dict[str, Any]]:
    return [event for event in cluster.store.events() if event["kind"] == kind]


def words(cluster: Cluster) -> str:
    return str(cluster.scheduler.rewiring.status()["words"])


async def test_light_follows_when_a_job_has_ended() -> None:
    async with at_work(FOLLOWS) as cluster:
        spread, other = await submit_running(cluster, large("spread", SPREAD), small("b", OTHER))
        assert len(await cluster.switches_of(SPREAD)) == 2
        await finish(cluster, other)
        await cluster.until(lambda: events(cluster, "defragmented"))
        assert len(await cluster.switches_of(SPREAD)) == 1
        assert "hold" in {call for call, _ in cluster.fleet.calls}  # at an iteration's end
        (event,) = events(cluster, "defragmented")
        assert (event["state"], event["jobs"]) == ("committed", [spread])
        await cluster.until(lambda: "committed" in words(cluster))
        (decision,) = cluster.table.ledger.decisions(spread)
        assert (decision["kind"], decision["answer"]) == ("defragment", event["maps"])
        assert decision["reconfiguration"] == event["reconfiguration"]


async def test_light_follows_on_a_timer() -> None:
    choice = PolicyChoice(defragment=True, defragment_every_s=0.05)
    async with at_work(choice) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        await cluster.until(lambda: events(cluster, "defragmented"))
        await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
        assert len(events(cluster, "defragmented")) == 1


async def test_light_stays_unless_somebody_has_it_follow() -> None:
    async with at_work(PolicyChoice(defragment_every_s=0.05)) as cluster:
        _, other = await submit_running(cluster, large("spread", SPREAD), small("b", OTHER))
        await finish(cluster, other)
        assert not cluster.scheduler.rewiring.status()["defragment"]
        assert not events(cluster, "defragmented")
        await cluster.scheduler.policies.use(PolicyChoice(defragment=True))
        await cluster.until(lambda: events(cluster, "defragmented"))
        await cluster.scheduler.policies.use(PolicyChoice(defragment=False))
        assert words(cluster) == "circuits stay until somebody changes them"


async def test_light_follows_only_where_the_gain_is_large_enough() -> None:
    choice = PolicyChoice(defragment=True, defragment_every_s=0.05, minimum_gain_s=1e6)
    async with at_work(choice) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
        await cluster.scheduler.policies.use(PolicyChoice(minimum_gain_s=1.0))
        await cluster.until(lambda: events(cluster, "defragmented"))


async def test_light_stays_against_locks_and_the_stop_button() -> None:
    async with at_work(FOLLOWS) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        before, preflight = await cluster.ocs.read_map(), cluster.circuits.preflight
        preflight.stop.press("ann", "works at the rack")
        cluster.scheduler.rewiring.look_soon()
        await cluster.until(lambda: "works at the rack" in words(cluster))
        preflight.stop.clear("ann", "done")
        preflight.locks.lock("ocs1", range(1, 7), "locked", "ann", "measures there")
        cluster.scheduler.rewiring.look_soon()
        await cluster.until(lambda: words(cluster) == "no rewiring gains enough")
        assert await cluster.ocs.read_map() == before
        preflight.locks.unlock("ocs1", range(1, 7), "ann", "done")
        cluster.scheduler.rewiring.look_soon()
        await cluster.until(lambda: events(cluster, "defragmented"))


async def test_a_change_under_way_is_waited_for() -> None:
    async with at_work(FOLLOWS) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        cluster.flows.open.clear()
        operators = asyncio.create_task(cluster.transactions.change(lambda maps: {}, "by ann"))
        await cluster.until(lambda: cluster.transactions.busy)
        cluster.scheduler.rewiring.look_soon()
        cluster.flows.open.set()
        await operators
        await cluster.until(lambda: events(cluster, "defragmented"))
        first, second = cluster.store.reconfigurations()
        assert second["started_at"] >= first["finished_at"]


async def test_a_drained_controller_moves_no_light() -> None:
    async with at_work(FOLLOWS) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        cluster.store.set_mark("drained", {"why": "", "at": 0.0})
        cluster.scheduler.rewiring.look_soon()
        await cluster.until(lambda: words(cluster) == "the controller is drained")
        assert not events(cluster, "defragmented")


async def test_what_earlier_changes_took_is_a_cost() -> None:
    async with at_work(PolicyChoice()) as cluster:
        (job_id,) = await submit_running(cluster, large("spread", SPREAD))
        first = await cluster.scheduler.rewiring.proposal()
        assert first is not None
        changes: dict[str, Any] = {"ocs1": {"breaks": [], "makes": []}}
        row = {"why": "", "state": "committed", "changes": changes}
        for spent_s in (20.0, 30.0, 1000.0):
            stages = {"read": 500.0, "drain": 100.0, "make": 0.025, "verify": spent_s}
            record = {**row, "finished_at": 0.0, "stages_s": stages}
            number = cluster.store.prepared_intent(0, record)()
            cluster.store.update_reconfiguration(number, "committed", record)
        then = await cluster.scheduler.rewiring.proposal()
        assert then is not None
        # The median of them; how long jobs took to their iteration's end is counted by itself.
        assert then.costs_s[job_id] == pytest.approx(first.costs_s[job_id] + 30.0)


async def test_changes_of_a_switch_that_the_lab_has_no_more_end_nothing() -> None:
    async with at_work(PolicyChoice()) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        changes = {"gone": {"breaks": ["1>2@193.100"], "makes": []}}
        record = {"why": "", "changes": changes, "finished_at": 0.0, "stages_s": {}}
        number = cluster.store.prepared_intent(0, record)()
        cluster.store.update_reconfiguration(number, "committed", record)
        assert await cluster.scheduler.rewiring.proposal() is not None


async def test_a_device_that_is_away_ends_nothing() -> None:
    choice = PolicyChoice(defragment=True, defragment_every_s=0.05)
    async with at_work(PolicyChoice()) as cluster:
        await submit_running(cluster, large("spread", SPREAD))
        cluster.ocs.away = True
        await cluster.scheduler.policies.use(choice)
        await cluster.until(lambda: cluster.scheduler.rewiring.status()["looked_at"])
        assert not events(cluster, "defragmented")
        cluster.ocs.away = False
        await cluster.until(lambda: events(cluster, "defragmented"))


async def test_what_was_predicted_and_measured_is_kept() -> None:
    async with at_work(PolicyChoice()) as cluster:
        (job_id,) = await submit_running(cluster, large("spread", SPREAD))
        began = time.time()
        for index in range(5):
            cluster.report_all(job_id, index, began + 2.0 * index)
        ledger = cluster.table.ledger
        await cluster.until(lambda: len(ledger.iterations(job_id)[0]) == 5 * len(SPREAD))
        assert cluster.scheduler.gains.shown(cluster.table[job_id]) == {
            "measured_iteration_s": pytest.approx(2.0),
            "light_moves": [],
        }
        before_s = cluster.scheduler.forecasts.running()[job_id]["predicted_iteration_s"]
        change = await cluster.scheduler.rewiring.defragment()
        assert change is not None
        assert change.finished_at is not None
        after_s = cluster.scheduler.forecasts.running()[job_id]["predicted_iteration_s"]
        expected = {
            "policy": "defragment",
            "reconfiguration": change.id,
            "moved_at": change.finished_at,
            "predicted_before_s": before_s,
            "predicted_after_s": after_s,
            "measured_before_s": pytest.approx(2.0),
            "unsettled_before": False,
            "measured_after_s": None,
        }
        assert after_s < before_s
        assert cluster.scheduler.gains.of(cluster.table[job_id]) == [expected]
        # The one during which the light moved counts for neither.
        for index in range(5, 10):
            cluster.report_all(job_id, index, change.finished_at + 1 + 0.5 * index)
        await cluster.until(lambda: len(ledger.iterations(job_id)[0]) == 10 * len(SPREAD))
        expected["measured_after_s"] = pytest.approx(0.5)
        assert cluster.scheduler.gains.of(cluster.table[job_id]) == [expected]
        await finish(cluster, job_id)
        await cluster.until(lambda: events(cluster, "light-measured"))
        (event,) = events(cluster, "light-measured")
        assert (event["job"], event["measured_after_s"]) == (job_id, pytest.approx(0.5))


async def test_a_regroup_on_request_is_measured_as_well() -> None:
    async with at_work(PolicyChoice()) as cluster:
        (job_id,) = await submit_running(cluster, large("spread", SPREAD), topology="keep")
        change = await cluster.scheduler.rewiring.regroup([job_id])
        (move,) = cluster.scheduler.gains.of(cluster.table[job_id])
        assert (move["policy"], move["reconfiguration"]) == ("regroup", change.id)
        assert move["predicted_after_s"] < move["predicted_before_s"]
        await cluster.scheduler.rewiring.regroup([job_id])  # nothing moves
        assert len(cluster.scheduler.gains.of(cluster.table[job_id])) == 1
        assert cluster.table[job_id].state is JobState.RUNNING


async def test_a_regroup_that_nobody_waits_for_is_kept_with_its_jobs_at_its_end() -> None:
    async with at_work(PolicyChoice()) as cluster:
        (job_id,) = await submit_running(cluster, large("spread", SPREAD), topology="keep")
        eva = ChangeOptions(by="eva")
        begun = await cluster.scheduler.rewiring.regroup([job_id], eva, detach=True)
        assert (begun.state, cluster.transactions.under_way(begun.id)) == ("intent", begun)
        await cluster.until(lambda: not cluster.transactions.under_way(begun.id))
        row = cluster.store.reconfiguration(begun.id)
        assert row is not None
        assert (row["state"], row["by"]) == ("committed", "eva")
        (move,) = cluster.scheduler.gains.of(cluster.table[job_id])
        assert (move["policy"], move["reconfiguration"]) == ("regroup", begun.id)


def test_iterations_last_from_the_last_rank_to_the_last_rank() -> None:
    ends = {0: (1.0, 1.5), 1: (2.0, 3.0), 2: (4.0, 4.0), 4: (8.0, 9.0), 5: (9.5, 10.0)}
    reports = [report_of(index, at).model_dump() for index, each in ends.items() for at in each]
    assert durations_s(reports, 2) == [1.5, 1.0, 1.0]
    assert durations_s(reports, 2, since=2.0) == [1.0, 1.0]
    assert durations_s(reports, 2, until=4.0) == [1.5, 1.0]
    # One rank has not reported the last one yet.
    assert durations_s(reports[:-1], 2) == [1.5, 1.0]
    again = [{**report, "attempt": 1} for report in reports[:4]]
    assert durations_s([*reports, *again], 2) == [1.5]
    assert durations_s([], 2) == []
