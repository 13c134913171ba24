"""Defines what a worker runner does: for processes, containers and installed plug-ins."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from patchlight.agents.gpus import PhysicalGpu
from patchlight.agents.nics.state import RdmaDevice
from patchlight.testbed.lab.rules import DYNAMIC
from patchlight.testbed.linux.processes import Limits
from patchlight.testbed.wire.worker_api import WorkerSpec


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerLaunch:
    """One worker to launch. Its folder is ``directory``; its network namespace is kept under the
    name ``namespace``. ``interface`` is its NIC there; ``rendezvous_interface`` a second interface,
    if any; ``rdma`` its RDMA device; ``dscp`` the mark of its packets; ``cpus`` those near its GPU
    and NIC in Linux list format (``0-15,32-47``; empty: all). ``hosts``: the lab's host names by
    address, full names first."""

    spec: WorkerSpec
    directory: Path
    namespace: str
    interface: str
    limits: Limits
    gpu_socket: Path | None = None
    gpu: PhysicalGpu | None = None
    rendezvous_interface: str | None = None
    rdma: RdmaDevice | None = None
    dscp: int | None = None
    cpus: str = ""
    hosts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def address(self) -> str:
        """The address of its NIC."""
        spec = self.spec
        return next(
            str(member.address)
            for member in spec.ring
            if member.rank == spec.rank
        )

    @property
    def gpu_uuid(self) -> str | None:
        """The UUID by which CUDA finds the worker's GPU, if it has one."""
        return self.gpu.uuid if self.gpu else None

    @property
    def rdma_devices(self) -> tuple[Path, ...]:
        """The device files through which its program uses the RDMA device."""
        return tuple(map(Path, self.rdma.files)) if self.rdma else ()


@dataclass(
    frozen=True,
    slots=True,
)
class WorkerHandle:
    """Identifies a worker after an agent restart: ``pid`` and its start time ``started`` (clock
    ticks since boot), as numbers are reused, or ``container``; both valid for one ``boot``."""

    pid: int | None = None
    started: int | None = None
    boot: str | None = None
    container: str | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class ExitInfo:
    """How a worker ended; an exit code above 128 may be 128 + a signal. ``out_of_memory``: the
    kernel killed one of its processes at its memory limit. ``unreadable``: why there is no code."""

    exit_code: int
    last_lines: tuple[str, ...] = field(default=())
    out_of_memory: bool = False
    unreadable: str = ""

    @property
    def in_words(self) -> str:
        """The exit code as part of a sentence."""
        if self.unreadable:
            return (
                f"ended, but its exit code cannot be read: {self.unreadable}"
            )
        killed = 128 < self.exit_code < 128 + 65
        signal = (
            f" (killed by signal {self.exit_code - 128})" if killed else ""
        )
        memory = ": it exceeded its memory limit" if self.out_of_memory else ""
        return f"ended with exit code {self.exit_code}{signal}{memory}"


class RunningWorker(Protocol):
    """A worker launched by this agent or an earlier one."""

    @property
    def handle(self) -> WorkerHandle:
        """How the next agent finds it."""

    async def ended(self) -> ExitInfo:
        """Wait for its end. Await it once."""

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after ``grace_s``. Harmless after its end."""

    async def freeze(self) -> None:
        """Freeze all its processes. Idempotent."""

    async def thaw(self) -> None:
        """Thaw them. Idempotent."""

    async def dispose(self) -> None:
        """Remove its remains and those of its children, but not its folder. Idempotent."""


class Runner(Protocol):
    """Launches workers that outlive it: a program in a network namespace that is kept under a name.
    ``gpu_access``: how they get an NVIDIA GPU, set by ``open``; ``worker_user``: their user."""

    name: str
    gpu_access: str = ""
    worker_user: str = ""

    async def open(self) -> None:
        """Check that workers can run here; ``LaunchError`` names what is missing."""

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Start the worker; its namespace is kept. ``LaunchError`` leaves nothing behind."""

    async def adopt(
        self,
        handle: WorkerHandle,
        namespace: str,
        directory: Path,
    ) -> RunningWorker:
        """The worker that an earlier agent launched, running or ended."""

    async def sweep(self, known: Container[str | None]) -> None:
        """Remove this server's containers that are not ``known``, if it uses containers."""
        return

    async def close(self) -> None:
        """Release what ``open`` took; workers continue."""
        return


DEFAULT_IMAGE = "patchlight-worker:latest"


@dataclass(
    frozen=True,
    slots=True,
)
class BackendOptions:
    """An agent's options: its lab and server, the containers' image, their access to NVIDIA GPUs,
    the user of processes, and the socket of the process that forks workers."""

    lab: str
    server: str
    image: str = DEFAULT_IMAGE
    gpu_access: str = "auto"
    worker_user: str = DYNAMIC
    fork_from: Path | None = None
