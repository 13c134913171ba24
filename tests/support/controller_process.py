"""A controller as the process that it is in a lab, with a client of its REST API."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from patchlight.controller.client import ControllerClient, ControllerError

DRY_LAB = """
name: dry
network: 10.9.0.0/24
controller: {{api: "127.0.0.1:{api}", openflow: "127.0.0.1:{openflow}"}}
servers:
  - name: a
    gpus: [{{name: g0, model: M}}]
    nics: [{{name: n0, address: 10.9.0.1, gpu: g0}}]
  - name: b
    gpus: [{{name: g1, model: M}}]
    nics: [{{name: n1, address: 10.9.0.2, gpu: g1}}]
packet_switches:
  - {{name: t1, datapath_id: 0x11, ports: 4}}
  - {{name: t2, datapath_id: 0x12, ports: 4}}
circuit_switches:
  - {{name: o1, driver: dry-run, address: "127.0.0.1:1", ports: 16, cross_connects: [1-3, 2-5]}}
fibres:
  - {{ends: [a.n0, o1.1]}}
  - {{ends: [b.n1, o1.2]}}
  - {{ends: [t1.1, o1.3]}}
  - {{ends: [t1.2, o1.4]}}
  - {{ends: [t2.1, o1.5]}}
  - {{ends: [t2.2, o1.6]}}
  - {{ends: [t1.4, t2.4]}}
"""
"""Two servers, two ToRs and a dry-run OCS; to be filled with the ``api`` and ``openflow`` ports."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(condition: Callable[[], object], deadline_s: float = 30.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.05)


class ControllerProcess:
    """A controller of the dry lab, to be started and stopped, and a client of it."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path) -> None:
        self.api, self.state = f"127.0.0.1:{free_port()}", folder / "state"
        self.lab = folder / "lab.yaml"
        port = self.api.rpartition(":")[2]
        self.lab.write_text(DRY_LAB.format(api=port, openflow=free_port()))
        self.client = ControllerClient(self.api)
        self.log = folder / "controller.log"

    def command(self, state: Path) -> list[str]:
        command = [sys.executable, "-m", "patchlight", "controller", "run"]
        return [*command, "--lab", str(self.lab), "--state", str(state)]

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(self.state), stdout=log, stderr=log)
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(ControllerError):
            return bool(self.client.status())
        return False

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(20)


@contextlib.contextmanager
def controller_process(folder: Path) -> Iterator[ControllerProcess]:
    process = ControllerProcess(folder)
    process.start()
    try:
        yield process
    finally:
        process.stop()
