"""Checks submitted jobs, and makes the specs of their workers for the agents."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pydantic import ValidationError

from patchlight.controller.jobs.cluster_view import graph_of
from patchlight.controller.policies.registry import is_built_in
from patchlight.testbed.errors import (
    BadInput,
    PatchlightError,
    in_words,
    mistakes_in_words,
    nearest,
)
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.jobs import CommandTask, JobSpec, checked_specs
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.rules import PolicyChoice
from patchlight.testbed.wire import worker_api

# Each worker has its own network namespace, so all rings use one port.
RING_PORT = 29500
_FULL_WINDOW_BYTES = 8 * 2**20
_LEAST_WINDOW_BYTES = 16 * 2**10
_MOST_WINDOW_BYTES = 200_000


class JobFailed(PatchlightError):
    """A worker of the job failed; with the ``last_lines`` of its output, and its ``hosts``."""

    def __init__(
        self,
        message: str,
        last_lines: Sequence[str] = (),
        hosts: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.last_lines = tuple(last_lines)
        self.hosts = tuple(hosts)


class CannotGoOn(JobFailed):
    """A job was stopped to continue with other workers, which could not start."""


def error_text(error: Exception) -> str:
    """An error for a job's record, with its hint; for a bug also its type."""
    return (
        str(error) if isinstance(error, PatchlightError) else in_words(error)
    )


def worker_id(
    job_id: str,
    attempt: int,
    rank: int,
) -> str:
    """The id of a worker, different in each attempt."""
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
) -> list[worker_api.WorkerSpec]:
    """The specs of the workers, one per rank; ``JobFailed`` if an agent would refuse them."""
    try:
        ring = [
            worker_api.RingMember(
                rank=rank,
                address=host.nic.address,
                port=RING_PORT,
            )
            for rank, host in enumerate(hosts)
        ]
        neighbours = [
            worker_api.Neighbour(
                address=host.nic.address,
                mac=mac_of(host),
            )
            for host in hosts
        ]
        rendezvous = [host.nic.rendezvous for host in hosts]
        first = (
            rendezvous[0].address.ip
            if rendezvous[0] and all(rendezvous)
            else None
        )
        return [
            worker_api.WorkerSpec(
                id=worker_id(job_id, attempt, rank),
                job=job_id,
                user=user,
                rank=rank,
                gpu=host.gpu.name if host.gpu else None,
                nic=host.nic.name,
                ring=ring,
                rendezvous=first,
                neighbours=[
                    n for n in neighbours if n.address != host.nic.address
                ],
                checkpoint=spec.checkpoint,
                memory_bytes=spec.memory_bytes,
                cpus=spec.cpus,
                stop_grace_s=spec.stop_grace_s,
                task=_task(
                    spec,
                    host,
                    lab,
                    first_iteration,
                    len(hosts),
                ),
            )
            for rank, host in enumerate(hosts)
        ]
    except ValidationError as error:
        raise JobFailed(
            f"job {spec.name}: agents would refuse it: {mistakes_in_words(error)}"
        ) from error


def _task(
    spec: JobSpec,
    host: Host,
    lab: Lab,
    first_iteration: int,
    workers: int,
) -> worker_api.Task:
    window = {"window_bytes": scaled_window_bytes(lab)}
    if spec.trainer == "command":
        return command_task(spec).model_copy(update=window)
    compute_s = spec.compute_s.get(host.gpu.model, 0.0) if host.gpu else 0.0
    if spec.trainer == "torch":
        return torch_task(spec, compute_s, workers).model_copy(update=window)
    return worker_api.SyntheticTask(
        iterations=spec.iterations,
        gradient_bytes=scaled_gradient_bytes(spec.gradient_bytes, lab),
        window_bytes=window["window_bytes"],
        compute_s=compute_s / (workers if spec.is_split else 1),
        seed=spec.seed,
        first_iteration=first_iteration,
        paths=lab.paths == "nodes" and workers > 1,
        transport=spec.transport,
    )


def torch_task(
    spec: JobSpec,
    compute_s: float = 0.0,
    workers: int = 1,
) -> worker_api.TorchTask:
    """The task of a job with a model, whose mini-batch split workers share;
    ``pydantic.ValidationError`` if an agent would refuse it."""
    model = spec.model or ""
    batch = spec.batch
    share = workers if spec.is_split else 1
    if spec.is_split:
        batch = max(1, (batch or builtin_graph(model).batch or 1) // share)
    return worker_api.TorchTask(
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
    """The task of a command job; ``pydantic.ValidationError`` if an agent would refuse it."""
    fields = CommandTask.model_fields.keys() - {"window_bytes"}
    return CommandTask(**{name: getattr(spec, name) for name in fields})


def goes_on_at(spec: JobSpec, done: int) -> int:
    """The iteration at which a job resumes; a real trainer uses its checkpoint."""
    if spec.trainer != "synthetic":
        return 0
    # It may have failed after its last one.
    return max(0, min(done, spec.iterations - 1))


def scaled_gradient_bytes(gradient_bytes: int, lab: Lab) -> int:
    """A gradient divided by the lab's scale, in whole float32 values."""
    return max(4, round(gradient_bytes / lab.scale / 4) * 4)


def scaled_window_bytes(lab: Lab) -> int | None:
    """The receive window of a worker, or ``None`` for the kernel's choice.

    If rates are scaled down, the data in flight must be too. The kernel's windows suit fast links:
    they overflow the queue of a link of a few Mb/s, and connections with losses there share it by
    chance. 8 MiB fill a link of 40 Gb/s over 1.6 ms. Frames do not scale: with less than about ten
    in flight (16 KiB) a connection is sensitive to every delay. Linux grants about 200 KB: above
    that its own choice is better.
    """
    window = max(_LEAST_WINDOW_BYTES, round(_FULL_WINDOW_BYTES / lab.scale))
    return window if window <= _MOST_WINDOW_BYTES else None


def check_policies(specs: Sequence[JobSpec], choice: PolicyChoice) -> None:
    """``BadInput`` for a policy that is neither built in nor the lab's own: any user may submit
    jobs, and a policy is a program that runs next to the controller."""
    for spec in specs:
        for kind in ("placement", "topology"):
            name = getattr(spec, kind)
            if (
                name is None
                or name == choice.of(kind)
                or is_built_in(name, kind)
            ):
                continue
            raise BadInput(
                f"job {spec.name}: {kind} {name[:40]!r} is not a built-in policy and not the "
                f"lab's",
                hint="an operator can select it for all jobs: 'patchlight policy use'",
            )


def check_specs(
    lab: Lab,
    given: Sequence[JobSpec],
    *,
    counted: bool,
) -> list[JobSpec]:
    """The checked specs, with the real gradients of models; ``BadInput`` for jobs that could never
    run. ``counted``: a job without hosts must give its number of workers."""
    if not given:
        raise BadInput("no job given")
    specs = checked_specs(list(given))
    for number, spec in enumerate(specs):
        if spec.trainer == "torch" and spec.model is not None:
            # Links are scaled and a real gradient is not: in the lab's scale it is larger.
            real_bytes = builtin_graph(spec.model).parameter_bytes
            specs[number] = replace(
                spec, gradient_bytes=round(real_bytes * lab.scale)
            )
    named: dict[str, str] = {}
    for spec in specs:
        _check_spec(lab, spec)
        if not spec.hosts and spec.workers < 1 and counted:
            raise BadInput(
                f"job {spec.name}: expected 'workers' ≥ 1 or a list of 'hosts'",
                hint="with --partition POLICY, the controller or simulate lets a policy decide "
                "the number",
            )
        for name in spec.hosts:
            host = lab.host(name)
            if host.name in named:
                raise BadInput(
                    f"{host.name} is requested twice: by {named[host.name]} and {spec.name}"
                )
            named[host.name] = spec.name
            _check_host(host, spec)
        able = sum(
            h.gpu is not None and spec.runs_on(h.gpu.model) for h in lab.hosts
        )
        least = spec.least_workers
        if not spec.hosts and least > able:
            models = ", ".join(spec.gpu_models or spec.compute_s)
            raise BadInput(
                f"job {spec.name}: {least} workers requested, but the lab has {able} "
                "suitable GPUs" + (models and f", of {models}")
            )
    usable = sum(host.gpu is not None for host in lab.hosts)
    asked = sum(spec.least_workers for spec in specs)
    if asked > usable:
        raise BadInput(
            f"{asked} workers requested, but the lab has {usable} GPUs with a NIC"
        )
    return specs


def _check_host(host: Host, spec: JobSpec) -> None:
    if host.gpu is None:
        raise BadInput(f"job {spec.name}: {host.name} has no GPU")
    if not spec.runs_on(host.gpu.model):
        lacks = (
            "gpu_models" if host.gpu.model in spec.compute_s else "compute_s"
        )
        raise BadInput(
            f"job {spec.name}: {host.name} is a {host.gpu.model}, which the job cannot run on",
            hint=f"add it to {lacks}, which has {', '.join(getattr(spec, lacks)) or 'none'}",
        )


def _check_spec(lab: Lab, spec: JobSpec) -> None:
    """``BadInput`` for unknown GPU models, a bad command or graph, or too large a gradient."""
    models = sorted(
        {host.gpu.model for host in lab.hosts if host.gpu is not None}
    )
    for field in ("compute_s", "gpu_models"):
        for model in getattr(spec, field):
            if model not in models:
                raise BadInput(
                    f"job {spec.name}: {field} names {model[:40]!r}: "
                    + nearest(
                        model, models, "the lab's GPUs with a NIC are of"
                    )
                )
    if spec.trainer == "command":
        try:
            command_task(spec)
        except ValidationError as error:
            where = "; ".join(
                f"{'.'.join(map(str, each['loc']))}: {each['msg']}"
                for each in error.errors()
            )
            raise BadInput(f"job {spec.name}: {where}") from error
    scaled = scaled_gradient_bytes(spec.gradient_bytes, lab)
    limit = worker_api.LARGEST_TASK_GRADIENT_BYTES
    if spec.trainer == "synthetic" and scaled > limit:
        raise BadInput(
            f"job {spec.name}: a gradient of {spec.gradient_bytes} bytes is {scaled} per worker "
            f"at the lab's scale of {lab.scale:g}: the limit is {limit}",
            hint="use a smaller gradient, or an emulated lab with a larger --scale",
        )
    if spec.graph is not None:
        graph_of(spec.graph)
