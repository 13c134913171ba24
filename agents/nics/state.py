"""How a NIC was on its server, and what is to be set up of it for a worker. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from patchlight.agents.roce import RdmaDevice
from patchlight.testbed.lab.model import Lab, Nic
from patchlight.testbed.lab.nic import NicMode, Rendezvous
from patchlight.testbed.linux.rate_limits import SavedLimit
from patchlight.testbed.wire.worker_api import SyntheticTask, WorkerSpec

RENDEZVOUS = "rdv0"
"""What a worker's second interface is called, where it has one."""


@dataclass(frozen=True, slots=True)
class FunctionState:
    """A virtual function of the interface ``port``, and what the port had set for it."""

    port: str
    number: int
    mac: str = ""
    vlan: int = 0


@dataclass(frozen=True, slots=True)
class NicState:
    """All that a NIC loses or may lose on its way to a worker and back.

    ``interface`` is what goes (``mode``: in which way), or for a macvlan what it is made on.
    ``rdma`` is the RDMA device that it uses, which goes too where ``rdma_moves``.
    """

    interface: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[tuple[str, int], ...] = ()
    neighbours: tuple[tuple[str, str], ...] = ()
    routes: tuple[dict[str, Any], ...] = ()
    shaping: SavedLimit | None = None
    tx_checksum: bool | None = None
    sysctls: Mapping[str, str] | None = None
    mode: NicMode = "physical"
    function: FunctionState | None = None
    rdma: RdmaDevice | None = None
    rdma_moves: bool = False

    def as_dict(self) -> dict[str, Any]:
        """For the lease's file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The state that ``as_dict`` wrote, also after a way through JSON."""
        function, rdma = data.get("function"), data.get("rdma")
        return cls(
            **{
                **data,
                "addresses": tuple((a, int(n)) for a, n in data["addresses"]),
                "neighbours": tuple((a, m) for a, m in data["neighbours"]),
                "routes": tuple(data["routes"]),
                "shaping": SavedLimit(**data["shaping"]) if data["shaping"] else None,
                "function": FunctionState(**function) if function else None,
                "rdma": RdmaDevice(**{**rdma, "files": tuple(rdma["files"])}) if rdma else None,
            }
        )


@dataclass(frozen=True, slots=True)
class WorkerNetwork:
    """What a worker's NIC is to be like. ``mac`` and ``mtu`` are ``None`` where they stay.

    ``neighbours`` are static (address, MAC), ``routes`` (network, gateway). ``window_bytes`` is how
    much peers may send ahead over TCP (``None``: as the kernel sees fit).
    """

    address: str
    prefix: int
    mac: str | None = None
    neighbours: tuple[tuple[str, str], ...] = ()
    mtu: int | None = None
    vlan: int | None = None
    routes: tuple[tuple[str, str], ...] = ()
    rendezvous: Rendezvous | None = None
    window_bytes: int | None = None

    @classmethod
    def of(cls, lab: Lab, nic: Nic, spec: WorkerSpec) -> Self:
        """What the lab file says of it, and what the worker needs."""
        is_ours = isinstance(spec.task, SyntheticTask)  # which sees to its window itself
        return cls(
            address=str(nic.address),
            prefix=lab.network.prefixlen,
            mac=None if nic.keeps_mac else nic.mac,
            neighbours=tuple((str(each.address), each.mac) for each in spec.neighbours),
            mtu=nic.mtu,
            vlan=nic.vlan,
            routes=tuple((str(route.network), str(route.gateway)) for route in nic.routes),
            rendezvous=nic.rendezvous,
            window_bytes=None if is_ours else spec.task.window_bytes,
        )


def name_inside(interface: str, mode: NicMode, vlan: int | None) -> str:
    """What the interface with the address is called in the worker.

    A virtual function is put into its VLAN by its port; others get a tagged interface.
    """
    return interface if vlan is None or mode == "sriov" else f"vlan{vlan}"
