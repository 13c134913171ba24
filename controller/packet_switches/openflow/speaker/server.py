"""Serves the speaker's Unix socket with green threads: requests in, replies and events out."""

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

from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.flowtable import (
    VERSION,
    FlowEntry,
    Message,
    ProtocolError,
)
from patchlight.controller.packet_switches.openflow.speaker.switch import (
    Switch,
)
from patchlight.controller.packet_switches.openflow.speaker.switch_registry import (
    SwitchRegistry,
)
from patchlight.testbed.errors import PatchlightError, reason
from patchlight.testbed.linux.sockets import bind_unix

LOG = logging.getLogger(__name__)

# A client that sends more waits; one that reads too slowly loses the oldest events.
_REQUESTS_AT_ONCE = 64
_EVENTS_WAITING = 1000


class DeadlinePassed(PatchlightError):
    """A switch did not answer within the request's deadline."""


class EntriesRefused(PatchlightError):
    """A switch or the codec refused some flow entries; the others are installed."""

    def __init__(
        self,
        message: str,
        failed: list[Message],
        result: Message,
    ) -> None:
        super().__init__(message)
        self.failed = failed
        self.result = result


class Handlers:
    """Answers requests, with a method per operation; ``about`` is what ``hello`` adds."""

    def __init__(self, registry: SwitchRegistry, about: Message) -> None:
        self._registry = registry
        self._about = about

    def __call__(self, request: Message) -> Any:
        """The result of one request, or a ``PatchlightError``."""
        if request.get("v") != VERSION:
            raise ProtocolError(
                f"protocol version {request.get('v')!r}: this speaker speaks {VERSION}",
                hint="the controller and its speaker must have the same version of Patchlight",
            )
        name = request.get("op")
        if name not in flowtable.OPERATIONS:
            raise ProtocolError(
                f"unknown operation {name!r}: expected {', '.join(flowtable.OPERATIONS)}"
            )
        return getattr(self, f"_{name}")(request)

    def _hello(self, request: Message) -> Message:
        return {
            "protocol": VERSION,
            "datapaths": sorted(self._registry.declared),
            **self._about,
        }

    def _switches(self, request: Message) -> list[Message]:
        return self._registry.switches()

    def _describe(self, request: Message) -> Message:
        return self._switch(request).description()

    def _ports(self, request: Message) -> list[Message]:
        return self._switch(request).ports_now()

    def _counters(self, request: Message) -> list[Message]:
        return self._registry.counters()

    def _read_flows(self, request: Message) -> Message:
        switch = self._switch(request)
        flows = [entry.to_json() for entry in switch.read_flows()]
        return {
            "flows": flows,
            "selects": switch.selects() if request.get("spread") else None,
        }

    def _apply(self, request: Message) -> Message:
        switch = self._switch(request)
        removes = [
            FlowEntry.from_json(item) for item in request.get("removes", [])
        ]
        adds = [FlowEntry.from_json(item) for item in request.get("adds", [])]
        for entry in (*removes, *adds):
            if not entry.is_ours:
                raise ProtocolError(
                    f"the entry of another application was not changed: {entry}"
                )
        refused = switch.apply(removes, adds)
        failed = {id(entry) for entry, _ in refused}
        result = {
            "removed": sum(id(entry) not in failed for entry in removes),
            "added": sum(id(entry) not in failed for entry in adds),
        }
        if refused:
            raise EntriesRefused(
                f"switch {switch.id:#x} refused {len(refused)} of {len(removes) + len(adds)} "
                f"flow entries; the first: {refused[0][0]}: {refused[0][1]}",
                [
                    {"entry": entry.to_json(), "error": text}
                    for entry, text in refused
                ],
                result,
            )
        return result

    def _send(self, request: Message) -> Message:
        switch = self._switch(request)
        frames = request.get("frames", [])
        for item in frames:
            switch.send(int(item["port"]), bytes.fromhex(item["frame"]))
        return {"sent": len(frames)}

    def _switch(self, request: Message) -> Switch:
        datapath_id = request.get("datapath_id")
        if not isinstance(datapath_id, int):
            raise ProtocolError(
                f"{request.get('op')} needs a datapath_id, not {datapath_id!r}"
            )
        return self._registry.switch(datapath_id)


class SpeakerServer:
    """Listens on ``path``. ``answer`` returns a request's result or raises ``PatchlightError``."""

    def __init__(self, path: Path, answer: Callable[[Message], Any]) -> None:
        self._path = path
        self._answer = answer
        self._clients: set[_Client] = set()
        listener = bind_unix(path, "OpenFlow speaker")
        listener.listen(16)
        self._socket = GreenSocket(listener)

    def publish(self, event: Message) -> None:
        """Send an event to every client. Never blocks."""
        for client in self._clients:
            client.publish(event)

    def serve_forever(self) -> None:
        """Accept clients; does not return."""
        while True:
            connection, _ = self._socket.accept()
            eventlet.spawn_n(self._serve, connection)

    def close(self) -> None:
        """Stop listening and remove the socket's file."""
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
    def __init__(
        self, connection: Any, answer: Callable[[Message], Any]
    ) -> None:
        self._connection = connection
        self._answer = answer
        self._replies: deque[Message] = deque()
        self._events: deque[Message] = deque()
        self._dropped = 0
        self._something = Semaphore(0)
        self._free = Semaphore(_REQUESTS_AT_ONCE)

    def publish(self, event: Message) -> None:
        """Queue an event; drops the oldest one if the client is too slow."""
        if len(self._events) >= _EVENTS_WAITING:
            self._events.popleft()
            self._dropped += 1
        self._events.append(event)
        self._something.release()

    def serve(self) -> None:
        writer = eventlet.spawn(self._write)
        try:
            with self._connection.makefile("rb") as lines:
                while line := lines.readline(flowtable.LONGEST_LINE):
                    if not line.endswith(b"\n"):
                        LOG.warning(
                            "a client sent a line that is too long or cut short"
                        )
                        break
                    self._free.acquire()
                    eventlet.spawn_n(self._handle, line)
        except OSError as error:
            LOG.debug("a client disconnected: %s", reason(error))
        finally:
            writer.kill()
            self._connection.close()

    def _handle(self, line: bytes) -> None:
        number: Any = None
        failure: Message
        try:
            request = flowtable.decode(line)
            number = request.get("id")
            reply = {"ok": True, "result": self._in_time(request)}
        except EntriesRefused as error:
            failure = {"failed": error.failed, "result": error.result}
            reply = {"ok": False, "error": error.message, **failure}
        except PatchlightError as error:
            failure = {"hint": error.hint, "kind": type(error).__name__}
            reply = {"ok": False, "error": error.message, **failure}
        except Exception as error:
            LOG.error("a request failed:\n%s", traceback.format_exc())
            reply = {"ok": False, "error": f"the speaker failed: {error!r}"}
        finally:
            self._free.release()
        self._replies.append({"id": number, **reply})
        self._something.release()

    def _in_time(self, request: Message) -> Any:
        deadline_s = request.get("deadline_s", flowtable.DEFAULT_DEADLINE_S)
        if not isinstance(deadline_s, int | float) or deadline_s <= 0:
            raise ProtocolError(
                f"deadline_s must be seconds above 0, not {deadline_s!r}"
            )
        with eventlet.Timeout(deadline_s, False):
            return self._answer(request)
        raise DeadlinePassed(
            f"{request.get('op')}: no answer from the switch within {deadline_s:g} s",
            hint="the result is unknown: read its flows again",
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
                self._connection.sendall(flowtable.encode(message))
        except OSError as error:
            LOG.debug("a client disconnected: %s", reason(error))
            # Wakes the reader, which ends the connection.
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
