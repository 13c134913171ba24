"""In which way a worker gets a NIC: itself, by a virtual function, or by a macvlan on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from patchlight.agents import roce
from patchlight.agents.errors import NicError
from patchlight.agents.nics.state import FunctionState
from patchlight.agents.roce import RdmaDevice
from patchlight.testbed.lab.nic import Nic, NicMode
from patchlight.testbed.linux import sysfs as rdma
from patchlight.testbed.linux.sysfs import NamespaceMode


@dataclass(frozen=True, slots=True)
class NicWay:
    """What of a NIC a worker gets: ``interface`` itself, or for a macvlan one made on it.

    ``rdma`` is the RDMA device that it uses; where ``rdma_moves``, nobody else sees it meanwhile.
    """

    mode: NicMode
    interface: str
    function: FunctionState | None = None
    rdma: RdmaDevice | None = None
    rdma_moves: bool = False


def way_of(nic: Nic, sys: Path, sharing: NamespaceMode | None) -> NicWay:
    """The way for a NIC, by the lab file and by what ``sys``, its namespace's ``/sys``, shows.

    ``sharing`` is how namespaces share RDMA devices (``None``: the kernel has none). ``NicError``
    where the server cannot do what the lab file says.
    """
    interface, mode = nic.interface or nic.name, nic.mode
    free = _free_functions(interface, sys)
    if mode == "auto":
        virtual = not (sys / "class/net" / interface / "device").exists()
        mode = "veth" if virtual else "sriov" if _functions(interface, sys) else "physical"
    function = None
    if mode == "sriov":
        if not free:
            raise NicError(
                f"{interface} has no virtual function that is free",
                hint=f"make some: echo 4 > /sys/class/net/{interface}/device/sriov_numvfs; their "
                "driver has to be loaded",
            )
        number, given = free[0]
        function = FunctionState(interface, number)
        interface = given
    device = None if nic.rdma == "none" else roce.device_of(interface, sys)
    moves = _moves(nic, mode, device, sharing)
    if device is not None and mode == "macvlan" and sharing == "exclusive":
        device = None  # it can be in one namespace only, and that is its NIC's
    return NicWay(mode, interface, function, device, moves)


def _moves(
    nic: Nic, mode: NicMode, device: RdmaDevice | None, sharing: NamespaceMode | None
) -> bool:
    """Whether the RDMA device goes to the worker; ``NicError`` if it cannot be as it should."""
    wanted = nic.rdma
    if wanted in ("exclusive", "shared"):
        if device is None:
            raise NicError(
                f"{nic.name} has no RDMA device, and the lab file says rdma: {wanted}",
                hint="is its driver loaded (mlx5_ib, bnxt_re, irdma)? 'rdma link' shows them",
            )
        if sharing != wanted:
            raise NicError(
                f"{nic.name}: the lab file says rdma: {wanted}, but RDMA devices are {sharing} on "
                "this server",
                hint=rdma.HOW_TO_CHANGE,
            )
        if wanted == "exclusive" and mode == "macvlan":
            raise NicError(
                f"{nic.name}: a macvlan has no RDMA device to itself",
                hint="use mode: sriov or physical, or rdma: shared",
            )
    return device is not None and sharing == "exclusive" and mode != "macvlan"


def _functions(port: str, sys: Path) -> list[tuple[int, Path]]:
    folders = (sys / "class/net" / port / "device").glob("virtfn*")
    return sorted((int(each.name.removeprefix("virtfn")), each) for each in folders)


def _free_functions(port: str, sys: Path) -> list[tuple[int, str]]:
    """The virtual functions that are here, by number and interface: no worker has them."""
    return [
        (number, each.name)
        for number, folder in _functions(port, sys)
        for each in sorted((folder / "net").glob("*"))
    ]
