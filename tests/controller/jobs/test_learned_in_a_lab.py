"""A learned policy in a lab: what it is shown there, and in the simulator; and what it tells."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from patchlight.controller.jobs.cluster_view import arguments
from patchlight.controller.policies.contract import ClusterView, JobView
from patchlight.controller.policies.options.observation import Observation
from patchlight.controller.policies.options.policies import LearnedPlacement
from patchlight.controller.policies.order import Fifo
from patchlight.controller.policies.registry import load_policy
from patchlight.emulation.simulator.cluster import (
    LabCluster,
    Policies,
    QueueJob,
    simulate,
)
from patchlight.emulation.simulator.cluster.jobs import jobs_of_specs
from patchlight.testbed.lab.rules import PolicyChoice
from tests.support.job_cluster import (
    LAB,
    Cluster,
    job,
    simulated,
    submit_running,
)
from tests.support.option_models import cheapest_model, write_option_model

pytest.importorskip("onnx", reason="onnx is not installed: extra 'learn'")


# The trace: longer than the test takes, one after the other.
SPECS = (
    job(
        "first",
        workers=2,
        iterations=50_000,
        gradient_bytes=40_000_000,
        graph="vgg16",
    ),
    job("second", workers=1, iterations=50_000),
    job("third", workers=2, iterations=50_000, gradient_bytes=40_000_000),
)
OF_TIME = (8, 10)
"""Of the state: how much came lately, how long the job has waited. A lab's clock goes on."""


class Watched:
    """A placement policy beside which somebody notes what it sees."""

    def __init__(self, policy: LearnedPlacement) -> None:
        self._policy = policy
        self.saw = list[Observation]()

    def place(
        self, cluster: ClusterView, job: JobView, workers: int
    ) -> Sequence[int] | None:
        outlook = self._policy.outlook(cluster)
        options = self._policy.options(outlook, job, workers)
        if options:
            seen = self._policy.observe(outlook, job, options)
            self.saw.append(
                {name: array.copy() for name, array in seen.items()}
            )
        return self._policy.place(cluster, job, workers)


def placement_of(path: Path) -> LearnedPlacement:
    policy = load_policy(str(path), "placement")
    assert isinstance(policy, LearnedPlacement)
    return policy


def seen_in_the_simulator(path: Path) -> list[Observation]:
    """What the model sees of the trace in the simulator."""
    jobs: list[QueueJob] = [
        each
        for number, spec in enumerate(SPECS)
        for each in jobs_of_specs(LAB, [spec], "", number * 1e-3)
    ]
    watched = Watched(placement_of(path))
    simulate(LabCluster(LAB), jobs, Policies(Fifo(), watched))
    return watched.saw[: len(SPECS)]


@simulated()
async def test_a_model_sees_in_a_lab_what_it_sees_in_the_simulator(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = write_option_model(tmp_path)
    await cluster.scheduler.policies.use(
        PolicyChoice(placement=str(path), deadline_s=20.0)
    )
    decisions = []
    for spec in SPECS:
        (job_id,) = await submit_running(cluster, spec)
        decisions += cluster.table.ledger.decisions(job_id)
    assert not cluster.faults()
    watched = Watched(placement_of(path))
    for decision in decisions:
        answer = watched.place(*arguments("placement", decision["saw"], LAB))
        assert answer == decision["answer"]
        options = decision["weighed"]["options"]
        assert options[0]["chosen"]
        assert all(each["lasts_s"] is not None for each in options)
    for number, (seen, expected) in enumerate(
        zip(watched.saw, seen_in_the_simulator(path), strict=True)
    ):
        seen["state"][0, list(OF_TIME)] = expected["state"][0, list(OF_TIME)]
        for name, array in expected.items():
            assert seen[name] == pytest.approx(array, rel=1e-3, abs=1e-4), (
                number,
                name,
            )


@simulated()
async def test_scores_that_are_no_numbers_are_a_fault_and_the_default_decides(
    cluster: Cluster, tmp_path: Path
) -> None:
    # Too much for a number where two built-in policies agree; when it is loaded, none does.
    path = write_option_model(
        tmp_path, content=cheapest_model(features=(16, 17), factor=3e38)
    )
    await cluster.scheduler.policies.use(
        PolicyChoice(placement=str(path), deadline_s=20.0)
    )
    await submit_running(cluster, SPECS[0])
    (fault,) = cluster.faults()
    assert "returned invalid scores" in fault


@simulated(PolicyChoice(partition="minimum"))
async def test_a_model_says_how_many_workers_a_job_of_a_lab_goes_on_with(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = write_option_model(tmp_path, ("elasticity",))
    await cluster.scheduler.policies.use(
        PolicyChoice(elasticity=str(path), deadline_s=20.0)
    )
    compute_s = {"Tesla M40": 0.4, "Titan V": 0.4}
    spec = job(
        "auto",
        degrees=(2, 3),
        iterations=1000,
        gradient_bytes=4000,
        compute_s=compute_s,
    )
    (job_id,) = await submit_running(cluster, spec)
    await cluster.until(lambda: len(cluster.table[job_id].hosts) == 3)
    (decision,) = (
        each
        for each in cluster.table.ledger.decisions(job_id)
        if each["kind"] == "elasticity"
    )
    assert not cluster.faults()
    assert decision["answer"] == {job_id: 3}
    grown, kept = decision["weighed"]["options"]
    assert (grown["option"], grown["chosen"]) == (f"{job_id} on 3", True)
    assert kept["option"] == "change nothing"
    assert grown["score"] > kept["score"]
