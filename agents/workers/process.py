"""Workers as plain processes, each in a network namespace of its own."""

from __future__ import annotations

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
    TRAINING,
    ExitInfo,
    WorkerHandle,
    WorkerLaunch,
    last_lines,
)
from patchlight.testbed.linux import namespaces

_OUTPUT_TAIL = 16 * 1024


class ProcessRunner:
    """Runs workers with this Python. They end when the agent does, even by ``kill -9``."""

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

    async def launch(self, order: WorkerLaunch) -> ProcessWorker:
        """Make the namespace and start Python in it."""
        process = await asyncio.to_thread(self._launch, order)
        return ProcessWorker(process, order.directory / "output.log")

    def _launch(self, order: WorkerLaunch) -> subprocess.Popen[bytes]:
        order.write_task(str(order.gpu_socket) if order.gpu_socket else None)
        namespace = namespaces.create(order.namespace)
        command = [
            "nsenter", f"--net={namespace}", "--",
            sys.executable, "-s", "-m", "patchlight.agents.training",
            "--task", str(order.directory / "task.json"), "--lifeline",
        ]  # fmt: skip
        try:
            with (order.directory / "output.log").open("ab") as output:
                return subprocess.Popen(
                    command,
                    cwd=order.directory,
                    env=_environment(order),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is for the agent, which stops its workers
                )
        except OSError as exc:
            namespaces.delete(order.namespace)
            raise LaunchError(f"starting worker {order.worker}: {exc}") from exc

    async def end_leftover(self, trace: WorkerHandle) -> None:
        """Kill the process if it is still the one that was started."""
        if trace.pid is not None and trace.started is not None:
            await asyncio.to_thread(_kill_leftover, trace.pid, trace.started)

    async def sweep(self) -> None:
        """Nothing: processes without a lease ended with their agent."""

    async def close(self) -> None:
        """Nothing is held open."""


class ProcessWorker:
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
    def trace(self) -> WorkerHandle:
        """Its process number and start."""
        return WorkerHandle(pid=self._process.pid, started=self._started)

    async def ended(self) -> ExitInfo:
        """Wait for the process."""
        await self._gone.wait()
        lines = await asyncio.to_thread(_tail, self._output)
        return ExitInfo(self._process.returncode, lines)

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL."""
        self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self._gone.wait()
        except TimeoutError:
            self._process.kill()
            await self._gone.wait()

    async def dispose(self) -> None:
        """Close the lifeline."""
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment(order: WorkerLaunch) -> dict[str, str]:
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "HOME") if name in os.environ}
    return {
        **keep,
        "PYTHONPATH": str(TRAINING.parents[2]),
        "PYTHONUNBUFFERED": "1",
        # One worker is one GPU's process; threads of a linear algebra library would fight.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        **({"CUDA_VISIBLE_DEVICES": order.gpu_uuid} if order.gpu_uuid else {}),
    }


def _start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process (proc(5), stat field 22)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def _kill_leftover(pid: int, started: int) -> None:
    deadline = time.monotonic() + 5
    while _start_time(pid) == started and time.monotonic() < deadline:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if _is_zombie(pid):
            return
        time.sleep(0.01)


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def _tail(path: Path) -> tuple[str, ...]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_TAIL))
            return last_lines(file.read().decode(errors="replace"))
    except OSError:
        return ()
