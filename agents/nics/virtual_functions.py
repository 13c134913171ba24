"""How a worker gets a NIC: the NIC itself, a virtual function, or a macvlan on it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from patchlight.agents.errors import NicError
from patchlight.agents.nics.state import (
    RENDEZVOUS,
    FunctionState,
    NicState,
    RdmaDevice,
    index_of,
    rdma_device_of,
    rtnetlink,
)
from patchlight.testbed.lab.model import Nic, NicMode, Rendezvous
from patchlight.testbed.linux import sysfs
from patchlight.testbed.linux.sysfs import NamespaceMode


@dataclass(frozen=True, slots=True)
class NicAccess:
    """What of a NIC a worker gets: ``interface`` itself, or for a macvlan one made on it.

    ``rdma`` is the RDMA device that it uses; where ``rdma_moves``, nobody else sees it meanwhile.
    """

    mode: NicMode
    interface: str
    function: FunctionState | None = None
    rdma: RdmaDevice | None = None
    rdma_moves: bool = False


def access_of(nic: Nic, sys: Path, sharing: NamespaceMode | None) -> NicAccess:
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
    device = None if nic.rdma == "none" else rdma_device_of(interface, sys)
    moves = _moves(nic, mode, device, sharing)
    if device is not None and mode == "macvlan" and sharing == "exclusive":
        device = None  # it can be in one namespace only, and that is its NIC's
    return NicAccess(mode, interface, function, device, moves)


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
                hint=sysfs.HOW_TO_CHANGE,
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


_WITH_FUNCTIONS = 1
_IFF_UP = 1


def check_mtu(ip: Any, index: int, state: NicState, mtu: int | None) -> None:
    """``NicError`` if the NIC cannot carry packets of ``mtu`` bytes."""
    if mtu is None:
        return
    (link,) = ip.get_links(index)
    most = state.mtu if state.mode == "macvlan" else link.get_attr("IFLA_MAX_MTU") or mtu
    if mtu > most:
        raise NicError(
            f"{state.interface} takes an MTU of {most} at most, and the lab file says {mtu}",
            hint=f"raise that of the NIC: ip link set {state.interface} mtu {mtu}"
            if state.mode == "macvlan"
            else "write a smaller mtu into the lab file",
        )


def make_macvlan(ip: Any, index: int, name: str, namespace: Path) -> None:
    """Make a macvlan of the name ``name`` on an interface of here, in another namespace.

    Mode ``bridge``: those on one NIC reach each other. It ends with its namespace.
    """
    (link,) = ip.get_links(index)
    parent = link.get_attr("IFLA_IFNAME")
    if not link["flags"] & _IFF_UP:
        raise NicError(
            f"{parent} is down, and so is a macvlan on it", hint=f"ip link set {parent} up"
        )
    with namespace.open("rb") as opened:
        ip.link(
            "add",
            ifname=name,
            kind="macvlan",
            link=index,
            macvlan_mode="bridge",
            net_ns_fd=opened.fileno(),
        )


def make_rendezvous(ip: Any, rendezvous: Rendezvous, namespace: Path) -> None:
    """Give a worker its second interface."""
    make_macvlan(ip, index_of(ip, rendezvous.interface), RENDEZVOUS, namespace)


def set_up_rendezvous(rendezvous: Rendezvous) -> None:
    """Give it its address, in the worker's namespace."""
    with rtnetlink(RENDEZVOUS, "setting up") as ip:
        index = index_of(ip, RENDEZVOUS)
        ip.link("set", index=index, state="up")
        ip.addr(
            "add",
            index=index,
            address=str(rendezvous.address.ip),
            prefixlen=rendezvous.address.network.prefixlen,
        )


def make_tagged(interface: str, name: str, vlan: int) -> None:
    """Make an interface whose packets leave by another one, tagged with a VLAN."""
    with rtnetlink(interface, f"making VLAN {vlan} on") as ip:
        ip.link("add", ifname=name, kind="vlan", link=index_of(ip, interface), vlan_id=vlan)


def remove_tagged(ip: Any, index: int) -> None:
    """Remove tagged interfaces on an interface of this namespace: they do not go where it goes."""
    for link in ip.get_links():
        kind = link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND")
        if kind == "vlan" and link.get_attr("IFLA_LINK") == index:
            ip.link("del", index=link["index"])


def read_function(ip: Any, function: FunctionState) -> FunctionState:
    """A virtual function with what its port has set for it."""
    (link,) = ip.link("get", index=index_of(ip, function.port), ext_mask=_WITH_FUNCTIONS)
    return function_in(link, function)


def function_in(link: Any, function: FunctionState) -> FunctionState:
    """The same, from what the kernel says of the port."""
    functions = link.get_attr("IFLA_VFINFO_LIST")
    for each in functions.get_attrs("IFLA_VF_INFO") if functions else ():
        mac, vlan = each.get_attr("IFLA_VF_MAC"), each.get_attr("IFLA_VF_VLAN")
        if mac["vf"] == function.number:
            return replace(function, mac=mac["mac"], vlan=vlan["vlan"] if vlan else 0)
    raise NicError(
        f"{function.port} says nothing of its virtual function {function.number}",
        hint="its driver has to support it: see 'ip link show'",
    )


def set_function(ip: Any, function: FunctionState, mac: str | None, vlan: int | None) -> None:
    """Have a port let its virtual function send with a MAC, in a VLAN (``None``: as it is)."""
    if settings := settings_of(read_function(ip, function), mac, vlan):
        ip.link("set", index=index_of(ip, function.port), vf=settings)


def settings_of(now: FunctionState, mac: str | None, vlan: int | None) -> dict[str, Any]:
    """What to tell the port of it: only what differs, for not every driver takes everything."""
    wanted = {"mac": mac, "vlan": vlan}
    present = {"mac": now.mac, "vlan": now.vlan}
    settings = {k: v for k, v in wanted.items() if v is not None and v != present[k]}
    return {"vf": now.number, **settings} if settings else {}
