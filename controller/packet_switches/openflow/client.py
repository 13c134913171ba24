"""Runs the OpenFlow speaker process, and sends it requests and receives its events."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from patchlight.controller.packet_switches.openflow import flowtable
from patchlight.controller.packet_switches.openflow.flowtable import (
    Message,
    SpeakerOptions,
)
from patchlight.testbed.errors import (
    NoReply,
    OutcomeUnknown,
    PatchlightError,
    in_words,
    reason,
)
from patchlight.testbed.linux.processes import ProgressWatch, processor_ticks

LOG = logging.getLogger(__name__)
SPEAKER_LOG = logging.getLogger("patchlight.speaker")

_BACK_OFF_S = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
# After this run time, another failure is considered a new one.
_LONG_LIFE_S = 30.0
# The speaker keeps the deadline; after this extra time it must be stuck.
_GRACE_S = 2.0

_QUIET_S = 30.0  # engines start slowly on a busy machine; one that does nothing is stuck
_LOOK_EVERY_S = 0.5
_STOPS_WITHIN_S = 5.0
_LINES_KEPT = 20
_TELL_EVERY_S = 60.0
_LISTED = 8  # of switches that are not in the lab file

Callback = Callable[[Message], None]


class SpeakerFailed(PatchlightError):
    """The speaker process could not be started, or ended."""


class SpeakerProcess:
    """One run of the speaker process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._lines_read = 0
        self._log = asyncio.create_task(self._read_log())

    @classmethod
    async def start(
        cls, command: Sequence[str], quiet_s: float = _QUIET_S
    ) -> SpeakerProcess:
        """Start it and wait until it serves; ``SpeakerFailed`` with its last output otherwise.

        It is stopped if it used no CPU time and wrote nothing for ``quiet_s`` seconds.
        """
        # Its standard input closes with this process, and then it ends too.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        child = cls(process)
        try:
            serves = await child._serves(quiet_s)
        except BaseException:
            await child.stop()
            raise
        if not serves:
            raise await child.ended()
        return child

    async def _serves(self, quiet_s: float) -> bool:
        """Wait until it serves; false if it ended instead. ``SpeakerFailed`` if it is stuck."""
        assert self._process.stdout is not None
        progress = ProgressWatch(
            lambda: (processor_ticks(self.pid), self._lines_read)
        )
        ready = asyncio.ensure_future(self._process.stdout.readline())
        try:
            while not (await asyncio.wait({ready}, timeout=_LOOK_EVERY_S))[0]:
                if progress.quiet_s() > quiet_s:
                    raise SpeakerFailed(
                        "the OpenFlow speaker neither answers nor makes progress for "
                        f"{quiet_s:g} s",
                        hint="\n".join(self._lines) or "it wrote nothing",
                    )
                if (took_s := progress.to_tell()) is not None:
                    SPEAKER_LOG.info(
                        "still starting the OpenFlow speaker after %.0f s",
                        took_s,
                    )
            return bool(ready.result())
        finally:
            ready.cancel()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def ended(self) -> SpeakerFailed:
        """Wait for its end; returns an error that describes it."""
        status = await self._process.wait()
        await self._log
        words = [line.removeprefix("error: ") for line in self._lines]
        what = (
            "\n".join(words)
            or f"it wrote nothing, and ended with status {status}"
        )
        error = SpeakerFailed(f"the OpenFlow speaker ended: {what}")
        # Bad input keeps its type, for the command's exit code.
        error.exit_code = status if status in (1, 2) else 1
        return error

    async def stop(self) -> None:
        """Terminate it, then kill it."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(_STOPS_WITHIN_S):
                await self._process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        await self._log

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            self._lines.append(text)
            self._lines_read += 1
            SPEAKER_LOG.warning("%s", text)


class AnySpeakerProcess(Protocol):
    """What the controller does with a speaker's process; see ``SpeakerProcess``."""

    @property
    def pid(self) -> int:
        """Its process id."""

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""

    async def ended(self) -> SpeakerFailed:
        """Wait for its end; returns an error that describes it."""

    async def stop(self) -> None:
        """End it."""


Launch = Callable[[Sequence[str]], Awaitable[AnySpeakerProcess]]


class SpeakerAnswer(Protocol):
    """Called at the end of each request."""

    def __call__(
        self,
        operation: str,
        seconds: float,
        *,
        good: bool,
    ) -> None:
        """``good``: whether it succeeded."""


class SpeakerRefused(PatchlightError):
    """The speaker refused a request (``kind``: its error), or a switch ``failed`` entries."""

    def __init__(self, reply: Message) -> None:
        super().__init__(str(reply.get("error")), hint=reply.get("hint"))
        self.kind = str(reply.get("kind", ""))
        self.failed: list[Message] = reply.get("failed", [])
        self.result: Message = reply.get("result") or {}


class Speaker:
    """Runs the speaker process and restarts it after failures.

    Every subscriber gets the protocol's events in order, and ``{"event": "speaker-down", "error":
    ...}`` and ``{"event": "speaker-up", ...}``. ``on_answer`` are called after each request.
    ``launch`` starts the process, which serves at the socket of the options.
    """

    def __init__(
        self, options: SpeakerOptions, launch: Launch | None = None
    ) -> None:
        self.options = options
        self._launch = launch or SpeakerProcess.start
        self.restarts = 0
        self.on_answer: list[SpeakerAnswer] = []
        self.info: Message = {}
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._subscribers: list[Callback] = []
        self._process: AnySpeakerProcess | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._supervising: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Whether the speaker is ready for requests."""
        return self._writer is not None

    @property
    def pid(self) -> int | None:
        """The speaker's process id, if it runs."""
        return (
            self._process.pid
            if self._process and self._process.running
            else None
        )

    async def start(self) -> None:
        """Start the process and connect; ``SpeakerFailed`` with the reason if it cannot run."""
        await self._begin()
        self._supervising = asyncio.create_task(self._supervise())

    async def close(self) -> None:
        """Stop the process. Flows stay in the switches."""
        if self._supervising is not None:
            self._supervising.cancel()
            await asyncio.wait([self._supervising])
        await self._end(SpeakerFailed("the OpenFlow speaker was stopped"))
        if self._process is not None:
            await self._process.stop()

    async def __aenter__(self) -> Speaker:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def subscribe(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback``, which must not block, with each event; returns how to unsubscribe."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def request(
        self,
        operation: str,
        *,
        deadline_s: float = flowtable.DEFAULT_DEADLINE_S,
        **fields: Any,
    ) -> Any:
        """The result of one operation of the protocol.

        ``SpeakerRefused`` if it refuses; ``SpeakerFailed`` if it is not running; ``OutcomeUnknown``
        if it dies or does not answer after the request was sent.
        """
        if self._writer is None:
            raise SpeakerFailed(
                f"{operation}: the OpenFlow speaker is not running",
                hint="it is being restarted; its log has the reason",
            )
        number = next(self._numbers)
        began = time.monotonic()
        good = False
        answer = self._waiting[number] = (
            asyncio.get_running_loop().create_future()
        )
        head = {
            "v": flowtable.VERSION,
            "id": number,
            "op": operation,
            "deadline_s": deadline_s,
        }
        try:
            self._writer.write(flowtable.encode({**head, **fields}))
            async with asyncio.timeout(deadline_s + _GRACE_S):
                await self._writer.drain()
                reply = await answer
                good = bool(reply.get("ok"))
        except (TimeoutError, ConnectionError) as error:
            kind = (
                NoReply if isinstance(error, TimeoutError) else OutcomeUnknown
            )
            raise kind(
                f"{operation}: the OpenFlow speaker did not answer within {deadline_s:g} s",
                hint="read the switch's flows again",
            ) from error
        finally:
            del self._waiting[number]
            for hear in self.on_answer:
                hear(operation, time.monotonic() - began, good=good)
        if reply.get("ok"):
            return reply.get("result")
        if (
            reply.get("kind") in ("DeadlinePassed", "SwitchGone")
            and operation == "apply"
        ):
            kind = (
                NoReply
                if reply["kind"] == "DeadlinePassed"
                else OutcomeUnknown
            )
            raise kind(str(reply.get("error")), hint=reply.get("hint"))
        raise SpeakerRefused(reply)

    # -- the process and the connection -----------------------------------------------------

    async def _begin(self) -> None:
        self._process = await self._launch(self.options.command())
        try:
            reader, self._writer = await asyncio.open_unix_connection(
                self.options.socket, limit=flowtable.LONGEST_LINE
            )
            self._reading = asyncio.create_task(self._read(reader))
            self.info = await self.request("hello")
        except BaseException:
            await self._end(
                SpeakerFailed("could not send to the OpenFlow speaker")
            )
            await self._process.stop()
            raise

    async def _end(self, why: PatchlightError) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        unknown = OutcomeUnknown(
            f"no answer: {why.message}", hint="read the switch's flows again"
        )
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(unknown)

    async def _supervise(self) -> None:
        attempts = 0
        begun = time.monotonic()
        while True:
            why = await self._lost()
            if time.monotonic() - begun > _LONG_LIFE_S:
                attempts = 0
            await self._end(why)
            LOG.error("%s", why)
            self._tell({"event": "speaker-down", "error": str(why)})
            while not self.connected:
                await asyncio.sleep(
                    _BACK_OFF_S[min(attempts, len(_BACK_OFF_S) - 1)]
                )
                attempts += 1
                try:
                    await self._begin()
                except (
                    Exception
                ) as error:  # whatever it is, the next attempt may succeed
                    LOG.error(
                        "the OpenFlow speaker cannot be restarted: %s",
                        in_words(error),
                    )
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
            # The connection ends just before a dying process; without it a process is useless.
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    return await self._process.ended()
            await self._process.stop()
        return await self._process.ended()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                message = flowtable.decode(line)
                if "event" in message:
                    self._tell(message)
                elif (
                    answer := self._waiting.get(message.get("id", 0))
                ) and not answer.done():
                    answer.set_result(message)
        except (ConnectionError, flowtable.ProtocolError, ValueError) as error:
            LOG.error(
                "the connection to the OpenFlow speaker was lost: %s",
                reason(error),
            )

    def _tell(self, event: Message) -> None:
        for callback in tuple(self._subscribers):
            try:
                callback(event)
            except Exception:
                LOG.exception(
                    "a subscriber failed on the event %s", event.get("event")
                )


class UnknownSwitches:
    """Counts connections of unknown switches; time is an argument (Unix seconds).

    The first is an event immediately. Later ones are summed up and reported at most once a minute,
    so that a reconnecting switch cannot fill the journal.
    """

    def __init__(self) -> None:
        self.connections = 0
        self._untold: Counter[tuple[int, str]] = Counter()
        self._untold_count = 0
        self._told_at = float("-inf")

    def connected(
        self,
        datapath_id: int,
        address: str,
        now: float,
    ) -> dict[str, Any] | None:
        """What to report of this connection and earlier unreported ones; ``None``: nothing yet."""
        self.connections += 1
        self._untold_count += 1
        who = (datapath_id, address.rpartition(":")[0])
        if who in self._untold or len(self._untold) < _LISTED:
            self._untold[who] += 1
        if now - self._told_at < _TELL_EVERY_S:
            return None
        event = {
            "event": "unknown-switch",
            "datapath_id": datapath_id,
            "address": address,
            "connections": self._untold_count,
            "switches": [
                {"datapath_id": number, "host": host, "connections": count}
                for (number, host), count in self._untold.items()
            ],
        }
        self._untold.clear()
        self._untold_count = 0
        self._told_at = now
        return event
