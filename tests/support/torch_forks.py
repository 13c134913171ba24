"""Python programs forked from one process that has imported PyTorch, and nothing of ours.

PyTorch's import is most of what a worker's start costs. As a program it reads a request a line:
to fork, answered with the process's number, or how a process is, with its exit code or nothing.
"""

import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class TorchForks:
    """The process that others are forked from; ``environment`` is theirs, too."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-s", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def start(
        self, arguments: list[str], path: Path, folder: Path, log: Path
    ) -> "TorchFork":
        """What ``python ARGUMENTS`` does in this folder with ``PYTHONPATH=path``."""
        told = {
            "arguments": arguments,
            "path": str(path),
            "folder": str(folder),
            "log": str(log),
        }
        return TorchFork(self, int(self.ask(told)))

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class TorchFork:
    """One that was forked. Its methods are those of ``Popen``."""

    def __init__(self, forks: TorchForks, pid: int) -> None:
        self._forks = forks
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._forks.ask({"pid": self.pid})
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
            # The pause between two looks: nobody but its parent is told.
            time.sleep(0.01)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main() -> None:
    gc.disable()  # what imports make is no garbage, in none of the forks either
    # Which the first optimizer imports.
    importlib.import_module("torch._dynamo")
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        if "pid" in request:
            found, status = os.waitpid(request["pid"], os.WNOHANG)
            print(
                json.dumps(
                    os.waitstatus_to_exitcode(status) if found else None
                ),
                flush=True,
            )
        elif pid := os.fork():
            print(pid, flush=True)
        else:
            _become(**request)
            return


def _become(arguments: list[str], path: str, folder: str, log: str) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    for number, descriptor in enumerate((null, output, output)):
        os.dup2(descriptor, number)
    os.chdir(folder)
    sys.path[0] = path
    how, program, *given = arguments
    sys.argv = [how, *given]
    if how == "-m":
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        exec(program, {"__name__": "__main__"})


if __name__ == "__main__":
    _main()
