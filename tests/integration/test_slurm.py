"""A real Slurm on an emulated lab, whose jobs claim their circuits."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, demo_lab

from patchlight import EmulatedLab
from patchlight.emulation.fabric.lab_state import is_running
from patchlight.emulation.fabric.processes import Supervisor
from patchlight.testbed.linux.processes import (
    command_line,
    environment,
    process_ids,
)
from tests.support.house import ROOT
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.root,
    pytest.mark.ovs,
    pytest.mark.slurm,
    pytest.mark.wings,
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    lab = demo_lab(f"slurm{os.getpid()}")
    with EmulatedLab.from_lab(lab, scale=1000, agents=False) as emulated:
        found = SlurmCluster(emulated, requeue_s=6)
        found.start()
        yield found


def submit(
    cluster: SlurmCluster,
    nodes: int,
    *options: str,
    program: str = "sleep 3",
) -> str:
    said = cluster.run(
        "sbatch",
        "--parsable",
        f"--nodes={nodes}",
        *options,
        f"--wrap={program}",
    )
    return said.strip()


def wait_for(cluster: SlurmCluster, job: str, state: str) -> None:
    def now() -> str:
        return cluster.states()[job]

    wait_until(lambda: now() == state, f"job {job} to be {state}")


def claim_state(cluster: SlurmCluster, job: str) -> str:
    states = {
        claim.name: claim.state for claim in cluster.lab.controller.claims()
    }
    return states.get(f"slurm-{job}", "")


def wait_for_release(cluster: SlurmCluster, *jobs: str) -> None:
    def left() -> list[str]:
        return [job for job in jobs if claim_state(cluster, job) != "released"]

    wait_until(lambda: not left(), f"the claims of jobs {jobs} to be released")


@contextmanager
def in_the_way(cluster: SlurmCluster) -> Iterator[None]:
    """Somebody else's claim on all servers."""
    nodes = [server.name for server in cluster.lab.lab.servers]
    controller = cluster.lab.controller
    controller.claim("other", nodes)
    wait_until(lambda: controller.claim_now("other", 1).state == "held")
    try:
        yield
    finally:
        controller.release_claim("other")


def processes_of(cluster: SlurmCluster, *words: str) -> list[int]:
    """Those of this lab with these words in their command line."""
    mark = f"PATCHLIGHT_RUN={cluster.lab.run_dir}"
    return [
        pid
        for pid in process_ids()
        if mark in environment(pid)
        and all(word in command_line(pid) for word in words)
    ]


def test_jobs_run_under_one_switch_while_they_hold_its_circuits(
    cluster: SlurmCluster,
) -> None:
    text = (cluster.folder / "topology.conf").read_text()
    assert cluster.switches(text) == {
        "tor1": {"server1", "server2", "server3"},
        "tor2": {"server4", "server5", "server6"},
    }
    go = cluster.folder / "go"
    program = f"until [ -e {go} ]; do sleep 0.1; done; srun hostname"
    jobs = [submit(cluster, nodes, program=program) for nodes in (4, 2, 3, 3)]
    for job in jobs[:2]:
        wait_for(cluster, job, "RUNNING")
        assert claim_state(cluster, job) == "held"
    now = cluster.lab.controller.topology_file("slurm-conf")
    sizes = [len(nodes) for nodes in cluster.switches(now).values()]
    assert sorted(sizes) == [2, 4]

    def is_followed() -> bool:
        theirs = cluster.run("scontrol", "show", "topology")
        return cluster.switches(theirs) == cluster.switches(now)

    wait_until(is_followed, "Slurm to know the new circuits")
    assert [claim_state(cluster, job) for job in jobs[2:]] == ["", ""]
    go.touch()
    for job in jobs:
        wait_for(cluster, job, "COMPLETED")
    wait_for_release(cluster, *jobs)


def test_a_job_that_is_cancelled_in_line_leaves_the_line(
    cluster: SlurmCluster,
) -> None:
    with in_the_way(cluster):
        job = submit(cluster, 2)
        wait_until(lambda: claim_state(cluster, job) == "waiting")
        assert cluster.states()[job] == "CONFIGURING"
        cluster.run("scancel", job)
        wait_for_release(cluster, job)
    wait_for(cluster, job, "CANCELLED")
    wait_until(lambda: processes_of(cluster, f"claim slurm-{job}") == [])


def test_a_killed_claim_is_made_again(cluster: SlurmCluster) -> None:
    with in_the_way(cluster):
        job = submit(cluster, 2)
        wait_until(lambda: claim_state(cluster, job) == "waiting")
        [claiming] = processes_of(cluster, f"claim slurm-{job}", "python")
        os.kill(claiming, signal.SIGKILL)
        wait_for(cluster, job, "PENDING")
    wait_for(cluster, job, "COMPLETED")
    wait_for_release(cluster, job)
    assert "Restarts=1" in cluster.run("scontrol", "show", "job", job)


def is_saved(cluster: SlurmCluster, name: str) -> bool:
    """Whether a job of that name outlives slurmctld."""
    try:
        saved = (cluster.folder / "state/job_state").read_bytes()
    except FileNotFoundError:  # slurmctld is replacing it
        return False
    return name.encode() in saved


def test_slurmctld_dies_while_a_job_waits(cluster: SlurmCluster) -> None:
    services = cluster.services
    supervisor = Supervisor(cluster.lab.state, print)
    name = "outlives"
    with in_the_way(cluster):
        job = submit(cluster, 2, f"--job-name={name}")
        wait_until(lambda: claim_state(cluster, job) == "waiting")
        # Slurm saves a new job within 5 s.
        wait_until(lambda: is_saved(cluster, name), "the job to be saved")
        supervisor.end(services[1:2])
        supervisor.start(services[1:2])
    wait_for(cluster, job, "COMPLETED")
    wait_for_release(cluster, job)


def test_a_failed_node_gives_the_circuits_of_its_job_back(
    cluster: SlurmCluster,
) -> None:
    ring = "--comment=circuits=ring"
    job = submit(cluster, 2, "--no-requeue", ring, program="sleep 600")
    wait_for(cluster, job, "RUNNING")
    assert cluster.lab.controller.claim_now(f"slurm-{job}").shape == "ring"
    node = cluster.run("squeue", "--noheader", "--format=%B", f"--jobs={job}")
    name = f"NodeName={node.strip()}"
    cluster.run("scontrol", "update", name, "State=down", "Reason=test")
    wait_for_release(cluster, job)
    wait_for(cluster, job, "NODE_FAIL")


def test_without_a_controller_a_job_is_held_with_the_reason(
    cluster: SlurmCluster,
) -> None:
    state = cluster.lab.state
    [controller] = [p for p in state.processes if p.name == "controller"]
    os.kill(controller.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(controller))
    job = submit(cluster, 2)
    wait_for(cluster, job, "HELD")
    said = cluster.run("scontrol", "show", "job", job)
    assert "Reason=JobHeldUser" in said
    assert "AdminComment=attempt 3 of 3: no circuits: " in said
    assert "no answer from a controller" in said
    cluster.lab.up()  # what is missing of it
    cluster.run("scontrol", "release", job)
    wait_for(cluster, job, "COMPLETED")
    wait_for_release(cluster, job)


def test_the_demonstration_ends_well(tmp_path: Path) -> None:
    name = f"slurmdemo{os.getpid()}"
    demo = [sys.executable, str(ROOT / "examples/slurm/slurm_demo.py")]
    done = subprocess.run(
        [*demo, "--jobs", "4", "--name", name, "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert [job["nodes"] for job in result["claimed"]] == [4, 2, 4, 2]
    assert (tmp_path / "slurm.png").stat().st_size
    assert "4 of 4" in done.stdout
