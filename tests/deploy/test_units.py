"""How agent and controller are run: what systemd reads, and that it is obeyed."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchlight.deploy.units import Run, agent_command, controller_command
from patchlight.testbed.linux.processes import process_start
from tests.support.remote_helpers import (
    HelperProcess,
    remote_helper,
    small_wheel,
    systemd_stand_in,
)
from tests.support.waiting import wait_until

UNIT = "patchlight-agent@lab.service"
AGENT = agent_command(
    "lab",
    "server1",
    "10.0.0.11:8471",
    workers="auto",
    gpus="nvml",
    image="a b:50%$x",
)


def unit_of(role: str) -> str:
    command = (
        AGENT
        if role == "agent"
        else controller_command("lab", "unix:/run/lab.sock")
    )
    return Run("lab", role, command).unit


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="no systemd-analyze here"
)
@pytest.mark.parametrize("role", ["agent", "controller"])
def test_systemd_has_nothing_to_say_against_a_unit(
    role: str, tmp_path: Path
) -> None:
    path = tmp_path / f"patchlight-{role}@lab.service"
    # It looks whether the program is there.
    path.write_text(
        unit_of(role).replace(
            "/opt/patchlight/lab/current/bin/patchlight", "/bin/true"
        )
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_words_of_a_command_are_quoted_for_systemd() -> None:
    assert '--image "a b:50%%$$x"' in unit_of("agent")


def test_workers_outlive_their_agent_and_find_its_namespaces() -> None:
    settings = unit_of("agent").splitlines()
    assert "KillMode=process" in settings
    # Any of these gives it a view of the file system of its own.
    own_view = (
        "Protect",
        "Private",
        "ReadOnly",
        "ReadWrite",
        "Inaccessible",
        "Bind",
        "Temporary",
    )
    assert not [line for line in settings if line.startswith(own_view)]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[HelperProcess]:
    root = tmp_path / "root"
    with remote_helper(
        root, **systemd_stand_in(tmp_path / "systemd", root)
    ) as far:
        yield far
        far.ask("remove")


def test_where_systemd_runs_it_keeps_the_agent(
    far: HelperProcess, tmp_path: Path
) -> None:
    assert far.hello["systemd"]
    far.ask(
        "install", **far.release(tmp_path, "r1", small_wheel(tmp_path, "1"))
    )
    program = str(tmp_path / "root/opt/patchlight/lab/current/bin/tiny")

    def serve(seconds: str) -> bool:
        runs = [
            Run("lab", role, [program, seconds]) for role in ("gpus", "agent")
        ]
        services = {run.role: (run.unit, run.script) for run in runs}
        return bool(
            far.ask("serve", release="r1", services=services, again=False)
        )

    unit = tmp_path / "root/etc/systemd/system" / UNIT
    pid = tmp_path / "systemd" / f"{UNIT}.pid"
    assert serve("1000")
    both = f"patchlight-gpus@lab.service {UNIT}"
    calls = (tmp_path / "systemd/calls").read_text().splitlines()
    # systemd reads units with the first.
    assert calls == [
        f"enable {both}",
        f"restart {both}",
    ]
    assert f"ExecStart={program} 1000" in unit.read_text()
    state = far.ask("state", role="agent")
    assert (state["running"], state["restarts"]) == (True, 0)
    first = int(pid.read_text())
    assert not serve("1000")
    assert int(pid.read_text()) == first
    assert serve("2000")  # another unit
    assert int(pid.read_text()) != first
    wait_until(lambda: process_start(first) is None, "the first one has ended")
    far.ask("act", action="stop", roles=["agent"])
    assert not far.ask("state", role="agent")["running"]
    far.ask("remove")
    assert not unit.exists()
    calls = (tmp_path / "systemd/calls").read_text().splitlines()
    assert calls[-4:] == [
        f"stop {UNIT}",
        f"disable {UNIT}",
        "daemon-reload ",
        f"reset-failed {UNIT}",
    ]
