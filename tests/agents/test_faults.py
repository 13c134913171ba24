"""What comes of hardware and disks that fail under workers."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from patchlight.testbed.lab.rules import WorkerPolicy
from tests.support.agent_bench import Agent, Bench, ip
from tests.support.waiting import PATIENCE_S, wait_until
from tests.support.worker_jobs import everything_is_back, run_job, start_all

pytestmark = pytest.mark.root

MakeBench = Callable[[int], Bench]

# Where it may fork no more it waits: hundreds that try all the time leave no processor to the
# tests beside this one, and each fork in vain copies the process first.
BOMB = """
import os, time
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(1)  # then it tries again
"""


def nic_problem(agent: Agent) -> str:
    return str(agent.client.get("/status").json()["nics"][0]["problem"])


def test_a_gpu_that_falls_off_fails_its_worker_whatever_it_runs(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(2)
    agents = bench.start_agents(2)
    synthetic = bench.spec(0, 1, compute_s=1000)
    foreign = bench.command(1, 2, "sleep", "1000")
    for agent, spec in zip(agents, (synthetic, foreign), strict=True):
        assert agent.client.post("/workers", json=spec).status_code == 201
    agents[0].until_state("job-0", "ready")
    start_all(agents)
    assert bench.gpus is not None
    bench.gpus.kill()
    bench.gpus.wait(PATIENCE_S)
    assert (
        "the emulated GPU"
        in agents[0].until_state("job-0", "failed")["message"]
    )
    assert (
        "its GPU failed" in agents[1].until_state("job-1", "failed")["message"]
    )
    for agent in agents:
        status = agent.client.get("/status")
        assert status.status_code == 200, (
            "one GPU took the whole status with it"
        )
        assert "reading GPU gpu0" in status.json()["gpus"][0]["problem"]
        assert agent.nic_is_home()
    again = agents[1].client.post(
        "/workers", json={**bench.spec(1, 2), "id": "next"}
    )
    assert again.status_code == 500
    assert "reading GPU gpu0" in again.json()["error"]
    assert agents[1].client.get("/workers/next").status_code == 404


def test_an_agent_starts_without_a_gpu_and_has_it_when_it_is_back(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    agent = bench.agent("server1").start()
    agent.stop()
    socket = bench.gpu_socket("server1")
    socket.rename(socket.with_suffix(".off"))
    agent.start()
    assert "no worker gets GPU gpu0" in agent.log.read_text()
    assert (
        "GPU gpu0 has no socket"
        in agent.client.get("/status").json()["gpus"][0]["problem"]
    )
    refused = agent.client.post("/workers", json=bench.spec(0, 1))
    assert refused.status_code == 500
    assert "GPU gpu0 has no socket" in refused.json()["error"]
    socket.with_suffix(".off").rename(socket)
    assert agent.client.get("/status").json()["gpus"][0]["problem"] == ""
    assert (
        agent.client.post("/workers", json=bench.spec(0, 1)).status_code == 201
    )


def test_a_nic_that_vanishes_fails_its_worker_and_frees_its_gpu(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(1)
    (agent,) = run_job(bench, "process", 1, iterations=10_000)
    start_all([agent])
    ip("-n", bench.namespace("fabric"), "link", "del", "server1-1")
    assert "nic0 is gone" in agent.until_state("job-0", "failed")["message"]
    overview = agent.client.get("/status").json()
    assert (
        overview["gpus"][0]["worker"] is overview["nics"][0]["worker"] is None
    )
    assert "nic0 is gone" in overview["nics"][0]["problem"]
    refused = agent.client.post(
        "/workers", json={**bench.spec(0, 1), "id": "next"}
    )
    assert refused.status_code == 500
    assert "interface nic0 not found" in refused.json()["error"]


def test_a_nic_without_carrier_is_reported_and_its_worker_waits(
    make_bench: MakeBench,
) -> None:
    bench = make_bench(2)
    agents = run_job(bench, "process", 2, iterations=20, compute_s=0.01)
    assert nic_problem(agents[0]) == ""
    far_end = ("-n", bench.namespace("fabric"), "link", "set", "server1-1")
    ip(*far_end, "down")
    start_all(agents)
    wait_until(lambda: nic_problem(agents[0]) == "nic0 has no carrier")
    assert nic_problem(agents[1]) == ""
    assert agents[0].worker("job-0")["state"] == "running"
    ip(*far_end, "up")
    for rank, agent in enumerate(agents):
        agent.until_state(f"job-{rank}", "done")


@contextlib.contextmanager
def disk_of(size: str, disk: Path) -> Iterator[Path]:
    """A folder on a disk of that size."""
    disk.mkdir()
    options = f"size={size},mode=0700"
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", disk], check=True
    )
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 1 MiB."""
    with disk_of("1m", tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def larger_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of 600 MiB."""
    with disk_of("600m", tmp_path / "disk") as disk:
        yield disk


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    return filler


def test_a_full_disk_leaves_nothing_half_done(
    small_disk: Path, make_bench: MakeBench
) -> None:
    bench = make_bench(1)
    (bench.directory / "state-server1").symlink_to(small_disk)
    agent = bench.agent("server1").start()
    filler = fill(small_disk)
    refused = agent.client.post("/workers", json=bench.spec(0, 1))
    assert refused.status_code == 500
    assert "No space left on device" in refused.json()["error"]
    assert refused.json()["hint"] == "free space on that disk"
    assert agent.client.get("/workers/job-0").status_code == 404
    assert everything_is_back(agent, "job-0")
    # A worker whose disk fills while it trains fails, and everything comes back all the same.
    filler.unlink()
    assert agent.client.post(
        "/workers", json=bench.spec(0, 1, iterations=10_000)
    ).is_success
    agent.until_state("job-0", "ready")
    start_all([agent])
    filler = fill(small_disk)
    failed = agent.until_state("job-0", "failed")
    assert "no space left on the disk" in failed["message"]
    assert everything_is_back(agent, "job-0")
    filler.unlink()
    assert agent.client.delete("/workers/job-0").json()["state"] == "failed"


def test_a_worker_that_fills_the_disk_is_ended_before_it_is_full(
    larger_disk: Path, make_bench: MakeBench
) -> None:
    bench = make_bench(1)
    (bench.directory / "state-server1").symlink_to(larger_disk)
    agent = bench.agent("server1").start()
    # What has holes takes no room.
    greedy = "truncate -s 1G holes; head -c 320M /dev/zero >zeros; sleep 1000"
    command = {
        **bench.command(0, 1, "sh", "-c", greedy),
        "memory_bytes": 2**30,
    }
    assert agent.client.post("/workers", json=command).status_code == 201
    start_all([agent])
    failed = agent.until_state("job-0", "failed")
    assert "more than the" in failed["message"]
    assert "free on that disk" in failed["message"]
    assert everything_is_back(agent, "job-0")
    assert agent.client.delete("/workers/job-0").is_success
    disk = os.statvfs(larger_disk)
    assert disk.f_bavail > 0.9 * disk.f_blocks


def test_a_worker_that_fills_the_disk_has_no_time_to_end(
    larger_disk: Path, make_bench: MakeBench
) -> None:
    bench = make_bench(1)
    (bench.directory / "state-server1").symlink_to(larger_disk)
    agent = bench.agent("server1").start()
    # From its order to end on.
    greedy = (
        "trap 'head -c 320M /dev/zero >zeros' TERM; while :; do sleep 1; done"
    )
    command = {
        **bench.command(0, 1, "sh", "-c", greedy),
        "memory_bytes": 2**30,
        "stop_grace_s": 3600.0,
    }
    assert agent.client.post("/workers", json=command).status_code == 201
    start_all([agent])
    agent.until_state("job-0", "running")
    ended = agent.client.delete("/workers/job-0").json()
    assert (ended["state"], ended["exit_code"]) == ("stopped", 137)
    assert everything_is_back(agent, "job-0")
    assert "killing worker job-0: its folder has" in agent.log.read_text()


def test_a_fork_bomb_leaves_the_agent_its_part_and_is_ended_soon(
    make_bench: MakeBench,
) -> None:
    agent = make_bench(1).agent("server1").start()
    spec = {
        **agent.bench.command(0, 1, sys.executable, "-c", BOMB),
        "stop_grace_s": 2.0,
    }
    assert agent.client.post("/workers", json=spec).status_code == 201
    start_all([agent])
    space = agent.bench.namespace("server1.w-job-0")
    most = WorkerPolicy().processes
    # Those that have ended and are not waited for are counted, too.
    wait_until(
        lambda: len(ip("netns", "pids", space).split()) > most / 2,
        "it to fork",
    )
    waited_s = 0.0
    for _ in range(20):
        began = time.monotonic()
        assert agent.client.get("/status").status_code == 200
        waited_s += time.monotonic() - began
        # This look is no part of the agent, and takes long beside so many.
        assert len(ip("netns", "pids", space).split()) <= most
    began = time.monotonic()
    assert agent.client.delete("/workers/job-0").json()["state"] == "stopped"
    assert waited_s + time.monotonic() - began < 30
    assert everything_is_back(agent, "job-0")
