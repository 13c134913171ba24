"""The speaker's Unix socket: requests in, replies and events out, on green threads."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import eventlet
from eventlet.green import socket
from eventlet.greenio import GreenSocket
from eventlet.semaphore import Semaphore

from patchlight.controller.openflow.protocol import (
    DEFAULT_DEADLINE_S,
    LONGEST_LINE,
    Message,
    ProtocolError,
    decode,
    encode,
)
from patchlight.controller.openflow.speaker.handlers import EntriesRefused
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.sockets import bind_unix

LOG = logging.getLogger(__name__)

# A client that sends more at once waits; one that reads too slowly loses the oldest events.
_REQUESTS_AT_ONCE = 64
_EVENTS_WAITING = 1000


class Server:
    """Listens on ``path``. ``answer`` gives a request's result or raises ``PatchlightError``."""

    def __init__(self, path: Path, answer: Callable[[Message], Any]) -> None:
        self._path = path
        self._answer = answer
        self._clients: set[_Client] = set()
        listener = bind_unix(path, "OpenFlow speaker")
        listener.listen(16)
        self._socket = GreenSocket(listener)

    def publish(self, event: Message) -> None:
        """Tell every client. Never waits."""
        for client in self._clients:
            client.publish(event)

    def serve_forever(self) -> None:
        """Accept clients; does not return."""
        while True:
            connection, _ = self._socket.accept()
            eventlet.spawn_n(self._serve, connection)

    def close(self) -> None:
        """Stop listening and take the socket's file away."""
        self._socket.close()
        with suppress(OSError):
            self._path.unlink()

    def _serve(self, connection: Any) -> None:
        client = _Client(connection, self._answer)
        self._clients.add(client)
        try:
            client.serve()
        finally:
            self._clients.discard(client)


class _Client:
    """One connection: a green thread that reads, one that writes, one for each request."""

    def __init__(self, connection: Any, answer: Callable[[Message], Any]) -> None:
        self._connection = connection
        self._answer = answer
        self._replies: deque[Message] = deque()
        self._events: deque[Message] = deque()
        self._dropped = 0
        self._something = Semaphore(0)
        self._free = Semaphore(_REQUESTS_AT_ONCE)

    def publish(self, event: Message) -> None:
        """Queue an event; drops the oldest one if this client does not keep up."""
        if len(self._events) >= _EVENTS_WAITING:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._something.release()

    def serve(self) -> None:
        """Serve until the client goes."""
        writer = eventlet.spawn(self._write)
        try:
            with self._connection.makefile("rb") as lines:
                while line := lines.readline(LONGEST_LINE):
                    if not line.endswith(b"\n"):
                        LOG.warning("a client sent a line that is too long or cut short")
                        break
                    self._free.acquire()
                    eventlet.spawn_n(self._handle, line)
        except OSError as error:
            LOG.debug("a client is gone: %s", error)
        finally:
            writer.kill()
            self._connection.close()

    def _handle(self, line: bytes) -> None:
        number: Any = None
        try:
            request = decode(line)
            number = request.get("id")
            reply = {"ok": True, "result": self._in_time(request)}
        except EntriesRefused as error:
            reply = {
                "ok": False,
                "error": error.message,
                "failed": error.failed,
                "result": error.result,
            }
        except PatchlightError as error:
            reply = {
                "ok": False,
                "error": error.message,
                "hint": error.hint,
                "kind": type(error).__name__,
            }
        except Exception as error:
            LOG.error("a request failed:\n%s", traceback.format_exc())
            reply = {"ok": False, "error": f"the speaker failed: {error!r}"}
        finally:
            self._free.release()
        self._replies.append({"id": number, **reply})
        self._something.release()

    def _in_time(self, request: Message) -> Any:
        deadline_s = request.get("deadline_s", DEFAULT_DEADLINE_S)
        if not isinstance(deadline_s, int | float) or deadline_s <= 0:
            raise ProtocolError(f"deadline_s must be seconds above 0, not {deadline_s!r}")
        with eventlet.Timeout(deadline_s, False):
            return self._answer(request)
        raise DeadlinePassed(
            f"{request.get('op')}: no answer from the switch within {deadline_s:g} s",
            hint="what it did is not known: read its flows again",
        )

    def _write(self) -> None:
        try:
            while True:
                self._something.acquire()
                if self._replies:
                    message = self._replies.popleft()
                elif self._events:
                    message = self._events.popleft()
                    if self._dropped:
                        message = {**message, "dropped": self._dropped}
                        self._dropped = 0
                else:
                    continue
                self._connection.sendall(encode(message))
        except OSError as error:
            LOG.debug("a client is gone: %s", error)
            # Wakes the reader, which ends the connection.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)


class DeadlinePassed(PatchlightError):
    """A switch did not answer within the time the request gave."""
