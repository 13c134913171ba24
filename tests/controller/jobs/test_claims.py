"""Claims of other schedulers beside Patchlight's own jobs, crashes and faults."""

import asyncio
import re
from typing import Any

import pytest

from patchlight.controller.changes.record import ChangeOptions, Refused
from patchlight.controller.jobs.claims import plan_claim
from patchlight.controller.policies.topology import CannotRegroup
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.labfile.reader import builtin_lab, parse_lab, read_lab
from patchlight.testbed.wire.rest.circuits import ClaimAnswer
from patchlight.testbed.wire.rest.requests import (
    ClaimRequest,
    ReconfigurationRequest,
)
from tests.support.coloured_labs import WAVELENGTHS
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

EVA = ChangeOptions(by="eva")
NODES = ("server1", "server2")
HOSTS = ("gpu0", "gpu1", "gpu2", "gpu3")


async def claim(
    cluster: Cluster,
    name: str = "slurm-1",
    *nodes: str,
    **terms: Any,
) -> ClaimAnswer:
    wanted = ClaimRequest(nodes=[*(nodes or NODES)], **terms)
    return await cluster.scheduler.claims.want(name, wanted, EVA)


def now(cluster: Cluster, name: str = "slurm-1") -> ClaimAnswer:
    return cluster.circuits.claims.find(name)


async def until_held(cluster: Cluster, name: str = "slurm-1") -> ClaimAnswer:
    await cluster.until(lambda: now(cluster, name).state == "held")
    return now(cluster, name)


async def until_said(
    cluster: Cluster, words: str, name: str = "slurm-1"
) -> None:
    await cluster.until(lambda: re.search(words, now(cluster, name).words))


async def release(cluster: Cluster, name: str = "slurm-1") -> None:
    await cluster.scheduler.claims.release(name, EVA)


@pytest.mark.parametrize(
    ("name", "shape", "count", "changes"),
    [
        ("ofc2022", "switch", 6, True),
        ("ofc2022", "switch", 2, False),
        ("ring16", "ring", 16, True),
        ("ring16", "switch", 2, None),
        ("ring16", "open", 4, True),
        ("four-ocs", "switch", 16, None),
        ("four-ocs", "open", 16, False),
        ("oddl4", "ring", 4, False),
        ("your-lab", "ring", 1, True),
    ],
)
def test_shapes_are_made_with_the_policies_of_jobs(
    name: str, shape: Any, count: int, changes: bool | None
) -> None:
    lab = read_lab(builtin_lab(name))
    new = ClaimAnswer.model_construct(
        name="c",
        hosts=[host.name for host in lab.hosts if host.gpu][:count],
        ports={},
        shape=shape,
    )
    if changes is None:
        with pytest.raises(CannotRegroup):
            plan_claim(lab, lab.initial_maps, new, {})
        return
    plan = plan_claim(lab, lab.initial_maps, new, {})
    assert bool(plan.changed) is changes
    assert sorted(plan.hosts) == sorted(new.hosts)
    # What is there then is kept.
    again = plan_claim(lab, plan.after, new, {})
    assert not again.changed
    assert again.ports == plan.ports


@simulated()
async def test_nodes_are_brought_under_one_switch_and_held(
    cluster: Cluster,
) -> None:
    assert len(cluster.switches_of(HOSTS)) == 2
    await claim(cluster, why="job 17")
    held = await until_held(cluster)
    assert len(cluster.switches_of(HOSTS)) == 1
    assert [*held.owned] == ["ocs1"]
    assert {1, 2, 3, 4} < {*held.owned["ocs1"]}
    assert len(held.owned["ocs1"]) == len(held.circuits["ocs1"]) == 8
    (change,) = cluster.store.reconfigurations()
    assert (change.why, change.by) == ("claim slurm-1: job 17", "eva")
    # What is there already is held without a change.
    await claim(cluster, "slurm-2", "server3")
    await until_held(cluster, "slurm-2")
    assert len(cluster.store.reconfigurations()) == 1
    # Circuits stay when a claim ends.
    await release(cluster)
    assert len(cluster.switches_of(HOSTS)) == 1
    assert {lock.claim for lock in cluster.circuits.locks.all()} == {"slurm-2"}


@simulated()
async def test_a_claim_waits_for_a_job_and_jobs_wait_for_a_claim(
    cluster: Cluster,
) -> None:
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    await claim(cluster)
    await until_said(cluster, f"job {first} runs on server1.gpu0")
    assert not cluster.circuits.locks.all()
    # Meanwhile it reserves nothing of jobs.
    (second,) = await submit_running(cluster, job("second", "gpu2"))
    await finish(cluster, first)
    await until_said(cluster, f"^job {second} runs on server2.gpu2$")
    await finish(cluster, second)
    await until_held(cluster)
    (third,) = cluster.submit(job("third", "gpu0"))
    await cluster.until(
        lambda: (
            "claim slurm-1 has server1.gpu0"
            in cluster.scheduler.message(cluster.table[third])
        )
    )
    (others,) = await submit_running(cluster, job("others", workers=2))
    assert {*cluster.table[others].hosts} == {"server3.gpu4", "server4.gpu5"}
    await release(cluster)
    await cluster.until_state(third, JobState.RUNNING)


@simulated()
async def test_jobs_leave_the_circuits_of_a_claim_alone(
    cluster: Cluster,
) -> None:
    await claim(cluster)
    held = await until_held(cluster)
    before = cluster.switches_of(HOSTS)
    await submit_running(
        cluster, job("two", "gpu4", "gpu5"), topology="regroup"
    )
    assert cluster.switches_of(HOSTS) == before
    assert len(cluster.switches_of(["gpu4", "gpu5"])) == 1
    service = cluster.parts.circuit_service
    cut = ReconfigurationRequest(disconnect={"ocs1": [1]})
    record = await service.reconfigure(cut, EVA)
    assert record.state == "refused"
    assert "ocs1.1 is claimed by slurm-1" in str(record.message)
    cut = ReconfigurationRequest(disconnect={"ocs1": [1]}, force=True)
    record = await service.reconfigure(cut, EVA)
    assert record.state == "committed"
    await until_said(cluster, r"ocs1 1>\d+, \d+>1: no longer there")
    assert now(cluster).state == "held"
    said = cluster.events("claim")[-1]
    assert (said["claim"], said["message"]) == (held.name, held.words)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.03, 0.05, 0.1, 0.3, 3.0])
def test_a_claim_survives_the_end_of_the_controller(after_s: float) -> None:
    @simulated()
    async def story(cluster: Cluster) -> None:
        asking = asyncio.create_task(claim(cluster))
        await asyncio.sleep(after_s)  # simulated: a moment of the change
        asking.cancel()
        known = bool(cluster.store.claims())
        await cluster.kill_and_restart()
        if not known:
            return
        await until_held(cluster)
        assert len(cluster.switches_of(HOSTS)) == 1
        (waits,) = cluster.submit(job("waits", "gpu0"))
        await cluster.until(
            lambda: (
                "slurm-1" in cluster.scheduler.message(cluster.table[waits])
            )
        )
        # The same request is the same claim.
        assert (await claim(cluster)).number == 1
        owned = {
            lock.port
            for lock in cluster.circuits.locks.all()
            if lock.claim == "slurm-1"
        }
        assert owned == {*now(cluster).owned["ocs1"]}
        await release(cluster)
        await cluster.kill_and_restart()
        assert now(cluster).state == "released"
        assert not cluster.circuits.locks.all()

    story()


@simulated()
async def test_an_unreadable_claim_keeps_its_ports(cluster: Cluster) -> None:
    await claim(cluster)
    ports = {*(await until_held(cluster)).owned["ocs1"]}
    cluster.store.write("UPDATE claims SET record = '{'")
    await cluster.kill_and_restart()
    assert now(cluster).state == "held"
    assert now(cluster).words == "its record could not be read"
    assert {lock.port for lock in cluster.circuits.locks.all()} == ports
    (waits,) = cluster.submit(job("waits", "gpu0"))
    await cluster.until(
        lambda: "slurm-1" in cluster.scheduler.message(cluster.table[waits])
    )
    with pytest.raises(Refused, match="could not be read"):
        await claim(cluster)
    await release(cluster)
    assert not cluster.circuits.locks.all()
    await cluster.until_state(waits, JobState.RUNNING)


@simulated()
async def test_what_is_in_the_way_of_a_claim_is_named(
    cluster: Cluster,
) -> None:
    cluster.circuits.locks.lock("ocs1", [3], "locked", "ann", "cleaning")
    await claim(cluster)
    await until_said(cluster, "ocs1.3 is locked by ann: cleaning")
    cluster.circuits.stop.press("maintenance", "ann")
    await until_said(cluster, "stop button was pressed")
    cluster.machines["server2"].agent.kill()
    await until_said(cluster, "the agent of server2 does not answer")
    cluster.circuits.stop.clear("ann", "")
    cluster.circuits.locks.unlock("ocs1", [3], "ann", "")
    await until_said(cluster, "^the agent of server2 does not answer$")
    assert not cluster.circuits.locks.all()
    cluster.machines["server2"].start()
    await until_held(cluster)
    assert len(cluster.store.reconfigurations()) == 1
    # A node that fails while it is held is told, and nothing is cut.
    cluster.machines["server1"].agent.kill()
    await until_said(cluster, "the agent of server1 does not answer")
    assert now(cluster).state == "held"


@simulated()
async def test_a_claim_that_loses_circuits_before_it_is_held_gets_them_again(
    cluster: Cluster,
) -> None:
    cluster.plant.dark.add("server1.gpu0")
    await claim(cluster)
    await until_said(cluster, "^server1.nic0 has no carrier$")
    assert len(cluster.switches_of(HOSTS)) == 1
    made = next(c for c in cluster.ocs.map if c.inp == 1)
    await cluster.ocs.meddle(str(made))
    assert len(cluster.switches_of(HOSTS)) == 2
    await cluster.until(lambda: len(cluster.switches_of(HOSTS)) == 1)
    assert now(cluster).state == "waiting"
    cluster.plant.dark.clear()
    await until_held(cluster)


def test_a_node_whose_fixed_wavelength_has_no_path_is_not_claimed() -> None:
    text = WAVELENGTHS
    for old, new in (
        ("tunable: 193.100-193.250, ", ""),
        (", tuning_time: 1ms", ""),
        (
            "nics: [{",
            "gpus: [{name: gpu0, model: fast}]\n    nics: [{gpu: gpu0, ",
        ),
    ):
        text = text.replace(old, new)
    lab = parse_lab(text)
    wanted = ClaimAnswer.model_construct(
        name="c",
        hosts=[lab.hosts[0].name],
        ports={},
        shape="open",
    )
    maps = {s.name: s.initial for s in lab.optical_switches}
    assert not plan_claim(lab, maps, wanted, {}).changed
    dark = {name: type(each).of([]) for name, each in maps.items()}
    with pytest.raises(CannotRegroup, match="no fibre to a circuit switch"):
        plan_claim(lab, dark, wanted, {})


@simulated()
async def test_what_cannot_be_claimed(cluster: Cluster) -> None:
    with pytest.raises(BadInput, match="no host called 'server9'"):
        await claim(cluster, "slurm-1", "server1", "server9")
    with pytest.raises(BadInput, match="expected nodes"):
        await cluster.scheduler.claims.want("x", ClaimRequest(), EVA)
    with pytest.raises(BadInput, match="ports"):
        await claim(cluster, ports={"ocs1": [321]})
    assert cluster.circuits.claims.all() == []


@simulated()
async def test_a_lease_ends_in_two_steps(cluster: Cluster) -> None:
    await claim(cluster, time_limit_s=60.0, hold_s=30.0)
    held = await until_held(cluster)
    assert held.until is not None
    assert held.until - held.made_at < 70.0
    await cluster.until(lambda: held.state == "overdue")
    assert cluster.circuits.locks.all()
    assert cluster.world.wall() >= held.until
    # The same request renews it.
    await claim(cluster, time_limit_s=60.0, hold_s=30.0)
    assert (now(cluster).state, now(cluster).words) == ("held", "")
    await cluster.until(lambda: now(cluster).state == "expired")
    assert cluster.world.wall() >= held.until + 30.0
    assert not cluster.circuits.locks.all()
    assert [event["state"] for event in cluster.events("claim")] == [
        "waiting",
        "held",
        "overdue",
        "held",
        "overdue",
        "expired",
    ]


@simulated()
async def test_claims_that_do_not_conflict_do_not_wait(
    cluster: Cluster,
) -> None:
    (busy,) = await submit_running(cluster, job("busy", "gpu0"))
    await claim(cluster, "first", "server1", "server3")
    await claim(cluster, "second", "server3")
    await claim(cluster, "third", "server4")
    await until_held(cluster, "third")
    await until_said(cluster, f"job {busy} runs on server1.gpu0", "first")
    await until_said(cluster, "claim first has or awaits", "second")
    # Without the first one, the second has nothing in its way.
    await release(cluster, "first")
    await until_held(cluster, "second")


@simulated()
async def test_a_change_that_fails_fails_the_claim(cluster: Cluster) -> None:
    await cluster.ocs.fault(dark_ports=[9, 10])
    await claim(cluster)
    await cluster.until(lambda: now(cluster).state == "failed")
    assert "Remove the cause" in now(cluster).words
    assert not [lock for lock in cluster.circuits.locks.all() if lock.claim]
