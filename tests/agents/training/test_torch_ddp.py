"""Real models: replicas over Gloo on loopback, held, ended, taken up again; and their data."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip(
    "torch", reason="needs PyTorch: pip install 'patchlight[torch]'"
)

from patchlight import testbed  # noqa: E402
from patchlight.agents.training.task import Member, TrainingError, TrainingTask  # noqa: E402
from patchlight.agents.training.torch_ddp import Checkpoints, TrainingSamples  # noqa: E402
from tests.support.programs import ROOT, python  # noqa: E402
from tests.support.torch_forks import TorchForks  # noqa: E402
from tests.support.training_workers import (  # noqa: E402
    ENVIRONMENT,
    PROGRAM,
    TRAINING,
    Worker,
    start,
)
from tests.support.waiting import PATIENCE_S, free_ports, wait_until  # noqa: E402

GRADIENT_BYTES = 547_840  # of the tiny transformer

MakeJob = Callable[..., list[Worker]]


@pytest.fixture(scope="module")
def forks() -> Iterator[TorchForks]:
    forks = TorchForks({"PATH": os.environ["PATH"], **ENVIRONMENT})
    yield forks
    forks.close()


@pytest.fixture
def make_job(tmp_path: Path, forks: TorchForks) -> Iterator[MakeJob]:
    code = tmp_path / "code"
    shutil.copytree(TRAINING, code / "patchlight/agents/training")
    (code / "patchlight/testbed").symlink_to(
        Path(testbed.__file__).resolve().parent
    )
    made: list[Worker] = []

    def make(
        ranks: int,
        name: str,
        *each: dict[str, Any],
        program: tuple[str, ...] = PROGRAM,
        **task: Any,
    ) -> list[Worker]:
        ports = enumerate(free_ports(ranks))
        ring = [
            {"rank": rank, "address": "127.0.0.1", "port": port}
            for rank, port in ports
        ]
        usual = {
            "job": "j",
            "ring": ring,
            "model": "tiny-transformer",
            "iterations": 10_000,
        }
        for rank, own in enumerate(each or ({},) * ranks):
            whole = {
                **usual,
                "id": f"{name}{rank}",
                "rank": rank,
                **task,
                **own,
            }
            made.append(
                Worker(tmp_path / f"{name}{rank}", code, whole, program, forks)
            )
        return made[-ranks:]

    yield make
    for worker in made:
        worker.process.kill()
        worker.process.wait()


def hold(job: list[Worker]) -> int:
    """Hold all workers at one iteration that none of them has come to."""
    at = 40 + max(int(worker.state["iterations_done"]) for worker in job)
    for worker in job:
        assert worker.tell(op="hold", iteration=at)["ok"]
    for worker in job:
        # After a release, the file may still show the earlier hold.
        worker.until("held", at)
    return at


@pytest.mark.xdist_group("forks of PyTorch")
def test_a_model_learns_is_held_and_goes_on_from_its_checkpoint(
    make_job: MakeJob, tmp_path: Path
) -> None:
    kept = tmp_path / "checkpoints"
    kept.mkdir()
    first = make_job(2, "first", checkpoint=str(kept), checkpoint_every=5)
    for worker in first:
        worker.until("ready")
    start(first)
    wait_until(
        lambda: (kept / "j.pt").exists(),
        "a checkpoint of every fifth iteration",
    )
    at = hold(first)
    for worker in first:
        assert worker.tell(op="release")["ok"]
    assert hold(first) > at
    at = first[0].state["iterations_done"]
    for worker in first:
        assert worker.tell(op="stop-at", iteration=at)["ok"]
    for worker in first:
        assert worker.process.wait(PATIENCE_S) == 0, worker.output
        assert (worker.state["state"], worker.state["iterations_done"]) == (
            "stopped",
            at,
        )
        reports = worker.reports
        assert [report["index"] for report in reports] == list(range(at))
        assert {(report["check"], report["device"]) for report in reports} == {
            ("ok", "cpu: torch")
        }
        # One of two workers sends 2 × 1/2 of the gradient.
        assert {report["sent_bytes"] for report in reports} == {GRADIENT_BYTES}
        assert all(
            report["compute_s"] > 0 < report["communication_s"]
            for report in reports
        )
    losses = [report["loss"] for worker in first for report in worker.reports]
    earliest = fmean(
        report["loss"] for worker in first for report in worker.reports[:4]
    )
    latest = fmean(
        report["loss"] for worker in first for report in worker.reports[-4:]
    )
    assert latest < earliest < 1.1 * np.log(512), losses

    # Rank 0's server has no checkpoint: what rank 1 has is everybody's.
    (tmp_path / "none").mkdir()
    folders = [
        {"checkpoint": str(tmp_path / "none")},
        {"checkpoint": str(kept)},
    ]
    again = make_job(2, "again", *folders)
    for worker in again:
        worker.until("ready")
        assert worker.state["iterations_done"] == at
        refused = worker.tell(op="hold", iteration=at - 1)
        assert (refused["ok"], refused["iteration"]) == (False, at)
    start(again)
    wait_until(lambda: again[0].state["iterations_done"] >= at + 4)
    assert fmean(report["loss"] for report in again[0].reports[:4]) < earliest
    again[1].process.send_signal(signal.SIGKILL)
    assert again[0].process.wait(PATIENCE_S) == 1
    assert again[0].state["lost_rank"] == 1
    assert (
        again[0]
        .state["message"]
        .startswith("lost rank 1 in the exchange of iteration ")
    ), again[0].output


# The worker's own program, but that the gradients' group is renewed as one of NCCL's would be, the
# loss is always infinite, and in its sixth step rank 1 learns something that rank 0 does not.
RENEWING = """
import functools, itertools, json, math, sys
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook
from patchlight.agents.training import __main__, torch_ddp

rank, steps = json.load(open(sys.argv[2]))["rank"], itertools.count(1)

@register_optimizer_step_post_hook
def learn(optimizer, *_):
    if next(steps) == 6 and rank == 1:
        optimizer.param_groups[0]["params"][-1].data[0] += 1

of_samples = torch_ddp.TrainingSamples.loss
torch_ddp.TrainingSamples.loss = lambda *given: of_samples(*given) + math.inf

torch_ddp.train = functools.partial(torch_ddp.train, renews=True)
new_group, made = dist.new_group, []
dist.new_group = lambda **chosen: made.append(new_group(**chosen)) or made[-1]
code = __main__.main()
print("groups made:", len(made))
sys.exit(code)
"""


@pytest.mark.xdist_group("forks of PyTorch")
def test_a_communicator_is_renewed_once_one_was_held_and_replicas_that_differ_fail(
    make_job: MakeJob,
) -> None:
    job = make_job(2, "w", program=("-c", RENEWING))
    for worker in job:
        worker.until("ready")
    assert job[0].tell(op="hold", iteration=3)["ok"]
    start(job)
    job[0].until("held")
    assert job[0].tell(op="release")["ok"]
    for worker in job:
        assert worker.process.wait(PATIENCE_S) == 1, worker.output
        assert worker.state["message"].startswith(
            "after iteration 5 the ranks' parameters differ"
        )
        assert [(r["check"], r["loss"]) for r in worker.reports] == [
            ("ok", None)
        ] * 5
        # The first, and one after the hold, which only one of the two knew of.
        assert "groups made: 2" in worker.output


def task_of(model: str, **values: Any) -> TrainingTask:
    return TrainingTask(
        "w", "j", 0, (Member(0, "127.0.0.1", 1),), 4, model=model, **values
    )


def test_the_same_iteration_has_the_same_samples() -> None:
    one, other = (
        TrainingSamples(task_of("squeezenet1_0", batch=2, seed=3))
        for _ in range(2)
    )
    (inputs,), targets = one.of(1)
    (again,), same = other.of(1)
    assert torch.equal(inputs, again)
    assert torch.equal(targets, same)
    assert not torch.equal(inputs, one.of(2).inputs[0])
    for mine, theirs in zip(
        one.model.parameters(), other.model.parameters(), strict=True
    ):
        assert torch.equal(mine, theirs)


def test_data_of_a_folder_is_what_is_learnt_from(tmp_path: Path) -> None:
    np.save(tmp_path / "inputs.npy", np.arange(6 * 64).reshape(6, 64) % 512)
    np.save(tmp_path / "targets.npy", np.full((6, 64), 7))
    samples = TrainingSamples(
        task_of("tiny-transformer", batch=4, data=str(tmp_path))
    )
    inputs, targets = samples.of(1)
    assert inputs[0][:, 0].tolist() == [4 * 64, 5 * 64, 0, 64]
    loss = samples.loss(samples.model(*inputs), targets)
    assert loss.item() == pytest.approx(np.log(512), rel=0.05)


@pytest.mark.parametrize(
    ("model", "inputs", "targets", "expected"),
    [
        ("tiny-transformer", (6, 32), (6, 64), "expects (samples, 64)"),
        ("tiny-transformer", (6, 64), (5, 64), "a target for each sample"),
        ("tiny-transformer", None, (6, 64), "No such file"),
        (
            "tiny-transformer",
            (6, 64),
            (6,),
            "expected 0 to 511 in the shape (8, 64)",
        ),
        (
            "no-such-model",
            (6, 64),
            (6, 64),
            "unknown built-in graph 'no-such-model'",
        ),
    ],
)
def test_data_that_does_not_fit_is_refused(
    tmp_path: Path,
    model: str,
    inputs: tuple[int, ...] | None,
    targets: tuple[int, ...],
    expected: str,
) -> None:
    if inputs is not None:
        np.save(tmp_path / "inputs.npy", np.zeros(inputs, dtype=np.int64))
    np.save(tmp_path / "targets.npy", np.zeros(targets, dtype=np.int64))

    def learn() -> None:
        samples = TrainingSamples(task_of(model, data=str(tmp_path)))
        batch = samples.of(0)
        samples.loss(samples.model(*batch.inputs), batch.targets)

    with pytest.raises(TrainingError) as told:
        learn()
    assert expected in str(told.value)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not one", "remove it to start from the beginning"),
        (None, "belongs to vgg16, not to tiny-transformer"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_named(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    kept = tmp_path / "checkpoints"
    kept.mkdir()
    if content is None:
        torch.save({"of": "vgg16", "iteration": 3}, kept / "j.pt")
    else:
        (kept / "j.pt").write_bytes(content)
    model = torch.nn.Linear(2, 2)
    task = task_of("tiny-transformer", checkpoint=str(kept))
    checkpoints = Checkpoints(
        task, model, torch.optim.Adam(model.parameters())
    )
    with pytest.raises(TrainingError, match=expected):
        checkpoints.found()
    assert (kept / "j.pt").exists()


@pytest.mark.wings
def test_it_imports_no_more_than_the_image_of_workers_has() -> None:
    lacking = [
        "click",
        "docker",
        "fastapi",
        "httpx",
        "paramiko",
        "psutil",
        "pydantic",
        "pyroute2",
        "rich",
    ]
    code = (
        f"import sys; sys.modules |= dict.fromkeys({lacking!r})\n"
        "import patchlight.agents.training.torch_ddp"
    )
    assert python("-c", code).returncode == 0
    image = (ROOT / "deploy/worker-image.sh").read_text()
    assert "python3-yaml" in image
