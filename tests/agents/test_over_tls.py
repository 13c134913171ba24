"""A controller and an agent as they are started on a lab's machines, over TLS."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.controller.access.authority import Authority
from tests.support.controller_process import ControllerProcess
from tests.support.waiting import PATIENCE_S, free_ports, wait_until

pytestmark = pytest.mark.root


class Controller(ControllerProcess):
    """The controller of the dry lab, whose two servers have agents on TCP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.agent, nobody = (f"127.0.0.1:{port}" for port in free_ports(2))
        text = self.lab.read_text().replace(
            "- name: a", f"- name: a\n    management: {self.agent}"
        )
        self.lab.write_text(
            text.replace("- name: b", f"- name: b\n    management: {nobody}")
        )
        Authority("dry", folder / "ca").for_controller(folder / "tls")
        self.options = ["--tls", str(folder / "tls")]


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    process = Controller(tmp_path)
    process.start()
    try:
        yield process
    finally:
        process.stop()


def test_the_controller_status_tells_of_agents_over_tls(
    controller: Controller, tmp_path: Path
) -> None:
    own = Authority("dry", tmp_path / "ca").for_agent("a", tmp_path / "a")
    command = [
        sys.executable,
        "-m",
        "patchlight",
        "agent",
        "run",
        "--lab",
        str(controller.lab),
    ]
    command += [
        "--server",
        "a",
        "--listen",
        controller.agent,
        "--tls",
        str(own.folder),
    ]
    command += ["--state", str(tmp_path / "agent"), "--worker-kind", "process"]
    command += ["--gpu-source", f"socket:{tmp_path}"]

    def agents() -> dict[str, str]:
        return {
            a.server: a.presence for a in controller.client.status().agents
        }

    with (tmp_path / "agent.log").open("wb") as log:
        agent = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_until(lambda: agents()["a"] == "answers", "the agent to answer")
        said = CliRunner().invoke(
            cli, ["status", "--wide", "--lab", str(controller.lab)]
        )
        rows = {
            line.split()[0]: line
            for line in said.output.splitlines()
            if " agent " in line
        }
        assert "answers" in rows["a"]
        assert "silent for" in rows["b"]
        assert "did not answer GET /status" in " ".join(said.output.split())
    finally:
        agent.terminate()
        assert agent.wait(timeout=PATIENCE_S) == 0
