"""The pair *cheapest* at work in a lab: places and circuits are one decision."""

import pytest

from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_cluster import Cluster, job, simulated


@pytest.mark.parametrize(
    ("gradient_bytes", "together"), [(500_000_000, True), (4, False)]
)
@simulated(PolicyChoice(placement="cheapest", topology="cheapest"))
async def test_a_job_is_lit_under_one_switch_if_that_pays(
    cluster: Cluster, gradient_bytes: int, together: bool
) -> None:
    (busy,) = cluster.submit(
        job("busy", "gpu0", "gpu1", iterations=1000, gradient_bytes=4)
    )
    await cluster.until_trains(busy)
    spec = job("new", workers=4, iterations=1, gradient_bytes=gradient_bytes)
    (new,) = cluster.submit(spec, topology=None)
    await cluster.until(lambda: cluster.table[new].started_at)
    assert (
        len(cluster.switches_of(cluster.table[new].hosts)) == 1
    ) is together
    assert cluster.switches_of(cluster.table[busy].hosts) == {"tor1"}
    assert not cluster.faults()
