"""A SCPI session over TCP: each command followed by the question for its errors.

SCPI has no tags, and a command in error is answered with nothing. So the error queue's answer
marks the end of every exchange, and anything that is not exactly the answer expected means
that the two sides are out of step: the connection is dropped and made anew. How a session
stays usable, and what an unanswered command becomes: see ``DeviceSession``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence

from patchlight.controller.circuits.contract import DeviceRefused, LoginRefused
from patchlight.controller.circuits.protocols.connection import (
    BUFFER_LIMIT,
    Connection,
    FramingError,
)
from patchlight.controller.circuits.protocols.scpi.dialects import ScpiDialect
from patchlight.controller.circuits.protocols.scpi.framing import LineFramer, units
from patchlight.controller.circuits.protocols.session import DeviceSession, Session, shortened

Errors = list[tuple[str, str]]  # code and words


class ScpiClient(DeviceSession[str]):
    """One connection to one device. All methods belong to one event loop."""

    protocol = "SCPI"
    log = logging.getLogger("patchlight.scpi")

    def __init__(self, session: Session, dialect: ScpiDialect) -> None:
        super().__init__(session)
        self._dialect = dialect
        self._entry = re.compile(dialect.error_entry)

    async def ask(self, command: str, answer: str) -> str:
        """Ask something; the answer, which matches the pattern ``answer``.

        Raises ``DeviceRefused`` with the device's words if it answers with errors alone.
        """
        return await self._command(command, answer, changes=False)

    async def tell(self, command: str) -> None:
        """Have something changed, and wait until the device says that it is done.

        Raises ``DeviceRefused`` with the device's words; an unanswered command raises
        ``OutcomeUnknown``. A refused list may have been done in part.
        """
        confirmed = f"{command}{self._dialect.confirm}"
        await self._command(confirmed, self._dialect.confirmed, changes=True)

    async def look(self) -> None:
        """Ask for errors alone: what the device reported meanwhile becomes alarms."""
        timeout_s = self._session.timeouts.answer_s

        async def exchange(connection: Connection[str]) -> None:
            self._note((await self._exchange(connection, "", timeout_s))[1])

        await self._run(exchange, self._dialect.errors, timeout_s, changes=False)

    async def _command(self, command: str, answer: str, *, changes: bool) -> str:
        timeout_s = self._session.timeouts.answer_s

        async def exchange(connection: Connection[str]) -> str:
            said, errors = await self._exchange(connection, command, timeout_s)
            if errors and (changes or not said):
                raise self._refused(command, errors)
            self._note(errors)
            if len(said) != 1 or re.fullmatch(answer, said[0]) is None:
                raise FramingError(f"it answered {self._mask(shortened('; '.join(said)))!r}")
            return said[0]

        return await self._run(exchange, self._mask(shortened(command)), timeout_s, changes=changes)

    # --- the session ------------------------------------------------------------------------

    def _framer(self) -> LineFramer:
        return LineFramer()

    async def _log_in(self) -> None:
        session, command = self._session, ""
        if self._dialect.login:
            command = self._dialect.login.format(user=session.user, password=session.password)
        # A banner may stand before the first answer: only the errors are looked at.
        _, errors = await self._exchange(self._connected(), command, session.timeouts.answer_s)
        if command and errors:
            words = self._mask(_words(errors))
            raise LoginRefused(
                f"logging in to {session.name} as {session.user!r} was refused: {words}",
                words=words,
                hint="check user and password_env of the circuit switch in the lab file",
            )
        self._note(errors)

    async def _log_out(self) -> None:
        """SCPI knows no farewell."""

    async def _say_something(self) -> None:
        await self.ask(self._dialect.keep_alive, r".*")

    # --- one command ------------------------------------------------------------------------

    async def _exchange(
        self, connection: Connection[str], command: str, timeout_s: float
    ) -> tuple[list[str], Errors]:
        """Send; the answers up to the error queue's, and what that holds."""
        between = self._dialect.then if command else ""
        ended = False
        try:
            async with asyncio.timeout(timeout_s):
                shown = command if not self._dialect.login else self._mask(command)
                self.log.debug("%s < %s", self._session.name, shortened(shown))
                await connection.send(f"{command}{between}{self._dialect.errors}")
                answers = await self._collect(connection, (command, self._dialect.errors))
                ended = True
                return answers
        finally:
            if not ended:
                # What comes of it later must not be taken for the answer to the next command.
                connection.trouble = connection.trouble or "an answer is outstanding"
            connection.done()

    async def _collect(
        self, connection: Connection[str], sent: Sequence[str]
    ) -> tuple[list[str], Errors]:
        answers: list[str] = []
        size = 0
        while True:
            line = await connection.receive()
            size += len(line)
            if size > BUFFER_LIMIT:
                raise FramingError(f"the answer is longer than {BUFFER_LIMIT} bytes")
            if line in sent:
                continue  # an echo
            for unit in units(line):
                errors = self._errors(unit)
                if errors is not None:
                    return answers, errors
                answers.append(unit)

    def _errors(self, text: str) -> Errors | None:
        """The entries of the error queue's answer (without "no error"), if it is one."""
        found: Errors = []
        at = 0
        while match := self._entry.match(text, at):
            if int(match["code"]) != 0:
                found.append((match["code"], self._mask(match["words"].replace('""', '"'))))
            at = match.end()
            if at == len(text):
                return found
            if text[at] != ",":
                return None
            at += 1
        return None

    def _refused(self, command: str, errors: Errors) -> DeviceRefused:
        words = _words(errors)
        shown = self._mask(shortened(command))
        self.log.info("%s > %s", self._session.name, shortened(words))
        return DeviceRefused(
            f"{self._session.name} refused {shown}: {words}", code=errors[0][0], words=words
        )

    def _note(self, errors: Errors) -> None:
        """Errors that no command of ours explains: the device tells of itself."""
        for code, words in errors:
            self._alarm("minor", "", f"{code},{words}")


def _words(errors: Errors) -> str:
    return "; ".join(f'{code},"{words}"' for code, words in errors)
