"""Reads a server's GPUs from Unix sockets (NVIDIA's: ``nvml.py``) and their distance to NICs."""

import asyncio
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from patchlight.agents.errors import GpuError, GpuSilent
from patchlight.testbed.errors import reason
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.linux import devices, processes
from patchlight.testbed.wire.agent_status import GpuTelemetry


@dataclass(
    frozen=True,
    slots=True,
)
class GpuReading:
    """``utilization``: fraction (0…1) of the last second in which the GPU was computing, or
    ``None``; ``busy_s``: seconds of computing since the agent began to watch it."""

    name: str
    model: str
    uuid: str
    utilization: float | None
    busy_s: float
    telemetry: GpuTelemetry | None = None


@dataclass(
    frozen=True,
    slots=True,
)
class PhysicalGpu:
    """An NVIDIA GPU. ``minor`` is the number of its device node ``/dev/nvidiaN``, ``pci_address``
    its PCI address as sysfs writes it; ``None`` if the driver does not report it."""

    uuid: str
    minor: int | None = None
    pci_address: str | None = None


class GpuBackend(Protocol):
    """Reads the GPUs of one server."""

    async def open(self) -> None:
        """Find the GPUs. A missing GPU makes only its ``read`` fail."""

    async def read(self, name: str) -> GpuReading:
        """The present reading of one GPU; ``GpuError`` if it does not answer."""

    def socket_of(self, name: str) -> Path | None:
        """The Unix socket through which a worker uses the GPU, if it has one."""
        return None

    def physical(self, name: str) -> PhysicalGpu | None:
        """The NVIDIA GPU behind that name, if it is one."""
        return None

    async def close(self) -> None:
        """Stop reading GPUs."""
        return


SILENT_S = 30.0
"""A GPU that has not answered for this long is gone; before, its machine may just be busy."""
_AGAIN_S = 0.5
_MISSES = 3
"""A GPU that fails so often in a row has fallen off the bus."""
_LONGEST_WAIT_S = 10.0


@dataclass(slots=True)
class Pulse:
    """Tells by the failed readings in a row whether a GPU is gone.

    Readings may be far apart, as their agent may have been busy too: a silence
    lasts from the first one that was not answered.
    """

    misses: int = 0
    silent_since: float | None = None

    def is_gone(self, error: GpuError, now: float) -> bool:
        """Add a failed reading; ``now`` in monotonic seconds."""
        self.misses += 1
        is_gone = self.misses >= _MISSES
        if isinstance(error, GpuSilent):
            if self.silent_since is None:
                self.silent_since = now
            is_gone = is_gone and now - self.silent_since > SILENT_S
        return is_gone


async def read_patiently(gpus: GpuBackend, name: str) -> GpuReading:
    """The present reading of a GPU; ``GpuError`` if it does not answer for ``SILENT_S``."""
    ends = time.monotonic() + SILENT_S
    while True:
        try:
            return await gpus.read(name)
        except GpuSilent:
            if time.monotonic() > ends:
                raise
        await asyncio.sleep(_AGAIN_S)


class SocketGpus(GpuBackend):
    """GPUs behind Unix sockets; each reading uses a new connection."""

    def __init__(
        self,
        server: Server,
        directory: Path,
        deadline_s: float = 2.0,
    ) -> None:
        """``deadline_s`` limits a reading. After a silence the next one waits twice as long, up to
        ``_LONGEST_WAIT_S``: on a busy machine it may succeed."""
        self._paths = {
            g.name: directory / f"{server.name}.{g.name}.sock"
            for g in server.gpus
        }
        self._deadline_s = deadline_s
        self._waits_s = dict.fromkeys(self._paths, deadline_s)

    async def open(self) -> None:
        """Wait until every GPU's socket exists: they may just be starting."""
        end = time.monotonic() + self._deadline_s
        for path in self._paths.values():
            while not path.exists():
                if time.monotonic() > end:
                    break
                await asyncio.sleep(0.02)

    async def read(self, name: str) -> GpuReading:
        """Read the GPU through its socket."""
        path = self._paths[name]
        if not path.exists():
            raise GpuError(
                f"GPU {name} has no socket {path}",
                hint="start the emulated GPUs: python -m patchlight.emulation.lab.gpus",
            )
        wait_s = self._waits_s[name]
        try:
            async with asyncio.timeout(wait_s):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(b'{"op": "query"}\n')
                    reply: dict[str, Any] = json.loads(await reader.readline())
                finally:
                    writer.close()
            self._waits_s[name] = self._deadline_s
            return GpuReading(
                name=name,
                model=str(reply["model"]),
                uuid=str(reply["uuid"]),
                utilization=float(reply["utilization"]),
                busy_s=float(reply["busy_s"]),
            )
        except TimeoutError as exc:
            self._waits_s[name] = max(wait_s, min(2 * wait_s, _LONGEST_WAIT_S))
            raise GpuSilent(
                f"reading GPU {name} at {path}: no answer after {wait_s:g} s",
                hint="check the load of this machine: uptime",
            ) from exc
        except (OSError, ValueError, KeyError) as exc:
            raise GpuError(
                f"reading GPU {name} at {path}: {reason(exc)}"
            ) from exc

    def socket_of(self, name: str) -> Path | None:
        """The GPU's socket."""
        return self._paths[name]


@dataclass(
    frozen=True,
    slots=True,
)
class PciPlace:
    """The folders of a PCI device in ``/sys/devices``, from the root of its bus."""

    parts: tuple[str, ...]
    node: int | None
    cpus: frozenset[int]

    def distance(self, other: "PciPlace") -> devices.Distance:
        """The distance to another device; an unknown NUMA node counts as the same node."""
        found = devices.distance(
            self.parts,
            self.node,
            other.parts,
            other.node,
        )
        return devices.Distance.NODE if found is None else found


class Pairings:
    """The server's GPUs and NICs in sysfs: which CPUs are near, and which pairs are distant. Tested
    with copies of sysfs, never on a server with GPUs."""

    def __init__(
        self,
        server: Server,
        gpus: GpuBackend,
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._server = server
        self._gpus = gpus
        self._sysfs = sysfs
        # Read once: devices do not change their bus, and a leased NIC is not visible here.
        self._places: dict[str, PciPlace] = {}

    def cpus_near(self, gpu: str | None, nic: Nic) -> str:
        """CPUs near a worker's GPU, or else near its NIC, in Linux list format; empty for all."""
        place = (self._gpu(gpu) if gpu else None) or self._nic(nic)
        allowed = os.sched_getaffinity(0)
        near = place.cpus & allowed if place else frozenset()
        return "" if near == allowed else processes.cpu_list(near)

    def problem(self, gpu: str) -> str:
        """A warning if a GPU is far from its NIC, else an empty string."""
        place = self._gpu(gpu)
        own = next((nic for nic in self._server.nics if nic.gpu == gpu), None)
        if place is None or own is None or (beside := self._nic(own)) is None:
            return ""
        away = place.distance(beside)
        for nic in self._server.nics:
            other = self._nic(nic)
            if (
                other is not None
                and nic is not own
                and place.distance(other) < away
            ):
                return (
                    f"{gpu} and its NIC {own.name} are {away.in_words}; {gpu} and {nic.name} are "
                    f"{place.distance(other).in_words}: pair those in the lab file if possible"
                )
        if away is devices.Distance.FAR:
            return (
                f"{gpu} is at NUMA node {place.node}, its NIC {own.name} at node {beside.node}: "
                "their traffic crosses CPU sockets"
            )
        return ""

    def _gpu(self, name: str) -> PciPlace | None:
        found = self._gpus.physical(name)
        if found is None or found.pci_address is None:
            return None
        return self._place(f"bus/pci/devices/{found.pci_address}")

    def _nic(self, nic: Nic) -> PciPlace | None:
        return self._place(f"class/net/{nic.interface or nic.name}/device")

    def _place(self, link: str) -> PciPlace | None:
        if link not in self._places:
            folder = Path(os.path.realpath(self._sysfs / link))
            try:
                parts = folder.relative_to(
                    os.path.realpath(self._sysfs / "devices")
                ).parts
                node = int((folder / "numa_node").read_text())
                cpus = processes.cpus_of(
                    (folder / "local_cpulist").read_text()
                )
            except (OSError, ValueError):
                return None
            self._places[link] = PciPlace(
                parts, node if node >= 0 else None, cpus
            )
        return self._places[link]
