"""Tunes the transceivers of an emulated lab over its Unix socket, with JSON lines both ways."""

import json
import socket
from pathlib import Path
from typing import Any, Self

from patchlight.testbed.errors import BadInput, PatchlightError, reason
from patchlight.testbed.lab.model import Endpoint
from patchlight.testbed.lab.spectrum import Channel

LIGHT_SOCKET = "optical/light.sock"
"""Its place in the runtime directory of a lab: ``/run/patchlight/LAB/optical/light.sock``."""
_DEADLINE_S = 30.0


class LightClient:
    """A connection to an emulated lab's transceivers; not thread-safe.

    Methods raise ``BadInput`` for what the lab does not have, and ``PatchlightError`` if the lab
    does not answer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(_DEADLINE_S)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise self._silent(error) from error
        self._answers = self._socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; transceivers stay as they are."""
        self._answers.close()
        self._socket.close()

    def tune(
        self,
        port: Endpoint | str,
        channel: Channel | str,
        *,
        wait: bool = True,
    ) -> None:
        """Make the transmitter at ``port`` (``server1.nic0``) send on ``channel``.

        It is off while it is tuned; with ``wait`` this returns when it sends. ``BadInput`` for a
        channel that it cannot send; it then stays unchanged.
        """
        self.ask({"tune": str(port), "channel": str(channel), "wait": wait})

    def darken(self, port: Endpoint | str) -> None:
        """Switch the transmitter at ``port`` off until it is tuned."""
        self.ask({"tune": str(port), "channel": None})

    def transceivers(self) -> dict[str, dict[str, Any]]:
        """By port: ``channel``, ``state`` (on, off, tuning), ``band``, ``to``, ``destroyed_at``.

        ``to`` are the ports that receive its frames; ``destroyed_at`` are fibres, by sending end,
        on which another signal of its channel destroys them.
        """
        return dict(self.ask({"look": True})["transceivers"])

    def losses(self) -> dict[str, dict[str, int]]:
        """Frames lost so far: ``destroyed`` by end of a fibre, ``dark`` by sending port."""
        answer = self.ask({"look": True})
        return {name: dict(answer[name]) for name in ("destroyed", "dark")}

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply to one request."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            answer = json.loads(self._answers.readline() or b"{}")
        except (OSError, ValueError) as error:
            raise self._silent(error) from error
        if "error" in answer:
            raise BadInput(answer["error"], hint=answer.get("hint"))
        if not answer.get("ok"):
            raise self._silent(ConnectionError("it closed the connection"))
        return dict(answer)

    def _silent(self, error: Exception) -> PatchlightError:
        if isinstance(error, FileNotFoundError):
            return PatchlightError(
                f"no tunable transceivers: {self._path} does not exist",
                hint="give the NICs transceivers in the lab file, and start the lab",
            )
        return PatchlightError(
            f"requesting the emulated transceivers at {self._path}: {reason(error)}",
            hint="check that the lab is up and has transceivers: patchlight emulate status",
        )
