"""What a worker may ask for: the one place that says no, whoever asks."""

import os
from collections.abc import Iterator
from pathlib import Path

from patchlight.agents.errors import BadRequest, Forbidden
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.worker_api import TorchTask, WorkerSpec

_OF_THE_SERVER = [Path(each) for each in ("/etc", "/proc", "/sys", "/dev", "/run")]
_DOCKER_SOCKET = "/var/run/docker.sock"
_OF_THE_WORKER = [Path(each) for each in ("/proc", "/sys", "/dev", "/run", "/opt/patchlight")]


def permitted(spec: WorkerSpec) -> None:
    """Raise unless the worker may have the files that it asks for.

    ``Forbidden`` for what belongs to the server; ``BadRequest`` for what is not there, or would
    hide what Patchlight puts into the worker.
    """
    for source in _sources(spec):
        real = Path(os.path.realpath(source))
        for kept in [*_OF_THE_SERVER, _docker_socket()]:
            if _overlap(real, kept):
                raise Forbidden(
                    f"worker {spec.id} asks for {source}: {kept} of a server is for no worker",
                    hint="mount a folder of data, like /srv/data",
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
