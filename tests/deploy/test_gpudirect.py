"""Whether a NIC reads a GPU's memory directly, from trees laid out as servers' own.

They are made by hand: the folders after Linux's ``sysfs-bus-pci`` (a root port, a switch's
upstream port and its downstream ports) and ``sysfs-kernel-iommu_groups``, the bytes of capabilities
after its ``pci_regs.h``, the driver's version file after reports of users.
"""

import os
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patchlight.deploy.check import judge
from patchlight.deploy.check_machine import Finding
from patchlight.deploy.facts import GpuFacts, ServerFacts, facts_here
from patchlight.testbed.labfile.reader import parse_lab

LAB = parse_lab("""
name: gpus
network: 192.168.10.0/24
servers:
  - name: server1
    management: 10.0.0.11:8471
    gpus: [{name: gpu0, model: A100}]
    nics: [{name: nic0, address: 192.168.10.11, gpu: gpu0}]
""")
ROOT = "pci0000:16/0000:16:02.0"
SWITCH = f"{ROOT}/0000:17:00.0"
GPU = f"{SWITCH}/0000:18:00.0/0000:19:00.0"
NIC = f"{SWITCH}/0000:18:04.0/0000:1a:00.0"
AT_ANOTHER_ROOT = "pci0000:16/0000:16:04.0/0000:20:00.0"
AT_ANOTHER_SOCKET = "pci0000:97/0000:97:02.0/0000:98:00.0"
BRIDGES = (ROOT, SWITCH, f"{SWITCH}/0000:18:00.0", f"{SWITCH}/0000:18:04.0")
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  "
    "Release Build\nGCC version:  gcc version 12.2.0"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14"
ADVANCED_ERRORS = 0x0001
ACS = 0x000D
# Source validation, redirect of requests and of completions, upstream forwarding: what Linux
# turns on with an IOMMU, "SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+" in lspci.
ALL_ON = 0x001D


def config_space(*capabilities: tuple[int, int]) -> bytes:
    """The 4 KiB of a bridge with these extended capabilities, each with its control register."""
    space = bytearray(4096)
    at = 0x100
    for number, (capability, control) in enumerate(capabilities, 1):
        after = 0 if number == len(capabilities) else at + 0x48
        struct.pack_into("<I", space, at, capability | 1 << 16 | after << 20)
        struct.pack_into("<HH", space, at + 4, 0x005F, control)
        at = after
    return bytes(space)


class Machine:
    """A server's ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str | bytes) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(
            text if isinstance(text, bytes) else f"{text}\n".encode()
        )

    def device(self, path: str, kind: str, vendor: str, node: int) -> None:
        place = f"sys/devices/{path}"
        self.file(f"{place}/class", kind)
        self.file(f"{place}/vendor", vendor)
        self.file(f"{place}/numa_node", str(node))
        link = self.root / "sys/bus/pci/devices" / path.rpartition("/")[2]
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.root / place, link.parent))

    def bridge(self, path: str, config: bytes) -> None:
        self.device(path, "0x060400", "0x10b5", 0)
        self.file(f"sys/devices/{path}/config", config)

    def iommu(self, path: str, group: int, kind: str) -> None:
        self.file(f"sys/kernel/iommu_groups/{group}/type", kind)
        link = self.root / f"sys/devices/{path}/iommu_group"
        link.symlink_to(self.root / f"sys/kernel/iommu_groups/{group}")

    def cards(self, nic: str, node: int) -> None:
        self.device(GPU, "0x030200", "0x10de", 0)
        self.device(nic, "0x020000", "0x15b3", node)
        place = f"sys/devices/{nic}"
        for name, text in (("mtu", "9000"), ("speed", "200000")):
            self.file(f"{place}/net/nic0/{name}", text)
        self.file(f"{place}/infiniband/mlx5_0/ports/1/state", "4: ACTIVE")
        self.file(f"{place}/infiniband/mlx5_0/ports/1/link_layer", "Ethernet")
        for folder, name in (("net", "nic0"), ("infiniband", "mlx5_0")):
            (self.root / place / folder / name / "device").symlink_to(
                self.root / place
            )
            link = self.root / f"sys/class/{folder}/{name}"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self.root / place / folder / name)

    def facts(self, **changed: Any) -> ServerFacts:
        gpu = GpuFacts("GPU-0", "NVIDIA A100-SXM4-80GB", "0000:19:00.0")
        facts = replace(facts_here(self.root), gpus=(gpu,), kernel="6.1.0-18")
        return replace(facts, **changed)


def machine(
    root: Path,
    *,
    nic: str = NIC,
    node: int = 0,
    acs: int = 0,
    driver: str = CLOSED,
    peermem: bool = True,
    iommu: str = "",
) -> Machine:
    made = Machine(root)
    made.cards(nic, node)
    for path in BRIDGES:
        made.bridge(path, config_space((ADVANCED_ERRORS, 0xFFFF), (ACS, acs)))
    made.file("sys/module/nvidia/version", "550.54.14")
    made.file("proc/driver/nvidia/version", driver)
    if peermem:
        made.file("sys/module/nvidia_peermem/refcnt", "0")
    if iommu:
        made.iommu(GPU, 41, iommu)
        made.iommu(nic, 42, iommu)
    return made


def told(facts: ServerFacts) -> Finding:
    (found,) = (
        finding
        for finding in judge(LAB, {"server1": facts})
        if finding.check == "GPUDirect gpu0 and nic0"
    )
    return found


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ({}, "direct: by nvidia_peermem, under one PCIe switch, no IOMMU"),
        (
            {"peermem": False, "driver": OPEN},
            "direct: by dma-buf, under one PCIe switch, no IOMMU",
        ),
        (
            {"iommu": "identity"},
            "direct: by nvidia_peermem, under one PCIe switch, "
            "IOMMU in passthrough",
        ),
        # Only what redirects is in the way.
        (
            {"acs": 0x0011},
            "direct: by nvidia_peermem, under one PCIe switch, no IOMMU",
        ),
    ],
)
def test_a_pair_whose_memory_goes_directly(
    tmp_path: Path, made: dict[str, Any], found: str
) -> None:
    finding = told(machine(tmp_path, **made).facts())
    assert finding.found == f"{found}, no ACS redirect"
    assert (finding.ok, finding.remedy) == (True, "")


@pytest.mark.parametrize(
    ("made", "changed", "found", "remedy"),
    [
        (
            {"peermem": False},
            {},
            "copies: no nvidia_peermem, and no dma-buf: the driver's kernel modules are not the "
            "open ones",
            "modprobe nvidia_peermem",
        ),
        (
            {"peermem": False, "driver": OPEN},
            {"kernel": "5.10.0-28-amd64"},
            "copies: no nvidia_peermem, and no dma-buf: Linux 5.10.0-28-amd64 is older than 5.12",
            "Linux 5.12 or newer",
        ),
        (
            {"peermem": False, "driver": OPEN},
            {"driver": "510.47.03"},
            "copies: no nvidia_peermem, and no dma-buf: driver 510.47.03 is older than 515",
            "open kernel modules",
        ),
        (
            {"acs": ALL_ON},
            {},
            "copies: ACS redirects at 0000:18:00.0, 0000:18:04.0",
            "setpci -s 0000:18:00.0 ECAP_ACS+0x6.w=0000 && setpci -s 0000:18:04.0",
        ),
        (
            {"iommu": "DMA-FQ"},
            {},
            "copies: the IOMMU translates (DMA-FQ)",
            "boot with iommu=pt",
        ),
        # ACS counts at switches between them alone.
        (
            {"nic": AT_ANOTHER_ROOT, "acs": ALL_ON},
            {},
            "copies: under one PCIe root, where NCCL copies",
            "NCCL_NET_GDR_LEVEL=PHB, on server1",
        ),
        (
            {"nic": AT_ANOTHER_SOCKET, "node": 1},
            {},
            "copies: at different NUMA nodes, where NCCL copies",
            "NCCL_NET_GDR_LEVEL=SYS, on server1",
        ),
        (
            {"peermem": False, "acs": ALL_ON, "iommu": "DMA"},
            {},
            "copies: no nvidia_peermem, and no dma-buf: the driver's kernel modules are not the "
            "open ones; the IOMMU translates (DMA); ACS redirects at 0000:18:00.0, 0000:18:04.0",
            "; boot with iommu=pt",
        ),
    ],
)
def test_what_is_in_the_way_and_how_to_clear_it(
    tmp_path: Path,
    made: dict[str, Any],
    changed: dict[str, Any],
    found: str,
    remedy: str,
) -> None:
    finding = told(machine(tmp_path, **made).facts(**changed))
    assert finding.found == found
    assert remedy in finding.remedy
    # Copies are slower, and no mistake: nothing refuses to be deployed.
    assert finding.ok is None


def test_what_only_root_reads_is_not_known(tmp_path: Path) -> None:
    made = machine(tmp_path)
    # The kernel shows others the first 64 bytes of a file of 4 KiB.
    for path in BRIDGES[2:]:
        config = made.root / "sys/devices" / path / "config"
        config.write_bytes(config.read_bytes()[:0x104])
    finding = told(made.facts())
    assert finding.ok is None
    assert finding.found == (
        "not known: ACS of 0000:18:00.0, 0000:18:04.0: only root can read it"
    )


def test_acs_is_found_among_a_bridge_s_capabilities(tmp_path: Path) -> None:
    made = Machine(tmp_path)
    configs = {
        "0000:10:00.0": config_space((ACS, ALL_ON)),
        "0000:10:01.0": config_space((ADVANCED_ERRORS, 0xFFFF)),
        "0000:10:02.0": config_space(
            (ADVANCED_ERRORS, 1), (0x0019, 2), (ACS, 0x4)
        ),
        # No extended capability at all, and a bridge of conventional PCI.
        "0000:10:03.0": bytes(4096),
        "0000:10:04.0": bytes(256),
    }
    # A list that leads to itself ends all the same.
    circle = bytearray(4096)
    struct.pack_into("<I", circle, 0x100, ADVANCED_ERRORS | 0x100 << 20)
    configs["0000:10:05.0"] = bytes(circle)
    for name, config in configs.items():
        made.bridge(f"pci0000:10/{name}", config)
    assert list(facts_here(made.root).bridges.values()) == [
        ALL_ON,
        0,
        4,
        0,
        0,
        0,
    ]


def test_a_nic_without_rdma_has_no_direct_way(tmp_path: Path) -> None:
    facts = machine(tmp_path).facts(rdma=())
    assert not any(
        finding.check.startswith("GPUDirect")
        for finding in judge(LAB, {"server1": facts})
    )
