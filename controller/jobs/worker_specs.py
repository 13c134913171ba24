"""What agents are asked for: a worker for each rank of a job, its traffic scaled as the lab."""

from collections.abc import Callable, Sequence

from pydantic import ValidationError

from patchlight.testbed.commands import CommandTask
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.io.mistakes import mistakes_in_words
from patchlight.testbed.jobs import JobSpec
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.wire.worker_api import (
    Neighbour,
    RingMember,
    SyntheticTask,
    Task,
    TorchTask,
    WorkerSpec,
)

# Each worker has a network namespace of its own, so one port serves every ring.
RING_PORT = 29500
_FULL_WINDOW_BYTES = 8 * 2**20
_LEAST_WINDOW_BYTES = 16 * 2**10
_MOST_WINDOW_BYTES = 200_000


class JobFailed(PatchlightError):
    """A worker of the job failed; ``last_lines`` are its own last words, ``hosts`` where it was."""

    def __init__(
        self, message: str, last_lines: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.last_lines, self.hosts = tuple(last_lines), tuple(hosts)


def worker_id(job_id: str, attempt: int, rank: int) -> str:
    """Workers of another attempt are others: one that is left behind is not taken for them."""
    return f"{job_id}.{attempt}-{rank}" if attempt else f"{job_id}-{rank}"


def worker_specs(
    job_id: str,
    spec: JobSpec,
    hosts: Sequence[Host],
    lab: Lab,
    attempt: int = 0,
    first_iteration: int = 0,
    mac_of: Callable[[Host], str] = lambda host: host.nic.mac,
    user: str = "",
) -> list[WorkerSpec]:
    """What the agents are asked for, one for each rank; ``JobFailed`` if they cannot take it."""
    try:
        ring = [
            RingMember(rank=rank, address=host.nic.address, port=RING_PORT)
            for rank, host in enumerate(hosts)
        ]
        neighbours = [Neighbour(address=host.nic.address, mac=mac_of(host)) for host in hosts]
        rendezvous = [host.nic.rendezvous for host in hosts]
        first = rendezvous[0].address.ip if rendezvous[0] and all(rendezvous) else None
        return [
            WorkerSpec(
                id=worker_id(job_id, attempt, rank),
                job=job_id,
                user=user,
                rank=rank,
                gpu=host.gpu.name if host.gpu else None,
                nic=host.nic.name,
                ring=ring,
                rendezvous=first,
                neighbours=[n for n in neighbours if n.address != host.nic.address],
                checkpoint=spec.checkpoint,
                memory_bytes=spec.memory_bytes,
                cpus=spec.cpus,
                task=_task(spec, host, lab, first_iteration, len(hosts)),
            )
            for rank, host in enumerate(hosts)
        ]
    except ValidationError as error:
        raise JobFailed(
            f"job {spec.name}: no agent would take it: {mistakes_in_words(error)}"
        ) from error


def _task(spec: JobSpec, host: Host, lab: Lab, first_iteration: int, workers: int) -> Task:
    window = {"window_bytes": scaled_window_bytes(lab)}
    if spec.trainer == "command":
        return command_task(spec).model_copy(update=window)
    compute_s = spec.compute_s.get(host.gpu.model, 0.0) if host.gpu else 0.0
    if spec.trainer == "torch":
        return torch_task(spec, compute_s, workers).model_copy(update=window)
    return SyntheticTask(
        iterations=spec.iterations,
        gradient_bytes=scaled_gradient_bytes(spec.gradient_bytes, lab),
        window_bytes=window["window_bytes"],
        compute_s=compute_s / (workers if spec.is_split else 1),
        seed=spec.seed,
        first_iteration=first_iteration,
        paths=lab.paths == "nodes" and workers > 1,
    )


def torch_task(spec: JobSpec, compute_s: float = 0.0, workers: int = 1) -> TorchTask:
    """What a job with a model asks of an agent; ``pydantic.ValidationError`` if none would take it.

    A mini-batch and its ``compute_s`` are shared by the workers of a job that is split over them.
    """
    model, batch, share = spec.model or "", spec.batch, 1
    if spec.is_split:
        share = workers
        batch = max(1, (batch or builtin_graph(model).batch or 1) // share)
    return TorchTask(
        trainer="torch",
        model=model,
        iterations=spec.iterations,
        batch=batch,
        data=spec.data,
        checkpoint_every=spec.checkpoint_every,
        compute_s=compute_s / share,
        seed=spec.seed,
        image=spec.image,
    )


def command_task(spec: JobSpec) -> CommandTask:
    """What a command job asks of an agent; ``pydantic.ValidationError`` if none would take it."""
    return CommandTask(
        trainer="command",
        command=list(spec.command),
        image=spec.image,
        environment=dict(spec.environment),
        mounts=list(spec.mounts),
        shared_memory_bytes=spec.shared_memory_bytes,
        working_directory=spec.working_directory,
        hold=spec.hold,
    )


def scaled_gradient_bytes(gradient_bytes: int, lab: Lab) -> int:
    """A gradient divided by the lab's scale, in whole float32 values."""
    return max(4, round(gradient_bytes / lab.scale / 4) * 4)


def scaled_window_bytes(lab: Lab) -> int | None:
    """How much may be on its way to a worker, or ``None`` to leave that to the kernel.

    Where rates are scaled down, what is in flight must be too. The kernel's windows are made
    for fast links: they overflow the queue of a link of a few Mb/s, and connections that lose
    frames there share it as chance has it, which those of a full-rate network do not. 8 MiB
    fill a link of 40 Gb/s over 1.6 ms. Frames do not scale: with fewer than some ten of them on
    their way (16 KiB) a connection feels every delay of a frame. Linux grants some 200 KB to who
    asks: above that the kernel's own choice is better.
    """
    window = max(_LEAST_WINDOW_BYTES, round(_FULL_WINDOW_BYTES / lab.scale))
    return window if window <= _MOST_WINDOW_BYTES else None
