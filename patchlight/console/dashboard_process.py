"""A dashboard as a child process, for as long as the program that started it runs."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_GOODBYE_S = 10.0


class Dashboard:
    """``patchlight dashboard`` as a child, which also ends when its parent is killed.

    ``close`` ends it. What is wrong with it is its own affair: it says so on standard error.
    """

    def __init__(
        self, controller: str, listen_at: str | None = None, *, stdout: int | None = None
    ) -> None:
        command = [sys.executable, "-m", "patchlight", "dashboard", "--while-stdin"]
        command += ["--controller", controller]
        command += ["--listen", listen_at] if listen_at is not None else []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=stdout, text=True)

    def close(self) -> None:
        """End it, and wait until it has ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(_GOODBYE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def dashboard_beside(controller: str, say: Callable[[str], None]) -> Iterator[None]:
    """A dashboard of that controller while the block runs; ``say`` hears where it is.

    The block begins once it answers, so that its start disturbs nothing that is measured.
    """
    child = Dashboard(controller, stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    try:
        where = child.process.stdout.readline().strip()
        say(where or "there is no dashboard: see above")
        yield
    finally:
        child.close()
        child.process.stdout.close()
