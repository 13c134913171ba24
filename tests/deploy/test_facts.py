"""What servers tell is read: from recorded lines, and from trees as the kernel lays them out."""

import os
from pathlib import Path

import pytest

from patchlight.deploy.facts import (
    DockerFacts,
    GpuFacts,
    NicFacts,
    NoFacts,
    PciFacts,
    RdmaFacts,
    facts_here,
    parse_facts,
)
from patchlight.testbed.errors import PatchlightError

OUTPUT = """time 1000.75
user root
python 3.12.1 venv
disk /dev/sda1 1000000 400000 600000 40% /
systemd 252
nic lo mtu=65536 speed=- driver=- pci=- port=0
nic enp1s0 mtu=9000 speed=40000 driver=mlx5_core pci=0000:3b:00.0 port=0
nic enp2s0 mtu=1500 speed=-1 driver=mlx5_core pci=0000:3b:00.1 port=1
nic veth0 mtu=1500 speed=10000 driver=- pci=- port=0
pci 0000:3b:00.0 class=0x020000 vendor=0x15b3 driver=mlx5_core numa=1 \
path=pci0000:3a/0000:3a:00.0/0000:3b:00.0
pci 0000:5e:00.0 class=0x030200 vendor=0x10de driver=nvidia numa=-1 \
path=pci0000:5d/0000:5d:00.0/0000:5e:00.0
rdma mlx5_0 port=1 state=ACTIVE link=Ethernet pci=0000:3b:00.0 parent=-
rdma rxe0 port=1 state=DOWN link=Ethernet pci=- parent=veth0
module ib_uverbs loaded
module rdma_ucm there
nvidia 550.54.14
gpu GPU-6f2a1b3c-0000-1111-2222-333344445555, 00000000:5E:00.0, NVIDIA A100-SXM4-80GB
toolkit 1.17.4
cdi nvidia.com/gpu /etc/cdi/nvidia.yaml
cdi  /etc/cdi/other.json
docker {"url": "unix:///var/run/docker.sock", "answers": true, "api": "1.44", \
"runtimes": ["nvidia", "runc"]}"""


def test_what_a_server_tells_is_read() -> None:
    facts = parse_facts(OUTPUT.splitlines(), 1000.0, 1001.0)
    assert (facts.clock_offset_s, facts.clock_uncertainty_s) == (0.25, 0.5)
    assert (facts.user, facts.systemd, facts.driver) == (
        "root",
        "252",
        "550.54.14",
    )
    assert (facts.python, facts.has_venv) == ((3, 12, 1), True)
    assert facts.free_bytes == 600000 * 1024
    assert facts.nics["enp1s0"] == NicFacts(
        "mlx5_core", 9000, 40 * 10**9, "0000:3b:00.0", 1
    )
    assert facts.nics["enp2s0"] == NicFacts(
        "mlx5_core", 1500, None, "0000:3b:00.1", 2
    )
    assert facts.nics["veth0"] == NicFacts(None, 1500, None)
    card = facts.pci["0000:3b:00.0"]
    gpu = facts.pci["0000:5e:00.0"]
    assert (card.is_network_card, card.is_nvidia_gpu, card.numa) == (
        True,
        False,
        1,
    )
    assert (gpu.is_network_card, gpu.is_nvidia_gpu, gpu.numa) == (
        False,
        True,
        None,
    )
    assert card.path == ("pci0000:3a", "0000:3a:00.0", "0000:3b:00.0")
    assert facts.rdma == (
        RdmaFacts("mlx5_0", 1, "ACTIVE", "Ethernet", "0000:3b:00.0", None),
        RdmaFacts("rxe0", 1, "DOWN", "Ethernet", None, "veth0"),
    )
    assert facts.modules == {"ib_uverbs": "loaded", "rdma_ucm": "there"}
    uuid = "GPU-6f2a1b3c-0000-1111-2222-333344445555"
    assert facts.gpus == (
        GpuFacts(uuid, "NVIDIA A100-SXM4-80GB", "0000:5e:00.0"),
    )
    assert (facts.toolkit, facts.cdi) == ("1.17.4", ("/etc/cdi/nvidia.yaml",))
    url = "unix:///var/run/docker.sock"
    assert facts.docker == DockerFacts(
        url, True, "1.44", runtimes=("nvidia", "runc")
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "motd: welcome",
        "time soon",
        "time 1\nnic eth0",
        "time",
        "time 1\nnic eth0 mtu=9",
        "time 1\ngpu No devices were found",
        "time 1\ndocker {",
        "time 1\ndocker []",
        "time 1\npython three",
        "time 1\nmodule ib_uverbs",
        "time 1\npci 0 class=x",
    ],
)
def test_what_is_no_answer_is_an_error(text: str) -> None:
    with pytest.raises(NoFacts, match="unexpected answer"):
        parse_facts(text.splitlines(), 0, 1)


PCI = "sys/devices/pci0000:3a/0000:3a:00.0"


class Tree:
    """A folder laid out as a server's ``/``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.root / target, link.parent))

    def card(
        self,
        path: str,
        pci_class: str,
        vendor: str,
        driver: str | None,
        numa: int,
    ) -> None:
        for name, text in (
            ("class", pci_class),
            ("vendor", vendor),
            ("numa_node", numa),
        ):
            self.file(f"{path}/{name}", str(text))
        if driver is not None:
            self.link(f"{path}/driver", f"sys/bus/pci/drivers/{driver}")
        self.link(f"sys/bus/pci/devices/{path.rpartition('/')[2]}", path)

    def interface(
        self, name: str, device: str | None, port: int, mtu: int, speed: str
    ) -> None:
        path = f"{device or 'sys/devices/virtual'}/net/{name}"
        for key, text in (("mtu", mtu), ("speed", speed), ("dev_port", port)):
            self.file(f"{path}/{key}", str(text))
        if device is not None:
            self.link(f"{path}/device", device)
        self.link(f"sys/class/net/{name}", path)

    def rdma(
        self,
        name: str,
        device: str | None,
        state: str,
        parent: str | None = None,
    ) -> None:
        path = f"{device or 'sys/devices/virtual'}/infiniband/{name}"
        self.file(f"{path}/ports/1/state", state)
        self.file(f"{path}/ports/1/link_layer", "Ethernet")
        if device is not None:
            self.link(f"{path}/device", device)
        if parent is not None:
            self.file(f"{path}/parent", parent)
        self.link(f"sys/class/infiniband/{name}", path)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = Tree(tmp_path)
    tree.card(f"{PCI}/0000:3b:00.0", "0x020000", "0x15b3", "mlx5_core", 1)
    tree.card(f"{PCI}/0000:3c:00.0", "0x030200", "0x10de", None, -1)
    tree.card(f"{PCI}/0000:3d:00.0", "0x010802", "0x144d", "nvme", 1)
    tree.interface("enp59s0np0", f"{PCI}/0000:3b:00.0", 0, 9000, "100000")
    tree.interface("lo", None, 0, 65536, "")
    tree.rdma("mlx5_0", f"{PCI}/0000:3b:00.0", "4: ACTIVE")
    tree.rdma("rxe0", None, "1: DOWN", parent="enp59s0np0")
    modules = f"lib/modules/{os.uname().release}"
    tree.file(
        f"{modules}/modules.dep",
        "kernel/drivers/infiniband/core/rdma_ucm.ko.xz: a.ko",
    )
    tree.file(
        f"{modules}/modules.builtin",
        "kernel/drivers/infiniband/core/ib_uverbs.ko",
    )
    tree.file("sys/module/nvidia/version", "550.54.14")
    tree.file("etc/cdi/nvidia.yaml", "cdiVersion: 0.5.0\nkind: nvidia.com/gpu")
    tree.file("etc/cdi/other.json", '{"kind": "example.org/fpga"}')
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    return tree


def test_what_the_kernel_shows_is_found(tree: Tree) -> None:
    facts = facts_here(tree.root)
    assert facts.nics == {
        "enp59s0np0": NicFacts("mlx5_core", 9000, 10**11, "0000:3b:00.0"),
        "lo": NicFacts(None, 65536, None),
    }
    above = ("pci0000:3a", "0000:3a:00.0")
    assert facts.pci == {
        "0000:3b:00.0": PciFacts(
            0x15B3, 0x020000, "mlx5_core", 1, (*above, "0000:3b:00.0")
        ),
        "0000:3c:00.0": PciFacts(
            0x10DE, 0x030200, None, None, (*above, "0000:3c:00.0")
        ),
    }
    assert facts.rdma == (
        RdmaFacts("mlx5_0", 1, "ACTIVE", "Ethernet", "0000:3b:00.0", None),
        RdmaFacts("rxe0", 1, "DOWN", "Ethernet", None, "enp59s0np0"),
    )
    assert facts.modules == {
        "nvidia": "loaded",
        "nvidia_uvm": "absent",
        "nvidia_peermem": "absent",
        "ib_uverbs": "loaded",
        "rdma_ucm": "there",
    }
    assert (facts.driver, facts.cdi) == (
        "550.54.14",
        ("/etc/cdi/nvidia.yaml",),
    )
    assert facts.systemd


def test_claims_whose_files_lack_a_line_end_are_told_apart(
    tree: Tree,
) -> None:
    folder = tree.root / "run/patchlight-claims"
    folder.mkdir(parents=True)
    for name in ("gpu0", "nic0"):
        (folder / f"{name}.json").write_text(
            f'{{"namespace": "pl.lab.server1.{name}"}}'
        )
    facts = facts_here(tree.root)
    assert facts.claims == ("pl.lab.server1.gpu0", "pl.lab.server1.nic0")
    assert "0000:3b:00.0" in facts.pci


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_what_nvidias_programs_print_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(
        tmp_path,
        "nvidia-smi",
        "echo 'GPU-6f2a1b3c, 00000000:3B:00.0, NVIDIA A100-SXM4-80GB'\n"
        "echo 'GPU-7a2a1b3c, 00010000:5E:00.0, Tesla V100, 32 GB'",
    )
    program(
        tmp_path,
        "nvidia-ctk",
        "echo 'NVIDIA Container Toolkit CLI version 1.17.4'",
    )
    facts = facts_here()
    assert facts.gpus == (
        GpuFacts("GPU-6f2a1b3c", "NVIDIA A100-SXM4-80GB", "0000:3b:00.0"),
        GpuFacts("GPU-7a2a1b3c", "Tesla V100, 32 GB", "10000:5e:00.0"),
    )
    assert (facts.toolkit, facts.smi_refusal) == ("1.17.4", None)
    program(
        tmp_path,
        "nvidia-smi",
        "echo 'Failed to initialize NVML: Unknown Error'; exit 255",
    )
    refused = facts_here()
    assert refused.gpus == ()
    assert refused.smi_refusal == "Failed to initialize NVML: Unknown Error"


def test_this_machine_tells_what_it_has() -> None:
    facts = facts_here()
    assert facts.python is not None
    assert facts.free_bytes is None or facts.free_bytes > 0
    assert "lo" in facts.nics
    assert facts.docker is not None


def test_a_shell_that_prints_something_else_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "sh", "echo no facts")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        PatchlightError, match="collecting facts about this machine"
    ) as error:
        facts_here()
    assert "facts.sh" in (error.value.hint or "")
