"""Which jobs a lab takes: those that could run in it."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import ValidationError

from patchlight.controller.jobs.cluster_view import graph_of
from patchlight.controller.jobs.worker_specs import command_task, scaled_gradient_bytes
from patchlight.controller.policies.registry import is_built_in
from patchlight.testbed.errors import BadInput
from patchlight.testbed.graphs import builtin_graph
from patchlight.testbed.io.issues import nearest
from patchlight.testbed.jobs import JobSpec, checked_specs
from patchlight.testbed.lab.model import Host, Lab
from patchlight.testbed.lab.queueing import PolicyChoice
from patchlight.testbed.wire.worker_api import LARGEST_TASK_GRADIENT_BYTES


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
