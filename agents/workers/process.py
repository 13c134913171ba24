"""Workers as plain processes, each in a network namespace of its own."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from patchlight.agents.errors import BadRequest, LaunchError
from patchlight.agents.workers import keeper, output
from patchlight.agents.workers.contract import (
    ExitInfo,
    Runner,
    RunningWorker,
    WorkerHandle,
    WorkerLaunch,
)
from patchlight.agents.workers.programs import (
    TRAINING,
    TRAINING_IN_PATH,
    Places,
    Program,
    program_of,
)
from patchlight.testbed.commands import CommandTask
from patchlight.testbed.linux import namespace_processes, namespaces
from patchlight.testbed.linux.processes import boot_id, process_start
from patchlight.testbed.worker_api import SyntheticTask, TorchTask

# An emulated lab finds all its processes by the last one, also those that left their namespace.
_INHERITED = ("PATH", "LANG", "HOME", "PATCHLIGHT_RUN")


class ProcessRunner(Runner):
    """Runs workers as children of this process that go on when it ends."""

    name = "process"

    async def open(self) -> None:
        """Workers need root."""
        if os.geteuid() != 0:
            raise LaunchError(
                "workers need network namespaces, and those need root", hint="run the agent as root"
            )

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Make the namespace and start the program's keeper in it."""
        _refuse_containers_things(launch)
        child = await asyncio.to_thread(self._launch, launch)
        handle = WorkerHandle(pid=child.pid, started=process_start(child.pid), boot=boot_id())
        return _ProcessWorker(handle, launch.namespace, launch.directory, child)

    def _launch(self, launch: WorkerLaunch) -> subprocess.Popen[bytes]:
        folder = launch.directory
        code = folder / "python" / TRAINING_IN_PATH
        code.parent.mkdir(parents=True)
        code.symlink_to(TRAINING)
        places = Places(
            folder=str(folder),
            code=str(folder / "python"),
            python=sys.executable,
            gpu_socket=str(launch.gpu_socket) if launch.gpu_socket else None,
            checkpoint=launch.spec.checkpoint,
            data=launch.spec.task.data if isinstance(launch.spec.task, TorchTask) else None,
        )
        program = program_of(launch, places)
        if program.gated:
            keeper.make_gate(folder)
        namespaces.create(launch.namespace)
        try:
            # A process begins in the namespace of the thread that makes it.
            with namespaces.entered(namespaces.namespace_path(launch.namespace)):
                return _start(program, folder)
        except OSError as exc:
            namespaces.delete(launch.namespace)
            raise LaunchError(f"starting worker {launch.spec.id}: {exc}") from exc

    async def adopt(self, handle: WorkerHandle, namespace: str, directory: Path) -> RunningWorker:
        """The keeper of that number, unless it has become somebody else's."""
        return _ProcessWorker(handle, namespace, directory)


def _start(program: Program, folder: Path) -> subprocess.Popen[bytes]:
    keep = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return subprocess.Popen(
        keeper.kept(program.command, str(folder), gated=program.gated, waited_for=False),
        cwd=program.directory,
        env={**keep, **program.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the agent alone
    )


def _refuse_containers_things(launch: WorkerLaunch) -> None:
    task = launch.spec.task
    image = None if isinstance(task, SyntheticTask) else task.image
    if image or (isinstance(task, CommandTask) and task.mounts):
        what = f"the image {image}" if image else "mounts"
        raise BadRequest(
            f"worker {launch.spec.id} asks for {what}, but this agent runs workers as processes",
            hint="run the agent with --workers docker, or leave image and mounts out: the program "
            "then sees the server's own files",
        )


class _ProcessWorker:
    """One worker's keeper, and what runs in its namespace."""

    def __init__(
        self,
        handle: WorkerHandle,
        namespace: str,
        directory: Path,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._handle, self._namespace, self._directory = handle, namespace, directory
        self._child = child
        self._gone = asyncio.Event()
        self._descriptor = _pidfd(handle)
        if self._descriptor is None:
            self._reap()
        else:
            asyncio.get_running_loop().add_reader(self._descriptor, self._on_exit)

    def _on_exit(self) -> None:
        assert self._descriptor is not None
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self._reap()

    def _reap(self) -> None:
        if self._child is not None:
            self._child.wait()
        self._gone.set()

    @property
    def handle(self) -> WorkerHandle:
        return self._handle

    async def ended(self) -> ExitInfo:
        await self._gone.wait()
        code = keeper.exit_code(self._directory)
        lines = await asyncio.to_thread(output.last_lines, self._directory / keeper.OUTPUT)
        return ExitInfo(code, lines)

    async def stop(self, grace_s: float) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
            await self.thaw()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._gone.wait()
        await self.dispose()
        await self._gone.wait()

    async def freeze(self) -> None:
        await asyncio.to_thread(namespace_processes.stop_all, self._namespace)

    async def thaw(self) -> None:
        await asyncio.to_thread(namespace_processes.continue_all, self._namespace)

    async def dispose(self) -> None:
        await asyncio.to_thread(namespace_processes.end_all, self._namespace)


def _pidfd(handle: WorkerHandle) -> int | None:
    """A descriptor that tells when the process ends; ``None`` if it has."""
    if handle.pid is None or handle.started is None or handle.boot != boot_id():
        return None
    try:
        descriptor = os.pidfd_open(handle.pid)
    except ProcessLookupError:
        return None
    # Looked at once the number cannot be given to another process any more.
    if process_start(handle.pid) != handle.started:
        os.close(descriptor)
        return None
    return descriptor
