"""Exchanges a worker's state, reports, orders and optical paths with its agent.

Orders are JSON lines on the control socket: ``{"op": "start"}``, ``{"op": "hold", "iteration":
k}``, ``{"op": "release"}``, ``{"op": "stop-at", "iteration": k}``, ``{"op": "slot", "at": t,
"period_s": p, "late_s": l, "lasts_s": s}``, ``{"op": "status"}`` and ``{"op": "stop"}``. The reply
is one line, ``{"ok": true, "iteration": …}`` or ``{"ok": false, "error": …, "iteration": …}``.

It needs only the standard library; users' programs may import it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .task import TrainingError

if TYPE_CHECKING:
    from pathlib import Path

    from .task import TrainingTask


PATHS_SOCKET = "paths.sock"
"""Socket in the worker's folder through which its agent grants paths."""

_AGAIN_S = 0.2
_SLOT = "at", "period_s", "late_s", "lasts_s"


@contextlib.contextmanager
def socket_in(directory: Path | str, name: str) -> Iterator[str]:
    """The path of a Unix socket, through /proc to stay below the limit of 107 characters."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{name}"
    finally:
        os.close(folder)


class Passed(TrainingError):
    """The iteration to hold at has already passed the gate."""


class StoppedAt(Exception):
    """The worker was stopped just before the all-reduce of ``iteration``."""

    def __init__(self, iteration: int) -> None:
        super().__init__(
            f"stopped before the all-reduce of iteration {iteration}, on request"
        )
        self.iteration = iteration


class Gate:
    """One worker's gate, passed by the trainer once per iteration. A worker held at iteration k has
    received all of k-1 and has sent nothing of its gradient of k. When all workers of a ring are
    held at the same k, no payload is on the network. ``iterations`` counts from 0, also if training
    resumes at ``first`` (``None``: not known); ``changed`` gets each new state and iteration."""

    def __init__(
        self,
        iterations: int | None,
        changed: Callable[[str, int], None],
        first: int = 0,
    ) -> None:
        self._iterations = iterations
        self._changed = changed
        self._condition = threading.Condition()
        self._started = False
        self._next = first
        self._hold_at: int | None = None
        self._stop_at: int | None = None
        self._slot = (0.0, 1.0, 0.0)
        self._used = -1.0
        self._lapses_at = 0.0

    @property
    def iteration(self) -> int:
        """The iteration whose all-reduce comes next."""
        return self._next

    def goes_on_at(self, iteration: int) -> None:
        """Set the first iteration after a restart from a checkpoint."""
        with self._condition:
            self._next = iteration

    def start(self) -> None:
        """Let training begin. Idempotent."""
        with self._condition:
            self._started = True
            self._condition.notify_all()

    def hold(self, iteration: int) -> int:
        """Hold before the all-reduce of ``iteration``, or raise ``Passed``; returns the present
        one."""
        with self._condition:
            self._check_ahead(iteration)
            self._hold_at = iteration
            self._condition.notify_all()
            return self._next

    def stop_at(self, iteration: int) -> int:
        """End just before the all-reduce of ``iteration``, or raise ``Passed``. Returns the present
        iteration. Sent to all workers of a held ring, it leaves no payload on the network."""
        with self._condition:
            self._check_ahead(iteration)
            self._stop_at = iteration
            self._condition.notify_all()
            return self._next

    def _check_ahead(self, iteration: int) -> None:
        if iteration < self._next:
            raise Passed(
                f"iteration {iteration} is over: the next all-reduce belongs to iteration "
                f"{self._next}"
            )
        if self._iterations is not None and iteration >= self._iterations:
            raise Passed(
                f"iteration {iteration} will not come, as the job has {self._iterations}: the "
                f"next all-reduce belongs to iteration {self._next}"
            )

    def release(self) -> int:
        """Continue, or cancel a pending hold or end. Returns the present iteration."""
        with self._condition:
            self._hold_at = self._stop_at = None
            self._condition.notify_all()
            return self._next

    def slot(
        self,
        at: float,
        period_s: float,
        late_s: float,
        lasts_s: float,
    ) -> int:
        """Let all-reduces begin only ``at`` that Unix time and multiples of ``period_s`` later, or
        up to ``late_s`` after that, for the next ``lasts_s``; returns the present iteration."""
        with self._condition:
            if (at, period_s) != self._slot[:2]:
                self._used = -1
            self._slot = (at, period_s, late_s)
            self._lapses_at = time.time() + lasts_s
            self._condition.notify_all()
            return self._next

    def _until_slot_s(self) -> float:
        at, period_s, most_s = self._slot
        now = time.time()
        if now >= self._lapses_at:
            return 0.0
        number, late_s = divmod(now - at, period_s)
        if late_s > most_s or number == self._used:
            return period_s - late_s
        self._used = number
        return 0.0

    def wait_for_start(self) -> None:
        """Return when training may begin."""
        with self._condition:
            while not self._started:
                self._condition.wait(0.5)
        self._changed("running", 0)

    def pass_through(
        self, iteration: int, held: Callable[[bool], None] = lambda _: None
    ) -> None:
        """Return when the all-reduce of ``iteration`` may begin; calls ``held`` when it starts and
        stops waiting. ``StoppedAt`` if the worker must end here."""
        with self._condition:
            waited = False
            while self._stop_at != iteration:
                waits_s = (
                    0.5
                    if self._hold_at == iteration
                    else min(0.5, self._until_slot_s())
                )
                if not waits_s:
                    break
                if self._hold_at == iteration and not waited:
                    waited = True
                    held(True)
                    self._changed("held", iteration)
                self._condition.wait(waits_s)
            if self._stop_at == iteration:
                raise StoppedAt(iteration)
            self._next = iteration + 1
        if waited:
            held(False)
            self._changed("running", iteration)


class Journal:
    """Writes ``state.json`` (replaced whole) and ``reports.jsonl`` in the worker's folder."""

    def __init__(self, directory: Path | str) -> None:
        self._directory = os.fspath(directory)
        self._lock = threading.Lock()
        # In the folder of an earlier worker this is one more start of the same worker.
        earlier = 0
        try:
            with open(self._path("state.json"), encoding="utf-8") as file:
                earlier = int(json.load(file)["starts"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError):
            earlier = 1
        self._state: dict[str, Any] = {
            "state": "starting",
            "iterations_done": 0,
            "message": "",
        }
        self._write({"starts": 1 + earlier})
        self._reports = open(  # noqa: SIM115
            self._path("reports.jsonl"), "a", encoding="utf-8"
        )

    def goes_on_at(self, iteration: int) -> None:
        """Record how many iterations were done before this worker began."""
        self._write({"iterations_done": iteration})

    def state(
        self,
        state: str,
        message: str = "",
        lost_rank: int | None = None,
    ) -> None:
        """Set the worker's state; ``lost_rank`` is the rank whose loss ended it."""
        self._write(
            {"state": state, "message": message, "lost_rank": lost_rank}
        )

    def iteration(self, report: dict[str, Any]) -> None:
        """Report an iteration whose sum was correct."""
        self._reports.write(json.dumps(report) + "\n")
        self._reports.flush()
        self._write({"iterations_done": report["index"] + 1})

    def _write(self, changes: dict[str, Any]) -> None:
        with self._lock:
            self._state.update(changes)
            fresh = self._path("state.json.new")
            with open(fresh, "w", encoding="utf-8") as file:
                file.write(json.dumps(self._state))
            os.replace(fresh, self._path("state.json"))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


class _Handler(socketserver.StreamRequestHandler):
    server: ControlServer

    def handle(self) -> None:
        for line in self.rfile:
            with self.server.replying:
                reply = self.server.answer(line)
                self.wfile.write(json.dumps(reply).encode() + b"\n")


class ControlServer(
    socketserver.ThreadingMixIn, socketserver.UnixStreamServer
):
    """Serves the control socket in its own threads. A program takes ``replying`` before it ends,
    so that an order that lets it end is answered."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(
        self,
        directory: Path | str,
        gate: Gate,
        replying: threading.Lock | None = None,
    ) -> None:
        self._gate = gate
        self.replying = replying or threading.Lock()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, "control.sock"))
        with socket_in(directory, "control.sock") as path:
            super().__init__(path, _Handler)
        threading.Thread(
            target=self.serve_forever,
            kwargs={"poll_interval": 5},
            daemon=True,
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
            elif operation == "stop-at":
                self._gate.stop_at(int(request["iteration"]))
            elif operation == "slot":
                self._gate.slot(*(float(request[key]) for key in _SLOT))
            elif operation == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
            elif operation != "status":
                raise ValueError(f"unknown operation {operation!r}")
        except TrainingError as exc:
            return {
                "ok": False,
                "error": str(exc),
                "iteration": self._gate.iteration,
            }
        except (KeyError, TypeError, ValueError) as exc:
            return {"ok": False, "error": f"not a request: {exc!r}"}
        return {"ok": True, "iteration": self._gate.iteration}


class AgentPaths:
    """One worker's paths to the next worker of its ring. Closing the connection to the agent
    releases the path. If the agent restarts, the request is repeated."""

    def __init__(self, directory: str, task: TrainingTask) -> None:
        size = len(task.ring)
        self._directory = directory
        self._patience_s = task.deadline_s
        self._wanted = {
            "to": (task.rank + 1) % size,
            "before": (task.rank - 1) % size,
            "patience_s": task.deadline_s,
        }

    @contextlib.contextmanager
    def path(self) -> Iterator[None]:
        """Hold a path to the next worker inside the block; ``TrainingError`` if none is granted."""
        held = _HeldPath(self._directory, self._wanted)
        if not held.granted.wait(2 * self._patience_s):
            held.give_back()
            raise TrainingError(
                f"no optical path in {2 * self._patience_s:g} s: the agent does not answer"
            )
        if held.refused:
            raise TrainingError(f"no optical path: {held.refused}")
        try:
            yield
        finally:
            held.give_back()


class _HeldPath:
    def __init__(self, directory: str, wanted: dict[str, Any]) -> None:
        self._directory = directory
        self._wanted = wanted
        self.granted = threading.Event()
        self._over = threading.Event()
        self.refused = ""
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(
            target=self._hold,
            daemon=True,
        )
        self._thread.start()

    def give_back(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.sendall(b'{"done": true}\n')
        self._thread.join()

    def _hold(self) -> None:
        while not self._over.is_set():
            try:
                connection = socket.socket(socket.AF_UNIX)
                with connection, connection.makefile() as answers:
                    with socket_in(self._directory, PATHS_SOCKET) as path:
                        connection.connect(path)
                    self._connection = connection
                    connection.sendall(
                        json.dumps(self._wanted).encode() + b"\n"
                    )
                    answer = json.loads(answers.readline() or "{}")
                    if "error" in answer and not self.granted.is_set():
                        self.refused = answer["error"]
                        self.granted.set()
                        return
                    if "channel" in answer:
                        self.granted.set()
                        # Unless this is the end, the path is gone: request it again.
                        if "ok" in json.loads(answers.readline() or "{}"):
                            return
            except (OSError, ValueError):
                pass  # The agent is restarting.
            time.sleep(_AGAIN_S)
