"""The pair *cheapest* at work in a lab: places and circuits are one decision."""

from patchlight.testbed.jobs import JobSpec, JobState
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.lab.wiring import trace_links
from tests.support.job_cluster import COMPUTE, LAB, Cluster, at_work


async def switches(cluster: Cluster, job_id: str) -> set[str | None]:
    links = trace_links(LAB, {"ocs1": await cluster.ocs.read_map()})
    hosts = cluster.table[job_id].hosts
    return {links.switch_of(LAB, LAB.host(host).endpoint) for host in hosts}


async def test_a_job_is_lit_under_one_switch_if_that_pays() -> None:
    choice = PolicyChoice(placement="cheapest", topology="cheapest")
    for gradient_bytes, together in ((500_000_000, True), (4, False)):
        async with at_work(choice) as cluster:
            (busy,) = cluster.submit(JobSpec("busy", 10, 4, COMPUTE, hosts=("gpu0", "gpu1")))
            await cluster.until_state(busy, JobState.RUNNING)
            spec = JobSpec("new", 1, gradient_bytes, COMPUTE, workers=4)
            (new,) = cluster.submit(spec, topology=None)
            await cluster.until_state(new, JobState.RUNNING)
            assert (len(await switches(cluster, new)) == 1) is together
            assert await switches(cluster, busy) == {"tor1"}
            assert not cluster.faults()
