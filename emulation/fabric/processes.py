"""Start a lab's processes, write each down, and wait until it answers.

A process that ends early or never answers is an error that shows the last lines it wrote.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from patchlight.emulation.fabric.lab_state import MARK, LabState, ProcessRecord
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.namespaces import entered
from patchlight.testbed.linux.processes import process_start
from patchlight.testbed.linux.scheduling import favour

_LAST_LINES = 15


class DidNotStart(PatchlightError):
    """A process of the lab ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class Service:
    """A process to be started: command, namespace, and how one sees that it is ready.

    ``abrupt``: it may be ended by force at once.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool]
    namespace: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    deadline_s: float = 30.0
    abrupt: bool = False


class Supervisor:
    """Starts services and records them in the lab's state.

    A lab keeps real time: what else runs on the machine should disturb its switches and workers
    as little as may be, so they are favoured. What an agent starts inherits this.
    """

    def __init__(self, state: LabState, *, real_time: bool = False) -> None:
        self._state, self._real_time = state, real_time
        self._waiting: list[tuple[Service, subprocess.Popen[bytes], float]] = []

    def start(self, services: Sequence[Service]) -> None:
        """Start these and wait until all are ready."""
        self.launch(services)
        self.wait()

    def launch(self, services: Sequence[Service]) -> None:
        """Start these, side by side, without waiting."""
        for service in services:
            log = self.log_path(service.name)
            # What services say is for whoever runs the lab.
            log.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            process = self._spawn(service, log)
            pid, started = process.pid, process_start(process.pid) or 0
            record = ProcessRecord(service.name, pid, started, str(log), service.abrupt)
            self._state.processes.append(record)
            self._state.save()
            self._waiting.append((service, process, time.monotonic() + service.deadline_s))

    def log_path(self, name: str) -> Path:
        """Where the service of that name writes."""
        return self._state.run_dir / "log" / f"{name}.log"

    def _spawn(self, service: Service, log: Path) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **service.environment}
        environment[MARK] = str(self._state.run_dir)
        # A process begins in the namespace of the thread that makes it. In a session of its
        # own, Ctrl-C at the terminal reaches the builder alone.
        inside = entered(service.namespace) if service.namespace else nullcontext()
        try:
            with log.open("ab") as output, inside:
                process = subprocess.Popen(
                    service.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,
                    cwd="/",
                )
        except OSError as error:
            raise DidNotStart(f"starting {service.name}: {error}") from error
        favour(process.pid, real_time=self._real_time)
        return process

    def wait(self) -> None:
        """Wait until everything launched is ready; ``DidNotStart`` names the first that is not."""
        while self._waiting:
            self._waiting = [item for item in self._waiting if not self._is_ready(*item)]
            if self._waiting:
                time.sleep(0.01)

    def wait_until(
        self, name: str, done: Callable[[], bool], deadline_s: float, otherwise: str
    ) -> None:
        """Wait for something that a started service does; ``DidNotStart`` if it does not."""
        deadline = time.monotonic() + deadline_s
        while not done():
            if time.monotonic() > deadline:
                raise self._failure(name, f"{otherwise} within {deadline_s:g} s")
            time.sleep(0.05)

    def _is_ready(
        self, service: Service, process: subprocess.Popen[bytes], deadline: float
    ) -> bool:
        if service.ready():
            return True
        if (status := process.poll()) is not None:
            ended = f"ended with status {status}"
            how = ended if status >= 0 else f"was killed by signal {-status}"
            raise self._failure(service.name, f"it {how}")
        if time.monotonic() > deadline:
            raise self._failure(service.name, f"it did not answer within {service.deadline_s:g} s")
        return False

    def _failure(self, name: str, what: str) -> DidNotStart:
        lines: list[str] = []
        with suppress(OSError):
            lines = self.log_path(name).read_text(errors="replace").splitlines()[-_LAST_LINES:]
        wrote = "\n    ".join(lines) or "(nothing)"
        return DidNotStart(f"starting {name}: {what}; the last it wrote:\n    {wrote}")


def get_json(url: str) -> Any:
    """What a GET answers as JSON, or ``None`` if it does not (yet)."""
    # Only labs with a controller pay for this import.
    from urllib.request import ProxyHandler, build_opener

    # Not urlopen: a proxy in the environment is for elsewhere than this machine.
    opener = build_opener(ProxyHandler({}))
    with suppress(OSError, ValueError), opener.open(url, timeout=2) as answer:
        return json.loads(answer.read())
    return None
