"""Processes forked from one that has imported their program: the import is most of a start.

``python -m patchlight.emulation.fabric.forking MODULE...`` imports the modules, the first of which
has a ``main()``. From its standard input it reads the processes to make, a JSON object a line, and
answers each with the process's number. It ends with its input; what it made lives on.
"""

import ctypes
import gc
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from patchlight.testbed.linux.namespaces import enter

# The nursery's last argument makes room for the arguments that its children are to be shown with.
_ROOM = " " * 2000


class Nursery:
    """The process that others are forked from; errors of starting it are those of ``Popen``."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __spec__.name, *modules, _ROOM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                start_new_session=True,
                cwd="/",
                text=True,
            )

    def fork(self, argv: Sequence[str], log: Path, namespace: Path | None) -> int:
        """The number of a new process that is shown as ``argv`` and writes to ``log``.

        It leads a session of its own. ``OSError`` if the nursery has ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"argv": [*argv], "log": str(log), "namespace": namespace and str(namespace)}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        if not (answer := self._process.stdout.readline()):
            raise ChildProcessError(f"its imports failed, see {self._log}")
        return int(answer)

    def close(self) -> None:
        """End it; what was forked from it goes on."""
        with suppress(BrokenPipeError):
            self._process.communicate()


def main() -> None:
    """Fork a process for each line of standard input."""
    program, *_ = [importlib.import_module(name) for name in sys.argv[1:-1]]
    gc.freeze()  # else the first collection in each child copies all of this memory
    for line in sys.stdin:
        if pid := os.fork():
            print(pid, flush=True)
        else:
            _become(**json.loads(line))
            sys.exit(program.main())


def _become(argv: Sequence[str], log: str, namespace: str | None) -> None:
    os.setsid()
    null, output = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    os.closerange(3, max(null, output) + 1)
    if namespace is not None:
        enter(namespace)
    # As in a process of its own: python -m MODULE ARGUMENTS.
    sys.argv = [argv[2], *argv[3:]]
    _show(argv)


def _show(argv: Sequence[str]) -> None:
    """Have ``ps`` show these arguments: they are put where the nursery's own are."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = map(int, fields[45:47])
    text = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    main()
