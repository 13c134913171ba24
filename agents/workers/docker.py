"""Workers as Docker containers: no network of their own, no privileges, one NIC moved in."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import DeviceRequest, LogConfig

from patchlight.agents.errors import LaunchError
from patchlight.agents.workers.contract import (
    ENVIRONMENT,
    TRAINING,
    ExitInfo,
    RunningWorker,
    WorkerHandle,
    WorkerLaunch,
    last_lines,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import deploy_file, namespaces
from patchlight.testbed.linux.scheduling import favour_like_this_process

if TYPE_CHECKING:
    from docker.models.containers import Container

T = TypeVar("T")

_CODE = "/opt/patchlight"
_FOLDER = "/run/worker"
_GPU_SOCKET = "/run/gpu.sock"
_MIB = 1024 * 1024
# The engine says no, or is not there: requests' errors are OSErrors.
_REFUSED = (DockerException, OSError)


class DockerRunner:
    """Runs workers on the Docker engine of ``$DOCKER_HOST`` (default: the host's)."""

    name = "docker"

    def __init__(self, lab: str, server: str, image: str) -> None:
        self._labels = {"patchlight.lab": lab, "patchlight.server": server}
        self._image = image
        self._client: Any = None

    async def open(self) -> None:
        """Reach the engine and see that the image is there."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        try:
            self._client = docker.from_env(timeout=30)
            self._client.ping()
        except _REFUSED as exc:
            raise LaunchError(
                f"reaching the Docker engine at {where}: {exc}",
                hint=f"start one: sudo bash {deploy_file('docker-engine.sh')} start; or run the "
                "agent with --workers process",
            ) from exc
        self._check_image()

    def _check_image(self) -> None:
        try:
            self._client.images.get(self._image)
        except ImageNotFound as exc:
            raise LaunchError(
                f"the Docker engine has no image {self._image}",
                hint=f"build it: sudo bash {deploy_file('worker-image.sh')}",
            ) from exc

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Create and start the container, and keep its network namespace."""
        return _DockerWorker(await asyncio.to_thread(self._launch, launch))

    def _launch(self, launch: WorkerLaunch) -> Container:
        launch.write_task(_GPU_SOCKET if launch.gpu_socket else None)
        try:
            container: Container = self._client.containers.create(**self._settings(launch))
        except ImageNotFound:
            self._check_image()
            raise
        except _REFUSED as exc:
            raise LaunchError(f"creating the container of worker {launch.worker}: {exc}") from exc
        try:
            container.start()
            container.reload()
            pid = container.attrs["State"]["Pid"]
            if not pid:
                raise LaunchError(
                    f"worker {launch.worker} ended at once: {' | '.join(_log_tail(container))}"
                )
            favour_like_this_process(pid)
            namespaces.keep(launch.namespace, pid)
        except (*_REFUSED, PatchlightError) as exc:
            _remove(container)
            if isinstance(exc, PatchlightError):
                raise
            raise LaunchError(f"starting the container of worker {launch.worker}: {exc}") from exc
        return container

    def _settings(self, launch: WorkerLaunch) -> dict[str, Any]:
        mounts = {
            str(TRAINING): {"bind": f"{_CODE}/patchlight/agents/training", "mode": "ro"},
            str(launch.directory): {"bind": _FOLDER, "mode": "rw"},
        }
        if launch.gpu_socket is not None:
            mounts[str(launch.gpu_socket)] = {"bind": _GPU_SOCKET, "mode": "rw"}
        settings: dict[str, Any] = {
            "image": self._image,
            "name": launch.namespace,
            "command": f"python3 -m patchlight.agents.training --task {_FOLDER}/task.json".split(),
            "labels": {
                **self._labels,
                "patchlight.worker": launch.worker,
                "patchlight.job": launch.job,
            },
            "environment": {**ENVIRONMENT, "PYTHONPATH": _CODE, "PYTHONDONTWRITEBYTECODE": "1"},
            "volumes": mounts,
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "tmpfs": {"/tmp": "size=64m"},
            "pids_limit": 256,
            "mem_limit": 1024 * _MIB + 8 * int(launch.task["gradient_bytes"]),
            "log_config": LogConfig(type="json-file", config={"max-size": "1m", "max-file": "1"}),
            "working_dir": _FOLDER,
        }
        if launch.gpu_uuid is not None:
            # By UUID: indices differ inside. PyTorch wants far more memory than the gradient.
            settings["device_requests"] = [
                DeviceRequest(device_ids=[launch.gpu_uuid], capabilities=[["gpu"]])
            ]
            del settings["mem_limit"]
        return settings

    async def end_leftover(self, handle: WorkerHandle) -> None:
        """Kill and remove the container of that id."""
        if handle.container is not None:
            await asyncio.to_thread(self._remove_id, handle.container)

    def _remove_id(self, container: str) -> None:
        try:
            _remove(self._client.containers.get(container))
        except NotFound:
            return

    async def sweep(self) -> None:
        """Remove containers that carry this lab's and server's labels."""
        await asyncio.to_thread(self._sweep)

    def _sweep(self) -> None:
        labels = [f"{key}={value}" for key, value in self._labels.items()]
        leftovers = self._client.containers.list(
            all=True, filters={"label": labels}, ignore_removed=True
        )
        for container in leftovers:
            _remove(container)

    async def close(self) -> None:
        """Close the connection to the engine."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


class _DockerWorker:
    """One container."""

    def __init__(self, container: Container) -> None:
        self._container = container

    @property
    def handle(self) -> WorkerHandle:
        return WorkerHandle(container=self._container.id)

    async def ended(self) -> ExitInfo:
        return await _in_own_thread(self._wait)

    def _wait(self) -> ExitInfo:
        try:
            code = int(self._container.wait(timeout=None)["StatusCode"])
        except NotFound:
            return ExitInfo(137, ("the container was removed by somebody else",))
        except _REFUSED as exc:
            return ExitInfo(255, (f"the Docker engine was lost: {exc}",))
        return ExitInfo(code, _log_tail(self._container))

    async def stop(self, grace_s: float) -> None:
        await asyncio.to_thread(self._stop, grace_s)

    def _stop(self, grace_s: float) -> None:
        try:
            self._container.stop(timeout=round(grace_s))
        except NotFound:
            return
        except _REFUSED as exc:
            raise LaunchError(f"stopping the container {self._container.name}: {exc}") from exc

    async def dispose(self) -> None:
        await asyncio.to_thread(_remove, self._container)


def _remove(container: Container) -> None:
    try:
        container.remove(force=True, v=True)
    except NotFound:
        return
    except _REFUSED as exc:
        if isinstance(exc, APIError) and exc.status_code == 409:
            return  # its removal is under way already
        raise LaunchError(f"removing the container {container.name}: {exc}") from exc


def _log_tail(container: Container) -> tuple[str, ...]:
    try:
        return last_lines(container.logs(tail=20).decode(errors="replace"))
    except _REFUSED:
        return ()


async def _in_own_thread(function: Callable[[], T]) -> T:
    """Like ``asyncio.to_thread``, but for waits of hours: those would use up its few threads."""
    future = Future[T]()
    future.set_running_or_notify_cancel()  # who waits may be cancelled, the thread may not

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as exc:
            future.set_exception(exc)

    threading.Thread(target=run, daemon=True, name="docker-wait").start()
    return await asyncio.wrap_future(future)
