"""The processes of an emulated lab, to be killed, frozen and started again as they were."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from patchlight import EmulatedLab
from patchlight.client.client import ControllerClient
from patchlight.emulation.fabric.lab_state import MARK
from patchlight.emulation.fabric.plan import namespace_name
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.namespaces import entered, namespace_path
from patchlight.testbed.linux.processes import (
    command_line,
    environment,
    process_ids,
)
from patchlight.testbed.linux.sockets import unix_socket_answers
from tests.support.waiting import wait_until


@dataclass
class LabProcess:
    """One process of a lab that is up, found by a word that no other has in its command line.

    ``server``: in whose namespace it runs, empty for the machine's own.
    """

    lab: EmulatedLab
    word: str
    server: str = ""
    _command: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self._command = _arguments(self.pid)

    @property
    def pid(self) -> int:
        """Its number; there is exactly one."""
        return wait_until(self._alone, f"one process with {self.word}")

    def _alone(self) -> int:
        # A program that it starts looks the same for a moment, until it is that program.
        mark = f"{MARK}={self.lab.run_dir}"
        found = [
            pid
            for pid in process_ids()
            if self.word in command_line(pid) and mark in environment(pid)
        ]
        return found[0] if len(found) == 1 else 0

    def tell(self, number: signal.Signals) -> None:
        """Freeze it, or have it go on."""
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it, and wait until it is gone."""
        pid = self.pid
        os.kill(pid, number)
        wait_until(lambda: not command_line(pid), f"{self.word} to end")

    def start(self, variables: Mapping[str, str] | None = None) -> None:
        """Start it as it was started before, with these variables beside."""
        inside = contextlib.nullcontext()
        if self.server:
            name = namespace_name(self.lab.lab.name, self.server)
            inside = entered(namespace_path(name))  # type: ignore[assignment]
        log = self.lab.run_dir / "log" / "started-again.log"
        with log.open("ab") as output, inside:
            subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={
                    **os.environ,
                    MARK: str(self.lab.run_dir),
                    **(variables or {}),
                },
                start_new_session=True,
                cwd="/",
            )


def _arguments(pid: int) -> list[str]:
    return (
        Path(f"/proc/{pid}/cmdline")
        .read_bytes()
        .decode()
        .rstrip("\0")
        .split("\0")
    )


def controller_of(lab: EmulatedLab) -> LabProcess:
    """The controller of a lab."""
    return LabProcess(lab, "patchlight controller run")


def agent_of(lab: EmulatedLab, server: str) -> LabProcess:
    """The agent of a server."""
    return LabProcess(lab, f"--server={server} ", server)


def until_controller_answers(lab: EmulatedLab) -> None:
    """Wait until the lab's controller can be asked, and all packet switches are there."""

    def is_there() -> bool:
        # A client of its own: one that waits long for its answer is none that asks again.
        with (
            contextlib.suppress(PatchlightError),
            ControllerClient(
                lab.state.controller_api, deadline_s=2.0
            ) as client,
        ):
            return all(
                switch.connected is not False
                for switch in client.status().switches
            )
        return False

    wait_until(is_there, "the controller")


def until_agent_answers(lab: EmulatedLab, server: str) -> None:
    """Wait until the agent of a server listens."""
    socket = lab.run_dir / "agents" / f"{server}.sock"
    wait_until(lambda: unix_socket_answers(socket), f"the agent of {server}")
