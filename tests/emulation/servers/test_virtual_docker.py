"""A PyTorch script, as one writes it for torchrun, in containers on virtual machines.

Emulated processors take many minutes to load PyTorch's image, so it runs only where
``PATCHLIGHT_VM_DOCKER`` is set.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.controller.access.authority import Authority, authority_folder
from patchlight.testbed.jobs import JobSpec, Mount
from patchlight.testbed.linux import deploy_file
from tests.support.emulated_labs import left_of, no_virtual_machines
from tests.support.house import ROOT

NAME = f"vd{os.getpid()}"
LAB = """
name: two
network: 192.168.10.0/24
workers: {mounts: [/srv/jobs]}
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
IMAGE = "patchlight-worker-torch:latest"
TORCHRUN = (
    "python3 -m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-id job "
    "--rdzv-backend c10d --rdzv-endpoint server1:29400 /jobs/train_gloo.py --steps 3"
)
WAIT_S = 3600.0


@pytest.mark.root
@pytest.mark.timeout(3 * WAIT_S)
@pytest.mark.skipif("PATCHLIGHT_VM_DOCKER" not in os.environ, reason="PATCHLIGHT_VM_DOCKER not set")
@pytest.mark.skipif(bool(no_virtual_machines()), reason=no_virtual_machines())
def test_torchrun_trains_in_containers_of_virtual_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (path := tmp_path / "two.yaml").write_text(LAB)
    make = ["bash", str(deploy_file("worker-image.sh")), "--torch", "--save"]
    image = subprocess.run(make, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    authority = Authority(NAME, authority_folder(NAME))
    tls = authority.for_controller(authority.folder.parent / "controller").folder
    script = (ROOT / "examples/jobs/train_gloo.py").read_text()
    with EmulatedLab.from_file(path, 1000, name=NAME, servers="vm", docker=True, tls=tls) as lab:
        for host in lab.hosts:
            write = f"mkdir /srv/jobs; cat >/srv/jobs/train_gloo.py <<'END'\n{script}END"
            assert host.run(["sh", "-c", write]).exit_status == 0
        push = [sys.executable, "-m", "patchlight", "deploy", "push", NAME, "--worker-kind=docker"]
        subprocess.run([*push, "--image", IMAGE, "--image-file", image], check=True)
        mounts = (Mount("/srv/jobs", "/jobs"),)
        spec = JobSpec(
            "torch", trainer="command", workers=2, command=tuple(TORCHRUN.split()), mounts=mounts
        )
        with ControllerClient(lab.lab.controller_api) as client:
            job = client.submit([spec], "keep")[0]["id"]
            ends = time.monotonic() + WAIT_S
            while (state := client.job(job)["state"]) not in ("done", "failed"):
                assert time.monotonic() < ends, state
                time.sleep(1)
            text = client.log(job)["text"]
            assert state == "done", (client.job(job)["message"], text)
            assert "rank 0 step 2 loss" in text
    assert left_of(NAME) == []
