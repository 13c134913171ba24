"""Which CPUs are near a GPU and its NIC, and which pairs are far apart, from trees like sysfs."""

import os
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from patchlight.agents.gpus import (
    GpuBackend,
    GpuReading,
    Pairings,
    PhysicalGpu,
)
from patchlight.testbed.lab.model import Gpu, Nic, Server


class Gpus(GpuBackend):
    """GPUs that are somewhere on the bus."""

    def __init__(self, **addresses: str | None) -> None:
        self._addresses = addresses

    async def open(self) -> None:
        raise NotImplementedError

    async def read(self, name: str) -> GpuReading:
        raise NotImplementedError

    def physical(self, name: str) -> PhysicalGpu | None:
        return PhysicalGpu(name, pci_address=self._addresses.get(name))


class Tree:
    """A server's buses, in the kernel's layout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus/pci/devices").mkdir(parents=True)
        (root / "class/net").mkdir(parents=True)

    def device(self, path: str, node: int, cpus: str) -> None:
        folder = self.root / "devices" / path
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "local_cpulist").write_text(f"{cpus}\n")
        (self.root / "bus/pci/devices" / folder.name).symlink_to(folder)

    def nic(self, name: str, path: str, node: int, cpus: str) -> None:
        self.device(path, node, cpus)
        folder = self.root / "devices" / path / "net" / name
        folder.mkdir(parents=True)
        (folder / "device").symlink_to(folder.parent.parent)
        (self.root / "class/net" / name).symlink_to(folder)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def nic(name: str, gpu: str | None = None) -> Nic:
    return Nic(
        name,
        IPv4Address("10.0.0.1"),
        "02:00:00:00:00:01",
        gpu=gpu,
        interface=f"en{name}",
    )


SERVER = Server(
    "server1",
    None,
    (Gpu("gpu0", "V100"), Gpu("gpu1", "V100")),
    (nic("a", "gpu0"), nic("b")),
)
GPUS = Gpus(gpu0="0000:19:00.0")
BEHIND_A_SWITCH = (
    "pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:0{}.0/0000:{}:00.0"
)


def test_a_pair_under_one_switch_is_good(tree: Tree) -> None:
    tree.device(BEHIND_A_SWITCH.format(0, 19), 0, "0")
    tree.nic("ena", BEHIND_A_SWITCH.format(1, "1a"), 0, "0")
    tree.nic("enb", "pci0000:16/0000:16:03.0/0000:20:00.0", 0, "0")
    assert Pairings(SERVER, GPUS, tree.root).problem("gpu0") == ""


@pytest.mark.parametrize(
    ("where", "node", "words"),
    [
        (
            "pci0000:16/0000:16:03.0/0000:20:00.0",
            0,
            "gpu0 and its NIC a are under one PCIe root",
        ),
        (
            "pci0000:30/0000:30:03.0/0000:20:00.0",
            0,
            "gpu0 and its NIC a are at one NUMA node",
        ),
        (
            "pci0000:30/0000:30:03.0/0000:20:00.0",
            1,
            "gpu0 and its NIC a are at different NUMA",
        ),
    ],
)
def test_a_nic_that_is_nearer_is_named(
    tree: Tree, where: str, node: int, words: str
) -> None:
    tree.device(BEHIND_A_SWITCH.format(0, 19), 0, "0")
    tree.nic("ena", where, node, "0")
    tree.nic("enb", BEHIND_A_SWITCH.format(1, "1a"), 0, "0")
    problem = Pairings(SERVER, GPUS, tree.root).problem("gpu0")
    assert problem.startswith(words)
    assert "gpu0 and b are under one PCIe switch" in problem


def test_a_pair_across_numa_nodes_is_reported_where_there_is_no_nearer_one(
    tree: Tree,
) -> None:
    tree.device(BEHIND_A_SWITCH.format(0, 19), 0, "0")
    tree.nic("ena", "pci0000:30/0000:30:03.0/0000:20:00.0", 1, "1")
    tree.nic("enb", "pci0000:30/0000:30:04.0/0000:21:00.0", 1, "1")
    pairings = Pairings(SERVER, GPUS, tree.root)
    assert pairings.problem("gpu1") == ""
    assert "gpu0 is at NUMA node 0, its NIC a at node 1" in pairings.problem(
        "gpu0"
    )
    # While a worker has it, it is not seen; where it sits is known all the same.
    (tree.root / "class/net/ena").unlink()
    assert "its NIC a at node 1" in pairings.problem("gpu0")


def test_of_what_is_not_known_nothing_is_said(tree: Tree) -> None:
    pairings = Pairings(SERVER, Gpus(gpu0=None), tree.root)
    assert [pairings.problem(gpu) for gpu in ("gpu0", "gpu1")] == ["", ""]
    assert pairings.cpus_near("gpu0", SERVER.nics[0]) == ""
    # A machine of one node says -1.
    tree.device("pci0000:00/0000:00:03.0/0000:19:00.0", -1, "0-9999")
    tree.nic("ena", "pci0000:10/0000:10:03.0/0000:20:00.0", -1, "0-9999")
    assert Pairings(SERVER, GPUS, tree.root).problem("gpu0") == ""


def test_cpus_are_those_near_the_gpu_that_this_machine_lets_us_use(
    tree: Tree,
) -> None:
    first, *others = sorted(os.sched_getaffinity(0))
    tree.device(BEHIND_A_SWITCH.format(0, 19), 0, f"{first},9000-9003")
    tree.nic(
        "ena",
        "pci0000:30/0000:30:03.0/0000:20:00.0",
        1,
        ",".join(map(str, others)),
    )
    tree.nic("enb", "pci0000:30/0000:30:04.0/0000:21:00.0", 1, "9000")
    pairings = Pairings(SERVER, GPUS, tree.root)
    a, b = SERVER.nics
    assert pairings.cpus_near("gpu0", a) == (str(first) if others else "")
    assert pairings.cpus_near(None, a) == ",".join(map(str, others))
    # None that we may use: none is chosen.
    assert pairings.cpus_near("gpu1", b) == ""
