"""Where GPUs and NICs sit on the server's buses: which CPUs are near them, and which pairs are far.

From sysfs, in the kernel's layout; it has run on trees of files that the tests make, and on no
server with GPUs.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from patchlight.agents.gpus.contract import GpuBackend
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.linux.processes import cpu_list, cpus_of
from patchlight.testbed.linux.sysfs import Distance, distance


@dataclass(frozen=True, slots=True)
class Place:
    """A PCI device: its folder in ``/sys/devices`` by parts, the bus's root first."""

    parts: tuple[str, ...]
    node: int | None
    cpus: frozenset[int]

    def distance(self, other: "Place") -> Distance:
        """How far the other one is; a node that is not known is no other node."""
        found = distance(self.parts, self.node, other.parts, other.node)
        return Distance.NODE if found is None else found


class Pairings:
    """The pairs of GPU and NIC of one server, as its lab file has them."""

    def __init__(self, server: Server, gpus: GpuBackend, sysfs: Path = Path("/sys")) -> None:
        self._server, self._gpus, self._sysfs = server, gpus, sysfs
        # Devices do not move on their buses; a NIC that a worker has is not seen from here.
        self._places: dict[str, Place] = {}

    def cpus_near(self, gpu: str | None, nic: Nic) -> str:
        """CPUs of a worker's GPU, or else NIC, as Linux lists them; empty if all are near."""
        place = (self._gpu(gpu) if gpu else None) or self._nic(nic)
        allowed = os.sched_getaffinity(0)
        near = place.cpus & allowed if place else frozenset()
        return "" if near == allowed else cpu_list(near)

    def problem(self, gpu: str) -> str:
        """What is wrong with where a GPU sits beside its NIC, in words; empty if nothing is."""
        place = self._gpu(gpu)
        own = next((nic for nic in self._server.nics if nic.gpu == gpu), None)
        if place is None or own is None or (beside := self._nic(own)) is None:
            return ""
        away = place.distance(beside)
        for nic in self._server.nics:
            other = self._nic(nic)
            if other is not None and nic is not own and place.distance(other) < away:
                return (
                    f"{gpu} and its NIC {own.name} are {away.in_words}, {gpu} and {nic.name} "
                    f"{place.distance(other).in_words}: pair these in the lab file, if you can"
                )
        if away is Distance.FAR:
            return (
                f"{gpu} is at NUMA node {place.node} and its NIC {own.name} at node {beside.node}: "
                "what they exchange crosses the processors"
            )
        return ""

    def _gpu(self, name: str) -> Place | None:
        found = self._gpus.physical(name)
        if found is None or found.pci_address is None:
            return None
        return self._place(f"bus/pci/devices/{found.pci_address}")

    def _nic(self, nic: Nic) -> Place | None:
        return self._place(f"class/net/{nic.interface or nic.name}/device")

    def _place(self, link: str) -> Place | None:
        if (known := self._places.get(link)) is None and (known := _place(self._sysfs, link)):
            self._places[link] = known
        return known


def _place(sysfs: Path, link: str) -> Place | None:
    """The PCI device that is there, if one is: a virtual NIC has none."""
    folder = Path(os.path.realpath(sysfs / link))
    try:
        parts = folder.relative_to(os.path.realpath(sysfs / "devices")).parts
        node = int((folder / "numa_node").read_text())
        cpus = cpus_of((folder / "local_cpulist").read_text())
    except (OSError, ValueError):
        return None
    return Place(parts, node if node >= 0 else None, cpus)
