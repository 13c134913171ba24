"""What is wrong with hosts, as their agents tell it, and who waits for them."""

from patchlight.controller.hosts.fleet import (
    Fleet,
    HostFaults,
    host_faults,
    unfit_hosts,
)
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.wiring import trace_links
from patchlight.testbed.wire.agent_status import (
    AgentStatus,
    GpuStatus,
    NicStatus,
)
from tests.support.job_cluster import (
    LAB,
    Cluster,
    job,
    simulated,
    submit_running,
)

LINKS = trace_links(LAB, LAB.initial_maps)


def sample(
    gpu: str = "", nic: str = "", *, carrier: bool = True
) -> AgentStatus:
    """Of server1, whose gpu0 and nic1 have these problems."""
    gpus = [
        GpuStatus(
            name="gpu0",
            model="Tesla M40",
            utilization=0,
            busy_s=0,
            problem=gpu,
        ),
        GpuStatus(name="gpu1", model="Titan V", utilization=0, busy_s=0),
    ]
    nics = [
        NicStatus(name="nic0", address="192.168.10.11", state="idle"),
        NicStatus(
            name="nic1",
            address="192.168.10.12",
            state="idle",
            problem=nic,
            carrier=carrier,
        ),
    ]
    return AgentStatus(
        server="server1",
        version="1",
        runner="process",
        gpus=gpus,
        nics=nics,
        workers=[],
    )


def test_what_two_samples_in_a_row_say_is_wrong() -> None:
    gone = sample("GPU gpu0 is lost", "nic1 is gone")
    well = sample()
    assert host_faults(LAB, {"server1": [gone]}) == HostFaults()
    assert host_faults(LAB, {"server1": [well, gone]}) == HostFaults()
    assert dict(host_faults(LAB, {"server1": [gone, gone]}).gone) == {
        "server1.gpu0": "gpu0 of server1: GPU gpu0 is lost",
        "server1.gpu1": "nic1 of server1: nic1 is gone",
    }
    assert Fleet(LAB).faults() == HostFaults()


def test_a_nic_without_carrier_is_of_no_use_only_if_it_should_have_light() -> (
    None
):
    cut = sample(nic="nic1 has no carrier", carrier=False)
    faults = host_faults(LAB, {"server1": [cut, cut]})
    assert list(faults.no_carrier) == ["server1.gpu1"]
    assert list(unfit_hosts(LAB, (), faults, LINKS)) == ["server1.gpu1"]
    assert unfit_hosts(LAB, (), faults, trace_links(LAB, {})) == {}
    assert unfit_hosts(LAB, (), faults, None) == {}
    silent = unfit_hosts(LAB, ["server3"], faults, LINKS)
    assert silent["server3.gpu4"] == "the agent of server3 does not answer"


@simulated()
async def test_a_job_waits_for_a_gpu_that_is_gone_and_says_so(
    cluster: Cluster,
) -> None:
    lost = "GPU gpu0 has fallen off the bus"
    machine = cluster.machines["server1"]
    machine.dead_gpus.add("gpu0")
    await cluster.until(lambda: cluster.parts.fleet.faults().gone)
    (runs,) = await submit_running(cluster, job("runs", workers=3))
    assert "server1.gpu0" not in cluster.table[runs].hosts
    (all_six,) = cluster.submit(job("six", workers=6))
    await cluster.until(lambda: lost in cluster.scheduler.job(all_six).message)
    (passes,) = await submit_running(cluster, job("passes", workers=1))
    for job_id in (all_six, passes):
        await cluster.scheduler.stop(job_id)
    (named,) = cluster.submit(job("named", "gpu0"))
    await cluster.until(lambda: lost in cluster.scheduler.job(named).message)
    assert cluster.table[named].state is JobState.BLOCKED
    machine.dead_gpus.clear()
    await cluster.until_state(named, JobState.RUNNING)
