"""Paths of light from the worker's agent: asked for over a Unix socket in the worker's folder.

The connection is the path: whoever hangs up has given it back. An agent that starts again is asked
again meanwhile. Needs the standard library alone, and no event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

from .task import TrainingError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .task import TrainingTask

SOCKET = "paths.sock"
_AGAIN_S = 0.2


class AgentPaths:
    """The paths of one worker to the next of its ring."""

    def __init__(self, directory: str, task: TrainingTask) -> None:
        size = len(task.ring)
        self._directory, self._patience_s = directory, task.deadline_s
        self._wanted = {
            "to": (task.rank + 1) % size,
            "before": (task.rank - 1) % size,
            "patience_s": task.deadline_s,
        }

    @contextlib.contextmanager
    def path(self) -> Iterator[None]:
        """Light to the next worker inside the block; ``TrainingError`` if it does not come."""
        held = _Held(self._directory, self._wanted)
        if not held.granted.wait(2 * self._patience_s):
            held.give_back()
            raise TrainingError(f"no path of light in {2 * self._patience_s:g} s: no agent answers")
        if held.refused:
            raise TrainingError(f"no path of light: {held.refused}")
        try:
            yield
        finally:
            held.give_back()


class _Held:
    """One path, held by a thread of its own until it is given back."""

    def __init__(self, directory: str, wanted: dict[str, Any]) -> None:
        self._directory, self._wanted = directory, wanted
        self.granted, self._over = threading.Event(), threading.Event()
        self.refused = ""
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._hold, daemon=True)
        self._thread.start()

    def give_back(self) -> None:
        """Say that it is not needed any more, and wait until it is dark."""
        self._over.set()
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(b'{"done": true}\n')
        self._thread.join()

    def _hold(self) -> None:
        while not self._over.is_set():
            try:
                with self._connected() as self._connection, self._connection.makefile() as answers:
                    self._connection.sendall(json.dumps(self._wanted).encode() + b"\n")
                    answer = json.loads(answers.readline() or "{}")
                    if "error" in answer and not self.granted.is_set():
                        self.refused = answer["error"]
                        self.granted.set()
                        return
                    if "channel" in answer:
                        self.granted.set()
                        # If that is not the end, it is in the dark, and asks again.
                        if "ok" in json.loads(answers.readline() or "{}"):
                            return
            except (OSError, ValueError):
                pass  # Its agent is not there now: another one will be.
            time.sleep(_AGAIN_S)

    def _connected(self) -> socket.socket:
        # Through /proc, because a Unix socket's path may have only 107 characters.
        folder = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{SOCKET}")
        except OSError:
            connection.close()
            raise
        finally:
            os.close(folder)
        return connection
