"""Programs that run unchanged on virtual machines with Docker: PyTorch's, and MPI's over RDMA.

The images and the servers' disk take minutes to make, so it runs only where
``PATCHLIGHT_VM_DOCKER`` is set.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.access.authority import Authority, authority_folder
from patchlight.emulation.fabric.roce import RoceMeter
from patchlight.testbed.jobs import JobSpec, Mount
from patchlight.testbed.linux import deploy_file
from tests.support.emulated_labs import left_of, no_virtual_machines
from tests.support.house import ROOT
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.vm,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        "PATCHLIGHT_VM_DOCKER" not in os.environ,
        reason="PATCHLIGHT_VM_DOCKER is not set",
    ),
    pytest.mark.skipif(
        bool(no_virtual_machines()), reason=no_virtual_machines()
    ),
]
NAME = f"vd{os.getpid()}"
SCRIPTS = Path(f"/srv/{NAME}-scripts")
MODULES = Path(f"/srv/{NAME}-modules")
LAB = (
    f"workers: {{mounts: [{SCRIPTS}, {MODULES}]}}"
    + """
name: two
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0}]
  - name: server2
    gpus: [{name: gpu1, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.12, rate: 40Gbps, gpu: gpu1}]
circuit_switches:
  - {name: ocs1, driver: polatis-tl1, address: "10.0.0.1:3082", ports: 4, cross_connects: [1-2]}
fibres: [server1.nic0 - ocs1.1, server2.nic0 - ocs1.2]
"""
)
TORCH = "patchlight-worker-torch:latest"
MPI = "patchlight-worker-mpi:latest"
TORCHRUN = (
    "/usr/bin/python3 -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-id job "
    "--rdzv-backend c10d --rdzv-endpoint server1:29400 {}/train_gloo.py --steps 3"
)
MPIRUN = (
    "python3",
    "-m",
    "patchlight.agents.training.mpirun",
    "python3",
    "-c",
)
ALL_REDUCE = """
import numpy
from mpi4py import MPI
world, values = MPI.COMM_WORLD, numpy.full(100_000, MPI.COMM_WORLD.rank + 1.0)
world.Allreduce(MPI.IN_PLACE, values)
print(f"{world.size} ranks: {values.min()} to {values.max()}")
"""
WAIT_S = 600.0


def pushed(*options: str) -> list[int]:
    """Bytes that a push copied to each server."""
    push = [
        sys.executable,
        "-m",
        "patchlight",
        "deploy",
        "push",
        NAME,
        "--json",
        *options,
    ]
    told = subprocess.run(push, stdout=subprocess.PIPE, check=True).stdout
    return [server["copied_bytes"] for server in json.loads(told)["servers"]]


def made(kind: str) -> str:
    """The file of an image of workers."""
    make = ["bash", str(deploy_file("worker-image.sh")), kind, "--save"]
    return subprocess.run(
        make, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedLab]:
    """Its servers have the images before they boot."""
    made("--mpi")
    image = made("--torch")
    folder = tmp_path_factory.mktemp("lab")
    (path := folder / "two.yaml").write_text(LAB)
    SCRIPTS.symlink_to(ROOT / "examples/jobs")
    MODULES.symlink_to(Path(pytest.importorskip("torch").__file__).parents[1])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_DATA_HOME", str(folder))
        authority = Authority(NAME, authority_folder(NAME))
        tls = authority.for_controller(
            authority.folder.parent / "controller"
        ).folder
        with EmulatedLab.from_file(
            path, 1000, name=NAME, servers="vm", docker=True, tls=tls
        ) as up:
            told = pushed(
                "--worker-kind=docker", "--image", TORCH, "--image-file", image
            )
            # All but the image, which is already there.
            assert 0 < max(told) < Path(image).stat().st_size / 2
            yield up
    for folder in (SCRIPTS, MODULES):
        folder.unlink()
    assert left_of(NAME) == []


def log_of(lab: EmulatedLab, spec: JobSpec, awaited: str) -> str:
    """What a job writes that ends well; ``awaited`` is in it."""
    with ControllerClient(lab.lab.controller_api) as client:
        job = client.submit([spec], "keep")[0].id
        wait_until(
            lambda: client.job(job).state in ("done", "failed"),
            "its end",
            WAIT_S,
        )
        ended = client.job(job)
        assert ended.state == "done", (
            ended.message,
            client.log(job).text,
        )
        wait_until(lambda: awaited in client.log(job).text, awaited, WAIT_S)
        return str(client.log(job).text)


def test_torchrun_trains_in_containers(lab: EmulatedLab) -> None:
    mounts = (Mount(str(SCRIPTS), "/jobs"),)
    command = tuple(TORCHRUN.format("/jobs").split())
    spec = JobSpec(
        "torch", trainer="command", workers=2, command=command, mounts=mounts
    )
    log_of(lab, spec, "rank 0 step 2 loss")


def test_an_mpi_program_exchanges_over_rdma(lab: EmulatedLab) -> None:
    command = (*MPIRUN, ALL_REDUCE)
    spec = JobSpec(
        "mpi", trainer="command", workers=2, command=command, image=MPI
    )
    with RoceMeter([host.far_end for host in lab.hosts]) as meter:
        log_of(lab, spec, "2 ranks: 3.0 to 3.0")
    # Each rank sends its 800,000 bytes once: half to be added up, half of the sum.
    assert meter.share.roce_bytes > 1_600_000


def test_torchrun_trains_in_processes(lab: EmulatedLab) -> None:
    pushed("--worker-kind=process")
    command = tuple(TORCHRUN.format(SCRIPTS).split())
    path = {"PYTHONPATH": str(MODULES)}
    spec = JobSpec(
        "torch",
        trainer="command",
        workers=2,
        command=command,
        environment=path,
    )
    log_of(lab, spec, "rank 0 step 2 loss")
