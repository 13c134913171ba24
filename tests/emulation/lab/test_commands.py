"""``patchlight emulate`` from up to down."""

import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from tests.support.emulated_labs import left_of
from tests.support.waiting import PATIENCE_S, free_ports

pytestmark = [pytest.mark.root, pytest.mark.ovs]


@pytest.mark.parametrize(
    "words",
    [
        ["up", "ofc2022"],
        ["down", "ofc2022"],
        ["exec", "gpu1", "--", "ping", "a b"],
    ],
)
def test_commands_need_root_and_say_so(words: list[str]) -> None:
    script = (
        "import os, sys; import patchlight.cli.lab.emulate; from patchlight.cli.main import main; "
        "os.setuid(65534); main(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "emulate", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "making network namespaces" not in done.stderr
    said = done.stderr.strip().splitlines()
    assert said[0].endswith(" needs root")
    # Nobody may not see the command in this environment; the Python it is by its whole path, too.
    assert said[1].startswith(f"  run: sudo {Path(sys.executable).parent}/")
    assert said[1].endswith(f"patchlight emulate {shlex.join(words)}")


def test_the_command_line_from_up_to_down(
    two_tors: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()

    def patchlight(
        *arguments: str, typed: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "patchlight", "emulate", *arguments],
            capture_output=True,
            text=True,
            input=typed,
            check=False,
        )

    up = patchlight(
        "up",
        str(two_tors),
        "--name",
        name,
        "--scale",
        "1000",
        "--no-controller",
        "--no-agents",
    )
    assert up.returncode == 0, up.stderr
    listed = json.loads(patchlight("status", "--json").stdout)
    assert [lab["state"] for lab in listed if lab["name"] == name] == ["up"]
    found = json.loads(patchlight("status", name, "--json").stdout)
    assert [host["name"] for host in found["hosts"]] == [
        "server1.gpu0",
        "server1.gpu1",
        "server2.gpu2",
    ]
    pinged = patchlight(
        "exec", "--lab", name, "gpu2", "--", "ping", "-c", "1", "192.168.10.12"
    )
    assert pinged.returncode == 0, pinged.stdout + pinged.stderr
    assert (
        patchlight(
            "exec", "--lab", name, "gpu2", "--", "sh", "-c", "exit 9"
        ).returncode
        == 9
    )
    assert name in patchlight("status").stdout
    shell = patchlight(
        "exec", "--lab", name, typed="gpu1 ping -c 1 gpu2\nnobody ls\nexit\n"
    )
    assert "1 received" in shell.stdout
    assert "no host called 'nobody'" in shell.stderr
    mistyped = patchlight("down", name[:-1] + "x")
    assert mistyped.returncode == 2
    assert f"did you mean {name!r}?" in mistyped.stderr
    assert patchlight("down", name).returncode == 0
    assert patchlight("down", name).returncode == 2
    assert patchlight("status", name).returncode == 1
    assert left_of(name) == []


def test_the_controller_answers_where_the_lab_file_says(
    two_tors: Path, new_name: Callable[[], str], tmp_path: Path
) -> None:
    name = new_name()
    port, other = free_ports(2)
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}

    def up(controller: str) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "lab.yaml"
        file.write_text(
            f"{two_tors.read_text()}scale: 1000\ncontroller: {{{controller}}}\n"
        )
        command = [
            sys.executable,
            "-m",
            "patchlight",
            "emulate",
            "up",
            str(file),
            "--name",
            name,
        ]
        command += ["--no-agents", "--replace"]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )

    done = up(f'api: "127.0.0.1:{port}", openflow: "192.0.2.1:6700"')
    assert done.returncode == 0, done.stderr
    assert "inside the lab's network" in done.stderr
    assert "127.0.0.1:6700" in done.stderr
    with ControllerClient(f"127.0.0.1:{port}") as client:
        assert client.status().lab == name
    lab = EmulatedLab.attach(name)
    assert (lab.lab.scale, lab.state.scale) == (1000, 1000)

    with socket.create_server(("127.0.0.1", other)):
        taken = up(f'api: "127.0.0.1:{other}"')
    assert taken.returncode == 1
    assert f"TCP port {other} is used by " in taken.stderr
    assert left_of(name) == []

    # Where other machines reach it, over TLS, and on this machine's own socket.
    done = up(f'api: "0.0.0.0:{port}"')
    assert done.returncode == 0, done.stderr
    assert EmulatedLab.attach(name).controller.status().lab == name
    with socket.create_connection(
        ("127.0.0.1", port), timeout=PATIENCE_S
    ) as plain:
        plain.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert not plain.recv(5).startswith(b"HTTP/")
