"""``patchlight doctor``: what it finds is what is there."""

import http.server
import itertools
import json
import os
import re
import shlex
import shutil
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from click.testing import CliRunner

from patchlight.deploy.commands.doctor import (
    DEMO,
    Check,
    doctor,
    examine,
    machine,
)
from patchlight.testbed.errors import BadInput


def named(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


@pytest.fixture(scope="module")
def checks() -> list[Check]:
    """All of them, as they are here."""
    return list(examine())


@pytest.fixture
def known_packages(
    checks: list[Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing every package once is enough."""
    packages = [
        check for check in checks if check.name.startswith("Python package ")
    ]
    monkeypatch.setattr(
        "patchlight.deploy.commands.doctor._packages", lambda: packages
    )


@pytest.mark.xdist_group("doctor")
def test_everything_looked_for_is_told_and_what_is_missing_can_be_mended(
    checks: list[Check],
) -> None:
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.found and check.needed_for for check in checks)
    assert all(check.install for check in checks if check.ok is False)
    found = (
        shutil.which("ovs-vswitchd", path=f"{os.environ['PATH']}:/usr/sbin")
        is not None
    )
    assert named(checks, "ovs-vswitchd").ok is found
    assert named(checks, "Python package pyroute2").ok is True
    assert named(checks, "root").ok is (os.geteuid() == 0)


@pytest.mark.xdist_group("doctor")
@pytest.mark.usefixtures("known_packages")
def test_the_exit_code_says_whether_the_demo_can_run() -> None:
    result = CliRunner().invoke(doctor, ["--json"])
    seen = json.loads(result.stdout)
    lacking = ("missing", DEMO) in [
        (c["state"], c["needed_for"]) for c in seen["checks"]
    ]
    assert seen["ready_for_demo"] is (not lacking)
    assert result.exit_code == (1 if lacking else 0)


@pytest.mark.xdist_group("doctor")
@pytest.mark.usefixtures("known_packages")
def test_programs_that_are_not_there_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "patchlight.deploy.commands.doctor._PATH", str(tmp_path)
    )
    result = CliRunner().invoke(doctor, env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert re.search(
        r"^ *missing +ovs-vswitchd +not found ", result.output, re.MULTILINE
    )
    install = re.search(
        r"^ .*openvswitch-switch +# (.*)$", result.output, re.MULTILINE
    )
    assert install is not None
    assert "ovs-vswitchd" in install[1].split(", ")
    assert "`make demo` cannot run yet: " in result.output


@pytest.mark.xdist_group("doctor")
@pytest.mark.usefixtures("known_packages")
def test_what_is_wrong_comes_first_and_hints_name_files_that_are_there(
    checks: list[Check],
) -> None:
    output = CliRunner().invoke(doctor, env={"COLUMNS": "80"}).output
    table = output.partition("\nTo install")[0].partition("\n`make demo`")[0]
    states = [
        line.split()[0]
        for line in table.splitlines()
        if line and not line.startswith((" ", "─"))
    ]
    order = ["missing", "untested", "ok"]
    assert states == sorted(states, key=order.index)
    for check in checks:
        # Of a command in a command, too.
        for word in shlex.split(
            check.install.replace("$(", " ").replace(" start)", "")
        ):
            if "deploy/" in word:
                file = unquote(word.rpartition("=")[2].removeprefix("file://"))
                assert Path(file).exists(), check


def test_it_runs_without_the_packages_that_it_looks_for() -> None:
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['paramiko', 'yaml', 'pydantic', 'docker', 'pyroute2'])\n"
        "from patchlight.cli.main import main\n"
        "sys.argv = ['patchlight', 'doctor', '--json']\n"
        "main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    names = {
        check["name"]: check["state"]
        for check in json.loads(done.stdout)["checks"]
    }
    assert {"Docker engine", "free disk", "Python package PyYAML"} <= set(
        names
    )


LAB = """
name: mine
network: 192.168.10.0/24
servers:
  - name: server1
    gpus: [{name: gpu0, model: A100, uuid: GPU-0}]
    nics: [{name: nic0, address: 192.168.10.11, gpu: gpu0, interface: lo}]
  - name: alone
    nics: [{name: nic0, address: 192.168.10.12, interface: none0}]
"""


@pytest.mark.xdist_group("doctor")
@pytest.mark.usefixtures("known_packages")
def test_this_machine_is_compared_with_a_server_of_a_lab(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lab.yaml"
    path.write_text(LAB)
    result = CliRunner().invoke(
        doctor, ["--lab", str(path), "--server", "alone", "--json"]
    )
    seen = json.loads(result.stdout)
    assert (result.exit_code, seen["server"], seen["as_the_lab_says"]) == (
        1,
        "alone",
        False,
    )
    nic = next(
        check for check in seen["checks"] if check["name"] == "NIC nic0"
    )
    assert (nic["state"], nic["needed_for"]) == (
        "missing",
        f"alone of lab {path}",
    )
    assert nic["found"].startswith("no interface none0")
    assert "interface: NAME" in nic["install"]
    result = CliRunner().invoke(
        doctor, ["--lab", str(path), "--server", "server1"]
    )
    assert "NVIDIA driver" in result.output
    for options in (
        ["--server", "server1"],
        ["--lab", str(path), "--server", "server9"],
    ):
        assert isinstance(
            CliRunner().invoke(doctor, options).exception, BadInput
        )


@pytest.mark.root
def test_the_kernel_is_tried_without_changing_the_host() -> None:
    def printed(command: str) -> str:
        return subprocess.check_output(command.split(), text=True)

    disciplines = "tc qdisc show dev lo"
    before = printed(disciplines)
    # Neither an engine nor packages are the kernel's business; they come after it.
    asked = itertools.takewhile(
        lambda check: check.name != "Docker engine", examine()
    )
    states = {
        check.state for check in asked if check.name.startswith("kernel: ")
    }
    assert states <= {"ok", "missing"}
    assert printed(disciplines) == before
    assert "pla@" not in printed("ip -o link")


def test_without_root_the_kernel_is_untested() -> None:
    if os.geteuid() != 0:
        checks = list(examine())
    else:
        code = (
            # Imported first: nobody may not be allowed to read the checkout.
            "import os, json\n"
            "from patchlight.deploy.commands.doctor import _kernel, _KERNEL, _root\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "print(json.dumps([[c.name, c.ok] for c in "
            "(_root(), *(_kernel(*k) for k in _KERNEL))]))"
        )
        folder = Path(__file__).parents[2]
        said = subprocess.check_output(
            [sys.executable, "-c", code], text=True, cwd=folder
        )
        checks = [Check(name, ok, "", "") for name, ok in json.loads(said)]
    assert named(checks, "root").ok is False
    assert {
        check.ok for check in checks if check.name.startswith("kernel: ")
    } == {None}


class _Engine(http.server.BaseHTTPRequestHandler):
    """Answers /_ping as a Docker engine does."""

    answer = (200, b"OK")

    def do_GET(self) -> None:
        status, body = self.answer if self.path == "/_ping" else (404, b"")
        self.send_response(status)
        self.send_header("Api-Version", "1.44")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[_Engine]]:
    path = tmp_path / "docker.sock"
    handler = type("Engine", (_Engine,), {})
    with socketserver.ThreadingUnixStreamServer(str(path), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        yield handler
        server.shutdown()


def test_an_engine_that_answers_is_found(engine: type[_Engine]) -> None:
    found = named(list(machine()), "Docker engine")
    assert found.ok is True
    assert "API 1.44" in found.found


def test_an_engine_that_answers_wrongly_is_not(engine: type[_Engine]) -> None:
    engine.answer = (500, b"broken")
    found = named(list(machine()), "Docker engine")
    assert found.ok is False
    assert "answers 500: broken" in found.found


def test_no_engine_is_told_with_the_way_to_start_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    found = named(list(machine()), "Docker engine")
    assert found.ok is False
    assert "does not answer" in found.found
    assert "docker" in found.install
    monkeypatch.setenv("DOCKER_HOST", "ssh://far")
    assert named(list(machine()), "Docker engine").ok is None


def test_a_lab_of_the_environment_needs_no_server_of_this_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATCHLIGHT_LAB", "ofc2022")
    result = CliRunner().invoke(doctor, ["--json"])
    assert not isinstance(result.exception, BadInput)
    assert "server" not in json.loads(result.stdout)
