"""Checks one machine: software, disk space, Docker, the time, the GPUs and NICs of its lab."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from patchlight.deploy.facts import (
    DockerFacts,
    GpuFacts,
    NicFacts,
    RdmaFacts,
    ServerFacts,
)
from patchlight.deploy.gpudirect import directness
from patchlight.testbed.lab.model import Gpu, Nic, Server
from patchlight.testbed.linux.devices import Distance, distance
from patchlight.testbed.units import format_rate

Workers = Literal["docker", "process", "auto"]
_PYTHON = (3, 11)
# For the bundle, an environment made of it, and the one before, to go back to.
_LEAST_FREE_BYTES = 2 << 30
_MOST_OFFSET_S = 1.0


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


@dataclass(
    frozen=True,
    slots=True,
)
class Finding:
    """One check of one server; ``ok`` is ``None`` where it cannot be told, ``remedy`` mends it."""

    server: str
    check: str
    ok: bool | None
    found: str
    remedy: str = ""

    @property
    def state(self) -> str:
        """``ok``, ``wrong`` or ``unknown``."""
        return {True: "ok", False: "wrong", None: "unknown"}[self.ok]


def gpus(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """NVIDIA's driver, and each GPU that the lab file claims; nothing where there is neither."""
    cards = [
        address for address, card in facts.pci.items() if card.is_nvidia_gpu
    ]
    if not (server.gpus or cards or facts.driver or facts.gpus):
        return
    if server.gpus and (server.emulated_gpus or facts.gpu_sockets):
        where = (
            f"in {facts.gpu_sockets}"
            if facts.gpu_sockets
            else "from the lab file"
        )
        yield Finding(
            server.name,
            "GPUs",
            True,
            f"{len(server.gpus)} emulated {where}",
        )
        return
    driver = _driver(server, facts, cards)
    yield driver
    if driver.ok:
        found = claimed_gpus(server, facts)
        for gpu in server.gpus:
            yield _gpu(
                server,
                gpu,
                found.get(gpu.name),
                facts,
            )
        yield from _pairings(server, found, facts)


def _driver(
    server: Server,
    facts: ServerFacts,
    cards: list[str],
) -> Finding:
    def finding(
        ok: bool | None,
        found: str,
        remedy: str = "",
    ) -> Finding:
        return Finding(
            server.name,
            "NVIDIA driver",
            ok,
            found,
            f"{remedy}, on {server.name}",
        )

    wrong = False if server.gpus else None
    count = f"{len(cards)} GPU{'s' * (len(cards) != 1)}"
    if facts.gpus:
        shown = f"{len(facts.gpus)} GPU{'s' * (len(facts.gpus) != 1)}"
        return finding(True, f"version {facts.driver or 'unknown'}, {shown}")
    if facts.smi_refusal:
        remedy = (
            "restart it if the driver was updated; else reinstall the driver"
        )
        return finding(False, f"nvidia-smi: {facts.smi_refusal}", remedy)
    if facts.driver:
        remedy = "install the driver's programs: apt-get install nvidia-smi"
        return finding(
            wrong, f"version {facts.driver}, without nvidia-smi", remedy
        )
    if cards:
        return finding(
            wrong,
            f"{count} and no driver",
            "install it: apt-get install nvidia-driver",
        )
    remedy = (
        "check that it is plugged in (lspci); or, in the lab file, leave gpus out or write "
        "emulated_gpus: true"
    )
    return finding(wrong, "no NVIDIA GPU", remedy)


def claimed_gpus(server: Server, facts: ServerFacts) -> Mapping[str, GpuFacts]:
    """Which GPU each one of the lab file is, by name: as an agent finds them."""
    by_uuid = {gpu.uuid: gpu for gpu in facts.gpus}
    by_place = facts.gpus if len(facts.gpus) >= len(server.gpus) else ()
    pairs = zip_longest(server.gpus, by_place[: len(server.gpus)])
    found = {
        gpu.name: by_uuid.get(gpu.uuid) if gpu.uuid else at_place
        for gpu, at_place in pairs
        if gpu
    }
    return {name: gpu for name, gpu in found.items() if gpu is not None}


def _gpu(
    server: Server,
    gpu: Gpu,
    found: GpuFacts | None,
    facts: ServerFacts,
) -> Finding:
    check = f"GPU {gpu.name}"
    if found is None and gpu.uuid and gpu.uuid.startswith("MIG-"):
        return Finding(
            server.name,
            check,
            None,
            f"{gpu.uuid} is a partition of a GPU (MIG)",
        )
    if found is None and gpu.uuid:
        there = ", ".join(f"{g.uuid} ({g.model})" for g in facts.gpus)
        remedy = "check that it is plugged in (lspci), or correct its uuid in the lab file"
        return Finding(
            server.name,
            check,
            False,
            f"no {gpu.uuid}; found {there}",
            remedy,
        )
    if found is None:
        counts = f"{len(facts.gpus)} of {len(server.gpus)} GPUs"
        remedy = f"give each GPU of {server.name} its uuid in the lab file: nvidia-smi -L"
        return Finding(
            server.name,
            check,
            False,
            f"{counts}: the missing one cannot be identified",
            remedy,
        )
    good = _words(gpu.model) <= _words(found.model)
    said = f"{found.model}, {found.uuid}" + (
        "" if good else f", not {gpu.model}"
    )
    remedy = "correct its model or uuid in the lab file"
    return Finding(
        server.name,
        check,
        good,
        said,
        remedy,
    )


def _words(model: str) -> set[str]:
    return set(re.findall(r"[a-z]+|[0-9]+", model.casefold())) - {"nvidia"}


def _pairings(
    server: Server,
    found: Mapping[str, GpuFacts],
    facts: ServerFacts,
) -> Iterator[Finding]:
    """How far each GPU's data goes to its NIC; wrong where two pairs had better change."""

    def away(gpu: str | None, nic: Nic) -> Distance | None:
        claimed = found.get(gpu or "")
        card = facts.pci.get(claimed.pci) if claimed else None
        interface = facts.nics.get(nic.interface or nic.name)
        other = facts.pci.get(interface.pci or "") if interface else None
        if card is None or other is None:
            return None
        return distance(
            card.path,
            card.numa,
            other.path,
            other.numa,
        )

    for nic in server.nics:
        here = away(nic.gpu, nic)
        if nic.gpu is None or here is None:
            continue
        check = f"{nic.gpu} and {nic.name}"
        words = here.in_words
        for other in server.nics:
            swapped = away(nic.gpu, other)
            if other is nic or swapped is None or swapped >= here:
                continue
            before = away(other.gpu, other) or 0
            after = away(other.gpu, nic) or 0
            if swapped + after < here + before:
                found_ = f"{words}; {other.name} is nearer"
                remedy = (
                    f"in the lab file, give {nic.gpu} of {server.name} the NIC {other.name}"
                    + (f", and {other.gpu} {nic.name}" if other.gpu else "")
                )
                yield Finding(
                    server.name,
                    check,
                    False,
                    found_,
                    remedy,
                )
                break
        else:
            yield Finding(
                server.name,
                check,
                True,
                words,
            )
        yield from _directness(
            server,
            nic,
            found,
            facts,
        )


def _directness(
    server: Server,
    nic: Nic,
    found: Mapping[str, GpuFacts],
    facts: ServerFacts,
) -> Iterator[Finding]:
    """Whether the data of a NIC's GPU goes directly; nothing without RDMA hardware.

    Copies are slower and no mistake, so the finding is not wrong.
    """
    interface = facts.nics[interface_of(nic)]
    device = rdma_of(interface_of(nic), interface, facts.rdma)
    if device is None or not device.pci or not interface.pci:
        return
    gpu = facts.pci[found[nic.gpu or ""].pci]
    said = directness(gpu, facts.pci[interface.pci], facts)
    yield Finding(
        server.name,
        f"GPUDirect {nic.gpu} and {nic.name}",
        said.direct or None,
        said.found,
        f"{said.remedy}, on {server.name}" if said.remedy else "",
    )


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
    return max(
        mtus,
        key=lambda mtu: (mtus[mtu], mtu),
        default=None,
    )


def nics(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """Each NIC's interface, driver and rate, its RDMA device, and the modules for all that."""
    devices: list[RdmaFacts] = []
    for nic in server.nics:
        found = facts.nics.get(interface_of(nic))
        yield _nic(
            server,
            nic,
            found,
            facts,
        )
        if found is not None:
            device = rdma_of(interface_of(nic), found, facts.rdma)
            yield from _rdma(
                server,
                nic,
                found,
                device,
            )
            devices += [device] if device else []
    yield from _modules(server, facts, has_rdma=bool(devices))


def _nic(
    server: Server,
    nic: Nic,
    found: NicFacts | None,
    facts: ServerFacts,
) -> Finding:
    check = f"NIC {nic.name}"
    name = interface_of(nic)
    claims = sum(f".{server.name}." in namespace for namespace in facts.claims)
    if found is None and claims:
        said = f"no interface {name}: a worker may have it ({claims} GPUs and NICs in use)"
        return Finding(
            server.name,
            check,
            None,
            said,
        )
    if found is None:
        remedy = f"name its interface of {server.name} in the lab file: interface: NAME"
        real = [
            f"{other} ({f.driver})"
            for other, f in facts.nics.items()
            if f.driver
        ]
        dead = [
            a
            for a, card in facts.pci.items()
            if card.is_network_card and not card.driver
        ]
        there = f"; found {', '.join(real)}" if real else ""
        if dead:
            there += f"; no driver has {', '.join(dead)}"
            remedy += "; or load the missing driver: lspci -k"
        return Finding(
            server.name,
            check,
            False,
            f"no interface {name}{there}",
            remedy,
        )
    if found.driver is None:
        return Finding(
            server.name,
            check,
            None,
            f"{name} is virtual: its rate is meaningless",
        )
    if found.rate_bps is None:
        remedy = f"plug it in, or bring it up: ip link set {name} up, on {server.name}"
        return Finding(
            server.name,
            check,
            None,
            f"{name} ({found.driver}) has no link",
            remedy,
        )
    rate = format_rate(found.rate_bps)
    good = nic.rate_bps is None or nic.rate_bps == found.rate_bps
    claimed = (
        ""
        if good or nic.rate_bps is None
        else f", not {format_rate(nic.rate_bps)}"
    )
    remedy = (
        "correct its rate in the lab file, or check the link's rate: ethtool"
    )
    return Finding(
        server.name,
        check,
        good,
        f"{name} ({found.driver}), {rate}{claimed}",
        remedy,
    )


def rdma_of(
    interface: str,
    nic: NicFacts,
    rdma: Iterable[RdmaFacts],
) -> RdmaFacts | None:
    """The port of an RDMA device that a NIC is."""
    own = [port for port in rdma if nic.pci and port.pci == nic.pci]
    # One device for each port of a card, or one with several ports.
    of_card = (
        own
        if len(own) == 1
        else [port for port in own if port.port == nic.port]
    )
    in_software = [port for port in rdma if port.parent == interface]
    return next(iter([*of_card, *in_software]), None)


def _rdma(
    server: Server,
    nic: Nic,
    found: NicFacts,
    device: RdmaFacts | None,
) -> Iterator[Finding]:
    check = f"RDMA {nic.name}"
    if device is None:
        module = _RDMA_MODULES.get(found.driver or "")
        if module is not None:
            said = f"no RDMA device: its module is {module}"
            remedy = (
                f"if jobs are to use RDMA: modprobe {module}, on {server.name}"
            )
            yield Finding(
                server.name,
                check,
                None,
                said,
                remedy,
            )
        return
    name = f"{device.name} port {device.port}"
    if device.link_layer != "Ethernet":
        remedy = f"set the port to Ethernet: mlxconfig set LINK_TYPE_P{device.port}=2"
        remedy = f"{remedy}, on {server.name}"
        yield Finding(
            server.name,
            check,
            False,
            f"{name} is {device.link_layer}",
            remedy,
        )
        return
    good = device.state == "ACTIVE"
    # A link that is down is the NIC's finding.
    ok = None if not good and found.driver and found.rate_bps is None else good
    remedy = (
        f"see its driver's messages: dmesg, rdma link show, on {server.name}"
    )
    yield Finding(
        server.name,
        check,
        ok,
        f"{name} is {device.state}",
        remedy,
    )


def _modules(
    server: Server,
    facts: ServerFacts,
    *,
    has_rdma: bool,
) -> Iterator[Finding]:
    needed = [*(_FOR_VERBS if has_rdma else ())]
    needed += _FOR_GPUS if server.gpus and facts.driver else ()
    if not needed:
        return
    states = {
        module: facts.modules.get(module, "unknown") for module in needed
    }
    missing = [
        module
        for module, state in states.items()
        if state in ("there", "absent")
    ]
    unknown = [
        module for module, state in states.items() if state == "unknown"
    ]
    found = ", ".join(
        f"{m} is {'not loaded' if s == 'there' else s}"
        for m, s in states.items()
    )
    remedy = (
        f"modprobe -a {' '.join(missing)}, on {server.name}, and name them in "
        f"/etc/modules-load.d; a module without that name comes with the driver"
    )
    ok = False if missing else None if unknown else True
    yield Finding(
        server.name,
        "kernel modules",
        ok,
        found,
        remedy,
    )


def mtus(
    server: Server,
    facts: ServerFacts,
    usual: int | None,
) -> Iterator[Finding]:
    """Whether the NICs have the ``usual`` MTU of the lab."""
    names = [
        name for name in map(interface_of, server.nics) if name in facts.nics
    ]
    others = [name for name in names if facts.nics[name].mtu != usual]
    if names:
        found = ", ".join(
            f"{name} has {facts.nics[name].mtu}" for name in others
        ) or str(usual)
        commands = " && ".join(
            f"ip link set {name} mtu {usual}" for name in others
        )
        remedy = f"set it to {usual}, like most NICs of the lab: {commands}, on {server.name}"
        yield Finding(
            server.name,
            "MTU",
            not others,
            found,
            remedy,
        )


def judge_machine(
    server: Server,
    facts: ServerFacts,
    workers: Workers,
) -> Iterator[Finding]:
    """All findings about one machine; what no lab file claims is no mistake."""
    yield from machine(server, facts)
    yield from docker(server, facts, workers)
    yield from bubblewrap(server, facts, workers)
    yield from gpus(server, facts)
    yield from nics(server, facts)


def sudo_and_python(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """Whether sudo and Python are there, which a deployment needs."""
    refusal = facts.sudo_refusal
    user = server.ssh.user or "the user who logs in"
    yield Finding(
        server.name,
        "sudo",
        refusal is None,
        refusal or "gives us root",
        f"give its password (--ask-sudo-password), or allow {user} to use sudo without a "
        f"password: a line 'NAME ALL=(ALL) NOPASSWD: ALL' in /etc/sudoers.d on {server.name}",
    )
    version = ".".join(map(str, facts.python)) if facts.python else "none"
    good = (
        facts.python is not None
        and facts.python[:2] >= _PYTHON
        and facts.has_venv
    )
    without = "" if facts.has_venv or not facts.python else ", without venv"
    yield Finding(
        server.name,
        "Python",
        good,
        version + without,
        f"install Python 3.11 or newer with venv: apt-get install python3 python3-venv, "
        f"on {server.name}",
    )


def machine(server: Server, facts: ServerFacts) -> Iterator[Finding]:
    """Room on its disk, and what keeps services running."""
    free = facts.free_bytes
    yield Finding(
        server.name,
        "free disk",
        None if free is None else free >= _LEAST_FREE_BYTES,
        "not told" if free is None else f"{free / (1 << 30):.1f} GiB in /opt",
        f"free 2 GiB in /opt of {server.name}",
    )
    version = facts.systemd
    found = (
        f"version {version}"
        if version
        else "none: Patchlight supervises the agent itself"
    )
    yield Finding(
        server.name,
        "systemd",
        True,
        found,
    )


def docker(
    server: Server,
    facts: ServerFacts,
    workers: Workers,
) -> Iterator[Finding]:
    """The engine, and whether its containers can have GPUs; nothing where workers are processes."""
    engine = facts.docker
    if workers == "process":
        return
    if engine is None:
        yield Finding(
            server.name,
            "Docker engine",
            None,
            "unknown without Python",
        )
        return
    yield _engine(
        server,
        facts,
        engine,
        workers,
    )
    if engine.answers and (facts.gpus or facts.driver):
        yield _toolkit(server, facts, engine)


def bubblewrap(
    server: Server,
    facts: ServerFacts,
    workers: Workers,
) -> Iterator[Finding]:
    """Whether workers that are processes can be confined; nothing where Docker runs them."""
    if workers == "docker" or (
        workers == "auto" and facts.docker and facts.docker.answers
    ):
        return
    found = (
        f"version {facts.bwrap}"
        if facts.bwrap
        else "not installed: process workers need it"
    )
    remedy = f"apt-get install bubblewrap libseccomp2, on {server.name}"
    yield Finding(
        server.name,
        "bubblewrap",
        facts.bwrap is not None,
        found,
        remedy,
    )


def _engine(
    server: Server,
    facts: ServerFacts,
    engine: DockerFacts,
    workers: Workers,
) -> Finding:
    check = "Docker engine"
    if engine.answers is None:
        return Finding(
            server.name,
            check,
            None,
            f"unsupported address {engine.url}",
        )
    if engine.answers:
        found = f"answers at {engine.url} (API {engine.api})"
        return Finding(
            server.name,
            check,
            True,
            found,
        )
    found = f"{engine.url} {engine.said}"
    if facts.user != "root" and "Permission denied" in engine.said:
        return Finding(
            server.name,
            check,
            None,
            f"{found}; only root can test it",
        )
    remedy = f"apt-get install docker.io && systemctl start docker, on {server.name}"
    if workers == "auto":
        return Finding(
            server.name,
            check,
            None,
            f"{found}: workers will be processes",
            remedy,
        )
    return Finding(
        server.name,
        check,
        False,
        found,
        remedy,
    )


def _toolkit(
    server: Server,
    facts: ServerFacts,
    engine: DockerFacts,
) -> Finding:
    ways = [*facts.cdi]
    if not ways and any(
        device.startswith("nvidia.com/gpu") for device in engine.devices
    ):
        ways.append("the engine's CDI devices")
    if "nvidia" in engine.runtimes:
        ways.append("runtime nvidia")
    version = f"version {facts.toolkit}" if facts.toolkit else "none"
    found = (
        f"{version}; GPUs by {', '.join(ways)}"
        if ways
        else f"{version}; no CDI, no runtime"
    )
    remedy = (
        "apt-get install nvidia-container-toolkit && nvidia-ctk cdi generate "
        f"--output=/etc/cdi/nvidia.yaml, on {server.name}"
    )
    return Finding(
        server.name,
        "container toolkit",
        bool(ways),
        found,
        remedy,
    )


def clock(server: str, facts: ServerFacts) -> Finding:
    """Whether its time is ours."""
    offset = facts.clock_offset_s
    uncertain = facts.clock_uncertainty_s
    way = "ahead" if offset > 0 else "behind"
    found = f"{abs(offset):.3f} s {way}, ± {uncertain:.3f} s"
    good = abs(offset) - uncertain <= _MOST_OFFSET_S
    remedy = f"synchronise the clock of {server}: apt-get install chrony"
    return Finding(
        server,
        "clock",
        good,
        found,
        remedy,
    )
