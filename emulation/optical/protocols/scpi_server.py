"""The SCPI side of an emulated device: messages in, answers out, errors in a queue."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from patchlight.controller.circuits.protocols.connection import FramingError
from patchlight.controller.circuits.protocols.scpi.framing import LineFramer, units
from patchlight.emulation.optical.faults import Faults

_MESSAGE_LIMIT = 65536
_ERRORS_KEPT = 30
_HEADER = re.compile(r":?([a-z]\w*(?::[a-z]\w*)*|\*[a-z]+)(\?)?(?:\s+(.*))?", re.I | re.DOTALL)
_NO_ERROR = '0,"No error"'


class ScpiError(Exception):
    """An entry of the error queue. Codes −1xx are the message's own fault: it ends there."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words

    def __str__(self) -> str:
        escaped = self.words.replace('"', '""')
        return f'{self.code},"{escaped}"'


Execute = Callable[[str], Awaitable[str | None]]


class ScpiServer:
    """Serves SCPI on a raw socket. ``commands`` by canonical header, like ``conn:stat?``.

    A command gets its parameters as text and returns an answer, or ``None``; it raises
    ``ScpiError``. ``shorten`` gives the short form of each long mnemonic.
    """

    def __init__(
        self, commands: Mapping[str, Execute], shorten: Mapping[str, str], faults: Faults
    ) -> None:
        self._commands = commands
        self._shorten = shorten
        self._faults = faults
        self._errors: deque[ScpiError] = deque()
        self._own: dict[str, Execute] = {
            "*cls": self._clear,
            "*opc?": self._complete,
            "syst:err?": self._next_error,
            "syst:err:next?": self._next_error,
            "syst:err:all?": self._all_errors,
        }

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client from its connection to its end."""
        framer = LineFramer(_MESSAGE_LIMIT)
        try:
            while data := await reader.read(65536):
                for message in framer.feed(data):
                    if not await self._do(message, writer):
                        return
        except (ConnectionError, TimeoutError, FramingError):
            return
        finally:
            writer.close()

    def report(self, code: int, words: str) -> None:
        """Put something that nobody asked for into the error queue."""
        if len(self._errors) >= _ERRORS_KEPT:
            self._errors[-1] = ScpiError(-350, "Queue overflow")
        else:
            self._errors.append(ScpiError(code, words))

    async def _do(self, message: str, writer: asyncio.StreamWriter) -> bool:
        """Do one message and answer it; ``False`` ends the connection."""
        parts = list(units(message))
        changes = any("?" not in part and not part.startswith("*") for part in parts)
        mishap = self._faults.mishap(changes=changes)
        if mishap.cut == "before":
            return False
        await asyncio.sleep(mishap.stall_s)
        for number in range(self._faults.take_flood()):
            self.report(100, f"Alarm {number}")
        answers = []
        for part in parts:
            try:
                answer = await self._execute(part, mishap.refusal)
            except ScpiError as error:
                self.report(error.code, error.words)
                if -199 <= error.code <= -100:
                    break
                continue
            if answer is not None:
                answers.append(answer)
        if mishap.cut == "after":
            return False
        if answers:
            writer.write(self._faults.spoilt(f"{';'.join(answers)}\n".encode()))
            await writer.drain()
        return True

    async def _execute(self, part: str, refusal: str) -> str | None:
        match = _HEADER.fullmatch(part)
        if match is None:
            raise ScpiError(-102, "Syntax error")
        words = (self._shorten.get(word, word) for word in match[1].lower().split(":"))
        header = ":".join(words) + (match[2] or "")
        command = self._own.get(header) or self._commands.get(header)
        if command is None:
            raise ScpiError(-113, f"Undefined header;{part[:60]}")
        if not match[2] and not header.startswith("*"):
            if refusal:
                raise ScpiError(-200, f"Execution error;{refusal}")
            if self._faults.read_only:
                raise ScpiError(-203, "Command protected")
        return await command(match[3] or "")

    async def _clear(self, parameters: str) -> None:
        self._errors.clear()

    async def _complete(self, parameters: str) -> str:
        return "1"

    async def _next_error(self, parameters: str) -> str:
        return str(self._errors.popleft()) if self._errors else _NO_ERROR

    async def _all_errors(self, parameters: str) -> str:
        entries = ",".join(map(str, self._errors)) or _NO_ERROR
        self._errors.clear()
        return entries
