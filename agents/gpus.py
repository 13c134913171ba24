"""The server's GPUs: what they are doing, and how a worker reaches the one it gets.

Two backends: NVML for NVIDIA GPUs, and ``socket:DIR`` for GPUs that answer on Unix sockets
(``DIR/<server>.<gpu>.sock``, JSON lines), as emulated ones do.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from patchlight.agents.errors import GpuError
from patchlight.testbed.errors import BadInput
from patchlight.testbed.lab import Gpu, Server


@dataclass(frozen=True, slots=True)
class GpuReading:
    """``utilization``: the fraction (0…1) of the last second in which the GPU was computing;
    ``busy_s``: seconds it has computed since it was first watched."""

    name: str
    model: str
    uuid: str
    utilization: float
    busy_s: float


class GpuBackend(Protocol):
    """Reads the GPUs of one server."""

    async def open(self) -> None:
        """Find the GPUs. One that is not there is an error of ``read`` alone."""

    async def read(self, name: str) -> GpuReading:
        """One GPU's present reading; ``GpuError`` if it does not answer."""

    def socket_of(self, name: str) -> Path | None:
        """The Unix socket through which a worker computes on it, if that is how."""
        return None

    def uuid_of(self, name: str) -> str | None:
        """The UUID by which a container or CUDA gets it, if that is how."""
        return None

    async def close(self) -> None:
        """Stop watching, if anything watches."""
        return


def gpu_backend(choice: str, server: Server) -> GpuBackend:
    """``"nvml"`` or ``"socket:DIR"``; ``BadInput`` otherwise."""
    kind, _, directory = choice.partition(":")
    if choice == "nvml":
        return NvmlGpus(server)
    if kind == "socket" and directory:
        return SocketGpus(server, Path(directory))
    raise BadInput(f"--gpus {choice!r}: expected 'nvml' or 'socket:DIR'")


class SocketGpus(GpuBackend):
    """GPUs behind Unix sockets; each reading closes its own connection."""

    def __init__(self, server: Server, directory: Path, deadline_s: float = 2.0) -> None:
        self._paths = {g.name: directory / f"{server.name}.{g.name}.sock" for g in server.gpus}
        self._deadline_s = deadline_s

    async def open(self) -> None:
        """Wait a while for every GPU's socket: they may be starting just now."""
        end = time.monotonic() + self._deadline_s
        for path in self._paths.values():
            while not path.exists():
                if time.monotonic() > end:
                    break
                await asyncio.sleep(0.02)

    async def read(self, name: str) -> GpuReading:
        """Ask the GPU's socket."""
        path = self._paths[name]
        if not path.exists():
            raise GpuError(
                f"GPU {name} has no socket {path}",
                hint="are the emulated GPUs there? python -m patchlight.emulation.lab.gpus",
            )
        try:
            async with asyncio.timeout(2):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(b'{"op": "query"}\n')
                    reply: dict[str, Any] = json.loads(await reader.readline())
                finally:
                    writer.close()
            return GpuReading(
                name=name,
                model=str(reply["model"]),
                uuid=str(reply["uuid"]),
                utilization=float(reply["utilization"]),
                busy_s=float(reply["busy_s"]),
            )
        except (OSError, TimeoutError, ValueError, KeyError) as exc:
            raise GpuError(f"reading GPU {name} at {path}: {exc or type(exc).__name__}") from exc

    def socket_of(self, name: str) -> Path | None:
        """The GPU's socket."""
        return self._paths[name]


class NvmlGpus(GpuBackend):
    """NVIDIA GPUs, through NVML (``nvidia-ml-py``); CUDA finds them by their UUIDs.

    A GPU of the lab file with a ``uuid`` is that one; one without is the server's GPU at the
    same place in the list, as long as the server has as many as that. NVML counts no busy time, so
    it is summed up from its utilisation, read once a second.
    """

    def __init__(self, server: Server) -> None:
        self._gpus = {gpu.name: (index, gpu) for index, gpu in enumerate(server.gpus)}
        self._problems: dict[str, GpuError] = {}
        self._handles: dict[str, Any] = {}
        self._uuids: dict[str, str] = {}
        self._models: dict[str, str] = {}
        self._busy_s: dict[str, float] = {}
        self._nvml: Any = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Load the driver's library and find the GPUs; ``GpuError`` if there is no driver."""
        await asyncio.to_thread(self._open)
        self._watching = asyncio.create_task(self._watch())

    def _open(self) -> None:
        if not self._gpus:
            return
        try:
            import pynvml
        except ImportError as exc:
            raise GpuError(
                "reading NVIDIA GPUs needs the package nvidia-ml-py, which is not installed",
                hint="pip install nvidia-ml-py",
            ) from exc
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise GpuError(
                f"opening the NVIDIA driver: {exc}",
                hint="install the NVIDIA driver (nvidia-smi must work), or give --gpus socket:DIR "
                "for emulated GPUs",
            ) from exc
        self._nvml = pynvml
        for name, (index, gpu) in self._gpus.items():
            try:
                self._find(name, index, gpu)
            except GpuError as exc:
                self._problems[name] = exc

    def _find(self, name: str, index: int, gpu: Gpu) -> None:
        nvml = self._nvml
        try:
            if gpu.uuid:
                handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            elif (count := nvml.nvmlDeviceGetCount()) < len(self._gpus):
                raise GpuError(
                    f"GPU {name} of the lab file: this server has {count} GPUs of "
                    f"{len(self._gpus)}, and which is missing nobody knows",
                    hint="give each its 'uuid:' in the lab file; nvidia-smi -L shows them",
                )
            else:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
            self._uuids[name] = _text(nvml.nvmlDeviceGetUUID(handle))
            self._models[name] = _text(nvml.nvmlDeviceGetName(handle))
        except nvml.NVMLError as exc:
            which = f"with UUID {gpu.uuid}" if gpu.uuid else f"number {index}"
            raise GpuError(
                f"GPU {name} of the lab file: this server has no GPU {which}: {exc}",
                hint="compare the lab file with: nvidia-smi -L",
            ) from exc
        self._handles[name] = handle
        self._busy_s[name] = 0.0

    async def _watch(self) -> None:
        last = time.monotonic()
        while True:
            await asyncio.sleep(1)
            now = time.monotonic()
            for name in self._handles:
                with contextlib.suppress(GpuError):
                    used = await asyncio.to_thread(self._utilization, name)
                    self._busy_s[name] += used * (now - last)
            last = now

    def _utilization(self, name: str) -> float:
        try:
            rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handles[name])
        except self._nvml.NVMLError as exc:
            raise GpuError(f"reading GPU {name}: {exc}") from exc
        return float(rates.gpu) / 100

    async def read(self, name: str) -> GpuReading:
        """Ask NVML."""
        if name in self._problems:
            raise self._problems[name]
        utilization = await asyncio.to_thread(self._utilization, name)
        return GpuReading(
            name, self._models[name], self._uuids[name], utilization, self._busy_s[name]
        )

    def uuid_of(self, name: str) -> str | None:
        """The GPU's UUID."""
        return self._uuids.get(name)

    async def close(self) -> None:
        """Stop reading and let go of the driver."""
        if self._watching is not None:
            self._watching.cancel()
        if self._nvml is not None:
            await asyncio.to_thread(self._nvml.nvmlShutdown)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
