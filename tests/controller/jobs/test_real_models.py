"""Jobs with a model of their own, in a lab whose agents are in memory."""

from dataclasses import replace

import pytest

from patchlight.controller.jobs.cluster_view import training_of
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.wire.worker_api import TorchTask
from tests.support.job_cluster import (
    LAB,
    Cluster,
    finish,
    job,
    simulated,
    submit_running,
)

MODEL = JobSpec(
    "real", 100, trainer="torch", model="tiny-transformer", batch=9, seed=3
)
GRADIENT_BYTES = builtin_graph("tiny-transformer").parameter_bytes


def tasks(cluster: Cluster, job_id: str) -> list[TorchTask]:
    """What the workers that a job has now are to do."""
    found = [worker.spec.task for worker in cluster.workers_of(job_id)]
    assert all(isinstance(task, TorchTask) for task in found)
    return [task for task in found if isinstance(task, TorchTask)]


@simulated(lab=LAB.with_changes(scale=1000.0))
async def test_how_long_a_model_computes_is_measured_and_its_gradient_known(
    cluster: Cluster,
) -> None:
    given = replace(MODEL, hosts=("gpu1", "gpu3"), compute_s={"Titan V": 0.2})
    (known,) = await submit_running(cluster, given)
    assert [task.compute_s for task in tasks(cluster, known)] == [0.2, 0.2]
    hosts = ("gpu0", "gpu2")
    (job_id,) = await submit_running(cluster, replace(MODEL, hosts=hosts))
    (task, other) = tasks(cluster, job_id)
    assert task == other
    assert (task.model, task.batch, task.seed, task.compute_s) == (
        MODEL.model,
        9,
        3,
        0.0,
    )
    # The lab's links are a thousand times as slow, and the gradient is not any smaller.
    assert cluster.table[job_id].spec.gradient_bytes == 1000 * GRADIENT_BYTES
    assert training_of(cluster.table[job_id]) is None
    await cluster.until_done(job_id, 1)  # which also loads what the others use
    await cluster.until_done(job_id, 2)
    training = training_of(cluster.table[job_id])
    assert training is not None
    assert training.compute_s == {"Tesla M40": 0.1}
    assert cluster.table.page()[0].spec.compute_s == {"Titan V": 0.2}


@simulated(PolicyChoice(partition="minimum", elasticity="give-and-take"))
async def test_workers_share_a_mini_batch_where_a_policy_says_how_many_there_are(
    cluster: Cluster,
) -> None:
    spec = replace(MODEL, workers=0, degrees=(2, 4), checkpoint="/srv/kept")
    (job_id,) = await submit_running(cluster, spec)
    assert [task.batch for task in tasks(cluster, job_id)] == [4, 4]
    assert "compute time" in str(cluster.scheduler.why_rigid(job_id))
    await cluster.until_done(job_id, 2)
    # One GPU alone would take 0.2 s.
    assert set(cluster.table[job_id].spec.compute_s.values()) == {0.2}
    (other,) = await submit_running(cluster, job("other", workers=1))
    await finish(cluster, other)
    await cluster.until(lambda: len(tasks(cluster, job_id)) == 4)
    assert [task.batch for task in tasks(cluster, job_id)] == [2] * 4
    # Its checkpoint is of where it was told to end.
    (_, begin, before), (_, then, after) = cluster.table[job_id].degrees
    assert (begin, before, after) == (0, 2, 4)
    assert then >= 2


@simulated(PolicyChoice(partition="minimum", elasticity="give-and-take"))
async def test_without_a_checkpoint_a_model_keeps_its_workers(
    cluster: Cluster,
) -> None:
    compute_s = {"Tesla M40": 0.2, "Titan V": 0.2}
    spec = replace(MODEL, workers=0, degrees=(2, 4), compute_s=compute_s)
    (job_id,) = await submit_running(cluster, spec)
    assert (
        cluster.scheduler.why_rigid(job_id)
        == "it has no checkpoint folder to resume from"
    )


@simulated()
async def test_a_model_that_there_is_not_is_refused(cluster: Cluster) -> None:
    with pytest.raises(
        BadInput, match="unknown model 'resnet51': did you mean 'resnet5"
    ):
        cluster.submit(replace(MODEL, model="resnet51", workers=2))
