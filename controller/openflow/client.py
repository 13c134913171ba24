"""The controller's side of the OpenFlow speaker: one object to start, ask, listen to and close.

Plain asyncio: no OpenFlow engine is imported here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from patchlight.controller.openflow.protocol import (
    DEFAULT_DEADLINE_S,
    LONGEST_LINE,
    VERSION,
    Message,
    ProtocolError,
    decode,
    encode,
)
from patchlight.controller.openflow.speaker_process import (
    SpeakerFailed,
    SpeakerOptions,
    SpeakerProcess,
)
from patchlight.testbed.errors import OutcomeUnknown, PatchlightError

LOG = logging.getLogger(__name__)

_BACK_OFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
# One that lived for this long did not die of the same thing again.
_LONG_LIFE_S = 30.0
# The speaker keeps the deadline; this much later it must be hung itself.
_GRACE_S = 2.0

Callback = Callable[[Message], None]


class SpeakerAnswer(Protocol):
    """Hears of each request: what it was, how long it took, and whether it was done."""

    def __call__(self, operation: str, seconds: float, *, good: bool) -> None:
        """A request has come to its end."""


class SpeakerRefused(PatchlightError):
    """The speaker, or a switch behind it, refused a request.

    ``failed`` holds the entries that a switch refused, each with its error; ``kind`` is the
    name of the speaker's own error.
    """

    def __init__(self, reply: Message) -> None:
        super().__init__(str(reply.get("error")), hint=reply.get("hint"))
        self.kind = str(reply.get("kind", ""))
        self.failed: list[Message] = reply.get("failed", [])
        self.result: Message = reply.get("result") or {}


class Speaker:
    """Runs the speaker process and talks to it; starts it again if it dies.

    Events go to every subscriber, in order: those of the protocol, and
    ``{"event": "speaker-down", "error": ...}`` and ``{"event": "speaker-up", ...}`` when the
    process dies and is back. Flows stay in the switches meanwhile. ``on_answer`` hear how each
    request went.
    """

    def __init__(self, options: SpeakerOptions) -> None:
        self.options = options
        self.restarts = 0
        self.on_answer: list[SpeakerAnswer] = []
        self.info: Message = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._subscribers: list[Callback] = []
        self._process: SpeakerProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._supervising: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether requests can be made now."""
        return self._writer is not None

    @property
    def pid(self) -> int | None:
        """The speaker's process id, if it runs."""
        return self._process.pid if self._process and self._process.running else None

    async def start(self) -> None:
        """Start the process and connect; ``SpeakerFailed`` with the reason if it cannot run."""
        await self._begin()
        self._supervising = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """Stop the process. Flows stay in the switches."""
        if self._supervising is not None:
            self._supervising.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervising
        await self._end(SpeakerFailed("the OpenFlow speaker was stopped"))
        if self._process is not None:
            await self._process.stop()

    async def __aenter__(self) -> Speaker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback`` with each event; the function returned ends that. It must not wait."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def request(
        self, operation: str, *, deadline_s: float = DEFAULT_DEADLINE_S, **fields: Any
    ) -> Any:
        """The result of one operation of the protocol.

        ``SpeakerRefused`` if it says no; ``SpeakerFailed`` if it is not running;
        ``OutcomeUnknown`` if it dies or says nothing in time after it was asked.
        """
        if self._writer is None:
            raise SpeakerFailed(
                f"{operation}: the OpenFlow speaker is not running",
                hint="it is being started again; its log says why it ended",
            )
        number, began, good = next(self._numbers), time.monotonic(), False
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        message = {"v": VERSION, "id": number, "op": operation, "deadline_s": deadline_s, **fields}
        try:
            self._writer.write(encode(message))
            async with asyncio.timeout(deadline_s + _GRACE_S):
                await self._writer.drain()
                reply = await answer
                good = bool(reply.get("ok"))
        except (TimeoutError, ConnectionError) as error:
            raise OutcomeUnknown(
                f"{operation}: the OpenFlow speaker did not answer within {deadline_s:g} s",
                hint="read the switch's flows again",
            ) from error
        finally:
            del self._waiting[number]
            for hear in self.on_answer:
                hear(operation, time.monotonic() - began, good=good)
        if reply.get("ok"):
            return reply.get("result")
        if reply.get("kind") in ("DeadlinePassed", "SwitchGone") and operation == "apply":
            raise OutcomeUnknown(str(reply.get("error")), hint=reply.get("hint"))
        raise SpeakerRefused(reply)

    # -- the process and the connection -----------------------------------------------------

    async def _begin(self) -> None:
        self._process = await SpeakerProcess.start(self.options.command())
        try:
            reader, self._writer = await asyncio.open_unix_connection(
                self.options.socket, limit=LONGEST_LINE
            )
            self._reading = asyncio.create_task(self._read(reader))
            self.info = await self.request("hello")
        except BaseException:
            await self._end(SpeakerFailed("the OpenFlow speaker could not be asked anything"))
            await self._process.stop()
            raise

    async def _end(self, why: PatchlightError) -> None:
        if self._reading is not None:
            self._reading.cancel()
            with suppress(asyncio.CancelledError):
                await self._reading
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        unknown = OutcomeUnknown(f"no answer: {why.message}", hint="read the switch's flows again")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(unknown)

    async def _supervise(self) -> None:
        attempts, begun = 0, time.monotonic()
        while True:
            why = await self._lost()
            if time.monotonic() - begun > _LONG_LIFE_S:
                attempts = 0
            await self._end(why)
            LOG.error("%s", why)
            self._tell({"event": "speaker-down", "error": str(why)})
            while not self.connected:
                await asyncio.sleep(_BACK_OFF_S[min(attempts, len(_BACK_OFF_S) - 1)])
                attempts += 1
                try:
                    await self._begin()
                except (PatchlightError, OSError) as error:
                    LOG.error("the OpenFlow speaker does not start again: %s", error)
            begun = time.monotonic()
            self.restarts += 1
            LOG.warning("the OpenFlow speaker runs again (pid %s)", self.pid)
            self._tell({"event": "speaker-up", **self.info})

    async def _lost(self) -> SpeakerFailed:
        """Wait until the connection or the process ends; the process is gone afterwards."""
        assert self._reading is not None
        assert self._process is not None
        await asyncio.wait([self._reading])
        if self._process.running:
            # The connection ends a moment before a dying process does; one that closes it and
            # lives on is of no use.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    return await self._process.ended()
            await self._process.stop()
        return await self._process.ended()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = decode(line)
                if "event" in message:
                    self._tell(message)
                elif (answer := self._waiting.get(message.get("id", 0))) and not answer.done():
                    answer.set_result(message)
        except (ConnectionError, ProtocolError, ValueError) as error:
            LOG.error("the connection to the OpenFlow speaker broke: %s", error)

    def _tell(self, event: Message) -> None:
        for callback in tuple(self._subscribers):
            try:
                callback(event)
            except Exception:
                LOG.exception("a subscriber failed on the event %s", event.get("event"))
