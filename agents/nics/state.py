"""A NIC's state as plain values: on its server and in a worker; and rtnetlink, which reads it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Self

from patchlight.agents.errors import NicError, NicGone
from patchlight.agents.roce import RdmaDevice
from patchlight.testbed.lab.model import Lab, Nic
from patchlight.testbed.lab.nic import NicMode, Rendezvous
from patchlight.testbed.linux import ethtool
from patchlight.testbed.linux.netlink import KernelRefused
from patchlight.testbed.linux.rate_limits import LimitNotKept, SavedLimit
from patchlight.testbed.linux.sysfs import NoSysfs, RdmaError
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

    ``interface`` is what goes (``mode``: in which access), or for a macvlan what it is made on.
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


@contextmanager
def rtnetlink(interface: str, doing: str) -> Iterator[Any]:
    """pyroute2's ``IPRoute`` in the calling thread's namespace; a refusal is a ``NicError``."""
    # Imported here: an agent at rest is 9 MiB smaller without it.
    from pyroute2 import IPRoute, NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as exc:
        hint = "run it as root" if exc.code == errno.EPERM else None
        raise NicError(f"{doing} {interface}: {os.strerror(exc.code)}", hint=hint) from exc
    except OSError as exc:
        raise NicError(f"{doing} {interface}: {exc}") from exc
    except (KernelRefused, LimitNotKept, ethtool.OffloadNotSet, RdmaError, NoSysfs) as exc:
        raise NicError(exc.message, hint=exc.hint) from exc


def index_of(ip: Any, interface: str) -> int:
    """The kernel's number of an interface; ``NicGone`` if there is none of that name here."""
    indices = ip.link_lookup(ifname=interface)
    if not indices:
        raise NicGone(
            f"there is no interface {interface} in this network namespace",
            hint="the lab file names a NIC's interface with 'interface:' where it differs from "
            "the NIC's name",
        )
    return int(indices[0])


@contextmanager
def allowing(code: int) -> Iterator[None]:
    """What the kernel refuses with this ``errno`` is as it should be already."""
    from pyroute2 import NetlinkError

    try:
        yield
    except NetlinkError as exc:
        if exc.code != code:
            raise
