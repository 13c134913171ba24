"""What an agent knows of a GPU, whatever tells it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from patchlight.testbed.wire.agent_status import GpuTelemetry


@dataclass(frozen=True, slots=True)
class GpuReading:
    """``utilization``: the fraction (0…1) of the last second in which the GPU was computing, where
    that is known; ``busy_s``: seconds it has computed since it was first watched."""

    name: str
    model: str
    uuid: str
    utilization: float | None
    busy_s: float
    telemetry: GpuTelemetry | None = None


@dataclass(frozen=True, slots=True)
class PhysicalGpu:
    """An NVIDIA GPU: ``minor`` is the number of its device node ``/dev/nvidiaN``, ``pci_address``
    its place on the bus as sysfs writes it; ``None`` where the driver does not say."""

    uuid: str
    minor: int | None = None
    pci_address: str | None = None


class GpuBackend(Protocol):
    """Reads the GPUs of one server."""

    async def open(self) -> None:
        """Find the GPUs. One that is not there is an error of ``read`` alone."""

    async def read(self, name: str) -> GpuReading:
        """One GPU's present reading; ``GpuError`` if it does not answer."""

    def socket_of(self, name: str) -> Path | None:
        """The Unix socket through which a worker computes on it, if that is how."""
        return None

    def physical(self, name: str) -> PhysicalGpu | None:
        """The NVIDIA GPU that it is, if it is one."""
        return None

    async def close(self) -> None:
        """Stop watching, if anything watches."""
        return
