"""Emulated labs go away whatever happens to them, and stand in nobody's way."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.emulated_lab import AlreadyThere, down_lab, lab_status
from patchlight.testbed.linux import namespaces
from tests.support.emulated_labs import SWITCHES_ONLY, left_of, pings, tree

pytestmark = [pytest.mark.root, pytest.mark.ovs]


def start_up(path: Path, name: str, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "patchlight", "emulate", "up", str(path), "--name", name]
    return subprocess.Popen(
        [*command, "--no-controller", "--no-agents", *more], stderr=subprocess.PIPE, text=True
    )


def wait_for(what: Callable[[], object], deadline_s: float = 10.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.001)


def has_namespaces(name: str, count: int) -> Callable[[], bool]:
    return lambda: len(namespaces.names_with_prefix(f"pl.{name}.")) >= count


def runs(name: str, process: str) -> Callable[[], bool]:
    def check() -> bool:
        state = states.read_state(name)
        return state is not None and any(p.name == process for p in state.processes)

    return check


@pytest.mark.parametrize("moment", ["namespaces", "switches"])
def test_down_removes_what_a_killed_up_left(
    tmp_path: Path, new_name: Callable[[], str], moment: str
) -> None:
    name = new_name()
    builder = start_up(tree(tmp_path, 100), name)
    wait_for(has_namespaces(name, 20) if moment == "namespaces" else runs(name, "ovs-vswitchd"))
    builder.kill()
    builder.wait()
    assert left_of(name)
    assert lab_status(name)["state"] == "half-there"
    again = start_up(tree(tmp_path, 100), name)
    said = again.communicate()[1]
    assert again.returncode == 1
    assert "half there" in said
    assert "--replace" in said
    assert down_lab(name)
    assert left_of(name) == []
    assert not down_lab(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["namespaces", "switches"])
def test_an_interrupted_up_leaves_nothing(
    tmp_path: Path, new_name: Callable[[], str], moment: str, number: signal.Signals
) -> None:
    name = new_name()
    builder = start_up(tree(tmp_path, 100), name)
    wait_for(has_namespaces(name, 20) if moment == "namespaces" else runs(name, "ovs-vswitchd"))
    builder.send_signal(number)
    said = builder.communicate()[1]
    assert builder.returncode == 130, said
    assert left_of(name) == []


def test_up_again_is_refused_and_replace_makes_anew(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    with EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY) as lab:
        with pytest.raises(AlreadyThere, match="is up already"):
            EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY).up()
        assert pings(lab.host("gpu0"), lab.host("gpu2"))
        switch = next(p for p in lab.state.processes if p.name == "ovs-vswitchd")
        os.kill(switch.pid, signal.SIGKILL)
        wait_for(lambda: not states.is_running(switch))
        with pytest.raises(AlreadyThere, match=r"half there \(gone: process ovs-vswitchd\)"):
            EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY).up()
        anew = EmulatedLab.from_file(two_tors, 1000, replace=True, name=name, **SWITCHES_ONLY)
        anew.up()
        assert pings(anew.host("gpu0"), anew.host("gpu2"))
        assert EmulatedLab.attach(name).status()["state"] == "up"


def test_after_a_reboot_only_files_are_removed(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    state = states.new_state(name, str(two_tors), 1.0)
    state.boot_id = "00000000-0000-0000-0000-000000000000"
    # The number of a process that is not ours to end: this very one.
    started = states.process_start(os.getpid())
    assert started is not None
    state.processes.append(states.ProcessRecord("ovs-vswitchd", os.getpid(), started, "", True))
    state.save()
    assert lab_status(name)["state"] == "down"
    assert down_lab(name)
    assert left_of(name) == []


def test_down_finds_a_lab_whose_record_is_lost(two_tors: Path, new_name: Callable[[], str]) -> None:
    name = new_name()
    EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY).up()
    shutil.rmtree(states.run_dir(name))
    with pytest.raises(AlreadyThere, match="nothing says what was made"):
        EmulatedLab.from_file(two_tors, 1000, name=name).up()
    assert down_lab(name)
    assert left_of(name) == []


@pytest.mark.docker
def test_down_removes_the_containers_of_its_lab_alone(
    new_name: Callable[[], str], docker_host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    image = subprocess.run(
        "tar cT /dev/null | docker import -", shell=True, check=True, capture_output=True, text=True
    ).stdout.strip()
    name, other = new_name(), new_name()
    made = {
        lab: subprocess.check_output(
            ["docker", "create", "--label", f"patchlight.lab={lab}", image, "nothing"], text=True
        ).strip()
        for lab in (name, other)
    }
    state = states.new_state(name, "lab.yaml", 1.0)
    state.docker = docker_host
    state.save()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")  # Not the one it came up with.
    assert down_lab(name)
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    there = subprocess.check_output(["docker", "ps", "-aq", "--no-trunc"], text=True).split()
    assert made[name] not in there
    assert made[other] in there
    subprocess.run(["docker", "rm", made[other]], check=True, capture_output=True)
    subprocess.run(["docker", "rmi", image], check=True, capture_output=True)


def test_a_reused_process_number_is_not_ours(new_name: Callable[[], str]) -> None:
    other = subprocess.Popen(["sleep", "60"])
    name = new_name()
    state = states.new_state(name, "lab.yaml", 1.0)
    state.processes.append(states.ProcessRecord("agent", other.pid, 1, ""))
    state.save()
    assert down_lab(name)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_switch_that_does_not_start_shows_its_last_words(
    two_tors: Path, new_name: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "ovs-vswitchd"
    broken.write_text("#!/bin/sh\necho no room for a switch here >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = new_name()
    lab = EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY)
    with pytest.raises(Exception, match=r"ovs-vswitchd(.|\n)*status 7(.|\n)*no room for a switch"):
        lab.up()
    assert left_of(name) == []
