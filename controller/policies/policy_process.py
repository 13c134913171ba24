"""Runs users' policies in their own process, which is ended at the deadline.

``PolicyProcess`` is the controller's end of a socket pair, this module run as a program the other.
Requests are pickled; answers are JSON, because the user's code may write them. A policy that blocks
the interpreter, ends its process or exhausts memory affects nothing else.
"""

import contextlib
import json
import math
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from patchlight.controller.policies import guard
from patchlight.controller.policies.contract import (
    ClusterShape,
    PlacedDegree,
    PolicyKind,
)
from patchlight.controller.policies.guard import PolicyElsewhere, PolicyFailed
from patchlight.controller.policies.registry import load_policy
from patchlight.testbed.errors import BadInput, PatchlightError, in_words
from patchlight.testbed.lab.model import Lab
from patchlight.testbed.lab.portmap import PortMap

_Words = Annotated[str, Field(max_length=1000)]

# Includes the import of Python, NumPy and ONNX Runtime on a busy machine.
_START_S = 60.0
_LONGEST_ANSWER = 16 << 20


class WeighedOption(BaseModel):
    """An option as text; the best has the highest score. ``also_of``: built-in policies."""

    model_config = ConfigDict(extra="forbid")

    option: _Words
    score: Annotated[float, Field(allow_inf_nan=False)]
    chosen: bool
    lasts_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    delays_others_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    also_of: Annotated[list[_Words], Field(max_length=20)] = []


class Weighed(BaseModel):
    """What was seen of the cluster, as named numbers, and the options."""

    model_config = ConfigDict(extra="forbid")

    saw: Annotated[dict[_Words, int], Field(max_length=20)]
    options: Annotated[list[WeighedOption], Field(max_length=100)]


def checked_explanation(told: Any) -> Any:
    """A policy's explanation of its last answer, as JSON; ``None`` if it has another form."""
    if told is None:
        return None
    try:
        return Weighed.model_validate(told).model_dump(mode="json")
    except ValidationError:
        return None


class PolicyProcess(PolicyElsewhere):
    """One policy in a process that is started once and kept.

    After ``deadline_s`` the process is ended and restarted, without its memory. ``BadInput`` if
    there is no such policy, or it does not fit a cluster of ``shape``.
    """

    def __init__(
        self,
        text: str,
        kind: PolicyKind,
        deadline_s: float,
        shape: ClusterShape | None = None,
        lab: Lab | None = None,
    ) -> None:
        """``lab`` is the usual lab of requests: it is sent only once."""
        self._about = (text, kind, deadline_s, shape, lab)
        self._kind = kind
        self._lab = lab
        self._deadline_s = deadline_s
        self._one_at_a_time = threading.Lock()
        self._start()
        try:
            self._wait_until_ready(_START_S)
        except PolicyFailed as error:
            raise BadInput(
                f"{kind} policy {text!r}: {error.message}", hint=error.hint
            ) from error

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        # The timeout for the rest of a message.
        at_most = struct.pack("ll", math.ceil(self._deadline_s), 0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, at_most)
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            str(theirs.fileno()),
        ]
        # Imports work as in this process, without the working directory.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        with theirs:
            # Ctrl-C is for the controller, which ends its policies.
            self._process = subprocess.Popen(
                command,
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        self._connection.send(self._about)
        self._ready = False

    def _wait_until_ready(self, deadline_s: float) -> None:
        if not self._ready:
            self._receive(deadline_s, "its process is still starting")
            self._ready = True

    def _receive(self, deadline_s: float, late: str) -> tuple[Any, Any]:
        try:
            if not self._connection.poll(deadline_s):
                self._kill()
                self._end()
                raise PolicyFailed(late)
            went_well, told, more = json.loads(
                self._connection.recv_bytes(_LONGEST_ANSWER)
            )
            answer = _from_json(told, self._kind) if went_well else str(told)
        except PolicyFailed:
            raise
        except (
            Exception
        ) as error:  # the connection closed, or the message is invalid
            raise PolicyFailed(f"its process ended: {self._end()}") from error
        if not went_well:
            raise PolicyFailed(
                answer, hint=more if isinstance(more, str) else None
            )
        return answer, more

    def _end(self) -> str:
        """Close the ended process, or end it; returns how it ended, as text."""
        try:
            code = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._kill()
            code = self._process.wait()
        self._connection.close()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def ask_why(self, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """Its checked answer and explanation, or ``PolicyFailed``."""
        if not self._one_at_a_time.acquire(timeout=self._deadline_s):
            raise PolicyFailed("it has not answered the previous call yet")
        try:
            if self._connection.closed:
                self._start()
            self._wait_until_ready(self._deadline_s)
            cluster, *others = arguments
            has_lab = cluster.lab is self._lab  # the other end has it, too
            packed = (
                has_lab,
                cluster._replace(lab=None) if has_lab else cluster,
                others,
            )
            try:
                self._connection.send_bytes(
                    pickle.dumps(packed, pickle.HIGHEST_PROTOCOL)
                )
            except OSError as error:
                raise PolicyFailed(
                    f"its process ended: {self._end()}"
                ) from error
            late = f"no answer within {self._deadline_s:g} s: its process was ended"
            # Checked again, because the other process runs the user's code.
            answer, told = self._receive(self._deadline_s, late)
            return guard.CHECKS[self._kind](
                answer, *arguments
            ), checked_explanation(told)
        finally:
            if self._connection.closed:
                self._start()  # while nobody waits for it
            self._one_at_a_time.release()

    def close(self) -> None:
        """End the process."""
        with self._one_at_a_time:
            if not self._connection.closed:
                self._connection.close()
            self._kill()
            self._process.wait()


def _as_json(answer: Any) -> Any:
    if isinstance(answer, PlacedDegree):
        return {"degree": int(answer), "gpus": hex(answer.gpus)}
    if isinstance(answer, dict):
        return {name: _as_json(each) for name, each in answer.items()}
    return answer.one_way_texts if isinstance(answer, PortMap) else answer


def _from_json(told: Any, kind: PolicyKind) -> Any:
    if kind == "partition" and isinstance(told, dict):
        return PlacedDegree(int(told["degree"]), int(told["gpus"], 16))
    if kind == "topology" and told is not None:
        return {ocs: PortMap.parse(texts) for ocs, texts in told.items()}
    return told


def _serve(connection: Connection) -> None:
    def reply(*parts: Any) -> None:
        connection.send_bytes(json.dumps(parts).encode())

    text, kind, deadline_s, shape, lab = connection.recv()
    try:
        policy: Any = load_policy(text, kind)
        if shape is not None and hasattr(policy, "check_fits"):
            policy.check_fits(shape, lab)
    except BaseException as error:  # a user's file may raise anything
        hint = error.hint if isinstance(error, PatchlightError) else None
        words = (
            in_words(error)
            if isinstance(error, Exception)
            else guard.raised(error)
        )
        reply(False, words, hint)
        return
    reply(True, None, None)
    while True:
        has_lab, cluster, others = connection.recv()
        # The controller ends late processes; if the controller is dead, the kernel does.
        signal.setitimer(signal.ITIMER_REAL, 5.0 + 2.0 * deadline_s)
        try:
            cluster = cluster._replace(lab=lab) if has_lab else cluster
            answer = guard.answer_of(
                policy,
                kind,
                cluster,
                *others,
            )
            parts: tuple[bool, Any, Any] = (
                True,
                _as_json(answer),
                checked_explanation(getattr(policy, "explanation", None)),
            )
        except PolicyFailed as error:
            parts = (False, error.message, None)
        except BaseException as error:
            parts = (False, f"it raised {guard.raised(error)}", None)
        signal.setitimer(signal.ITIMER_REAL, 0)
        reply(*parts)


def main() -> None:
    """Serve one policy until the controller closes the connection."""
    # If memory runs out, the kernel should end this process, not the controller.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    with contextlib.suppress(EOFError, OSError):
        _serve(Connection(int(sys.argv[1])))


if __name__ == "__main__":
    main()
