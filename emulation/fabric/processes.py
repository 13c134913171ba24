"""Start a lab's processes, write each down, and wait until it answers.

A process may take as long as it works: large labs and busy machines take their time. One that ends
early, or neither answers nor works, is an error that shows the last lines it wrote.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from patchlight.emulation.fabric.forking import nursery
from patchlight.emulation.fabric.lab_state import MARK, LabState, ProcessRecord, is_running
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.namespaces import entered
from patchlight.testbed.linux.processes import (
    ProgressWatch,
    favour,
    process_start,
    session_processor_ticks,
)

_LAST_LINES = 15


class ServiceNotStarted(PatchlightError):
    """A process of the lab ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class LabService:
    """A process to be started: command, namespace, and how one sees that it is ready.

    ``quiet_s``: after so many seconds in which it neither used the processor nor wrote
    anything, it is given up. ``abrupt``: it may be ended by force at once. ``imports``: a command
    ``python -m MODULE`` is forked from one process that has imported these modules. ``announces``
    is a file that it makes when it is ready: one of an earlier process is removed.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool]
    namespace: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    quiet_s: float = 30.0
    abrupt: bool = False
    imports: tuple[str, ...] = ()
    announces: Path | None = None


@dataclass(slots=True)
class _Starting:
    """A service that is not ready yet. ``child`` is ``None`` if another process made it."""

    service: LabService
    record: ProcessRecord
    child: subprocess.Popen[bytes] | None
    progress: ProgressWatch

    def ended(self) -> str:
        """How it has ended; empty if it has not."""
        if self.child is None:
            is_there = process_start(self.record.pid) == self.record.started
            return "" if is_there else "ended"
        if (status := self.child.poll()) is None:
            return ""
        return f"ended with status {status}" if status >= 0 else f"was killed by signal {-status}"


class Supervisor:
    """Starts services and records them in the lab's state; ``say`` hears what takes long.

    A lab keeps real time: what else runs on the machine should disturb its switches and workers
    as little as may be, so they are favoured. What an agent starts inherits this.
    """

    def __init__(
        self, state: LabState, say: Callable[[str], None], *, real_time: bool = False
    ) -> None:
        self._state, self._say, self._real_time = state, say, real_time
        self._starting: list[_Starting] = []

    def start(self, services: Sequence[LabService]) -> None:
        """Start these and wait until all are ready."""
        self.launch(services)
        self.wait()

    def launch(self, services: Sequence[LabService]) -> None:
        """Start those of these that do not run, side by side, without waiting."""
        missing = self.missing(services)
        if len(missing) > 1:
            self._say(f"starting {', '.join(service.name for service in missing)}")
        for service in missing:
            if service.announces is not None:
                service.announces.unlink(missing_ok=True)
            log = self._log(service.name)
            try:
                child = None if service.imports else self._spawn(service, log)
                pid = child.pid if child else self._fork(service, log)
            except OSError as error:
                raise ServiceNotStarted(f"starting {service.name}: {error}") from error
            favour(pid, real_time=self._real_time)
            started = process_start(pid) or 0
            record = ProcessRecord(service.name, pid, started, str(log), service.abrupt)
            others = [each for each in self._state.processes if each.name != service.name]
            self._state.processes = [*others, record]
            self._state.save()
            progress = ProgressWatch(partial(_work_of, pid, log))
            self._starting.append(_Starting(service, record, child, progress))

    def missing(self, services: Sequence[LabService]) -> list[LabService]:
        """Those of these that do not run."""
        there = {each.name for each in self._state.processes if is_running(each)}
        return [service for service in services if service.name not in there]

    def end(self, services: Sequence[LabService]) -> None:
        """End those of these that run, by force."""
        names = {service.name for service in services}
        for process in self._state.processes:
            if process.name in names and is_running(process):
                os.kill(process.pid, signal.SIGKILL)
                while is_running(process):
                    time.sleep(0.01)

    def log_path(self, name: str) -> Path:
        """Where the service of that name writes."""
        return self._state.run_dir / "log" / f"{name}.log"

    def _log(self, name: str) -> Path:
        log = self.log_path(name)
        # What services say is for whoever runs the lab.
        log.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        log.touch()
        return log

    def _environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        found = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        found.pop(MARK, None)
        return {MARK: str(self._state.run_dir), **found}

    def _fork(self, service: LabService, log: Path) -> int:
        environment = self._environment(service.environment)
        return nursery(service.imports).fork(service.argv, environment, log, service.namespace)

    def _spawn(self, service: LabService, log: Path) -> subprocess.Popen[bytes]:
        # A process begins in the namespace of the thread that makes it. In a session of its
        # own, Ctrl-C at the terminal reaches the builder alone.
        inside = entered(service.namespace) if service.namespace else nullcontext()
        with log.open("ab") as output, inside:
            return subprocess.Popen(
                service.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment(service.environment),
                start_new_session=True,
                cwd="/",
            )

    def wait(self) -> None:
        """Wait until all that was launched is ready; ``ServiceNotStarted`` names what is not."""
        while self._starting:
            self._starting = [item for item in self._starting if not self._is_ready(item)]
            if self._starting:
                time.sleep(0.01)

    def wait_for_all(
        self, name: str, count: Callable[[], int], total: int, what: str, quiet_s: float = 30.0
    ) -> None:
        """Wait until a started service has ``total`` of something; ``what`` says of what.

        ``ServiceNotStarted`` if for ``quiet_s`` seconds there are not more of them.
        """
        done = count()
        progress = ProgressWatch(lambda: done)
        while done < total:
            if progress.quiet_s() > quiet_s:
                why = f"{done} of {total} {what}, and no more in {quiet_s:g} s"
                raise self._failure(name, why)
            if (took_s := progress.to_tell()) is not None:
                self._say(f"{name}: {done} of {total} {what} after {took_s:.0f} s")
            time.sleep(0.05)
            done = count()

    def _is_ready(self, starting: _Starting) -> bool:
        service, progress = starting.service, starting.progress
        if service.ready():
            return True
        if how := starting.ended():
            raise self._failure(service.name, f"it {how}")
        if progress.quiet_s() > service.quiet_s:
            why = f"it does not answer, and did nothing for {service.quiet_s:g} s"
            raise self._failure(service.name, why)
        if (took_s := progress.to_tell()) is not None:
            last = "".join(f": {line}" for line in self._last_lines(service.name, 1))
            self._say(f"still starting {service.name} after {took_s:.0f} s{last}")
        return False

    def _failure(self, name: str, what: str) -> ServiceNotStarted:
        wrote = "\n    ".join(self._last_lines(name, _LAST_LINES)) or "(nothing)"
        return ServiceNotStarted(f"starting {name}: {what}; the last it wrote:\n    {wrote}")

    def _last_lines(self, name: str, count: int) -> list[str]:
        with suppress(OSError):
            return self.log_path(name).read_text(errors="replace").splitlines()[-count:]
        return []


def _work_of(session: int, log: Path) -> tuple[int, int]:
    """What changes while a service works: its processor time, and how much it wrote."""
    return session_processor_ticks(session), log.stat().st_size
