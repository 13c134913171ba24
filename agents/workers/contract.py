"""What a runner of workers does, for processes, containers and packages that users install."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from patchlight.agents.gpus import PhysicalGpu
from patchlight.agents.nics.state import RdmaDevice
from patchlight.testbed.lab.rules import DYNAMIC
from patchlight.testbed.linux.processes import Limits
from patchlight.testbed.wire.worker_api import WorkerSpec


@dataclass(frozen=True, slots=True)
class WorkerLaunch:
    """One worker to launch, in its own folder ``directory``, with a network namespace to be kept
    under the name ``namespace``. ``interface`` is what its NIC is called in there, beside
    ``rendezvous_interface`` if it gets a second one; ``rdma`` its RDMA device, ``dscp`` what its
    packets are marked with; ``cpus`` those near its GPU and NIC, as Linux lists them
    (``0-15,32-47``; empty: all). ``hosts``: the lab's host names by address, full names first."""

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
        return next(str(member.address) for member in spec.ring if member.rank == spec.rank)

    @property
    def gpu_uuid(self) -> str | None:
        """The UUID by which CUDA finds the worker's GPU, if that is how it is found."""
        return self.gpu.uuid if self.gpu else None

    @property
    def rdma_devices(self) -> tuple[Path, ...]:
        """The device files by which its program reaches the RDMA device."""
        return tuple(map(Path, self.rdma.files)) if self.rdma else ()


@dataclass(frozen=True, slots=True)
class WorkerHandle:
    """Enough to find a worker again: ``pid`` and when it ``started`` (clock ticks since boot), as
    numbers are reused, or ``container``; none of it outlives its ``boot``."""

    pid: int | None = None
    started: int | None = None
    boot: str | None = None
    container: str | None = None


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a worker ended; an exit code above 128 may be 128 + a signal. ``out_of_memory``: the
    kernel ended a process of it because of its limit."""

    exit_code: int
    last_lines: tuple[str, ...] = field(default=())
    out_of_memory: bool = False

    @property
    def in_words(self) -> str:
        """The exit code as part of a sentence."""
        killed = 128 < self.exit_code < 128 + 65
        signal = f" (killed by signal {self.exit_code - 128})" if killed else ""
        memory = ": it has used up the memory that it may have" if self.out_of_memory else ""
        return f"ended with exit code {self.exit_code}{signal}{memory}"


class RunningWorker(Protocol):
    """A worker that was launched, by this agent or one before it."""

    @property
    def handle(self) -> WorkerHandle:
        """How to find it again."""

    async def ended(self) -> ExitInfo:
        """Wait for its end; at once if it has ended already. To be awaited once."""

    async def stop(self, grace_s: float) -> None:
        """Tell it to end, and kill it after ``grace_s``. Harmless when it has ended."""

    async def freeze(self) -> None:
        """Stop all its processes where they are; again is harmless."""

    async def thaw(self) -> None:
        """Let them go on; harmless where they do."""

    async def dispose(self) -> None:
        """Remove what is left of it, what it forked too (not its folder). Idempotent."""


class Runner(Protocol):
    """Launches workers, which outlive it: a network namespace, kept under a name, with a program in
    it. ``gpu_access``: how they get an NVIDIA GPU, once it is open; ``worker_user``: whom they run
    as."""

    name: str
    gpu_access: str = ""
    worker_user: str = ""

    async def open(self) -> None:
        """Check that workers can be run here; ``LaunchError`` that says what is missing."""

    async def launch(self, launch: WorkerLaunch) -> RunningWorker:
        """Start the worker; on return its namespace is kept. ``LaunchError`` leaves nothing."""

    async def adopt(self, handle: WorkerHandle, namespace: str, directory: Path) -> RunningWorker:
        """The worker that an earlier agent launched, alive or ended."""

    async def sweep(self, known: Container[str | None]) -> None:
        """Remove containers of this server that are not ``known``, if there can be any."""
        return

    async def close(self) -> None:
        """Let go of what ``open`` took, if it took anything; workers go on."""
        return


DEFAULT_IMAGE = "patchlight-worker:latest"


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """An agent's options: its lab and server, the image of containers, how they get an NVIDIA
    GPU, the user of processes, and the socket at which they are forked."""

    lab: str
    server: str
    image: str = DEFAULT_IMAGE
    gpu_access: str = "auto"
    worker_user: str = DYNAMIC
    fork_from: Path | None = None
