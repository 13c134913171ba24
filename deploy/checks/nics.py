"""Whether a server's NICs are those of the lab file, and what their RDMA needs."""

from collections import Counter
from collections.abc import Iterable, Iterator

from patchlight.deploy.checks.finding import Finding
from patchlight.deploy.facts import NicFacts, RdmaFacts, ServerFacts
from patchlight.testbed.lab.model import Nic, Server
from patchlight.testbed.units import format_rate

# Drivers of cards that can do RDMA, and the module that makes an RDMA device of each.
_RDMA_MODULES = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "mlx4_en": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "qede": "qedr",
    "cxgb4": "iw_cxgb4",
    "enic": "usnic_verbs",
}
_FOR_VERBS = ("ib_uverbs", "rdma_ucm")
_FOR_GPUS = ("nvidia_uvm",)


def interface_of(nic: Nic) -> str:
    """The kernel's name of a NIC on its server."""
    return nic.interface or nic.name


def usual_mtu(servers: Iterable[tuple[Server, ServerFacts]]) -> int | None:
    """The MTU that most NICs of a lab have; of two that are as frequent, the larger."""
    mtus = Counter(
        facts.nics[interface].mtu
        for server, facts in servers
        for interface in map(interface_of, server.nics)
        if interface in facts.nics
    )
    return max(mtus, key=lambda mtu: (mtus[mtu], mtu), default=None)


def nics(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """Each NIC's interface, driver and rate, its RDMA device, and the modules for all that."""
    devices: list[RdmaFacts] = []
    for nic in server.nics:
        found = facts.nics.get(interface_of(nic))
        yield _nic(server, nic, found, facts)
        if found is not None:
            device = rdma_of(interface_of(nic), found, facts.rdma)
            yield from _rdma(server, nic, found, device)
            devices += [device] if device else []
    yield from _modules(server, facts, has_rdma=bool(devices))


def _nic(server: Server, nic: Nic, found: NicFacts | None, facts: ServerFacts) -> Finding:
    check, name = f"NIC {nic.name}", interface_of(nic)
    if found is None:
        remedy = f"say in the lab file which interface of {server.name} it is: interface: NAME"
        real = [f"{other} ({f.driver})" for other, f in facts.nics.items() if f.driver]
        dead = [a for a, card in facts.pci.items() if card.is_network_card and not card.driver]
        there = f"; there are {', '.join(real)}" if real else ""
        if dead:
            there += f"; no driver has {', '.join(dead)}"
            remedy += "; or load the driver of the card that has none: lspci -k"
        return Finding(server.name, check, False, f"no interface {name}{there}", remedy)
    if found.driver is None:
        return Finding(server.name, check, None, f"{name} is virtual: its rate says nothing")
    if found.rate_bps is None:
        remedy = f"plug it in, or bring it up: ip link set {name} up, on {server.name}"
        return Finding(server.name, check, None, f"{name} ({found.driver}) has no link", remedy)
    rate = format_rate(found.rate_bps)
    good = nic.rate_bps is None or nic.rate_bps == found.rate_bps
    claimed = "" if good or nic.rate_bps is None else f", not {format_rate(nic.rate_bps)}"
    remedy = "correct its rate in the lab file, or see why the link is at another one: ethtool"
    return Finding(server.name, check, good, f"{name} ({found.driver}), {rate}{claimed}", remedy)


def rdma_of(interface: str, nic: NicFacts, rdma: Iterable[RdmaFacts]) -> RdmaFacts | None:
    """The port of an RDMA device that a NIC is."""
    own = [port for port in rdma if nic.pci and port.pci == nic.pci]
    # One device for each port of a card, or one with several ports.
    of_card = own if len(own) == 1 else [port for port in own if port.port == nic.port]
    in_software = [port for port in rdma if port.parent == interface]
    return next(iter([*of_card, *in_software]), None)


def _rdma(server: Server, nic: Nic, found: NicFacts, device: RdmaFacts | None) -> Iterator[Finding]:
    check = f"RDMA {nic.name}"
    if device is None:
        module = _RDMA_MODULES.get(found.driver or "")
        if module is not None:
            said = f"no RDMA device: its module is {module}"
            remedy = f"if jobs are to use RDMA: modprobe {module}, on {server.name}"
            yield Finding(server.name, check, None, said, remedy)
        return
    name = f"{device.name} port {device.port}"
    if device.link_layer != "Ethernet":
        remedy = f"set the port to Ethernet: mlxconfig set LINK_TYPE_P{device.port}=2"
        remedy = f"{remedy}, on {server.name}"
        yield Finding(server.name, check, False, f"{name} is {device.link_layer}", remedy)
        return
    good = device.state == "ACTIVE"
    # A link that is down is the NIC's finding.
    ok = None if not good and found.driver and found.rate_bps is None else good
    remedy = f"see what its driver says: dmesg, rdma link show, on {server.name}"
    yield Finding(server.name, check, ok, f"{name} is {device.state}", remedy)


def _modules(server: Server, facts: ServerFacts, *, has_rdma: bool) -> Iterator[Finding]:
    needed = [*(_FOR_VERBS if has_rdma else ())]
    needed += _FOR_GPUS if server.gpus and facts.driver else ()
    if not needed:
        return
    states = {module: facts.modules.get(module, "unknown") for module in needed}
    missing = [module for module, state in states.items() if state in ("there", "absent")]
    unknown = [module for module, state in states.items() if state == "unknown"]
    found = ", ".join(f"{m} is {'not loaded' if s == 'there' else s}" for m, s in states.items())
    remedy = (
        f"modprobe -a {' '.join(missing)}, on {server.name}, and name them in /etc/modules-load.d; "
        "where there is none of that name, it comes with the driver"
    )
    ok = False if missing else None if unknown else True
    yield Finding(server.name, "kernel modules", ok, found, remedy)


def mtus(server: Server, facts: ServerFacts, usual: int | None) -> Iterator[Finding]:
    """Whether the NICs have the ``usual`` MTU of the lab."""
    names = [name for name in map(interface_of, server.nics) if name in facts.nics]
    others = [name for name in names if facts.nics[name].mtu != usual]
    if names:
        found = ", ".join(f"{name} has {facts.nics[name].mtu}" for name in others) or str(usual)
        commands = " && ".join(f"ip link set {name} mtu {usual}" for name in others)
        remedy = f"make it {usual}, as of most NICs of the lab: {commands}, on {server.name}"
        yield Finding(server.name, "MTU", not others, found, remedy)
