"""What a worker may ask for: the one place that says no, whoever asks."""

import os
from collections.abc import Iterator
from pathlib import Path

from patchlight.agents.errors import BadRequest, Forbidden
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.units import format_size
from patchlight.testbed.worker_api import TorchTask, WorkerSpec
from patchlight.testbed.worker_policy import WorkerPolicy

_OF_THE_SERVER = [Path(each) for each in ("/etc", "/proc", "/sys", "/dev", "/run")]
ANYTHING = WorkerPolicy()
_DOCKER_SOCKET = "/var/run/docker.sock"
_OF_THE_WORKER = [Path(each) for each in ("/proc", "/sys", "/dev", "/run", "/opt/patchlight")]


def permitted(spec: WorkerSpec, policy: WorkerPolicy = ANYTHING) -> None:
    """Raise unless the worker may have what it asks for; ``policy`` is its lab's.

    ``Forbidden`` for what belongs to the server or the lab allows to nobody; ``BadRequest`` for
    what is not there, or would hide what Patchlight puts into the worker.
    """
    _within(spec, policy)
    for source in _sources(spec):
        real = Path(os.path.realpath(source))
        for kept in [*_OF_THE_SERVER, _docker_socket()]:
            if _overlap(real, kept):
                raise Forbidden(
                    f"worker {spec.id} asks for {source}: {kept} of a server is for no worker",
                    hint="mount a folder of data, like /srv/data",
                )
        if not _is_allowed(real, policy):
            allowed = ", ".join(policy.mounts or ()) or "none"
            raise Forbidden(
                f"worker {spec.id} asks for {source}: the lab lets workers see no such folder",
                hint=f"those that it does: {allowed} ('mounts' under 'workers' of the lab file)",
            )
        if not real.exists():
            raise BadRequest(f"worker {spec.id} asks for {source}, which this server has not")
    for target in _targets(spec):
        for kept in _OF_THE_WORKER:
            if _overlap(Path(os.path.normpath("/" + target.lstrip("/"))), kept):
                raise BadRequest(
                    f"worker {spec.id}: nothing can be mounted at {target}: {kept} of a worker is "
                    "made by Patchlight or the kernel"
                )


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


def _is_allowed(real: Path, policy: WorkerPolicy) -> bool:
    if policy.mounts is None:
        return True
    return any(real.is_relative_to(os.path.realpath(each)) for each in policy.mounts)


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _targets(spec: WorkerSpec) -> Iterator[str]:
    if isinstance(spec.task, CommandTask):
        yield from (mount.target for mount in spec.task.mounts)


def _sources(spec: WorkerSpec) -> Iterator[str]:
    if isinstance(spec.task, CommandTask):
        yield from (mount.source for mount in spec.task.mounts)
    if isinstance(spec.task, TorchTask) and spec.task.data is not None:
        yield spec.task.data
    if spec.checkpoint is not None:
        yield spec.checkpoint


def _docker_socket() -> Path:
    url = os.environ.get("DOCKER_HOST", "")
    return Path(os.path.realpath(url.removeprefix("unix://") or _DOCKER_SOCKET))
