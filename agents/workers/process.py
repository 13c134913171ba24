"""Runs workers as plain processes, each in its own network namespace."""

import asyncio
import contextlib
import functools
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from patchlight.agents.errors import BadRequest, LaunchError, log
from patchlight.agents.workers import (
    confinement,
    contract,
    forking,
    keeper,
    limits,
    programs,
)
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.jobs import CommandTask
from patchlight.testbed.lab.rules import DYNAMIC
from patchlight.testbed.linux import namespaces
from patchlight.testbed.linux.processes import (
    Cgroups,
    boot_id,
    cpus_of,
    process_start,
)
from patchlight.testbed.wire.worker_api import SyntheticTask, TorchTask

_INHERITED = ("PATH", "LANG", "PATCHLIGHT_RUN")


class ProcessRunner(contract.Runner):
    """Runs workers as children that outlive this process, as ``user`` of this machine, or
    ``dynamic``: one user per job owner of the ``lab``. ``fork_from``: socket of the forking
    process."""

    name = "process"

    def __init__(
        self,
        user: str = DYNAMIC,
        fork_from: Path | None = None,
        lab: str = "",
    ) -> None:
        self.worker_user = user
        self._user = limits.named_user(user)
        self._fork_from = fork_from
        self._lab = lab

    @functools.cached_property
    def _cgroups(self) -> Cgroups:
        return Cgroups()

    async def open(self) -> None:
        """Workers need root to be made, and what confines them."""
        if os.geteuid() != 0:
            raise LaunchError(
                "workers need network namespaces, which need root",
                hint="run the agent as root",
            )
        await asyncio.to_thread(confinement.check_possible)
        unlimited = {"memory", "pids", "cpu"} - set(self._cgroups.controllers)
        if unlimited:
            log.warning(
                "no cgroups for workers' %s on this machine: memory is limited per process, "
                "processes per user, CPUs without a limit",
                ", ".join(sorted(unlimited)),
            )

    async def launch(
        self, launch: contract.WorkerLaunch
    ) -> contract.RunningWorker:
        """Make the namespace and start the program's keeper in it."""
        task = launch.spec.task
        image = None if isinstance(task, SyntheticTask) else task.image
        if image or (isinstance(task, CommandTask) and task.mounts):
            what = f"the image {image}" if image else "mounts"
            raise BadRequest(
                f"worker {launch.spec.id} requests {what}, but this agent runs workers as "
                "processes",
                hint="run the agent with --worker-kind docker, or omit image and mounts: the "
                "program then sees the server's files",
            )
        handle, child = await asyncio.to_thread(self._launch, launch)
        return _ProcessWorker(
            handle,
            launch.namespace,
            launch.directory,
            self._cgroups,
            child,
        )

    def _launch(
        self, launch: contract.WorkerLaunch
    ) -> tuple[contract.WorkerHandle, subprocess.Popen[bytes] | None]:
        folder = launch.directory
        code = folder / "python" / programs.TRAINING_IN_PATH
        code.parent.mkdir(parents=True)
        code.symlink_to(programs.TRAINING)
        places = programs.WorkerPlaces(
            folder=str(folder),
            code=str(folder / "python"),
            python=sys.executable,
            numpy=forking.numpy_folder(),
            gpu_socket=str(launch.gpu_socket) if launch.gpu_socket else None,
            checkpoint=launch.spec.checkpoint,
            data=launch.spec.task.data
            if isinstance(launch.spec.task, TorchTask)
            else None,
        )
        program = programs.program_of(launch, places)
        if program.gated:
            keeper.make_gate(folder)
        (folder / "hosts").write_text(programs.hosts_file(launch))
        user = self._user or limits.user_for(self._lab, launch.spec.user)
        if places.data is not None:
            limits.refuse_inside_workers_folders(launch.spec.id, places.data)
        if launch.spec.checkpoint is not None:
            limits.ready_checkpoint(
                launch.spec.id, launch.spec.checkpoint, user
            )
        if launch.gpu_socket is not None:
            os.chown(launch.gpu_socket, user.uid, user.gid)
        namespaces.create(launch.namespace)
        try:
            groups = self._cgroups.make(launch.namespace, launch.limits)
            # A cgroup counts processes better than the kernel's limit for a user, which includes
            # the user's other workers and zombies. Root's processes are not counted.
            counted = user.is_root or "pids" in self._cgroups.controllers
            rlimits = {} if counted else {"nproc": launch.limits.processes}
            if "memory" not in self._cgroups.controllers:
                rlimits["data"] = launch.limits.memory_bytes
            if self._fork_from is not None and _can_be_forked(
                program, launch, user
            ):
                limits.hand_over(user, folder)
                with contextlib.suppress(
                    OSError
                ):  # no forking process: start it the slow way
                    return _fork(
                        self._fork_from,
                        program,
                        launch,
                        user,
                        groups,
                        rlimits,
                    ), None
            command = _write_program(program, launch, user)
            # The tools that confine it write there too.
            (folder / keeper.OUTPUT).touch()
            limits.hand_over(user, folder)
            kept = keeper.kept(
                command,
                str(folder),
                gated=program.gated,
                waited_for=False,
            )
            # A process starts in the namespace of the thread that creates it.
            with namespaces.entered(
                namespaces.namespace_path(launch.namespace)
            ):
                child, pid = confinement.begin(
                    ["/bin/sh", *kept[1:]],
                    launch,
                    user,
                    groups,
                    rlimits,
                    _code(),
                )
            return contract.WorkerHandle(
                pid=pid,
                started=process_start(pid),
                boot=boot_id(),
            ), child
        except (OSError, PatchlightError) as exc:
            with contextlib.suppress(
                PatchlightError
            ):  # there may be one that did not answer
                namespaces.end_all(launch.namespace)
            namespaces.delete(launch.namespace)
            with contextlib.suppress(PatchlightError):
                self._cgroups.remove(launch.namespace)
            if isinstance(exc, PatchlightError):
                raise
            raise LaunchError(
                f"starting worker {launch.spec.id}: {reason(exc)}"
            ) from exc

    async def adopt(
        self,
        handle: contract.WorkerHandle,
        namespace: str,
        directory: Path,
    ) -> contract.RunningWorker:
        """The keeper with that process id, unless the id was reused."""
        return _ProcessWorker(
            handle,
            namespace,
            directory,
            self._cgroups,
        )

    async def sweep(self, known: Container[str | None]) -> None:
        """Remove the cgroups of interrupted launches: those whose namespace is gone."""
        for name in self._cgroups.names():
            if not namespaces.namespace_path(name).exists():
                with contextlib.suppress(PatchlightError):
                    await asyncio.to_thread(self._cgroups.remove, name, 0.0)


def _code() -> list[Path]:
    python = Path(os.path.realpath(sys.executable)).parents[1]
    numpy = forking.numpy_folder()
    prefixes = {
        Path(sys.prefix),
        Path(sys.base_prefix),
        python,
        *([Path(numpy)] if numpy else []),
    }
    return [
        *sorted(prefixes),
        programs.TRAINING,
        programs.TRAINING.parents[1] / "testbed",
    ]


def _can_be_forked(
    program: programs.WorkerProgram,
    launch: contract.WorkerLaunch,
    user: limits.WorkerUser,
) -> bool:
    """Whether it runs only built-in code that its user can read."""
    if not program.needs_numpy_alone or launch.rdma_devices:
        return False
    own = launch.directory
    for ours in (own.parent, own.parent.parent):
        ours.chmod(ours.stat().st_mode | 0o011)
    needed = [
        own,
        *_code(),
        *([launch.gpu_socket] if launch.gpu_socket else []),
    ]
    return not any(map(user.closed, needed))


def _search_path(path: str) -> str:
    """Where a program's python3 and torchrun are: in Patchlight's environment
    if PyTorch is there, else where the server has them."""
    own = f"{sys.prefix}/bin"
    has_torch = importlib.util.find_spec("torch") is not None
    return f"{own}:{path}" if has_torch else f"{path}:{own}"


def _environment(
    program: programs.WorkerProgram,
    launch: contract.WorkerLaunch,
    user: limits.WorkerUser,
) -> dict[str, str]:
    keep = {
        name: os.environ[name] for name in _INHERITED if name in os.environ
    }
    who = dict.fromkeys(("USER", "LOGNAME"), user.name)
    return {
        **keep,
        "PATH": _search_path(keep.get("PATH", os.defpath)),
        **who,
        "HOME": str(launch.directory),
        **program.environment,
    }


def _write_program(
    program: programs.WorkerProgram,
    launch: contract.WorkerLaunch,
    user: limits.WorkerUser,
) -> list[str]:
    """The command that runs the program. The job's variables and folder are set by a script that
    only the worker's user can read, so they do not appear in process lists."""
    variables = _environment(program, launch, user).items()
    lines = [
        f"cd {shlex.quote(program.directory)} || exit 126",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables),
        f"exec {shlex.join(program.command)}",
    ]
    path = launch.directory / "program"
    path.touch(mode=0o600)
    path.write_text("\n".join([*lines, ""]), errors="surrogateescape")
    return ["/bin/sh", str(path)]


def _fork(
    path: Path,
    program: programs.WorkerProgram,
    launch: contract.WorkerLaunch,
    user: limits.WorkerUser,
    groups: Sequence[Path],
    rlimits: Mapping[str, int],
) -> contract.WorkerHandle:
    order = forking.ForkRequest(
        folder=program.directory,
        namespace=str(namespaces.namespace_path(launch.namespace)),
        uid=user.uid,
        gid=user.gid,
        processes=rlimits.get("nproc"),
        groups=[str(group) for group in groups],
        cpus=sorted(cpus_of(launch.cpus)) if launch.cpus else [],
        environment=_environment(program, launch, user),
        arguments=program.command,
    )
    try:
        pid, started = forking.fork(path, order)
    except forking.NotForked as exc:
        raise LaunchError(
            f"starting worker {launch.spec.id}: {reason(exc)}"
        ) from exc
    return contract.WorkerHandle(
        pid=pid,
        started=started,
        boot=boot_id(),
    )


class _ProcessWorker:
    def __init__(
        self,
        handle: contract.WorkerHandle,
        namespace: str,
        directory: Path,
        cgroups: Cgroups,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._handle = handle
        self._namespace = namespace
        self._directory = directory
        self._cgroups = cgroups
        self._child = child
        self._gone = asyncio.Event()
        self._descriptor = _pidfd(handle)
        if self._descriptor is None:
            self._gone.set()
        else:
            asyncio.get_running_loop().add_reader(
                self._descriptor, self._on_exit
            )

    def _on_exit(self) -> None:
        assert self._descriptor is not None
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = None
        self._gone.set()

    @property
    def handle(self) -> contract.WorkerHandle:
        return self._handle

    async def ended(self) -> contract.ExitInfo:
        await self._gone.wait()
        code, unreadable = keeper.exit_code(self._directory)
        lines = await asyncio.to_thread(
            keeper.last_lines, self._directory / keeper.OUTPUT
        )
        out_of_memory = self._cgroups.ran_out_of_memory(self._namespace)
        return contract.ExitInfo(
            code,
            lines,
            out_of_memory,
            unreadable,
        )

    async def stop(self, grace_s: float) -> None:
        self._signal(signal.SIGTERM)
        if self._descriptor is not None:
            await self.thaw()
        try:
            async with asyncio.timeout(grace_s):
                await self._gone.wait()
        except TimeoutError:
            # First: it would write the exit code of a program whose fork was refused.
            self._signal(signal.SIGKILL)
        await self.dispose()
        await self._gone.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, number)

    async def freeze(self) -> None:
        await asyncio.to_thread(namespaces.stop_all, self._namespace)

    async def thaw(self) -> None:
        await asyncio.to_thread(namespaces.continue_all, self._namespace)

    async def dispose(self) -> None:
        def remove() -> None:
            # A program that forks faster than it is killed would never end.
            self._cgroups.kill(self._namespace)
            namespaces.end_all(self._namespace)
            if self._child is not None:
                self._child.wait()
            self._cgroups.remove(self._namespace)
            with contextlib.suppress(
                OSError
            ):  # from now on only the agent can read it
                os.chown(self._directory, 0, 0)

        await asyncio.to_thread(remove)


def _pidfd(handle: contract.WorkerHandle) -> int | None:
    if (
        handle.pid is None
        or handle.started is None
        or handle.boot != boot_id()
    ):
        return None
    try:
        descriptor = os.pidfd_open(handle.pid)
    except ProcessLookupError:
        return None
    # Checked once the descriptor is open, the number cannot be reused.
    if process_start(handle.pid) != handle.started:
        os.close(descriptor)
        return None
    return descriptor
