"""Servers to deploy to: emulated ones, which all modules of this folder share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.testbed.lab.model import Lab

NAME = f"d{os.getpid()}"
FOUR = """
name: four
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: Tesla M40}]
    nics: [{name: nic0, address: 192.168.10.11, rate: 40Gbps, gpu: gpu0}]
  - name: server[2-4]
    nics: [{name: nic0, address: "192.168.10.[12-14]"}]
packet_switches: [{name: tor1, datapath_id: 1, ports: 4}]
fibres: ["server[1-4].nic0 - tor1.[1-4]"]
"""


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path = tmp_path_factory.mktemp("lab") / "four.yaml"
    path.write_text(FOUR)
    with EmulatedLab.from_file(
        path, 1000, name=NAME, servers="ssh", fabric="bridge", controller=False
    ) as emulated:
        yield emulated.lab


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with no keys, no agent, and no known hosts."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path
