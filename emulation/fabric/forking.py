"""Processes forked from one that has imported their programs: the import is most of a start.

``python -m patchlight.emulation.fabric.forking MODULE...`` imports the modules. From its standard
input it reads the processes to make, a JSON object a line, and answers each with the process's
number. It ends with its input; what it made lives on.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from patchlight.testbed.linux.namespaces import enter
from patchlight.testbed.linux.processes import ARGUMENTS, ENVIRONMENT, show, show_again, shown

# Room for what the nursery's children are to be shown with: its last argument, and a variable.
_ROOM = {"PATCHLIGHT_ROOM": " " * 4000}

_of_this_process: dict[tuple[int, tuple[str, ...]], "Nursery"] = {}


def nursery(modules: tuple[str, ...]) -> "Nursery":
    """This process's own for these modules, for lab after lab; errors are those of ``Popen``."""
    key = os.getpid(), modules
    found = _of_this_process.get(key)
    if found is None or found.has_ended:
        found = _of_this_process[key] = Nursery(modules)
    return found


def close_nurseries() -> None:
    """End those of this process now, and not only with it; what they made goes on."""
    while _of_this_process:
        _of_this_process.popitem()[1].close()


class Nursery:
    """The process that others are forked from; it ends with the process that made it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as it lives)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *modules, *_ROOM.values()],
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
        """Whether nothing can be forked from it any more."""
        return self._process.poll() is not None

    def fork(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, namespace: Path | None
    ) -> int:
        """The number of a new process: ``python -m MODULE …`` as in ``argv``, writing to ``log``.

        It leads a session of its own, and has this environment from its first moment on, of which
        ``/proc`` shows the first entries at least. ``OSError`` if the nursery has ended.
        """
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
            raise ChildProcessError(f"its imports failed: {said.rpartition(chr(10))[2]}")
        return int(answer)

    def close(self) -> None:
        """End it; what was forked from it goes on."""
        with suppress(BrokenPipeError):
            self._process.communicate()
        self._errors.close()


def main() -> None:
    """Fork a process for each line of standard input."""
    show(ARGUMENTS, sys.orig_argv[:-1])
    gc.disable()  # nothing of what imports make is garbage
    for name in sys.argv[1:-1]:
        importlib.import_module(name)
    gc.freeze()  # else the first collection in each child copies all of this memory
    gc.enable()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how its children ended
    own = shown(ENVIRONMENT)
    os.environ.clear()  # what is shown there is nothing that is read any more
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        show(ENVIRONMENT, (f"{name}={value}" for name, value in request["environment"].items()))
        if pid := os.fork():
            show_again(ENVIRONMENT, own)
            print(pid, flush=True)
        else:
            _become(**request)


def _become(
    argv: Sequence[str], environment: Mapping[str, str], log: str, namespace: str | None
) -> NoReturn:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(environment)
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    os.closerange(3, max(null, output) + 1)
    if namespace is not None:
        enter(namespace)
    # As in a process of its own: python -m MODULE ARGUMENTS.
    sys.argv = [argv[2], *argv[3:]]
    show(ARGUMENTS, argv)
    program = importlib.import_module(argv[2])
    if hasattr(program, "__path__"):
        program = importlib.import_module(f"{argv[2]}.__main__")
    sys.exit(program.main())


if __name__ == "__main__":
    main()
