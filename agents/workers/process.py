"""Workers as plain processes, each in a network namespace of its own."""

import asyncio
import contextlib
import functools
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Container, Sequence
from pathlib import Path

from patchlight.agents.errors import BadRequest, LaunchError
from patchlight.agents.workers import confinement, forking, keeper, output
from patchlight.agents.workers.confinement import WorkerUser
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
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux import namespace_processes, namespaces
from patchlight.testbed.linux.cgroups import Cgroups
from patchlight.testbed.linux.cpu_lists import cpus_of
from patchlight.testbed.linux.processes import boot_id, process_start
from patchlight.testbed.worker_api import SyntheticTask, TorchTask

# An emulated lab finds all its processes by the last one, also those that left their namespace.
_INHERITED = ("PATH", "LANG", "HOME", "PATCHLIGHT_RUN")
# What it forked before it is within its limits would not be.
_WHEN_TOLD = 'read -r _ && exec "$@" </dev/null'
_log = logging.getLogger("patchlight.agent")

# How to find a worker, and its keeper if that is a child of this process.
_Begun = tuple[WorkerHandle, subprocess.Popen[bytes] | None]


class ProcessRunner(Runner):
    """Runs workers as children of this process that go on when it ends.

    ``user`` is whom they run as: a user of this machine, or ``dynamic``, one of nobody else's for
    each worker. With ``fork_from``, workers of ours are forked there (``forking.py``).
    """

    name = "process"

    def __init__(self, user: str = "root", fork_from: Path | None = None) -> None:
        self._user, self._fork_from = confinement.named_user(user), fork_from

    @functools.cached_property
    def _cgroups(self) -> Cgroups:
        return Cgroups()

    async def open(self) -> None:
        """Workers need root to be made, and tools of util-linux."""
        if os.geteuid() != 0:
            raise LaunchError(
                "workers need network namespaces, and those need root", hint="run the agent as root"
            )
        if not (shutil.which("setpriv") and shutil.which("prlimit")):
            raise LaunchError(
                "workers as processes need the programs setpriv and prlimit",
                hint="apt install util-linux",
            )
        unlimited = {"memory", "pids"} - set(self._cgroups.controllers)
        if unlimited:
            _log.warning(
                "no limits for workers on %s: this machine lets nobody make such cgroups",
                ", ".join(sorted(unlimited)),
            )

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Make the namespace and start the program's keeper in it."""
        _refuse_containers_things(launch)
        handle, child = await asyncio.to_thread(self._launch, launch)
        return _ProcessWorker(handle, launch.namespace, launch.directory, self._cgroups, child)

    def _launch(self, launch: WorkerLaunch) -> _Begun:
        folder = launch.directory
        code = folder / "python" / TRAINING_IN_PATH
        code.parent.mkdir(parents=True)
        code.symlink_to(TRAINING)
        places = Places(
            folder=str(folder),
            code=str(folder / "python"),
            python=sys.executable,
            numpy=_numpy_folder(),
            gpu_socket=str(launch.gpu_socket) if launch.gpu_socket else None,
            checkpoint=launch.spec.checkpoint,
            data=launch.spec.task.data if isinstance(launch.spec.task, TorchTask) else None,
        )
        program = program_of(launch, places)
        if program.gated:
            keeper.make_gate(folder)
        namespaces.create(launch.namespace)
        try:
            user = self._user_of(launch)
            groups = self._cgroups.make(launch.namespace, launch.limits)
            most = confinement.most_processes(launch, user, self._cgroups)
            plain = program.needs_numpy_alone and not launch.rdma_devices
            if self._fork_from is not None and plain:
                with contextlib.suppress(OSError):  # nobody is there: it is slower without
                    return _fork(self._fork_from, program, launch, user, groups, most), None
            # A process begins in the namespace of the thread that makes it.
            with namespaces.entered(namespaces.namespace_path(launch.namespace)):
                child = _start(program, launch, user, groups, most)
            started = process_start(child.pid)
            return WorkerHandle(pid=child.pid, started=started, boot=boot_id()), child
        except (OSError, PatchlightError) as exc:
            with contextlib.suppress(PatchlightError):  # one may be there that did not answer
                namespace_processes.end_all(launch.namespace)
            namespaces.delete(launch.namespace)
            with contextlib.suppress(PatchlightError):
                self._cgroups.remove(launch.namespace)
            if isinstance(exc, PatchlightError):
                raise
            raise LaunchError(f"starting worker {launch.spec.id}: {exc}") from exc

    def _user_of(self, launch: WorkerLaunch) -> WorkerUser:
        """Whom this worker runs as, once all that is the worker's is the user's, too."""
        user = self._user
        if user is None:
            inode = namespaces.inode(namespaces.namespace_path(launch.namespace))
            assert inode is not None
            user = confinement.user_of_namespace(inode)
            if launch.spec.checkpoint is not None:
                raise LaunchError(
                    f"worker {launch.spec.id} has a checkpoint, and its user is of its own: the "
                    "next attempt could not read it",
                    hint="run the agent with --worker-user NAME, whose checkpoints they are then",
                )
        if not user.is_root:
            folder = launch.directory
            for ours in (folder.parent, folder.parent.parent):
                ours.chmod(ours.stat().st_mode | 0o011)  # what is in them stays closed
            for path in (folder, TRAINING, Path(sys.executable), Path(os.__file__)):
                confinement.check_reach(user, path)
            confinement.hand_over(user, folder)
            if launch.gpu_socket is not None:
                confinement.check_reach(user, launch.gpu_socket)
                os.chown(launch.gpu_socket, user.uid, user.gid)
        return user

    async def adopt(self, handle: WorkerHandle, namespace: str, directory: Path) -> RunningWorker:
        """The keeper of that number, unless it has become somebody else's."""
        return _ProcessWorker(handle, namespace, directory, self._cgroups)

    async def sweep(self, known: Container[str | None]) -> None:
        """Remove the cgroups of workers whose namespace has gone: of launches that were cut off."""
        for name in self._cgroups.names():
            if not namespaces.namespace_path(name).exists():
                with contextlib.suppress(PatchlightError):
                    await asyncio.to_thread(self._cgroups.remove, name, 0.0)


@functools.cache
def _numpy_folder() -> str | None:
    """The folder of Python's path that has NumPy in it; it is not imported here."""
    found = importlib.util.find_spec("numpy")
    return str(Path(found.origin).parent.parent) if found and found.origin else None


def _environment(program: Program, launch: WorkerLaunch, user: WorkerUser) -> dict[str, str]:
    keep = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    if not user.is_root:
        keep["HOME"] = str(launch.directory)
    return {**keep, **program.environment}


def _fork(
    path: Path,
    program: Program,
    launch: WorkerLaunch,
    user: WorkerUser,
    groups: Sequence[Path],
    most: int | None,
) -> WorkerHandle:
    order = forking.Order(
        folder=program.directory,
        namespace=str(namespaces.namespace_path(launch.namespace)),
        uid=user.uid,
        gid=user.gid,
        processes=most,
        groups=[str(group) for group in groups],
        cpus=sorted(cpus_of(launch.cpus)) if launch.cpus else [],
        environment=_environment(program, launch, user),
        arguments=program.command,
    )
    try:
        pid, started = forking.fork(path, order)
    except forking.NotForked as exc:
        raise LaunchError(f"starting worker {launch.spec.id}: {exc}") from exc
    return WorkerHandle(pid=pid, started=started, boot=boot_id())


def _start(
    program: Program,
    launch: WorkerLaunch,
    user: WorkerUser,
    groups: Sequence[Path],
    most: int | None,
) -> subprocess.Popen[bytes]:
    folder = str(launch.directory)
    command = keeper.kept(program.command, folder, gated=program.gated, waited_for=False)
    confined = confinement.confined(command, launch, user, most)
    child = subprocess.Popen(
        ["sh", "-c", _WHEN_TOLD, "patchlight-keeper", *confined],
        cwd=program.directory,
        env=_environment(program, launch, user),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the agent alone
    )
    try:
        assert child.stdin is not None
        with child.stdin as go:
            confinement.limit(child.pid, launch, groups)
            go.write(b"\n")
    except BaseException:
        child.kill()
        child.wait()
        raise
    return child


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
        cgroups: Cgroups,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._handle, self._namespace, self._directory = handle, namespace, directory
        self._cgroups, self._child = cgroups, child
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
        return ExitInfo(code, lines, self._cgroups.ran_out_of_memory(self._namespace))

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
        await asyncio.to_thread(self._dispose)

    def _dispose(self) -> None:
        # One that forks faster than it is found would never be gone.
        self._cgroups.forbid_forks(self._namespace)
        namespace_processes.end_all(self._namespace)
        self._cgroups.remove(self._namespace)
        with contextlib.suppress(OSError):  # from now on the agent alone reads it
            os.chown(self._directory, 0, 0)


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
