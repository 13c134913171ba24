"""Control groups of rehearsal servers, on trees as the kernel shows them."""

from pathlib import Path

import pytest

from patchlight.emulation.servers.server import (
    make_groups,
    remove_groups,
    server_group,
)
from patchlight.testbed.linux.processes import CgroupError, memory_for_workers

GROUP = server_group("lab", "server1")


def test_version_one_has_a_group_in_each_hierarchy(tmp_path: Path) -> None:
    for controller in ("cpu,cpuacct", "cpuset", "memory"):
        (tmp_path / controller).mkdir()
        (tmp_path / controller / "cgroup.procs").touch()
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "not-mounted").mkdir()
    above = [tmp_path / "cpuset" / part for part in ("", "patchlight-servers")]
    folders = [*above, above[1] / "lab", above[1] / "lab/server1"]
    for folder in folders:  # as the kernel makes them
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cpuset.cpus").write_text("\n")
        (folder / "cpuset.mems").write_text("\n")
    (above[0] / "cpuset.cpus").write_text("0-1\n")
    (above[0] / "cpuset.mems").write_text("0\n")
    make_groups("lab", "server1", tmp_path)
    for controller in ("cpu,cpuacct", "cpuset", "memory"):
        assert (tmp_path / controller / GROUP).is_dir()
    assert (tmp_path / "cpuset" / GROUP / "cpuset.cpus").read_text() == "0-1\n"
    assert (tmp_path / "cpuset" / GROUP / "cpuset.mems").read_text() == "0\n"
    assert not (tmp_path / "not-mounted/patchlight-servers").exists()


def test_version_two_hands_down_its_controllers(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    weighed = tmp_path / "patchlight-servers"
    weighed.mkdir()
    (weighed / "cpu.weight").write_text("100\n")
    (weighed / "memory.max").write_text("max\n")
    make_groups("lab", "server1", tmp_path)
    assert (tmp_path / GROUP).is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"
    assert (weighed / "cpu.weight").read_text() == "400"
    assert int((weighed / "memory.max").read_text()) == memory_for_workers()


def test_one_server_or_all_of_a_lab_are_removed(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/cgroup.procs").touch()
    for name, server in (
        ("lab", "server1"),
        ("lab", "server2"),
        ("other", "server1"),
    ):
        make_groups(name, server, tmp_path)
    (tmp_path / "memory" / GROUP / "docker/1234").mkdir(parents=True)
    remove_groups("lab", "server1", tmp_path)
    lab = tmp_path / "memory/patchlight-servers/lab"
    assert [each.name for each in lab.iterdir()] == ["server2"]
    remove_groups("lab", root=tmp_path)
    remove_groups("lab", root=tmp_path)
    assert [each.name for each in lab.parent.iterdir()] == ["other"]
    remove_groups("other", root=tmp_path)
    assert [each.name for each in (tmp_path / "memory").iterdir()] == [
        "cgroup.procs"
    ]
    remove_groups("lab", root=tmp_path / "without-groups")


def test_what_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/cgroup.procs").touch()
    (tmp_path / "memory/patchlight-servers").touch()
    with pytest.raises(
        CgroupError, match="making cgroups for server1"
    ) as error:
        make_groups("lab", "server1", tmp_path)
    assert "or --server-kind ssh" in (error.value.hint or "")
