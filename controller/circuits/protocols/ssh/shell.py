"""A session in a device's shell over SSH: a command, its echo, its reply, the prompt.

A shell has no tags. So the terminal's echo of the command must stand before its reply:
anything else means that the two sides are out of step, and the connection is made anew. How a
session stays usable, and what an unanswered command becomes: see ``DeviceSession``.
"""

import asyncio
import codecs
import logging
import re
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, cast

from patchlight.controller.circuits.contract import Severity
from patchlight.controller.circuits.dialects import Dialect, Pattern, Template
from patchlight.controller.circuits.protocols.connection import (
    BUFFER_LIMIT,
    Connection,
    FramingError,
)
from patchlight.controller.circuits.protocols.session import DeviceSession, Session, shortened
from patchlight.controller.circuits.protocols.ssh.channel import open_shell

_LOOK_BACK = 512  # characters: what came before may be the beginning of a prompt
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


@dataclass(frozen=True)
class ShellDialect(Dialect):
    """What a session takes.

    ``prompt`` matches the whole last line of what a login prints; whatever it is there, it is
    taken for the prompt from then on. A reply with a line in which ``error_line`` is found is
    a refusal. Lines that match ``alarm_line`` are no part of a reply: the device says them
    unasked.
    """

    FIELDS: ClassVar[frozenset[str]] = frozenset()

    prompt: Pattern = r"[^\r\n]{0,60}[>#$%] ?"
    keep_alive: Template = "switchstate"
    error_line: Pattern = r"ERROR|Exception"
    alarm_line: Pattern = r"(?P<severity>CRITICAL|MAJOR|MINOR|NOTICE): (?P<words>.*)"


class ShellFramer:
    """Bytes in, the text before each prompt out. ``FramingError`` past ``limit`` bytes."""

    def __init__(self, prompt: str, limit: int = BUFFER_LIMIT) -> None:
        self._first = re.compile(rf"(?:^|\n)({prompt})$")
        self._next: re.Pattern[str] | None = None
        self._text, self._limit = "", limit
        # A letter may come in two pieces.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def buffered(self) -> int:
        """Characters held of what is not yet complete."""
        return len(self._text)

    def feed(self, data: bytes) -> list[str]:
        """Add bytes; returns the texts that they complete."""
        added = self._decoder.decode(data).replace("\r", "")
        # Only the end of what is held can be part of something with what was added.
        at = max(0, len(self._text) - _LOOK_BACK)
        at = at if (escape := self._text.find("\x1b", 0, at)) < 0 else escape
        self._text = self._text[:at] + _ESCAPES.sub("", self._text[at:] + added)
        if self._next is None and (prompt := self._first.search(self._text, at)):
            self._next, at = re.compile(rf"(?:^|\n){re.escape(prompt[1])}"), 0
        whole: list[str] = []
        if self._next is not None and self._next.search(self._text, at):
            *whole, self._text = self._next.split(self._text)
        if len(self._text) > self._limit:
            raise FramingError(f"{len(self._text)} bytes came without the end of a reply")
        return whole

    def take_telnet_replies(self) -> bytes:
        """None: SSH does not negotiate in the text."""
        return b""


class ShellClient(DeviceSession[str, ShellDialect]):
    """One connection to one device. All methods belong to one event loop."""

    protocol = "SSH"
    log = logging.getLogger("patchlight.ssh")

    def __init__(self, session: Session, dialect: ShellDialect) -> None:
        super().__init__(session, dialect)
        self._error = re.compile(dialect.error_line)
        self._alarm_line = re.compile(dialect.alarm_line)

    async def command(
        self, command: str, *, changes: bool = False, timeout_s: float | None = None
    ) -> list[str]:
        """Have a command done; the lines of its reply.

        Raises ``DeviceRefused`` with the device's words if it tells of an error. One that
        ``changes`` something and is not answered raises ``OutcomeUnknown``.
        """
        exchange = partial(self._exchange, command=command)
        return await self._run(exchange, lambda: shortened(command), timeout_s, changes=changes)

    def _framer(self) -> ShellFramer:
        return ShellFramer(self._dialect.prompt)

    def _unasked(self, message: str) -> bool:
        """Some print the prompt anew after what they say unasked."""
        lines = [line.strip() for line in message.split("\n") if line.strip()]
        if not lines or not all(map(self._alarm_line.fullmatch, lines)):
            return False
        self._without_alarms(message)
        return True

    async def _connect(self) -> Connection[str]:
        shell = await open_shell(self._session)
        connection = await Connection.over(shell, self._framer(), self._unasked, b"\n")
        # The login's own text and the first prompt come before any command.
        connection.listen()
        return connection

    async def _log_in(self) -> None:
        async with asyncio.timeout(self._session.timeouts.answer_s):
            greeting = await self._connected().receive()
        self._connected().done()
        self._without_alarms(greeting)

    async def _log_out(self) -> None:
        """Closing the channel is the farewell."""

    async def _say_something(self) -> None:
        await self.command(self._dialect.keep_alive)

    async def _exchange(
        self, connection: Connection[str], timeout_s: float, command: str
    ) -> list[str]:
        async with self._in_step(connection, timeout_s):
            self._sends(command)
            connection.send(command)
            lines = self._without_alarms(await connection.receive())
            if not lines or lines[0].strip() != command:
                echoed = self._mask(shortened(lines[0])) if lines else ""
                raise FramingError(f"it echoed {echoed!r} for {shortened(command)!r}")
        errors = [self._mask(line.strip()) for line in lines[1:] if self._error.search(line)]
        if errors:
            raise self._refused(shortened(command), shortened("; ".join(errors)))
        return lines[1:]

    def _without_alarms(self, text: str) -> list[str]:
        """The lines of a reply that are not blank; what was said unasked becomes alarms."""
        lines = []
        for line in text.split("\n"):
            if alarm := self._alarm_line.fullmatch(line.strip()):
                severity = cast(Severity, alarm["severity"].lower())
                self._alarm(severity, "", alarm["words"])
            elif line.strip():
                lines.append(line)
        return lines
