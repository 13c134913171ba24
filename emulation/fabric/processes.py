"""Starts a lab's processes, records each, and waits until it answers.

A process may take long as long as it makes progress. One that ends early, or neither answers nor
progresses, is an error that shows its last lines.

Imports dominate start times. So Python programs are forked from a *nursery*: ``python -m
patchlight.emulation.fabric.processes MODULE...`` imports the modules, reads the processes to start
from standard input, one JSON object per line, and replies with process numbers. It ends with its
input; its processes continue.
"""

import gc
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from patchlight.emulation.fabric.lab_state import (
    MARK,
    LabState,
    ProcessRecord,
    is_running,
)
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.linux import namespaces, processes

_LAST_LINES = 15


class ServiceNotStarted(PatchlightError):
    """A process of the lab ended, or did not answer in time."""


@dataclass(
    frozen=True,
    slots=True,
)
class LabService:
    """A process to start, and a check that it is ready. ``quiet_s``: it has failed after this time
    without CPU time and output, or after ``limit_s`` in any case; ``abrupt``: it may be killed;
    ``imports``: ``python -m MODULE`` is forked from a process that has imported these;
    ``announces``: a file that it creates when ready, removed before; ``is_favoured``: it runs
    before ordinary processes."""

    name: str
    argv: Sequence[str]
    ready: Callable[[], bool]
    namespace: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    quiet_s: float = 30.0
    limit_s: float = math.inf
    abrupt: bool = False
    imports: tuple[str, ...] = ()
    announces: Path | None = None
    is_favoured: bool = False


@dataclass(slots=True)
class _Starting:
    service: LabService
    record: ProcessRecord
    child: subprocess.Popen[bytes] | None
    progress: processes.ProgressWatch

    def ended(self) -> str:
        if self.child is None:
            is_there = (
                processes.process_start(self.record.pid) == self.record.started
            )
            return "" if is_there else "ended"
        if (status := self.child.poll()) is None:
            return ""
        return (
            f"ended with status {status}"
            if status >= 0
            else f"was killed by signal {-status}"
        )


class Supervisor:
    """Starts services and records them in the lab's state; ``say`` is called about slow ones. With
    real time, they and their children run before other processes."""

    def __init__(
        self,
        state: LabState,
        say: Callable[[str], None],
        *,
        real_time: bool = False,
    ) -> None:
        self._state = state
        self._say = say
        self._real_time = real_time
        self._starting: list[_Starting] = []

    def start(self, services: Sequence[LabService]) -> None:
        """Start these services and wait until all are ready."""
        self.launch(services)
        self.wait()

    def launch(self, services: Sequence[LabService]) -> None:
        """Start those services that are not running, in parallel, without waiting."""
        missing = self.missing(services)
        if len(missing) > 1:
            self._say(
                f"starting {', '.join(service.name for service in missing)}"
            )
        for service in missing:
            if service.announces is not None:
                service.announces.unlink(missing_ok=True)
            log = self.log_path(service.name)
            log.parent.mkdir(
                mode=0o750,
                parents=True,
                exist_ok=True,
            )
            log.touch()
            # First, so that ``/proc`` shows it in any case.
            mark = {MARK: str(self._state.run_dir)}
            variables = {
                **os.environ,
                "PYTHONUNBUFFERED": "1",
                **service.environment,
            }
            environment = {**mark, **variables, **mark}
            how = service.argv, environment, log, service.namespace
            try:
                child = None if service.imports else _spawn(*how)
                pid = (
                    child.pid if child else nursery(service.imports).fork(*how)
                )
            except OSError as error:
                raise ServiceNotStarted(
                    f"starting {service.name}: {reason(error)}"
                ) from error
            # All others, workers too, have the niceness of the shell that starts the lab.
            if self._real_time or service.is_favoured:
                processes.favour(pid, real_time=self._real_time)
            started = processes.process_start(pid) or 0
            record = ProcessRecord(
                service.name,
                pid,
                started,
                str(log),
                service.abrupt,
            )
            others = [
                each
                for each in self._state.processes
                if each.name != service.name
            ]
            self._state.processes = [*others, record]
            self._state.save()
            progress = processes.ProgressWatch(partial(_work_of, pid, log))
            self._starting.append(
                _Starting(
                    service,
                    record,
                    child,
                    progress,
                )
            )

    def missing(self, services: Sequence[LabService]) -> list[LabService]:
        """The services that are not running."""
        there = {
            each.name for each in self._state.processes if is_running(each)
        }
        return [service for service in services if service.name not in there]

    def end(self, services: Sequence[LabService]) -> None:
        """Kill the services that are running."""
        names = {service.name for service in services}
        for process in self._state.processes:
            if process.name in names and is_running(process):
                os.kill(process.pid, signal.SIGKILL)
                while is_running(process):
                    time.sleep(0.01)

    def log_path(self, name: str) -> Path:
        """The log of the service of that name."""
        return self._state.run_dir / "log" / f"{name}.log"

    def wait(self) -> None:
        """Wait until all that was launched is ready; ``ServiceNotStarted`` names what is not."""
        while self._starting:
            self._starting = [
                item for item in self._starting if not self._is_ready(item)
            ]
            if self._starting:
                time.sleep(0.01)

    def wait_for_all(
        self,
        name: str,
        count: Callable[[], int],
        total: int,
        what: str,
        quiet_s: float = 30.0,
    ) -> None:
        """Wait until a service has ``total`` of something (``what``); ``ServiceNotStarted`` if
        their number does not grow for ``quiet_s`` seconds."""
        done = count()
        progress = processes.ProgressWatch(lambda: done)
        while done < total:
            if progress.quiet_s() > quiet_s:
                why = f"{done} of {total} {what}, no progress in {quiet_s:g} s"
                raise self._failure(name, why)
            if (took_s := progress.to_tell()) is not None:
                self._say(
                    f"{name}: {done} of {total} {what} after {took_s:.0f} s"
                )
            time.sleep(0.05)
            done = count()

    def _is_ready(self, starting: _Starting) -> bool:
        service = starting.service
        progress = starting.progress
        if service.ready():
            return True
        if how := starting.ended():
            raise self._failure(service.name, f"it {how}")
        if progress.quiet_s() > service.quiet_s:
            why = f"it does not answer and made no progress for {service.quiet_s:g} s"
            raise self._failure(service.name, why)
        if progress.age_s > service.limit_s:
            why = f"it works but does not answer after {service.limit_s:g} s"
            raise self._failure(service.name, why)
        if (took_s := progress.to_tell()) is not None:
            last = "".join(
                f": {line}"
                for line in self._last_lines(service.name, 1)
                if line.strip()
            )
            self._say(
                f"still starting {service.name} after {took_s:.0f} s{last}"
            )
        return False

    def _failure(self, name: str, what: str) -> ServiceNotStarted:
        wrote = (
            "\n    ".join(self._last_lines(name, _LAST_LINES)) or "(nothing)"
        )
        return ServiceNotStarted(
            f"starting {name}: {what}; its last lines:\n    {wrote}"
        )

    def _last_lines(self, name: str, count: int) -> list[str]:
        with suppress(OSError):
            return (
                self.log_path(name)
                .read_text(errors="replace")
                .splitlines()[-count:]
            )
        return []


def _spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    namespace: Path | None,
) -> subprocess.Popen[bytes]:
    # A process starts in its creator thread's namespace. Its session protects it from Ctrl-C.
    inside = namespaces.entered(namespace) if namespace else nullcontext()
    with log.open("ab") as output, inside:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
            cwd="/",
        )


def _work_of(session: int, log: Path) -> tuple[int, int]:
    """Signs of progress of a service: its CPU time, and its output's size."""
    return processes.session_processor_ticks(session), log.stat().st_size


# Room for the displayed command line of the nursery's children: its last argument, and a variable.
_ROOM = {"PATCHLIGHT_ROOM": " " * 4000}

_of_this_process: dict[tuple[int, tuple[str, ...]], "Nursery"] = {}


def nursery(modules: tuple[str, ...]) -> "Nursery":
    """The nursery of this process for these modules, reused by labs; errors like ``Popen``."""
    key = os.getpid(), modules
    found = _of_this_process.get(key)
    if found is None or found.has_ended:
        found = _of_this_process[key] = Nursery(modules)
    return found


def close_nurseries() -> None:
    """End this process's nurseries now; their children continue."""
    while _of_this_process:
        _of_this_process.popitem()[1].close()


class Nursery:
    """The process that others are forked from; it ends with its creator."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as it lives)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                __spec__.name,
                *modules,
                *_ROOM.values(),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **_ROOM},
            start_new_session=True,
            cwd="/",
            text=True,
        )

    @property
    def has_ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def fork(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        namespace: Path | None,
    ) -> int:
        """Start ``python -m MODULE …`` as in ``argv``, in its own session, with this environment,
        writing to ``log``; returns its number. ``OSError`` if the nursery has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "argv": [*argv],
            "environment": {**environment},
            "log": str(log),
            "namespace": namespace and str(namespace),
        }
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            self._process.wait()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip()
            raise ChildProcessError(
                f"its imports failed: {said.rpartition(chr(10))[2]}"
            )
        return int(answer)

    def close(self) -> None:
        """End it; its children continue."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


def main() -> None:
    """Fork a process for each line of standard input."""
    processes.show(processes.ARGUMENTS, sys.orig_argv[:-1])
    gc.disable()  # no imported object is garbage
    for name in sys.argv[1:-1]:
        importlib.import_module(name)
    gc.freeze()  # otherwise the first collection in each child copies all this memory
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # do not keep zombies
    own = processes.shown(processes.ENVIRONMENT)
    os.environ.clear()  # shown arguments are not read from here
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        processes.show(
            processes.ENVIRONMENT,
            (
                f"{name}={value}"
                for name, value in request["environment"].items()
            ),
        )
        if pid := os.fork():
            processes.show_again(processes.ENVIRONMENT, own)
            print(pid, flush=True)
        else:
            _become(**request)


def _become(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: str,
    namespace: str | None,
) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environment)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    os.closerange(3, max(null, output) + 1)
    if namespace is not None:
        namespaces.enter(namespace)
    # As in a new process: python -m MODULE ARGUMENTS.
    sys.argv = [argv[2], *argv[3:]]
    processes.show(processes.ARGUMENTS, argv)
    program = importlib.import_module(argv[2])
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{argv[2]}.__main__")
    sys.exit(program.main())


if __name__ == "__main__":
    main()
