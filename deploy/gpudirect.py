"""Tells whether a NIC reads and writes a GPU's memory directly (GPUDirect RDMA), or by copies.

After NVIDIA's documentation: the driver gives the memory away by the module ``nvidia_peermem``, or
as dma-buf (its open kernel modules from 515 on, Linux 5.12); NCCL uses it under one PCIe switch
(``NCCL_NET_GDR_LEVEL``); an IOMMU that translates, and bridges whose ACS redirects requests, are in
its way. Tested with trees of files, never on a server with GPUs.
"""

import itertools
import re
from dataclasses import dataclass

from patchlight.deploy.facts import PciFacts, ServerFacts
from patchlight.testbed.linux.devices import Distance, distance

_DMA_BUF_DRIVER = 515
_DMA_BUF_KERNEL = (5, 12)
# Bits of a bridge's ACS control register: PCI_ACS_RR and PCI_ACS_CR of Linux's pci_regs.h.
_REDIRECTS = 0x4 | 0x8
_LEVELS = {
    Distance.ROOT: "PHB",
    Distance.NODE: "PHB",
    Distance.FAR: "SYS",
}


@dataclass(
    frozen=True,
    slots=True,
)
class Directness:
    """``direct`` is ``None`` where it cannot be told; ``remedy`` would make it direct."""

    direct: bool | None
    found: str
    remedy: str = ""


def directness(gpu: PciFacts, nic: PciFacts, facts: ServerFacts) -> Directness:
    """Whether the data of a GPU goes directly to the card of an RDMA device."""
    good: list[str] = []
    bad: list[str] = []
    unknown: list[str] = []
    remedies: list[str] = []
    way, lacks = _way(facts)
    if way:
        good.append(f"by {way}")
    else:
        bad.append(f"no nvidia_peermem, and no dma-buf: {lacks}")
        remedies.append(
            "modprobe nvidia_peermem (for NICs with MLNX_OFED or DOCA), and name it in "
            "/etc/modules-load.d; or install the driver's open kernel modules, with Linux 5.12 "
            "or newer"
        )
    away = distance(
        gpu.path,
        gpu.numa,
        nic.path,
        nic.numa,
    )
    if away is None:
        unknown.append("their distance is unknown")
    elif away is Distance.SWITCH:
        good.append(away.in_words)
    else:
        bad.append(f"{away.in_words}, where NCCL copies")
        remedies.append(
            "put them under one PCIe switch, or let jobs try "
            f"NCCL_NET_GDR_LEVEL={_LEVELS[away]}"
        )
    translating = {gpu.iommu, nic.iommu} - {None, "identity"}
    if translating:
        bad.append(
            f"the IOMMU translates ({', '.join(sorted(map(str, translating)))})"
        )
        remedies.append(
            "boot with iommu=pt, or turn the IOMMU off in the firmware"
        )
    elif gpu.iommu or nic.iommu:
        good.append("IOMMU in passthrough")
    else:
        good.append("no IOMMU")
    if away is Distance.SWITCH:
        _add_acs(
            facts,
            _between(gpu.path, nic.path),
            bad,
            unknown,
            remedies,
        )
    if bad:
        return Directness(
            False, f"copies: {'; '.join(bad)}", "; ".join(remedies)
        )
    if unknown:
        return Directness(None, f"not known: {'; '.join(unknown)}")
    return Directness(True, f"direct: {', '.join(good)}, no ACS redirect")


def _way(facts: ServerFacts) -> tuple[str, str]:
    """How the driver gives memory away, or what dma-buf lacks."""
    if facts.modules.get("nvidia_peermem") == "loaded":
        return "nvidia_peermem", ""
    lacks = []
    if not facts.open_driver:
        lacks.append("the driver's kernel modules are not the open ones")
    elif _numbers(facts.driver or "") < (_DMA_BUF_DRIVER,):
        lacks.append(f"driver {facts.driver} is older than {_DMA_BUF_DRIVER}")
    if _numbers(facts.kernel) < _DMA_BUF_KERNEL:
        lacks.append(f"Linux {facts.kernel or '?'} is older than 5.12")
    return ("", ", ".join(lacks)) if lacks else ("dma-buf", "")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _between(path: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The bridges below the last one that two devices share."""
    pairs = zip(path[:-1], other[:-1], strict=False)
    shared = len(
        list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    )
    return (*path[shared:-1], *other[shared:-1])


def _add_acs(
    facts: ServerFacts,
    bridges: tuple[str, ...],
    bad: list[str],
    unknown: list[str],
    remedies: list[str],
) -> None:
    controls = {bridge: facts.bridges.get(bridge) for bridge in bridges}
    if unread := [b for b, control in controls.items() if control is None]:
        unknown.append(f"ACS of {', '.join(unread)}: only root can read it")
    if redirecting := [
        bridge
        for bridge, control in controls.items()
        if control is not None and control & _REDIRECTS
    ]:
        bad.append(f"ACS redirects at {', '.join(redirecting)}")
        commands = " && ".join(
            f"setpci -s {bridge} ECAP_ACS+0x6.w=0000" for bridge in redirecting
        )
        remedies.append(
            f"where no virtual machine gets devices, turn it off in the firmware, or after each "
            f"boot: {commands}"
        )
