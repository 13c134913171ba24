"""A NIC of a lab: how it is known, and how a worker is to get it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Literal

from patchlight.testbed.lab.wavelengths import Transceiver

NicMode = Literal["auto", "physical", "sriov", "macvlan", "veth"]
"""``auto``: the agent finds out whether it moves the NIC itself or a virtual function of it."""

RdmaUse = Literal["auto", "exclusive", "shared", "none"]
"""``auto``: in whichever way the machine has it, where the NIC has a device."""


@lru_cache(maxsize=65536)
def default_mac(address: IPv4Address) -> str:
    """A locally administered MAC made of the address, so unique where addresses are."""
    return ":".join(f"{byte:02x}" for byte in (0x02, 0x4C, *address.packed))


@dataclass(frozen=True, slots=True)
class Route:
    """A way out of a worker's network: packets to ``network`` go to ``gateway``."""

    network: IPv4Network
    gateway: IPv4Address

    def __str__(self) -> str:
        return f"{self.network} via {self.gateway}"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A second way between workers: a macvlan with this address on an interface of the server."""

    interface: str
    address: IPv4Interface


@dataclass(frozen=True, slots=True)
class Nic:
    """One NIC port. ``gpu`` names the GPU of the same server that it serves, if any.

    ``interface`` is the kernel's name of it on the server (default: ``name``);
    ``rate_bps`` is ``None`` where the lab file sets no limit. ``lab_mac``: a worker gets ``mac``
    though it is only made of the address. ``mtu`` ``None`` leaves it as it is. ``relock_s`` is how
    long its carrier, and its RDMA port, may take to be back when its light was moved; ``None``
    waits for neither, but for an RDMA port as long as is usual.
    """

    name: str
    address: IPv4Address
    mac: str
    rate_bps: int | None = None
    gpu: str | None = None
    interface: str | None = None
    launch_power_dbm: float = 0.0
    lab_mac: bool = False
    mode: NicMode = "auto"
    mtu: int | None = None
    vlan: int | None = None
    routes: tuple[Route, ...] = ()
    dscp: int | None = None
    rdma: RdmaUse = "auto"
    relock_s: float | None = None
    rendezvous: Rendezvous | None = None
    transceiver: Transceiver | None = None

    @property
    def keeps_mac(self) -> bool:
        """Whether workers have the port's own MAC: ``mac`` is assumed until its agent says it.

        A macvlan has none of its own.
        """
        return self.mac == default_mac(self.address) and not (
            self.lab_mac or self.mode == "macvlan"
        )
