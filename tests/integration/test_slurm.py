"""A real Slurm on an emulated lab."""

import os
from collections.abc import Iterator

import pytest
from slurm_cluster import SlurmCluster, demo_lab

from patchlight import EmulatedLab

pytestmark = [
    pytest.mark.root,
    pytest.mark.ovs,
    pytest.mark.slurm,
    pytest.mark.wings,
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    lab = demo_lab(f"slurm{os.getpid()}")
    with EmulatedLab.from_lab(lab, scale=1000, agents=False) as emulated:
        found = SlurmCluster(emulated, requeue_s=6)
        found.start()
        yield found


def test_a_job_runs_on_the_servers(cluster: SlurmCluster) -> None:
    text = (cluster.folder / "topology.conf").read_text()
    assert cluster.switches(text) == {
        "tor1": {"server1", "server2", "server3"},
        "tor2": {"server4", "server5", "server6"},
    }
    cluster.run(
        "sbatch",
        "--wait",
        "--nodes=2",
        "--comment=circuits=none",
        "--output=addresses",
        "--wrap=srun ip -o -4 address show nic0",
    )
    said = (cluster.folder / "addresses").read_text()
    assert sorted(line.split()[3] for line in said.splitlines()) == [
        "10.1.0.1/24",
        "10.1.0.2/24",
    ]
