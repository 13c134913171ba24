"""A controller as the process that it is in a lab; a client of it, and ``patchlight ocs``."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from click.testing import CliRunner

from patchlight.cli.main import cli
from patchlight.client.client import ControllerClient, ControllerError
from patchlight.testbed.errors import PatchlightError
from tests.support.forked import ForkedProgram
from tests.support.waiting import PATIENCE_S, free_ports, wait_until

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
_PROGRAM = "patchlight.cli.main:main"


class ControllerProcess:
    """A controller of the dry lab, to be started and stopped, and a client of it."""

    process: ForkedProgram
    options: Sequence[str] = ()
    """Further options of the command."""
    asked_at: str
    """Where it is asked whether it answers yet: its address."""

    def __init__(self, folder: Path) -> None:
        api, openflow, metrics = free_ports(3)
        self.metrics = f"127.0.0.1:{metrics}"
        self.api = f"127.0.0.1:{api}"
        self.state = folder / "state"
        self.lab = folder / "lab.yaml"
        self.lab.write_text(DRY_LAB.format(api=api, openflow=openflow))
        self.asked_at = ""
        self.client = ControllerClient(self.api)
        self.log = folder / "controller.log"

    def words(self, state: Path) -> list[str]:
        words = [
            "controller",
            "run",
            "--lab",
            str(self.lab),
            "--state",
            str(state),
        ]
        return [
            *words,
            "--api",
            self.api,
            "--metrics",
            self.metrics,
            *self.options,
        ]

    def command(self, state: Path) -> list[str]:
        return [sys.executable, "-m", "patchlight", *self.words(state)]

    def start(self) -> None:
        self.process = ForkedProgram(
            _PROGRAM, self.words(self.state), self.log
        )
        try:
            # On a busy machine its imports alone may take half a minute.
            wait_until(self._answers, "the controller to answer")
        except BaseException:
            # Or it would outlive the test that waited in vain.
            self.stop(signal.SIGKILL)
            raise

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        # It listens before it answers: whoever asks then would wait as long as a client does.
        with (
            contextlib.suppress(ControllerError),
            ControllerClient(
                self.asked_at or self.api, deadline_s=5.0
            ) as asking,
        ):
            return bool(asking.status())
        return False

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to one request as anybody may send it. ``options`` are httpx's."""
        options = {"timeout": PATIENCE_S, **options}
        # There is no TLS: without certificates a client is made a hundred times as fast.
        address = f"http://{self.api}{path}"
        return httpx.request(
            method, address, trust_env=False, verify=False, **options
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


@contextlib.contextmanager
def controller_process(
    folder: Path, make: Callable[[Path], ControllerProcess] = ControllerProcess
) -> Iterator[ControllerProcess]:
    process = make(folder)
    process.start()
    try:
        yield process
    finally:
        process.stop()


@dataclass(frozen=True)
class OcsCommand:
    """Runs ``patchlight ocs`` with these options after each command's own."""

    options: Sequence[str]

    def __call__(
        self, *words: str, code: int = 0, text: str | None = None
    ) -> str:
        """What was printed, the error included. ``code``: how it is to end; ``text``: its input."""
        result = CliRunner().invoke(
            cli, ["ocs", *words, *self.options], input=text
        )
        error = result.exception
        exit_code = (
            error.exit_code
            if isinstance(error, PatchlightError)
            else result.exit_code
        )
        assert exit_code == code, (result.output, error)
        return f"{result.output}{error or ''}"
