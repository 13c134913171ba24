"""The policies that a scheduler asks: which gang is next, where it runs, with which circuits."""

from pathlib import Path

import pytest

from patchlight.controller.changes.record import Refused
from patchlight.testbed.errors import BadInput
from patchlight.testbed.jobs import JobState
from patchlight.testbed.lab.rules import Allowance, Discipline, PolicyChoice
from tests.support.job_cluster import (
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

POLICIES = """
class Raises:
    def place(self, cluster, job, workers):
        raise RuntimeError("no idea")


class Unsure:
    def priority(self, cluster, job, progress):
        return "perhaps"


class ShortNamesFirst:
    def priority(self, cluster, job, progress):
        return len(job.name)


class Breaks:
    def circuits(self, cluster, groups):
        raise RuntimeError("no light")


class Two:
    def degree(self, cluster, job, legal):
        if job.name.startswith("later") and len(legal) < 7:
            return None
        return 0 if job.name.startswith("nobody") else 2
"""


@pytest.fixture(scope="module")
def policies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policies") / "mine.py"
    path.write_text(POLICIES)
    return path


@simulated()
async def test_an_order_policy_says_which_gang_is_next(
    cluster: Cluster, policies: Path
) -> None:
    await cluster.scheduler.policies.use(
        PolicyChoice(order=f"{policies}:ShortNamesFirst")
    )
    (first,) = await submit_running(cluster, job("first", "gpu0"))
    (long,) = cluster.submit(job("with-a-long-name", "gpu0"))
    (short,) = cluster.submit(job("s", "gpu0"))
    await finish(cluster, first)
    await cluster.until_state(short, JobState.RUNNING)
    assert cluster.table[long].state is JobState.QUEUED


@simulated()
async def test_a_partition_policy_says_how_many_workers(
    cluster: Cluster, policies: Path
) -> None:
    await cluster.scheduler.policies.use(
        PolicyChoice(partition=f"{policies}:Two")
    )
    (job_id,) = await submit_running(cluster, job("auto"))
    assert len(cluster.table[job_id].hosts) == 2
    (refused,) = cluster.submit(job("nobody"))
    await cluster.until_state(refused, JobState.FAILED)
    assert "mine.py:Two refuses it" in cluster.table[refused].message
    (later,) = cluster.submit(job("later"))
    words = "the partition policy makes it wait on the 4 free GPUs"
    await cluster.until(
        lambda: words in cluster.scheduler.message(cluster.table[later])
    )
    await finish(cluster, job_id)
    await cluster.until_state(later, JobState.RUNNING)


@simulated(
    PolicyChoice(partition="maximum"),
    discipline=Discipline(each_user=Allowance(gpus=5)),
)
async def test_a_partition_policy_gives_no_more_than_the_user_may_have(
    cluster: Cluster,
) -> None:
    gang = [job("first"), job("second", degrees=(2, 4))]
    first, second = await submit_running(cluster, *gang)
    # What the second one needs at least is left to it.
    assert [len(cluster.table[each].hosts) for each in (first, second)] == [
        3,
        2,
    ]


@simulated(
    PolicyChoice(partition="minimum"), Discipline(each_user=Allowance(gpus=5))
)
async def test_jobs_whose_least_workers_are_too_many_are_not_taken(
    cluster: Cluster,
) -> None:
    with pytest.raises(
        BadInput, match="job wide: 8 workers requested, but the lab has 6"
    ):
        cluster.submit(job("wide", degrees=(8, 16)))
    with pytest.raises(BadInput, match="7 workers requested, but"):
        cluster.submit(job("five", workers=5), job("one"), job("other"))
    with pytest.raises(
        Refused, match="it needs 6 GPUs, and the user may have 5 at once"
    ):
        cluster.submit(job("four", workers=4), job("two", degrees=(2, 4)))
    assert cluster.table.page() == []


@simulated()
async def test_where_a_policy_fails_the_default_decides(
    cluster: Cluster, policies: Path
) -> None:
    choice = PolicyChoice(
        placement=f"{policies}:Raises",
        order=f"{policies}:Unsure",
        topology=f"{policies}:Breaks",
    )
    await cluster.scheduler.policies.use(choice)
    before = cluster.ocs.map
    # A preview gets the default's answer, too, and that does not count as a fault.
    (row,) = await cluster.scheduler.preview([job("first", workers=2)])
    assert len(row["hosts"]) == 2
    first = cluster.submit(job("first", workers=2), topology=None)
    second = cluster.submit(job("second", workers=2), topology=None)
    for job_id in first + second:
        await cluster.until_state(job_id, JobState.RUNNING)
    assert cluster.ocs.map == before
    faults = "\n".join(cluster.faults())
    assert "RuntimeError: no idea" in faults
    assert "it answered 'perhaps'" in faults
    assert "RuntimeError: no light" in faults
    counts = {
        kind: count
        for (kind, _), count in cluster.scheduler.policies.faults.items()
    }
    assert counts["placement"] == 2
    assert counts["topology"] == 2
    # Which is next was asked of both, and where each runs, and with which circuits.
    assert [cluster.table[name].policy_faults for name in first + second] == [
        3,
        3,
    ]
    # Those of a policy that is replaced are no news of the present one.
    await cluster.scheduler.policies.use(PolicyChoice(placement="first-fit"))
    await cluster.until(
        lambda: (
            {kind for kind, _ in cluster.scheduler.policies.faults}
            == {"order", "topology"}
        )
    )
    assert {kind for kind, _ in cluster.scheduler.policies.last_faults} == {
        "order",
        "topology",
    }
