"""Workers as plain processes, each in a network namespace of its own."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from patchlight.agents.errors import LaunchError
from patchlight.agents.workers.contract import (
    ENVIRONMENT,
    TRAINING,
    ExitInfo,
    Runner,
    RunningWorker,
    WorkerHandle,
    WorkerLaunch,
    last_lines,
)
from patchlight.testbed.linux import namespaces

_OUTPUT_TAIL = 16 * 1024


class ProcessRunner(Runner):
    """Runs workers with this Python. They end when the agent does, even by ``kill -9``.

    So there are none without a lease to sweep away.
    """

    name = "process"

    async def open(self) -> None:
        """Workers need ``nsenter`` and root."""
        if shutil.which("nsenter") is None:
            raise LaunchError(
                "workers as processes need nsenter, which is not installed",
                hint="apt-get install util-linux",
            )
        if os.geteuid() != 0:
            raise LaunchError(
                "workers need network namespaces, and those need root", hint="run the agent as root"
            )

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Make the namespace and start Python in it."""
        process = await asyncio.to_thread(self._launch, launch)
        return _ProcessWorker(process, launch.directory / "output.log")

    def _launch(self, launch: WorkerLaunch) -> subprocess.Popen[bytes]:
        launch.write_task(str(launch.gpu_socket) if launch.gpu_socket else None)
        namespace = namespaces.create(launch.namespace)
        command = ["nsenter", f"--net={namespace}", "--", sys.executable, "-s"]
        command += ["-m", "patchlight.agents.training", "--lifeline"]
        command += ["--task", str(launch.directory / "task.json")]
        try:
            with (launch.directory / "output.log").open("ab") as output:
                return subprocess.Popen(
                    command,
                    cwd=launch.directory,
                    env=_environment(launch),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the agent, which stops its workers
                )
        except OSError as exc:
            namespaces.delete(launch.namespace)
            raise LaunchError(f"starting worker {launch.worker}: {exc}") from exc

    async def end_leftover(self, handle: WorkerHandle) -> None:
        """Kill the process if it is still the one that was started."""
        if handle.pid is not None and handle.started is not None:
            await asyncio.to_thread(_kill_leftover, handle.pid, handle.started)


class _ProcessWorker:
    """One worker process. The agent holds its standard input: that is its lifeline."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process = process
        self._output = output
        self._started = _start_time(process.pid)
        self._gone = asyncio.Event()
        self._descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._process.wait()
        self._gone.set()

    @property
    def handle(self) -> WorkerHandle:
        return WorkerHandle(pid=self._process.pid, started=self._started)

    async def ended(self) -> ExitInfo:
        await self._gone.wait()
        lines = await asyncio.to_thread(_tail, self._output)
        return ExitInfo(self._process.returncode, lines)

    async def stop(self, grace_s: float) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._gone.wait()
        except TimeoutError:
            self._process.kill()
            await self._gone.wait()

    async def dispose(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment(launch: WorkerLaunch) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    return {
        **keep,
        **ENVIRONMENT,
        "PYTHONPATH": str(TRAINING.parents[2]),
        **({"CUDA_VISIBLE_DEVICES": launch.gpu_uuid} if launch.gpu_uuid else {}),
    }


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process (proc(5), stat field 22)."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name; none if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _kill_leftover(pid: int, started: int) -> None:
    deadline = time.monotonic() + 5
    while _start_time(pid) == started and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if _stat(pid)[:1] in ([], ["Z"]):
            return
        time.sleep(0.01)


def _tail(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_TAIL))
            return last_lines(file.read().decode(errors="replace"))
    except OSError:
        return ()
