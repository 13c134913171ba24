"""Which jobs a lab takes, and what agents are asked for: a worker for each rank of a job."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from patchlight.controller.jobs.cluster_view import graph_of
from patchlight.controller.policies.registry import is_built_in
from patchlight.testbed.errors import BadInput, PatchlightError
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.io.issues import mistakes_in_words, nearest
from patchlight.testbed.jobs import CommandTask, JobSpec, checked_specs
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.wire.worker_api import (
    LARGEST_TASK_GRADIENT_BYTES,
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


def check_policies(specs: Sequence[JobSpec], choice: PolicyChoice) -> None:
    """``BadInput`` for a job that names a policy which is neither built in nor the lab's own.

    Any user may submit jobs, and a policy is a program that runs beside the controller.
    """
    for spec in specs:
        for kind in ("placement", "topology"):
            name = getattr(spec, kind)
            if name is None or name == choice.of(kind) or is_built_in(name, kind):
                continue
            raise BadInput(
                f"job {spec.name}: {kind} {name[:40]!r} is neither built in nor the lab's policy",
                hint="who runs the lab can have it used for all jobs: 'patchlight policy use'",
            )


def check_specs(lab: Lab, given: Sequence[JobSpec], *, counted: bool) -> list[JobSpec]:
    """The specs, checked; ``BadInput`` for jobs that could never run together in this lab.

    A job with a model gets that model's gradient, which the lab's scale leaves as it is.
    ``counted``: a job without hosts has to say how many workers it wants.
    """
    if not given:
        raise BadInput("no job given")
    specs = [_with_gradient(lab, spec) for spec in checked_specs(list(given))]
    named: dict[str, str] = {}
    for spec in specs:
        _check_models(lab, spec)
        _check_memory(lab, spec)
        if spec.graph is not None:
            graph_of(spec.graph)
        if not spec.hosts and spec.workers < 1 and counted:
            raise BadInput(
                f"job {spec.name}: expected 'workers' ≥ 1 or a list of 'hosts'",
                hint="the number is left to a policy where the controller, or simulate, runs with "
                "--partition POLICY",
            )
        for name in spec.hosts:
            host = lab.host(name)
            if host.name in named:
                raise BadInput(
                    f"{host.name} is asked for twice: by {named[host.name]} and {spec.name}"
                )
            named[host.name] = spec.name
            _check_host(host, spec)
        able = sum(h.gpu is not None and spec.runs_on(h.gpu.model) for h in lab.hosts)
        if not spec.hosts and spec.workers > able:
            raise BadInput(
                f"job {spec.name}: {spec.workers} workers asked for: the lab has {able} GPUs "
                "that it can run on" + _models(spec)
            )
    usable = [h.name for h in lab.hosts if h.gpu is not None]
    asked = sum(spec.size for spec in specs)
    if asked > len(usable):
        raise BadInput(f"{asked} workers asked for: the lab has {len(usable)} GPUs with a NIC")
    return specs


def _with_gradient(lab: Lab, spec: JobSpec) -> JobSpec:
    if spec.trainer != "torch" or spec.model is None:
        return spec
    # Links are scaled and a real gradient is not: in the lab's terms it is so much larger.
    real_bytes = builtin_graph(spec.model).parameter_bytes
    return replace(spec, gradient_bytes=round(real_bytes * lab.scale))


def _models(spec: JobSpec) -> str:
    models = spec.gpu_models or tuple(spec.compute_s)
    return f", of {', '.join(models)}" if models else ""


def _check_host(host: Host, spec: JobSpec) -> None:
    if host.gpu is None:
        raise BadInput(f"job {spec.name}: {host.name} has no GPU")
    if not spec.runs_on(host.gpu.model):
        lacks = "gpu_models" if host.gpu.model in spec.compute_s else "compute_s"
        raise BadInput(
            f"job {spec.name}: {host.name} is a {host.gpu.model}, which the job cannot run on",
            hint=f"add it to {lacks}, which has {', '.join(getattr(spec, lacks)) or 'none'}",
        )


def _check_models(lab: Lab, spec: JobSpec) -> None:
    models = sorted({host.gpu.model for host in lab.hosts if host.gpu is not None})
    for field in ("compute_s", "gpu_models"):
        for model in getattr(spec, field):
            if model not in models:
                raise BadInput(
                    f"job {spec.name}: {field} names {model[:40]!r}: "
                    + nearest(model, models, "the lab's GPUs with a NIC are of")
                )


def _check_command(spec: JobSpec) -> None:
    try:
        command_task(spec)
    except ValidationError as error:
        where = "; ".join(
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()
        )
        raise BadInput(f"job {spec.name}: {where}") from error


def _check_memory(lab: Lab, spec: JobSpec) -> None:
    if spec.trainer == "command":
        _check_command(spec)
    if spec.trainer != "synthetic":
        return
    scaled = scaled_gradient_bytes(spec.gradient_bytes, lab)
    if scaled > LARGEST_TASK_GRADIENT_BYTES:
        raise BadInput(
            f"job {spec.name}: a gradient of {spec.gradient_bytes} bytes is {scaled} in each "
            f"worker at the lab's scale of {lab.scale:g}: the limit is "
            f"{LARGEST_TASK_GRADIENT_BYTES}",
            hint="a smaller gradient, or an emulated lab with a larger --scale",
        )
