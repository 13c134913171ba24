"""Groups of processes with limits, on trees as the kernel shows them, and on the kernel's own."""

import os
import subprocess
from pathlib import Path

import pytest

from patchlight.testbed.linux.processes import CgroupError, Cgroups, Limits

LIMITS = Limits(2**28, 100, cpus=1.5)


def empty(folder: Path) -> None:
    """A kernel's folder is removed with its files."""
    for file in folder.iterdir():
        file.unlink()


def test_version_two_has_one_group_for_all(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    groups = Cgroups(tmp_path)
    assert groups.controllers == ("memory", "pids", "cpu")
    folder = tmp_path / "patchlight" / "w"
    assert groups.make("w", LIMITS) == [folder / "cgroup.procs"]
    written = {file.name: file.read_text() for file in folder.iterdir()}
    assert written == {
        "memory.max": str(2**28),
        "memory.swap.max": "0",
        "pids.max": "100",
        "cpu.max": "150000 100000",
    }
    groups.make("w", Limits(2**28, 100))
    assert (folder / "cpu.max").read_text() == "max 100000"
    assert not groups.ran_out_of_memory("w")
    (folder / "memory.events").write_text(
        "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\n"
    )
    assert groups.ran_out_of_memory("w")
    assert list(groups.names()) == ["w"]
    (folder / "cgroup.kill").touch()
    groups.kill("w")
    assert (folder / "pids.max").read_text() == "0"
    assert (folder / "cgroup.kill").read_text() == "1"
    empty(folder)
    groups.remove("w")
    groups.remove("w")
    assert list(groups.names()) == []


def test_version_one_has_a_group_for_each(tmp_path: Path) -> None:
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller).mkdir()
    groups = Cgroups(tmp_path)
    memory, pids, cpu = (
        tmp_path / each / "patchlight/w" for each in ("memory", "pids", "cpu")
    )
    joined = groups.make("w", LIMITS)
    assert joined == [each / "cgroup.procs" for each in (memory, pids, cpu)]
    assert (memory / "memory.limit_in_bytes").read_text() == str(2**28)
    assert (pids / "pids.max").read_text() == "100"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"
    (memory / "memory.oom_control").write_text(
        "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
    )
    assert groups.ran_out_of_memory("w")
    for folder in (memory, pids, cpu):
        empty(folder)
    groups.remove("w")
    # Beside others its part is fair.
    assert groups.make("w", Limits(2**28, 100)) == joined
    assert (cpu / "cpu.cfs_quota_us").read_text() == "-1"
    groups.kill("w")
    assert not (pids / "cgroup.kill").exists()
    assert (pids / "pids.max").read_text() == "0"


@pytest.mark.parametrize("version", [1, 2])
def test_all_workers_together_leave_the_machine_a_part(
    tmp_path: Path, version: int
) -> None:
    (tmp_path / "cgroup.controllers").write_text(
        "cpu memory pids\n" if version == 2 else ""
    )
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller).mkdir()
    Cgroups(tmp_path)
    memory, pids, cpu = (
        tmp_path / ("" if version == 2 else each) / "patchlight"
        for each in ("memory", "pids", "cpu")
    )
    file = "memory.max" if version == 2 else "memory.limit_in_bytes"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert int((memory / file).read_text()) == int(0.9 * total)
    pid_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert 1000 < int((pids / "pids.max").read_text()) <= pid_max // 2
    assert not [each for each in cpu.iterdir() if each.name.startswith("cpu")]


def test_a_machine_without_groups_limits_nothing(tmp_path: Path) -> None:
    groups = Cgroups(tmp_path / "none")
    assert groups.controllers == ()
    assert groups.make("w", LIMITS) == []
    assert not groups.ran_out_of_memory("w")
    groups.remove("w")


def test_what_cannot_be_limited_is_said_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "memory").mkdir()
    groups = Cgroups(tmp_path)
    empty(tmp_path / "memory/patchlight")
    (tmp_path / "memory/patchlight").rmdir()
    (tmp_path / "memory/patchlight").write_text("in the way")
    with pytest.raises(
        CgroupError, match="limiting w by a cgroup: Not a directory"
    ):
        groups.make("w", LIMITS)


@pytest.mark.root
def test_the_kernel_counts_the_processes_of_a_group() -> None:
    groups = Cgroups()
    if "pids" not in groups.controllers:
        pytest.skip("this machine lets nobody make cgroups of processes")
    name = f"test-{os.getpid()}"
    joined = groups.make(name, Limits(2**28, 3))
    script = 'for file; do echo $$ >"$file"; done; for n in 1 2 3 4; do sleep 60 2>&- >&2 & done'
    try:
        command = [
            "timeout",
            "20",
            "sh",
            "-c",
            script,
            "sh",
            *map(str, joined),
        ]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False
        )
        assert "fork" in ended.stderr
        assert groups.make(name, Limits(2**28, 100)) == joined
        groups.kill(name)
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False
        )
        assert "fork" in ended.stderr
    finally:
        for file in joined:
            for pid in file.read_text().split():
                os.kill(int(pid), 9)
        groups.remove(name)
    assert name not in groups.names()
