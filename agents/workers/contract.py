"""What a runner of workers does: processes and containers alike."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from patchlight import agents

TRAINING = Path(agents.__file__).absolute().parent / "training"

# One worker is one GPU's process; threads of a linear algebra library would fight.
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """One worker to launch.

    ``directory`` is the worker's own folder; ``namespace`` is the name its network namespace
    is to be kept under. ``task`` is the training task without ``gpu_socket``, which depends on
    where the runner puts the socket.
    """

    lab: str
    server: str
    worker: str
    job: str
    directory: Path
    namespace: str
    task: Mapping[str, Any]
    gpu_socket: Path | None = None
    gpu_uuid: str | None = None

    def write_task(self, gpu_socket: str | None) -> None:
        """Put the task file into the worker's folder."""
        text = json.dumps({**self.task, "gpu_socket": gpu_socket})
        (self.directory / "task.json").write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """What is left of a worker when its agent has died: enough to find it and end it.

    ``pid`` with ``started`` (clock ticks since boot, so that a reused number is told apart),
    or ``container``.
    """

    pid: int | None = None
    started: int | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a worker ended; a negative code is the signal that killed it."""

    exit_code: int
    last_lines: tuple[str, ...] = field(default=())


class RunningWorker(Protocol):
    """A worker that was launched."""

    @property
    def handle(self) -> WorkerHandle:
        """How to find it again."""

    async def ended(self) -> ExitInfo:
        """Wait for its end. To be awaited once."""

    async def stop(self, grace_s: float) -> None:
        """Ask it to end, and kill it after ``grace_s``. Harmless when it has ended."""

    async def dispose(self) -> None:
        """Remove what is left of it (not its folder, not its namespace). Idempotent."""


class Runner(Protocol):
    """Launches workers: a network namespace, kept under a name, with training code in it."""

    name: str

    async def open(self) -> None:
        """Check that workers can be run here; ``LaunchError`` that says what is missing."""

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Start the worker; on return its namespace is kept. ``LaunchError`` leaves nothing."""

    async def end_leftover(self, handle: WorkerHandle) -> None:
        """End and remove a worker of an agent that died. Harmless if it is gone."""

    async def sweep(self) -> None:
        """Remove workers of this server that no lease knows of, if there can be any."""
        return

    async def close(self) -> None:
        """Let go of what ``open`` took, if it took anything."""
        return


def last_lines(text: str, count: int = 20) -> tuple[str, ...]:
    """The last lines of a worker's output."""
    return tuple(line.rstrip() for line in text.splitlines()[-count:])
