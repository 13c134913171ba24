"""Runs workers as Docker containers without privileges and networks, and with one NIC moved in."""

import asyncio
import contextlib
import math
import os
import re
import threading
import time
from collections.abc import Callable, Container, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from docker.types import LogConfig, Mount, Ulimit

from patchlight import testbed
from patchlight.agents.errors import LaunchError, log
from patchlight.agents.workers import contract, keeper, limits, programs
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.linux import namespaces, processes, quoted_deploy_file
from patchlight.testbed.wire.worker_api import SyntheticTask, TorchTask

T = TypeVar("T")

_CODE = "/opt/patchlight"
_FOLDER = "/run/worker"
_HOSTS = "hosts"
_GPU_SOCKET = "/run/gpu.sock"
_CHECKPOINT = "/run/checkpoint"
_DATA = "/run/data"
_TORCH_IMAGE = "patchlight-worker-torch:latest"
_GRAPHS = Path(testbed.__file__).absolute().parent
# How long the engine may take to restart.
_ENGINE_BACK_S = 60.0
_ENGINE_RESTARTED = (
    "the Docker engine was restarted, which ends containers unless its daemon.json has "
    '"live-restore": true'
)
# Errors of the Docker client; those of requests are OSErrors.
_REFUSED = (DockerException, OSError)


class DockerRunner:
    """Runs workers on the Docker engine of ``$DOCKER_HOST`` as their user (see ``ProcessRunner``),
    or as root if the engine maps root to another user."""

    name = "docker"
    _mapped_root: limits.WorkerUser | None = None
    _parent: str | None = None

    def __init__(self, options: contract.BackendOptions) -> None:
        self.worker_user = options.worker_user
        self._user = limits.named_user(options.worker_user)
        self._lab = options.lab
        self._image = options.image
        self.gpu_access = options.gpu_access
        self._labels = {
            "patchlight.lab": options.lab,
            "patchlight.server": options.server,
        }
        self._client: Any = None

    async def open(self) -> None:
        """Connect to the engine and check that the image exists."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        try:
            self._client = docker.from_env(timeout=30)
            self._client.ping()
        except _REFUSED as exc:
            raise LaunchError(
                f"reaching the Docker engine at {where}: {reason(exc)}",
                hint=f"start one: sudo bash {quoted_deploy_file('docker-engine.sh')} start; or run "
                "the agent with --worker-kind process",
            ) from exc
        self._check_image(self._image)
        engine = self._client.info()
        # With systemd's driver the parent would have to be a unit of systemd.
        if (
            engine.get("CgroupDriver") == "cgroupfs"
            and processes.Cgroups().controllers
        ):
            self._parent = f"{processes.Cgroups.PARENT}/docker"
        self.gpu_access = limits.find_access(self.gpu_access, engine)
        self._mapped_root = mapped_root(engine)
        if self._mapped_root is not None:
            self.worker_user = (
                f"{self._mapped_root.name}, which is root in the containers"
            )
        log.info(
            "containers run as this user of the server: %s", self.worker_user
        )

    def _check_image(self, image: str) -> None:
        try:
            self._client.images.get(image)
        except ImageNotFound as exc:
            make = (
                f"build it: sudo bash {quoted_deploy_file('worker-image.sh')}"
            )
            hints = {self._image: make, _TORCH_IMAGE: f"{make} --torch"}
            raise LaunchError(
                f"the Docker engine has no image {image}",
                hint=hints.get(image, f"on this server: docker pull {image}"),
            ) from exc

    async def launch(
        self, launch: contract.WorkerLaunch
    ) -> contract.RunningWorker:
        """Create and start the container, and keep its network namespace."""
        container = await asyncio.to_thread(self._launch, launch)
        return _DockerWorker(
            self._client.api,
            container,
            launch.namespace,
            launch.directory,
        )

    def _launch(self, launch: contract.WorkerLaunch) -> str:
        worker = launch.spec.id
        task = launch.spec.task
        image = (isinstance(task, CommandTask | TorchTask) and task.image) or (
            _TORCH_IMAGE if isinstance(task, TorchTask) else self._image
        )
        try:
            container = self._client.containers.create(
                image, **self._settings(launch)
            )
        except ImageNotFound:
            self._check_image(image)
            raise
        except _REFUSED as exc:
            raise LaunchError(
                f"creating the container of worker {worker}: {reason(exc)}"
            ) from exc
        try:
            container.start()
            container.reload()
            pid = container.attrs["State"]["Pid"]
            if not pid:
                last = keeper.last_lines(launch.directory / keeper.OUTPUT)
                raise LaunchError(
                    f"worker {worker} ended immediately: {' | '.join(last)}"
                )
            processes.favour_like_this_process(pid)
            namespaces.keep(launch.namespace, pid)
        except (*_REFUSED, PatchlightError) as exc:
            _remove(self._client.api, container.id)
            if isinstance(exc, PatchlightError):
                raise
            no_shell = f"image {image} must have a POSIX 'sh'"
            raise LaunchError(
                f"starting the container of worker {worker}: {reason(exc)}",
                hint=no_shell if '"sh"' in reason(exc) else None,
            ) from exc
        return str(container.id)

    def _settings(self, launch: contract.WorkerLaunch) -> dict[str, Any]:
        spec = launch.spec
        task = launch.spec.task
        (launch.directory / _HOSTS).write_text(programs.hosts_file(launch))
        program = programs.program_of(
            launch,
            programs.WorkerPlaces(
                folder=_FOLDER,
                code=_CODE,
                python="python3",
                gpu_socket=_GPU_SOCKET if launch.gpu_socket else None,
                checkpoint=_CHECKPOINT if spec.checkpoint else None,
                data=_DATA
                if isinstance(task, TorchTask) and task.data
                else None,
            ),
        )
        if program.gated:
            keeper.make_gate(launch.directory)
        user = (
            self._mapped_root
            or self._user
            or limits.user_for(self._lab, spec.user)
        )
        if spec.checkpoint is not None:
            limits.ready_checkpoint(spec.id, spec.checkpoint, user)
        limits.hand_over(user, launch.directory)
        if launch.gpu_socket is not None:
            os.chown(launch.gpu_socket, user.uid, user.gid)
        gpu = (
            limits.container_settings(self.gpu_access, launch.gpu)
            if launch.gpu
            else {}
        )
        environment = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOME": "/tmp",
            "USER": user.name,
        }
        environment |= program.environment
        environment |= gpu.pop("environment", limits.NO_GPU)
        command = keeper.kept(
            program.command,
            _FOLDER,
            gated=program.gated,
            waited_for=True,
            gpu=launch.gpu,
        )
        settings: dict[str, Any] = {
            "name": launch.namespace,
            "hostname": programs.hostname(launch),
            "entrypoint": ["sh"],
            "command": command[1:],
            "labels": {
                **self._labels,
                "patchlight.worker": spec.id,
                "patchlight.job": spec.job,
            },
            "environment": environment,
            "mounts": _mounts(launch),
            "user": "0:0" if self._mapped_root else f"{user.uid}:{user.gid}",
            "network_mode": "none",
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges"],
            "read_only": True,
            "log_config": LogConfig(type="none"),
            "working_dir": program.directory,
            "mem_limit": launch.limits.memory_bytes,
            "memswap_limit": launch.limits.memory_bytes,  # equal to mem_limit, so no swap
            "pids_limit": launch.limits.processes,
            "cgroup_parent": self._parent,
            **gpu,
        }
        if launch.limits.cpus is not None:
            settings["nano_cpus"] = round(1e9 * launch.limits.cpus)
        if launch.cpus:
            settings["cpuset_cpus"] = launch.cpus
        is_light = isinstance(task, SyntheticTask) and launch.gpu is None
        settings["tmpfs"] = {"/tmp": "size=64m" if is_light else "size=1g"}
        if (
            isinstance(task, CommandTask)
            and task.shared_memory_bytes is not None
        ):
            settings["shm_size"] = task.shared_memory_bytes
        if launch.rdma_devices:
            settings["devices"] = [
                f"{path}:{path}:rw" for path in launch.rdma_devices
            ]
            # Required by RDMA.
            settings["ulimits"] = [
                Ulimit(
                    name="memlock",
                    soft=-1,
                    hard=-1,
                )
            ]
        return settings

    async def adopt(
        self,
        handle: contract.WorkerHandle,
        namespace: str,
        directory: Path,
    ) -> contract.RunningWorker:
        """The container with that id: running, ended or removed."""
        assert handle.container is not None
        return _DockerWorker(
            self._client.api,
            handle.container,
            namespace,
            directory,
        )

    async def sweep(self, known: Container[str | None]) -> None:
        """Remove containers with this lab's and server's labels whose id is not ``known``."""

        def sweep() -> None:
            labels = [f"{key}={value}" for key, value in self._labels.items()]
            for found in self._client.api.containers(
                all=True,
                filters={"label": labels},
            ):
                if found["Id"] not in known:
                    _remove(self._client.api, found["Id"])

        await asyncio.to_thread(sweep)

    async def close(self) -> None:
        """Close the connection to the engine."""
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


def mapped_root(engine: Mapping[str, Any]) -> limits.WorkerUser | None:
    """The user that root in containers is mapped to, if another: it names the engine's folder."""
    if not any(
        "name=userns" in each for each in engine.get("SecurityOptions") or ()
    ):
        return None
    if found := re.search(r"/(\d+)\.(\d+)$", engine.get("DockerRootDir", "")):
        return limits.WorkerUser(
            int(found[1]), int(found[2]), f"uid-{found[1]}"
        )
    raise LaunchError(
        "the Docker engine uses user namespaces but does not report the user that root is "
        "mapped to",
        hint="run the agent with --worker-kind process, or the engine without userns-remap",
    )


def _mounts(launch: contract.WorkerLaunch) -> list[Mount]:
    task = launch.spec.task
    mounts = [
        Mount(
            f"{_CODE}/{programs.TRAINING_IN_PATH}",
            str(programs.TRAINING),
            type="bind",
            read_only=True,
        ),
        Mount(_FOLDER, str(launch.directory), type="bind"),
        Mount(
            "/etc/hosts",
            str(launch.directory / _HOSTS),
            type="bind",
            read_only=True,
        ),
    ]
    if launch.gpu_socket is not None:
        mounts.append(Mount(_GPU_SOCKET, str(launch.gpu_socket), type="bind"))
    if launch.spec.checkpoint is not None:
        mounts.append(Mount(_CHECKPOINT, launch.spec.checkpoint, type="bind"))
    if isinstance(task, TorchTask):
        # Built-in graphs define the models' layers.
        mounts.append(
            Mount(
                f"{_CODE}/patchlight/testbed",
                str(_GRAPHS),
                "bind",
                read_only=True,
            )
        )
        if task.data is not None:
            mounts.append(
                Mount(
                    _DATA,
                    task.data,
                    type="bind",
                    read_only=True,
                )
            )
    if isinstance(task, CommandTask):
        mounts += [
            Mount(
                mount.target,
                mount.source,
                type="bind",
                read_only=mount.read_only,
            )
            for mount in task.mounts
        ]
    return mounts


class _DockerWorker:
    def __init__(
        self,
        engine: Any,
        container: str,
        namespace: str,
        directory: Path,
    ) -> None:
        self._engine = engine
        self._container = container
        self._namespace = namespace
        self._directory = directory

    @property
    def handle(self) -> contract.WorkerHandle:
        return contract.WorkerHandle(
            container=self._container,
            boot=processes.boot_id(),
        )

    async def ended(self) -> contract.ExitInfo:
        return await _in_own_thread(self._wait)

    def _wait(self) -> contract.ExitInfo:
        lost = False
        while True:
            try:
                code = int(
                    self._engine.wait(self._container, timeout=None)[
                        "StatusCode"
                    ]
                )
                break
            except NotFound:
                return contract.ExitInfo(
                    137, ("the container was removed by another program",)
                )
            except _REFUSED as exc:
                # A restarted engine may have left its containers running.
                if isinstance(exc, APIError) or not self._comes_back():
                    return contract.ExitInfo(
                        255,
                        (
                            f"connection to the Docker engine lost: {reason(exc)}",
                        ),
                    )
                lost = True
        lines = keeper.last_lines(self._directory / keeper.OUTPUT)
        if lost and code:
            lines = (*lines, _ENGINE_RESTARTED)
        out_of_memory = False
        with contextlib.suppress(*_REFUSED):
            state = self._engine.inspect_container(self._container)["State"]
            out_of_memory = bool(state.get("OOMKilled"))
        return contract.ExitInfo(code, lines, out_of_memory)

    def _comes_back(self) -> bool:
        end = time.monotonic() + _ENGINE_BACK_S
        while time.monotonic() < end:
            time.sleep(0.5)
            with contextlib.suppress(*_REFUSED):
                self._engine.ping()
                return True
        return False

    async def stop(self, grace_s: float) -> None:
        await _in_own_thread(lambda: self._stop(grace_s))

    def _stop(self, grace_s: float) -> None:
        # A frozen process receives no signals.
        namespaces.continue_all(self._namespace)
        try:
            self._engine.stop(self._container, timeout=math.ceil(grace_s))
        except NotFound:
            return
        except _REFUSED as exc:
            raise LaunchError(
                f"stopping the container {self._container[:12]}: {reason(exc)}"
            ) from exc

    # The engine's pause can be lost soon after its end, and gives up after 0.5 s when busy.
    async def freeze(self) -> None:
        await asyncio.to_thread(namespaces.stop_all, self._namespace)

    async def thaw(self) -> None:
        await asyncio.to_thread(namespaces.continue_all, self._namespace)

    async def dispose(self) -> None:
        await asyncio.to_thread(_remove, self._engine, self._container)


def _remove(engine: Any, container: str) -> None:
    try:
        engine.remove_container(
            container,
            force=True,
            v=True,
        )
    except NotFound:
        return
    except _REFUSED as exc:
        if isinstance(exc, APIError) and exc.status_code == 409:
            return  # its removal is already under way
        raise LaunchError(
            f"removing the container {container[:12]}: {reason(exc)}"
        ) from exc


async def _in_own_thread(function: Callable[[], T]) -> T:
    """Like ``asyncio.to_thread``, but for long waits, which would occupy its few threads."""
    future = Future[T]()
    future.set_running_or_notify_cancel()  # the awaiting task may be cancelled, the thread cannot

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as exc:
            future.set_exception(exc)

    threading.Thread(
        target=run,
        daemon=True,
        name="docker-wait",
    ).start()
    return await asyncio.wrap_future(future)
