"""What a running job asks of agents: scaled bytes and windows, and pauses while circuits change."""

import asyncio
from collections.abc import Mapping
from ipaddress import IPv4Network

import pytest

from patchlight.controller.changes.parts import Unreached
from patchlight.controller.jobs.specs import (
    JobFailed,
    scaled_gradient_bytes,
    scaled_window_bytes,
    worker_specs,
)
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.model import Endpoint, Lab
from patchlight.testbed.lab.portmap import PortMap
from patchlight.testbed.lab.reach import Reach
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.labfile.reader import builtin_lab, read_lab
from tests.support.job_cluster import (
    LAB,
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)


def lab(scale: float) -> Lab:
    return Lab("scaled", IPv4Network("10.0.0.0/24"), scale=scale)


def test_gradients_are_whole_floats_and_never_empty() -> None:
    assert scaled_gradient_bytes(553_440_000, lab(1)) == 553_440_000
    assert scaled_gradient_bytes(553_440_000, lab(1000)) == 553_440
    assert scaled_gradient_bytes(553_440_000, lab(1e12)) == 4
    assert scaled_gradient_bytes(553_440_000, lab(7)) % 4 == 0


@pytest.mark.parametrize(
    ("scale", "window"),
    [(1, None), (10, None), (100, 83_886), (1000, 16_384), (1e6, 16_384)],
)
def test_windows_are_left_to_the_kernel_or_small(
    scale: float, window: int | None
) -> None:
    assert scaled_window_bytes(lab(scale)) == window


def test_what_goes_over_the_wire_for_a_worker() -> None:
    ofc2022 = read_lab(builtin_lab("ofc2022")).with_changes(scale=1000)
    hosts = [ofc2022.host("gpu1"), ofc2022.host("gpu2")]
    compute_s = {"Titan V": 0.2, "Tesla M40": 0.4}
    spec = JobSpec("job", 3, 4_000_000, compute_s, workers=2, seed=7)
    first, _ = worker_specs("job-1", spec, hosts, ofc2022)
    assert first.model_dump(mode="json", exclude_defaults=True) == {
        "id": "job-1-0",
        "job": "job-1",
        "rank": 0,
        "gpu": "gpu1",
        "nic": "nic1",
        "ring": [
            {"rank": 0, "address": "192.168.10.12", "port": 29500},
            {"rank": 1, "address": "192.168.10.13", "port": 29500},
        ],
        "neighbours": [{"address": "192.168.10.13", "mac": hosts[1].nic.mac}],
        "task": {
            "iterations": 3,
            "gradient_bytes": 4000,
            "window_bytes": 16384,
            "compute_s": 0.2,
            "seed": 7,
        },
    }


def test_a_job_that_no_agent_would_take_fails() -> None:
    ofc2022 = read_lab(builtin_lab("ofc2022"))
    spec = JobSpec("job", 3, 400, {"Tesla M40": 0.4}, seed=-1)
    with pytest.raises(JobFailed, match="seed"):
        worker_specs("job-1", spec, [ofc2022.host("gpu0")], ofc2022)


def nic_of(cluster: Cluster, host: str) -> frozenset[Endpoint]:
    return frozenset({cluster.lab.host(host).endpoint})


async def running_job(cluster: Cluster, *hosts: str) -> str:
    (job_id,) = await submit_running(cluster, job("job", *hosts))
    return job_id


def states(cluster: Cluster, job_id: str) -> set[str]:
    return {worker.state for worker in cluster.workers_of(job_id)}


@simulated()
async def test_only_the_jobs_on_the_ports_that_move_pause(
    cluster: Cluster,
) -> None:
    moved = await running_job(cluster, "gpu0", "gpu2")
    stays = await running_job(cluster, "gpu1")
    cluster.calls.clear()
    ports = nic_of(cluster, "gpu2") | nic_of(cluster, "gpu4")
    assert cluster.traffic.jobs_using(ports) == [moved]
    assert cluster.traffic.jobs_using(nic_of(cluster, "gpu4")) == []
    assert await cluster.traffic.drain(ports) == []
    assert states(cluster, moved) == {"held"}
    assert states(cluster, stays) == {"running"}
    await cluster.traffic.undrain(cluster.circuits.maps)
    await cluster.until(lambda: states(cluster, moved) == {"running"})
    about = {call for call, name in cluster.calls if name.startswith(stays)}
    assert about <= {"worker", "reports"}


@simulated()
async def test_a_job_that_is_being_started_uses_its_ports_and_is_not_paused(
    cluster: Cluster,
) -> None:
    cluster.get_ready = False
    (job_id,) = cluster.submit(job("job", "gpu0"))
    await cluster.until(lambda: cluster.workers_of(job_id))
    assert cluster.traffic.jobs_using(nic_of(cluster, "gpu0")) == [job_id]
    assert await cluster.traffic.drain(nic_of(cluster, "gpu0")) == []
    assert "hold" not in {call for call, _ in cluster.calls}


@simulated()
async def test_who_does_not_pause_in_time_is_named_and_let_go(
    cluster: Cluster,
) -> None:
    spec = job("slow", "gpu0", compute_s={"Tesla M40": 600.0})
    (job_id,) = await submit_running(cluster, spec)
    (note,) = await cluster.traffic.drain(nic_of(cluster, "gpu0"))
    assert note.startswith(f"job {job_id} did not pause in time")
    await cluster.traffic.undrain(cluster.circuits.maps)
    assert ("release", f"{job_id}-0") in cluster.calls


@simulated()
async def test_all_ranks_pause_before_an_iteration_that_none_has_begun(
    cluster: Cluster,
) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu2")
    await cluster.until_done(job_id, 3)
    await cluster.traffic.drain(nic_of(cluster, "gpu0"))
    first, second = cluster.workers_of(job_id)
    assert (
        first.hold_at
        == second.hold_at
        == first.done_iterations
        == second.done_iterations
    )


async def set_light(cluster: Cluster, host: str, *, on: bool) -> None:
    """Break the circuits of a host's NIC, or make those of the lab file again."""
    first = LAB.initial_maps["ocs1"]
    port = int(cluster.lab.fibre_ends[cluster.lab.host(host).endpoint][0].port)

    def decide(maps: Mapping[str, PortMap]) -> Mapping[str, PortMap]:
        kept = PortMap.of(
            c for c in maps["ocs1"] if port not in (c.inp, c.out)
        )
        own = PortMap.of(c for c in first if port in (c.inp, c.out))
        return {"ocs1": kept.joined(own) if on else kept}

    change = await cluster.transactions.change(decide, "light")
    assert change.state == "committed", change.message


@simulated()
async def test_a_job_without_light_pauses_says_so_and_goes_on_with_it(
    cluster: Cluster,
) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu2")
    alone = await running_job(cluster, "gpu4")
    started_at = cluster.table[job_id].started_at
    await set_light(cluster, "gpu2", on=False)
    assert cluster.table[job_id].state is JobState.PAUSED
    assert (
        cluster.table[job_id].message
        == "server2.gpu2: no circuit at ocs1 port 3"
    )
    assert states(cluster, job_id) == {"held"}
    # Other changes of its ports, and a worker that needs nobody, change nothing.
    await set_light(cluster, "gpu0", on=False)
    await set_light(cluster, "gpu4", on=False)
    assert states(cluster, job_id) == {"held"}
    assert cluster.table[alone].state is JobState.RUNNING
    await set_light(cluster, "gpu0", on=True)
    assert cluster.table[job_id].state is JobState.PAUSED
    await set_light(cluster, "gpu2", on=True)
    await cluster.until_state(job_id, JobState.RUNNING)
    assert cluster.table[job_id].message == ""
    assert cluster.table[job_id].started_at == started_at
    await cluster.until(lambda: states(cluster, job_id) == {"running"})
    await finish(cluster, job_id)
    assert cluster.table[job_id].state is JobState.DONE


@simulated()
async def test_light_that_a_stranger_takes_pauses_a_job_as_well(
    cluster: Cluster,
) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu2")
    device = cluster.ocs.emulated
    assert isinstance(device, EmulatedOcs)
    before = tuple(device.map)
    for circuit in before:
        await device.lose(str(circuit))
    await cluster.until_state(job_id, JobState.PAUSED)
    assert cluster.table[job_id].message == (
        "server1.gpu0: no circuit at ocs1 port 1; server2.gpu2: no circuit at ocs1 port 3"
    )
    await device.light(before)
    await cluster.until_state(job_id, JobState.RUNNING)
    await cluster.until(lambda: states(cluster, job_id) == {"running"})


@simulated()
async def test_a_job_fails_when_the_light_stays_away_for_too_long(
    cluster: Cluster,
) -> None:
    (job_id,) = await submit_running(
        cluster, job("job", "gpu0", "gpu2", dark_limit_s=20.0)
    )
    await set_light(cluster, "gpu2", on=False)
    await cluster.until_state(job_id, JobState.FAILED)
    assert cluster.table[job_id].message == (
        "no link for more than 20 s, the job's limit: server2.gpu2: no circuit at ocs1 port 3"
    )
    await cluster.until(lambda: not cluster.workers)


@simulated()
async def test_a_nic_without_carrier_pauses_its_job_which_goes_on_with_it_or_elsewhere(
    cluster: Cluster,
) -> None:
    spec = job("job", workers=2, dark_limit_s=60.0, retries=1)
    (job_id,) = await submit_running(cluster, spec)
    cut, _ = cluster.table[job_id].hosts
    said = f"{cut}: {cluster.lab.host(cut).nic.name} has no carrier"
    for back in (True, False):
        cluster.plant.dark.add(cut)
        await cluster.until_state(job_id, JobState.PAUSED)
        assert cluster.table[job_id].message == said
        if back:
            cluster.plant.dark.clear()
            await cluster.until_trains(job_id)
            assert cluster.table[job_id].attempt == 0
    await cluster.until(lambda: cluster.table[job_id].attempt == 1)
    await cluster.until_state(job_id, JobState.RUNNING)
    assert cut not in cluster.table[job_id].hosts
    why = cluster.events("job-queued")[-1]["message"]
    assert f"no link for more than 60 s, the job's limit: {said}" in why


@simulated()
async def test_a_job_on_hosts_without_a_link_waits_for_it_and_says_why(
    cluster: Cluster,
) -> None:
    await set_light(cluster, "gpu0", on=False)
    (job_id,) = cluster.submit(job("job", "gpu0", "gpu2"))
    words = "server1.gpu0: no circuit at ocs1 port 1"
    await cluster.until(lambda: cluster.scheduler.job(job_id).message == words)
    # A single worker needs nobody, and a job that names no hosts gets others.
    for spec in (job("alone", "gpu0"), job("free", workers=2)):
        (other,) = await submit_running(cluster, spec)
        assert spec.hosts or "server1.gpu0" not in cluster.table[other].hosts
    (many,) = cluster.submit(job("many", workers=6))
    await cluster.until(lambda: words in cluster.scheduler.job(many).message)
    await set_light(cluster, "gpu0", on=True)
    await cluster.until(lambda: cluster.scheduler.job(job_id).message != words)


@simulated()
async def test_a_job_whose_circuits_go_while_it_starts_waits_again(
    cluster: Cluster,
) -> None:
    cluster.get_ready = False
    (job_id,) = cluster.submit(job("job", "gpu0", "gpu2"))
    await cluster.until(lambda: len(cluster.workers_of(job_id)) == 2)
    await set_light(cluster, "gpu2", on=False)
    assert (
        cluster.scheduler.job(job_id).message
        == "server2.gpu2: no circuit at ocs1 port 3"
    )
    cluster.end(job_id, "failed")
    await cluster.until(lambda: cluster.table[job_id].attempt == 1)
    await cluster.until(
        lambda: "no circuit" in cluster.scheduler.job(job_id).message
    )
    assert cluster.table[job_id].state in (JobState.QUEUED, JobState.BLOCKED)
    assert cluster.table[job_id].failures == 0
    cluster.get_ready = True
    await set_light(cluster, "gpu2", on=True)
    await cluster.until_state(job_id, JobState.RUNNING)


@simulated()
async def test_only_the_jobs_on_the_ports_that_move_announce_themselves(
    cluster: Cluster,
) -> None:
    moved = await running_job(cluster, "gpu0", "gpu2")
    stays = await running_job(cluster, "gpu1")
    reach = Reach(LAB, trace_links(LAB, LAB.initial_maps))

    def announced() -> set[str]:
        return {name for call, name in cluster.calls if call == "announce"}

    assert (
        await cluster.traffic.announce(nic_of(cluster, "gpu2"), reach)
        == Unreached()
    )
    assert announced() == {f"{moved}-0", f"{moved}-1"}
    # A link between switches moved.
    await cluster.traffic.announce(None, reach)
    assert announced() == {f"{moved}-0", f"{moved}-1", f"{stays}-0"}


@simulated()
async def test_workers_that_do_not_hear_each_other_are_named_if_a_path_joins_them(
    cluster: Cluster,
) -> None:
    job_id = await running_job(cluster, "gpu0", "gpu2")
    cluster.plant.dark.add("server2.gpu2")
    reach = Reach(LAB, trace_links(LAB, LAB.initial_maps))
    (silent,) = (
        await cluster.traffic.announce(nic_of(cluster, "gpu0"), reach)
    ).silent
    assert silent.startswith(
        f"job {job_id}: server1.gpu0 receives nothing from server2.gpu2"
    )
    dark = Reach(LAB, trace_links(LAB, {"ocs1": PortMap()}))
    assert (
        await cluster.traffic.announce(nic_of(cluster, "gpu0"), dark)
        == Unreached()
    )
    cluster.refusals["announce"] = "unknown request"
    found = await cluster.traffic.announce(nic_of(cluster, "gpu0"), reach)
    assert (len(found.silent), len(found.unknown)) == (0, 1)
    assert f"job {job_id} was not probed" in found.unknown[0]


@simulated()
async def test_after_a_failed_pause_nothing_is_held_any_more(
    cluster: Cluster,
) -> None:
    first, _ = await submit_running(
        cluster, job("first", "gpu0"), job("second", "gpu1")
    )
    cluster.refusals[f"worker {first}-0"] = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await cluster.traffic.drain(
            frozenset(LAB.host(name).endpoint for name in ("gpu0", "gpu1"))
        )
    held = [call for call in cluster.calls if call[0] == "hold"]
    await asyncio.sleep(5)  # simulated: costs no time
    assert [call for call in cluster.calls if call[0] == "hold"] == held
