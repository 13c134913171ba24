"""What passes between a worker and its agent: its state, reports, and orders.

Orders are JSON lines on the control socket: ``{"op": "start"}``,
``{"op": "hold", "iteration": k}``, ``{"op": "release"}``, ``{"op": "status"}`` and
``{"op": "stop"}``; each is answered with one line, ``{"ok": true, "iteration": …}`` or
``{"ok": false, "error": …, "iteration": …}``.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .task import TrainingError


class Passed(TrainingError):
    """The iteration to hold at has already gone through the gate."""


class Gate:
    """One worker's gate. The trainer passes it once an iteration; the control socket holds it.

    A worker that is held has computed its gradient and has not sent a byte of it. Every
    worker that reached iteration k has received all of iteration k−1, so when all workers of
    a ring are held at the same k, no payload is on the network.
    """

    def __init__(self, iterations: int, changed: Callable[[str, int], None]) -> None:
        self._iterations = iterations
        self._changed = changed
        self._condition = threading.Condition()
        self._started = False
        self._next = 0
        self._hold_at: int | None = None

    @property
    def iteration(self) -> int:
        """The iteration whose all-reduce has not begun yet."""
        return self._next

    def start(self) -> None:
        """Let training begin; again is harmless."""
        with self._condition:
            self._started = True
            self._condition.notify_all()

    def hold(self, iteration: int) -> int:
        """Hold just before the all-reduce of ``iteration``; gives the iteration it is at.

        ``Passed`` if that all-reduce has begun, or will never come.
        """
        with self._condition:
            if iteration < self._next:
                raise Passed(
                    f"iteration {iteration} is past: the next all-reduce is that of {self._next}"
                )
            if iteration >= self._iterations:
                raise Passed(
                    f"iteration {iteration} will not come: the job has {self._iterations}, the "
                    f"next all-reduce is that of {self._next}"
                )
            self._hold_at = iteration
            self._condition.notify_all()
            return self._next

    def release(self) -> int:
        """Go on, or forget a hold that has not come yet; gives the iteration it is at."""
        with self._condition:
            self._hold_at = None
            self._condition.notify_all()
            return self._next

    def wait_for_start(self) -> None:
        """Return when training may begin."""
        with self._condition:
            while not self._started:
                self._condition.wait(0.5)
        self._changed("running", 0)

    def pass_through(self, iteration: int, held: Callable[[bool], None] = lambda _: None) -> None:
        """Return when the all-reduce of ``iteration`` may begin.

        ``held`` is told when that has to be waited for, and when no longer.
        """
        with self._condition:
            waited = False
            while self._hold_at == iteration:
                if not waited:
                    waited = True
                    held(True)
                    self._changed("held", iteration)
                self._condition.wait(0.5)
            self._next = iteration + 1
        if waited:
            held(False)
            self._changed("running", iteration)


class Journal:
    """Writes ``state.json`` (replaced whole) and ``reports.jsonl`` in the worker's folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        # In the folder of a worker that ran before, this is one more start of the same worker.
        starts = 1 + _earlier_starts(directory / "state.json")
        self._state: dict[str, Any] = {"state": "starting", "iterations_done": 0, "message": ""}
        self._write({"starts": starts})
        self._reports = (directory / "reports.jsonl").open("a", encoding="utf-8")

    def state(self, state: str, message: str = "") -> None:
        """The worker's state from now on."""
        self._write({"state": state, "message": message})

    def iteration(self, report: dict[str, Any]) -> None:
        """One iteration is done and its sum was right."""
        self._reports.write(json.dumps(report) + "\n")
        self._reports.flush()
        self._write({"iterations_done": report["index"] + 1})

    def _write(self, changes: dict[str, Any]) -> None:
        with self._lock:
            self._state.update(changes)
            fresh = self._directory / "state.json.new"
            fresh.write_text(json.dumps(self._state), encoding="utf-8")
            os.replace(fresh, self._directory / "state.json")


def _earlier_starts(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["starts"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        return 1


class _Handler(socketserver.StreamRequestHandler):
    server: ControlServer

    def handle(self) -> None:
        for line in self.rfile:
            reply = self.server.answer(line)
            self.wfile.write(json.dumps(reply).encode() + b"\n")


class ControlServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves the control socket in threads of its own."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, directory: Path, gate: Gate) -> None:
        self._gate = gate
        # A relative name: a Unix socket's path may have only 107 characters.
        os.chdir(directory)
        Path("control.sock").unlink(missing_ok=True)
        super().__init__("control.sock", _Handler)
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 5}, daemon=True
        ).start()

    def answer(self, line: bytes) -> dict[str, Any]:
        """The reply to one request."""
        try:
            request = json.loads(line)
            operation = request["op"]
            if operation == "start":
                self._gate.start()
            elif operation == "hold":
                self._gate.hold(int(request["iteration"]))
            elif operation == "release":
                self._gate.release()
            elif operation == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            elif operation != "status":
                raise ValueError(f"unknown operation {operation!r}")
        except TrainingError as exc:
            return {"ok": False, "error": str(exc), "iteration": self._gate.iteration}
        except (KeyError, TypeError, ValueError) as exc:
            return {"ok": False, "error": f"not a request: {exc!r}"}
        return {"ok": True, "iteration": self._gate.iteration}
