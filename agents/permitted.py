"""What a worker may ask for: the one place that says no, whoever asks."""

import os
from dataclasses import replace
from pathlib import Path

from patchlight.agents.errors import BadRequest, Forbidden
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.io.issues import short
from patchlight.testbed.lab.access import WRITABLE, WorkerPolicy
from patchlight.testbed.units import format_size
from patchlight.testbed.wire.worker_api import TorchTask, WorkerSpec

_OF_THE_KERNEL = [Path("/proc"), Path("/sys"), Path("/dev"), Path("/run")]
_OF_US = [Path("/var/lib/patchlight"), Path("/var/lib/docker")]
_OF_THE_SERVER = [Path("/etc"), *_OF_THE_KERNEL, *_OF_US]
_OF_THE_WORKER = [Path("/etc/hosts"), *_OF_THE_KERNEL, Path("/opt/patchlight")]
_DOCKER_SOCKET = "/var/run/docker.sock"


def permitted(spec: WorkerSpec, policy: WorkerPolicy) -> WorkerSpec:
    """The worker to be launched: with the paths that were looked at, which no link changes later.

    ``policy`` is its lab's. ``Forbidden`` for what belongs to the server or the lab does not allow;
    ``BadRequest`` for what is not there, or would hide what Patchlight puts into the worker.
    """
    _within(spec, policy)
    task, checkpoint = spec.task, spec.checkpoint
    if checkpoint is not None:
        checkpoint = _seen(spec, policy, checkpoint, writes=True, is_made=True)
    if isinstance(task, TorchTask) and task.data is not None:
        task = task.model_copy(update={"data": _seen(spec, policy, task.data)})
    if isinstance(task, CommandTask):
        mounts = []
        for mount in task.mounts:
            _hides_nothing(spec, mount.target)
            source = _seen(spec, policy, mount.source, writes=not mount.read_only)
            mounts.append(replace(mount, source=source))
        task = task.model_copy(update={"mounts": mounts})
    return spec.model_copy(update={"checkpoint": checkpoint, "task": task})


def _seen(
    spec: WorkerSpec,
    policy: WorkerPolicy,
    path: str,
    *,
    writes: bool = False,
    is_made: bool = False,
) -> str:
    """Where a path leads that the worker may see; ``is_made``: only the folder above is needed."""
    real, problem = Path(os.path.normpath(path)), ""
    try:
        real = Path(os.path.realpath(path))
        (real.parent if is_made else real).stat()
    except (OSError, ValueError) as exc:
        problem = getattr(exc, "strerror", None) or str(exc)
    for kept in [*_OF_THE_SERVER, _docker_socket()]:
        if _overlap(real, kept):
            raise Forbidden(
                f"worker {spec.id} asks for {short(path)}: {kept} of a server is for no worker",
                hint="mount a folder of data, like /srv/data",
            )
    named = {each.removesuffix(WRITABLE): each.endswith(WRITABLE) for each in policy.mounts}
    folders = {Path(os.path.realpath(each)): is_open for each, is_open in named.items()}
    around = [each for each in folders if real.is_relative_to(each)]
    inside = [each for each in folders if each.is_relative_to(real)]
    closest = max(around, key=lambda each: len(each.parts), default=None)
    if closest is None or (writes and not all(folders[each] for each in (closest, *inside))):
        wanted, verb = (f"{path}{WRITABLE}", "write to") if writes else (path, "see")
        raise Forbidden(
            f"worker {spec.id} asks for {short(path)}: the lab lets workers {verb} no such folder",
            hint=f"it names {', '.join(policy.mounts) or 'none'}; its owner adds it to the lab "
            f"file: workers: {{mounts: [{short(wanted)!r}]}}",
        )
    if problem:
        why = f"{short(path)}, which cannot be used on this server: {problem}"
        raise BadRequest(f"worker {spec.id} asks for {why}")
    return str(real)


def _within(spec: WorkerSpec, policy: WorkerPolicy) -> None:
    image = getattr(spec.task, "image", None)
    if image is not None and not policy.allows_image(image):
        allowed = ", ".join(policy.images or ()) or "none"
        raise Forbidden(
            f"worker {spec.id} asks for the image {image}, which the lab allows to no worker",
            hint=f"those that it does: {allowed} ('images' under 'workers' of the lab file)",
        )
    most, wanted = policy.memory_bytes, spec.memory_bytes
    if most is not None and wanted is not None and wanted > most:
        raise Forbidden(
            f"worker {spec.id} asks for {format_size(wanted)} of memory: the lab allows "
            f"{format_size(most)} ('memory' under 'workers' of the lab file)"
        )
    if policy.cpus is not None and spec.cpus is not None and spec.cpus > policy.cpus:
        raise Forbidden(
            f"worker {spec.id} asks for {spec.cpus:g} CPUs: the lab allows {policy.cpus:g} "
            "('cpus' under 'workers' of the lab file)"
        )


def _hides_nothing(spec: WorkerSpec, target: str) -> None:
    for kept in _OF_THE_WORKER:
        if _overlap(Path(os.path.normpath("/" + target.lstrip("/"))), kept):
            raise BadRequest(
                f"worker {spec.id}: nothing can be mounted at {target}: {kept} of a worker is "
                "made by Patchlight or the kernel"
            )


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _docker_socket() -> Path:
    url = os.environ.get("DOCKER_HOST", "")
    return Path(os.path.realpath(url.removeprefix("unix://") or _DOCKER_SOCKET))
