"""Our own programs as processes that are forked from one that has imported them.

The import is most of what a start costs; labs start theirs like that, too.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name

from patchlight.testbed.linux.namespaces import enter

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [
        "patchlight.agents.__main__",
        "patchlight.agents.api",
        "patchlight.agents.api",
        "patchlight.agents.workers.docker",
        "patchlight.cli.controller",
        "patchlight.cli.main",
        "patchlight.controller.api.app",
        "patchlight.controller.circuits.drivers.base",
        "patchlight.controller.policies.degrees",
        "patchlight.controller.policies.order",
        "patchlight.controller.policies.placement",
        "patchlight.controller.service",
        "patchlight.emulation.lab.gpus",
        "patchlight.emulation.optical.__main__",
        "patchlight.testbed.labfile.reader",
        "patchlight.testbed.linux.http_server",
        "pydantic.v1",  # which FastAPI asks of each route whether it is of it
        "uvicorn",
        "uvicorn.lifespan.off",
        "tests.support.frozen",
    ]
)


def _run(
    program: str,
    words: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    namespace: Path | None,
) -> None:
    os.setsid()
    if namespace is not None:
        enter(namespace)
    with log.open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [program.partition(".")[0], *words]
    sys.exit(resolve_name(program)())


class ForkedProgram:
    """A process of a program's main function (``module:function``) with these arguments.

    What it prints is added to ``log``. It runs in the network namespace at a path, if there is one.
    Its methods are those of ``Popen``.
    """

    def __init__(
        self,
        program: str,
        words: Sequence[str],
        log: Path,
        namespace: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        log.touch()  # whoever waits for it reads it, and it may not have begun
        everything = {**os.environ, **(variables or {})}
        arguments = (program, words, everything, log, namespace)
        self._process = _FORKED.Process(target=_run, args=arguments)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
