"""What passes between a worker and its agent: its state, a line for each iteration, and orders.

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
from pathlib import Path
from typing import Any

from .gate import Gate
from .task import TrainingError


class Journal:
    """Writes ``state.json`` (replaced whole) and ``reports.jsonl`` in the worker's folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"state": "starting", "iterations_done": 0, "message": ""}
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
