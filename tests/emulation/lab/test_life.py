"""Emulated labs go away whatever happens to them, and stand in nobody's way."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchlight import EmulatedLab
from patchlight.emulation.fabric import lab_state as states
from patchlight.emulation.lab.emulated_lab import down_lab
from patchlight.emulation.lab.options import LabKeywords
from patchlight.emulation.lab.teardown import AlreadyThere, lab_status
from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.processes import process_start
from tests.support.emulated_labs import (
    PAUSING,
    SWITCHES_ONLY,
    left_of,
    pings,
    tree,
)
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.fixture(params=["namespaces", "switches"])
def paused_up(
    tmp_path: Path, new_name: Callable[[], str], request: pytest.FixtureRequest
) -> Iterator[tuple[str, list[str], subprocess.Popen[str]]]:
    """A lab's name, the arguments to make it, and their process, stopped in the midst of that."""
    name = new_name()
    up = ["emulate", "up", str(tree(tmp_path, 100)), "--name", name]
    up += ["--no-controller", "--no-agents"]
    with subprocess.Popen(
        [sys.executable, "-c", PAUSING, request.param, *up],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "paused\n", builder.communicate()
        yield name, up, builder
        builder.kill()


def test_down_removes_what_a_killed_up_left(
    paused_up: tuple[str, list[str], subprocess.Popen[str]],
) -> None:
    name, up, builder = paused_up
    builder.kill()
    builder.wait()
    assert left_of(name)
    assert lab_status(name)["state"] == "half-there"
    again = subprocess.run(
        [sys.executable, "-m", "patchlight", *up],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1
    assert "incomplete" in again.stderr
    assert "--replace" in again.stderr
    # As deep as a worker can make it.
    deep = f"import os; os.chdir({str(states.run_dir(name))!r})\n"
    deep += "for _ in range(1500): os.mkdir('d'); os.chdir('d')"
    subprocess.run([sys.executable, "-c", deep], check=True)
    assert down_lab(name)
    assert left_of(name) == []
    assert not down_lab(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_up_leaves_nothing(
    paused_up: tuple[str, list[str], subprocess.Popen[str]],
    number: signal.Signals,
) -> None:
    name, _, builder = paused_up
    builder.send_signal(number)
    _, errors = builder.communicate()
    assert builder.returncode == 130, errors
    assert left_of(name) == []


def test_only_what_forwards_packets_runs_before_the_users_shell_and_only_to_keep_rates(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    without = two_tors.with_name("without-rates.yaml")
    without.write_text(re.sub(r", rate: \w+", "", two_tors.read_text()))
    assert "rate" not in without.read_text()
    for path, favoured in ((two_tors, {"ovs-vswitchd": -10}), (without, {})):
        with EmulatedLab.from_file(
            path, 1000, name=new_name(), workers="process"
        ) as lab:
            for process in lab.state.processes:
                found = {
                    int(stat.read_text().rpartition(")")[2].split()[16])
                    for stat in Path(f"/proc/{process.pid}/task").glob(
                        "*/stat"
                    )
                }
                assert found == {favoured.get(process.name, niceness)}, (
                    process.name
                )
            names = {process.name for process in lab.state.processes}
            assert {
                "ovs-vswitchd",
                "ovsdb-server",
                "controller",
                "workers",
                "gpus",
            } <= names


def test_up_again_starts_what_is_gone_and_replace_makes_it_from_scratch(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    with EmulatedLab.from_file(
        two_tors, 1000, name=name, **SWITCHES_ONLY
    ) as lab:
        with pytest.raises(AlreadyThere, match="is already up"):
            EmulatedLab.from_file(
                two_tors, 1000, name=name, **SWITCHES_ONLY
            ).up()
        assert pings(lab.host("gpu0"), lab.host("gpu2"))
        switch = next(
            p for p in lab.state.processes if p.name == "ovs-vswitchd"
        )
        os.kill(switch.pid, signal.SIGKILL)
        wait_until(lambda: not states.is_running(switch), "the switch ends")
        assert lab_status(name)["missing"] == ["process ovs-vswitchd"]
        # What is gone is started, whatever the options; what runs is left as it is.
        again = EmulatedLab.from_file(two_tors, name=name, controller=False)
        again.up()
        assert again.lab.scale == 1000
        assert lab_status(name)["state"] == "up"
        others = [p for p in lab.state.processes if p.name != "ovs-vswitchd"]
        assert all(process in again.state.processes for process in others)
        assert pings(again.host("gpu0"), again.host("gpu2"))
        subprocess.run(
            ["ip", "netns", "delete", f"pl.{name}.server2"], check=True
        )
        with pytest.raises(
            AlreadyThere, match=r"incomplete \(missing: namespace pl"
        ) as refused:
            EmulatedLab.from_file(
                two_tors, 1000, name=name, **SWITCHES_ONLY
            ).up()
        assert "LAB --replace" in str(refused.value)
        anew = EmulatedLab.from_file(
            two_tors, 1000, replace=True, name=name, **SWITCHES_ONLY
        )
        anew.up()
        assert pings(anew.host("gpu0"), anew.host("gpu2"))
        assert EmulatedLab.attach(name).status()["state"] == "up"


def test_after_a_reboot_only_files_are_removed(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    state = states.new_state(name, str(two_tors), 1.0)
    state.boot_id = "00000000-0000-0000-0000-000000000000"
    # The number of a process that is not ours to end: this very one.
    started = process_start(os.getpid())
    assert started is not None
    state.processes.append(
        states.ProcessRecord("ovs-vswitchd", os.getpid(), started, "", True)
    )
    state.save()
    assert lab_status(name)["state"] == "down"
    assert down_lab(name)
    assert left_of(name) == []


def test_down_finds_a_lab_whose_record_is_lost(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY).up()
    shutil.rmtree(states.run_dir(name))
    with pytest.raises(AlreadyThere, match="exist without a record"):
        EmulatedLab.from_file(two_tors, 1000, name=name).up()
    assert down_lab(name)
    assert left_of(name) == []


@pytest.mark.docker
def test_down_removes_the_containers_of_its_lab_alone(
    new_name: Callable[[], str],
    docker_host: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    image = subprocess.run(
        "tar cT /dev/null | docker import -",
        shell=True,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    name = new_name()
    other = new_name()
    made = {
        lab: subprocess.check_output(
            [
                "docker",
                "create",
                "--label",
                f"patchlight.lab={lab}",
                image,
                "nothing",
            ],
            text=True,
        ).strip()
        for lab in (name, other)
    }
    state = states.new_state(name, "lab.yaml", 1.0)
    state.docker = docker_host
    state.save()
    # Not the one it came up with.
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    assert down_lab(name)
    monkeypatch.setenv("DOCKER_HOST", docker_host)
    there = subprocess.check_output(
        ["docker", "ps", "-aq", "--no-trunc"], text=True
    ).split()
    assert made[name] not in there
    assert made[other] in there
    subprocess.run(
        ["docker", "rm", made[other]], check=True, capture_output=True
    )
    subprocess.run(["docker", "rmi", image], check=True, capture_output=True)


@pytest.mark.parametrize(
    "workers", ["process", pytest.param("docker", marks=pytest.mark.docker)]
)
def test_down_ends_frozen_workers_whose_agents_are_dead(
    two_tors: Path, new_name: Callable[[], str], workers: str
) -> None:
    name = new_name()
    with EmulatedLab.from_file(
        two_tors,
        1000,
        name=name,
        controller=False,
        agents=True,
        workers=workers,
        fabric="bridge",
    ) as lab:
        agent = httpx.Client(
            transport=httpx.HTTPTransport(
                uds=f"{lab.run_dir}/agents/server2.sock"
            ),
            base_url="http://agent/v1",
            timeout=PATIENCE_S,
        )
        spec = {
            **{"id": "w", "job": "j", "rank": 0, "nic": "nic0"},
            "ring": [{"rank": 0, "address": "192.168.10.13", "port": 29500}],
            "task": {
                "trainer": "command",
                "command": [
                    "sh",
                    "-c",
                    "setsid sleep 1000 & while :; do sleep 0.01; done",
                ],
            },
        }
        with agent:
            assert agent.post("/workers", json=spec).status_code == 201
            assert agent.post("/workers/w/start").status_code == 200
            held = agent.post("/workers/w/hold", json={"iteration": 1})
            assert held.status_code == 200, held.text
        for process in lab.state.processes:
            os.kill(process.pid, signal.SIGKILL)
    assert left_of(name) == []


def test_a_reused_process_number_is_not_ours(
    new_name: Callable[[], str],
) -> None:
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
    two_tors: Path,
    new_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = tmp_path / "ovs-vswitchd"
    broken.write_text(
        "#!/bin/sh\necho no room for a switch here >&2\nexit 7\n"
    )
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    name = new_name()
    lab = EmulatedLab.from_file(two_tors, 1000, name=name, **SWITCHES_ONLY)
    with pytest.raises(
        Exception,
        match=r"ovs-vswitchd(.|\n)*status 7(.|\n)*no room for a switch",
    ):
        lab.up()
    assert left_of(name) == []


def as_nobody(*words: str) -> str:
    who: dict[str, Any] = {
        "user": "nobody",
        "group": "nogroup",
        "extra_groups": [],
    }
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, **who
    )
    return str(done.stdout)


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.parametrize("umask", [0o000, 0o077], indirect=True)
def test_strangers_read_the_lab_file_and_the_hosts_names_alone(
    new_name: Callable[[], str], umask: None
) -> None:
    name = new_name()
    options: LabKeywords = {
        "controller": False,
        "agents": True,
        "workers": "process",
    }
    with EmulatedLab.from_file("ofc2022", 1000, name=name, **options) as lab:
        with (
            lab.hosts[0].popen(["sleep", "60"]) as held,
            states.lab_lock(name),
        ):
            for kind in ("-readable", "-writable"):
                found = as_nobody(
                    "find", str(states.RUN_ROOT), kind, "-not", "-type", "d"
                )
                ours = {
                    Path(line).name
                    for line in found.splitlines()
                    if f"{name}" in line
                }
                assert ours == (
                    {"hosts", "lab.yaml"} if kind == "-readable" else set()
                )
            held.kill()
        folders = as_nobody(
            "find", str(states.RUN_ROOT), "-type", "d", "-writable"
        )
        assert name not in folders
        assert (lab.run_dir / "borrowed").stat().st_mode & 0o777 == 0o700
        program = f"""
import os
from patchlight.emulation.lab.teardown import lab_status
os.setuid(65534)
print(lab_status({name!r}))
"""
        words = [sys.executable, "-c", program]
        done = subprocess.run(
            words, capture_output=True, text=True, check=True
        )
        assert "unreadable" in done.stdout
        assert "only root may read it" in done.stdout


def test_labs_that_cannot_be_are_refused_before_anything_is_made(
    two_tors: Path,
) -> None:
    # As in lab files: an emulated lab's runtime file must be good, too.
    with pytest.raises(BadInput, match="at most 24 in all"):
        EmulatedLab.from_file(two_tors, name="a" * 25)
    with pytest.raises(BadInput, match="no option 'placement'") as caught:
        EmulatedLab.from_file(two_tors, placement="regroup")  # type: ignore[call-arg]
    assert "PolicyChoice(placement=" in str(caught.value)
    with pytest.raises(BadInput, match="did you mean 'workers'"):
        EmulatedLab.from_file(two_tors, worker="process")  # type: ignore[call-arg]
