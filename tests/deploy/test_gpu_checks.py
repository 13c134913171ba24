"""GPUs, RDMA and containers: what the facts of a server say of what the lab file claims."""

from dataclasses import replace

import pytest

from patchlight.deploy.check import judge
from patchlight.deploy.check_machine import Finding, Workers
from patchlight.deploy.facts import (
    DockerFacts,
    GpuFacts,
    NicFacts,
    PciFacts,
    RdmaFacts,
    ServerFacts,
)
from patchlight.testbed.lab.model import Lab, Server
from patchlight.testbed.labfile.reader import parse_lab
from patchlight.testbed.labfile.writer import write_lab
from patchlight.testbed.linux.devices import distance

GPU_LAB = parse_lab("""
name: gpus
network: 192.168.10.0/24
servers:
  - name: server1
    management: 10.0.0.11:8471
    gpus: [{name: gpu0, model: A100, uuid: GPU-0}, {name: gpu1, model: A100, uuid: GPU-1}]
    nics:
      - {name: nic0, address: 192.168.10.11, gpu: gpu0}
      - {name: nic1, address: 192.168.10.12, gpu: gpu1}
""")
UNPINNED = parse_lab(
    write_lab(GPU_LAB)
    .replace(", uuid: GPU-0", "")
    .replace(", uuid: GPU-1", "")
)


def card(path: str, numa: int | None, vendor: int = 0x15B3) -> PciFacts:
    kind, driver = (
        (0x030200, "nvidia") if vendor == 0x10DE else (0x020000, "mlx5_core")
    )
    return PciFacts(vendor, kind, driver, numa, tuple(path.split("/")))


# Each GPU behind a switch with one NIC; the first two of them on one socket, the others alike.
CARDS = {
    "0000:0a:00.0": card(
        "pci0000:00/0000:00:01.0/0000:08:00.0/0000:0a:00.0", 0, 0x10DE
    ),
    "0000:0b:00.0": card(
        "pci0000:00/0000:00:01.0/0000:08:00.0/0000:0b:00.0", 0
    ),
    "0000:8a:00.0": card(
        "pci0000:80/0000:80:01.0/0000:88:00.0/0000:8a:00.0", 1, 0x10DE
    ),
    "0000:8b:00.0": card(
        "pci0000:80/0000:80:01.0/0000:88:00.0/0000:8b:00.0", 1
    ),
}
ENGINE = DockerFacts("unix:///run/docker.sock", True, "1.44")
GPU_SERVER = ServerFacts(
    clock_offset_s=0.2,
    clock_uncertainty_s=0.01,
    user="root",
    python=(3, 11, 2),
    has_venv=True,
    free_bytes=100 << 30,
    docker=ENGINE,
    nics={
        "nic0": NicFacts("mlx5_core", 9000, 10**11, "0000:0b:00.0"),
        "nic1": NicFacts("mlx5_core", 9000, 10**11, "0000:8b:00.0"),
    },
    pci=CARDS,
    rdma=(
        RdmaFacts("mlx5_0", 1, "ACTIVE", "Ethernet", "0000:0b:00.0", None),
        RdmaFacts("mlx5_1", 1, "ACTIVE", "Ethernet", "0000:8b:00.0", None),
    ),
    modules={
        "ib_uverbs": "loaded",
        "rdma_ucm": "loaded",
        "nvidia_uvm": "loaded",
        "nvidia_peermem": "loaded",
    },
    driver="550.54.14",
    gpus=(
        GpuFacts("GPU-0", "NVIDIA A100-SXM4-80GB", "0000:0a:00.0"),
        GpuFacts("GPU-1", "NVIDIA A100-SXM4-80GB", "0000:8a:00.0"),
    ),
    toolkit="1.17.4",
    cdi=("/etc/cdi/nvidia.yaml",),
)


def of_gpus(
    lab: Lab, facts: ServerFacts, workers: Workers = "auto"
) -> dict[str, Finding]:
    return {f.check: f for f in judge(lab, {"server1": facts}, workers)}


def test_a_server_with_gpus_that_lacks_nothing_is_ready() -> None:
    for lab in (GPU_LAB, UNPINNED):
        found = of_gpus(lab, GPU_SERVER)
        assert {finding.ok for finding in found.values()} == {True}
        assert found["NVIDIA driver"].found == "version 550.54.14, 2 GPUs"
        assert (
            found["container toolkit"].found
            == "version 1.17.4; GPUs by /etc/cdi/nvidia.yaml"
        )
        assert found["gpu0 and nic0"].found == "under one PCIe switch"
        assert found["RDMA nic1"].found == "mlx5_1 port 1 is ACTIVE"
        assert found["GPU gpu1"].found == "NVIDIA A100-SXM4-80GB, GPU-1"


@pytest.mark.parametrize(
    ("changed", "check", "ok", "found", "remedy"),
    [
        (
            {"gpus": (), "driver": None},
            "NVIDIA driver",
            False,
            "2 GPUs and no driver",
            "nvidia-dr",
        ),
        (
            {"gpus": (), "driver": None, "pci": {}},
            "NVIDIA driver",
            False,
            "no NVIDIA GPU",
            "lspci",
        ),
        (
            {
                "gpus": (),
                "driver": None,
                "pci": {},
                "nics": {"nic0": NicFacts(None, 1500, None)},
            },
            "NVIDIA driver",
            False,
            "no NVIDIA GPU",
            "emulated_gpus: true",
        ),
        (
            {"gpus": ()},
            "NVIDIA driver",
            False,
            "without nvidia-smi",
            "apt-get install nvidia-smi",
        ),
        (
            {"gpus": (), "smi_refusal": "Driver/library version mismatch"},
            "NVIDIA driver",
            False,
            "nvidia-smi: Driver/library version mismatch",
            "restart it",
        ),
        (
            {"gpus": GPU_SERVER.gpus[:1]},
            "GPU gpu1",
            False,
            "no GPU-1; found GPU-0 (NVIDIA A100",
            "uuid in the lab file",
        ),
        (
            {
                "gpus": (
                    replace(GPU_SERVER.gpus[0], model="Tesla V100"),
                    GPU_SERVER.gpus[1],
                )
            },
            "GPU gpu0",
            False,
            "Tesla V100, GPU-0, not A100",
            "correct its model",
        ),
        (
            {"cdi": ()},
            "container toolkit",
            False,
            "no CDI, no runtime",
            "nvidia-ctk cdi generate",
        ),
        (
            {
                "cdi": (),
                "docker": replace(ENGINE, runtimes=("nvidia", "runc")),
            },
            "container toolkit",
            True,
            "version 1.17.4; GPUs by runtime nvidia",
            "",
        ),
        (
            {"modules": {**GPU_SERVER.modules, "rdma_ucm": "there"}},
            "kernel modules",
            False,
            "rdma_ucm is not loaded",
            "modprobe -a rdma_ucm, on",
        ),
        (
            {"modules": {"nvidia_uvm": "absent", "ib_uverbs": "unknown"}},
            "kernel modules",
            False,
            "nvidia_uvm is absent",
            "modprobe -a nvidia_uvm, on",
        ),
        ({"modules": {}}, "kernel modules", None, "ib_uverbs is unknown", ""),
        (
            {"rdma": ()},
            "RDMA nic0",
            None,
            "its module is mlx5_ib",
            "modprobe mlx5_ib, on server1",
        ),
        (
            {"rdma": (replace(GPU_SERVER.rdma[0], state="DOWN"),)},
            "RDMA nic0",
            False,
            "mlx5_0 port 1 is DOWN",
            "rdma link show",
        ),
        (
            {"rdma": (replace(GPU_SERVER.rdma[0], link_layer="InfiniBand"),)},
            "RDMA nic0",
            False,
            "mlx5_0 port 1 is InfiniBand",
            "LINK_TYPE_P1=2",
        ),
        ({"docker": None}, "Docker engine", None, "without Python", ""),
        (
            {
                "docker": DockerFacts(
                    "unix:///d", False, said="does not answer: no such file"
                )
            },
            "Docker engine",
            None,
            "unix:///d does not answer: no such file: workers will",
            "",
        ),
        (
            {
                "nics": {"eth7": NicFacts("ixgbe", 1500, 10**10)},
                "pci": {
                    **CARDS,
                    "0000:0b:00.0": replace(
                        CARDS["0000:0b:00.0"], driver=None
                    ),
                },
            },
            "NIC nic0",
            False,
            "found eth7 (ixgbe); no driver has 0000:0b:00.0",
            "lspci -k",
        ),
    ],
)
def test_what_is_wrong_with_gpus_and_rdma_is_said_with_its_remedy(
    changed: dict[str, object],
    check: str,
    ok: bool | None,
    found: str,
    remedy: str,
) -> None:
    finding = of_gpus(GPU_LAB, replace(GPU_SERVER, **changed))[check]  # type: ignore[arg-type]
    assert finding.ok is ok
    assert found in finding.found
    assert remedy in finding.remedy


def test_emulated_gpus_need_no_driver() -> None:
    bare = replace(
        GPU_SERVER,
        gpus=(),
        driver=None,
        pci={},
        modules={"nvidia_uvm": "absent"},
    )
    said = write_lab(GPU_LAB).replace(
        "  nics:", "  emulated_gpus: true\n  nics:"
    )
    for lab, facts in (
        (parse_lab(said), bare),
        (GPU_LAB, replace(bare, gpu_sockets="/dev/patchlight-gpus")),
    ):
        found = of_gpus(lab, facts)
        assert (found["GPUs"].ok, found["GPUs"].found[:10]) == (
            True,
            "2 emulated",
        )
        assert not [
            name
            for name in found
            if "NVIDIA" in name or "uvm" in found[name].found
        ]
    assert write_lab(parse_lab(said)) == said


def test_of_gpus_without_uuids_none_is_known_to_be_missing() -> None:
    found = of_gpus(UNPINNED, replace(GPU_SERVER, gpus=GPU_SERVER.gpus[1:]))
    assert (
        found["GPU gpu0"].found
        == found["GPU gpu1"].found
        == "1 of 2 GPUs: the missing one cannot be identified"
    )
    assert found["GPU gpu0"].ok is False
    assert "nvidia-smi -L" in found["GPU gpu0"].remedy


def test_gpus_that_had_better_change_their_nics_are_told() -> None:
    crossed = replace(
        GPU_SERVER,
        nics={
            "nic0": GPU_SERVER.nics["nic1"],
            "nic1": GPU_SERVER.nics["nic0"],
        },
    )
    found = of_gpus(GPU_LAB, crossed)["gpu0 and nic0"]
    assert (found.ok, found.found) == (
        False,
        "at different NUMA nodes; nic1 is nearer",
    )
    assert "give gpu0 of server1 the NIC nic1, and gpu1 nic0" in found.remedy
    # Both NICs on one card: for one of the two GPUs there is nothing nearer.
    one_card = {**CARDS, "0000:8b:00.0": CARDS["0000:0b:00.0"]}
    found = of_gpus(GPU_LAB, replace(GPU_SERVER, pci=one_card))[
        "gpu1 and nic1"
    ]
    assert (found.ok, found.found) == (True, "at different NUMA nodes")
    unknown = {
        name: replace(each, numa=None) for name, each in one_card.items()
    }
    assert "gpu1 and nic1" not in of_gpus(
        GPU_LAB, replace(GPU_SERVER, pci=unknown)
    )


@pytest.mark.parametrize(
    ("one", "other", "near"),
    [
        ("0000:0a:00.0", "0000:0b:00.0", 0),
        ("0000:0a:00.0", "0000:8b:00.0", 3),
        ("0000:0a:00.0", "same root", 1),
        ("0000:0a:00.0", "same node", 2),
    ],
)
def test_how_near_two_cards_are(one: str, other: str, near: int) -> None:
    cards = {
        **CARDS,
        "same root": card("pci0000:00/0000:00:02.0/0000:10:00.0", 0),
        "same node": card("pci0000:20/0000:20:01.0/0000:21:00.0", 0),
    }
    here, there = (
        (each.path, each.numa) for each in (cards[one], cards[other])
    )
    assert distance(*here, *there) == distance(*there, *here) == near


def test_an_engine_is_needed_where_workers_are_containers() -> None:
    without = replace(
        GPU_SERVER, docker=DockerFacts("unix:///d", False, said="is not there")
    )
    assert of_gpus(GPU_LAB, without, "docker")["Docker engine"].ok is False
    assert (
        "apt-get install docker.io"
        in of_gpus(GPU_LAB, without)["Docker engine"].remedy
    )
    checks = of_gpus(
        GPU_LAB, replace(without, cdi=(), bwrap="0.8.0"), "process"
    )
    assert not {"Docker engine", "container toolkit"} & set(checks)
    assert {finding.ok for finding in checks.values()} == {True}


def test_what_the_lab_does_not_claim_is_never_wrong() -> None:
    claims_nothing = GPU_LAB.with_changes(
        servers=(Server("server1", "h:1", (), ()),)
    )
    bare = replace(
        GPU_SERVER, gpus=(), driver=None, rdma=(), nics={}, cdi=(), modules={}
    )
    states = {f.check: f.ok for f in judge(claims_nothing, {"server1": bare})}
    assert states["NVIDIA driver"] is None
    assert False not in states.values()
