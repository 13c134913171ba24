"""The worker's control socket: JSON lines from its agent.

``{"op": "start"}``, ``{"op": "hold", "iteration": k}``, ``{"op": "release"}``,
``{"op": "status"}`` and ``{"op": "stop"}``; each is answered with one line,
``{"ok": true, "iteration": …}`` or ``{"ok": false, "error": …, "iteration": …}``.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import threading
from pathlib import Path
from typing import Any

from .errors import TrainingError
from .gate import Gate


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
