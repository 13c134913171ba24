"""The SCPI side of an emulated device: messages in, answers out, errors in a queue."""

import asyncio
import contextlib
import re
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import ClassVar

from patchlight.controller.circuits.drivers.polatis import units
from patchlight.controller.circuits.protocols.connection import FramingError, LineFramer
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.emulation.optical.switch_matrix import RequestRefused

_MESSAGE_LIMIT = 65536
_ERRORS_KEPT = 30
_HEADER = re.compile(r":?([a-z]\w*(?::[a-z]\w*)*|\*[a-z]+)(\?)?(?:\s+(.*))?", re.I | re.DOTALL)
_NO_ERROR = '0,"No error"'


class ScpiError(Exception):
    """An entry of the error queue. Codes −1xx are the message's own fault: it ends there."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        escaped = self.message.replace('"', '""')
        return f'{self.code},"{escaped}"'


Execute = Callable[[str], Awaitable[str | None]]


class ScpiServer(ProtocolServer):
    """Serves SCPI on a raw socket. A vendor's server adds its commands to ``_commands``.

    They go by canonical header, like ``conn:stat?``. A command gets its parameters as text and
    returns an answer, or ``None``; it raises ``ScpiError``. ``short_forms`` gives the short form
    of each long mnemonic. SCPI knows no users.
    """

    short_forms: ClassVar[Mapping[str, str]] = {}

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._errors: deque[ScpiError] = deque()
        self._commands: dict[str, Execute] = {
            "*cls": self._clear,
            "*opc?": self._complete,
            "syst:err?": self._next_error,
            "syst:err:next?": self._next_error,
            "syst:err:all?": self._all_errors,
        }

    @abstractmethod
    def _refusal(self, refusal: RequestRefused) -> ScpiError:
        """The vendor's words for a refusal."""

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        framer = LineFramer(_MESSAGE_LIMIT)
        with contextlib.suppress(FramingError):
            while data := await reader.read(65536):
                for message in framer.feed(data):
                    await self._do(message, writer)

    def report(self, text: str) -> None:
        """Put it into the error queue: SCPI says nothing unasked."""
        self._note(100, text)

    def _note(self, code: int, message: str) -> None:
        if len(self._errors) >= _ERRORS_KEPT:
            self._errors[-1] = ScpiError(-350, "Queue overflow")
        else:
            self._errors.append(ScpiError(code, message))

    async def _do(self, message: str, writer: asyncio.StreamWriter) -> None:
        parts, faults = list(units(message)), self._device.faults
        changes = any("?" not in part and not part.startswith("*") for part in parts)
        answers = []
        async with faults.around_command(changes=changes) as refusal:
            for number in range(faults.take_flood()):
                self.report(f"Alarm {number}")
            for part in parts:
                try:
                    answer = await self._execute(part, refusal)
                except ScpiError as error:
                    self._note(error.code, error.message)
                    if -199 <= error.code <= -100:
                        break
                    continue
                if answer is not None:
                    answers.append(answer)
        if answers:
            writer.write(faults.spoilt(f"{';'.join(answers)}\n".encode()))
            await writer.drain()

    async def _execute(self, part: str, refusal: str) -> str | None:
        match = _HEADER.fullmatch(part)
        if match is None:
            raise ScpiError(-102, "Syntax error")
        mnemonics = (self.short_forms.get(word, word) for word in match[1].lower().split(":"))
        header = ":".join(mnemonics) + (match[2] or "")
        command = self._commands.get(header)
        if command is None:
            raise ScpiError(-113, f"Undefined header;{part[:60]}")
        if not match[2] and not header.startswith("*"):
            if refusal:
                raise ScpiError(-200, f"Execution error;{refusal}")
            if self._device.faults.read_only:
                raise ScpiError(-203, "Command protected")
        await self._device.settle()
        try:
            return await command(match[3] or "")
        except RequestRefused as refusal:
            raise self._refusal(refusal) from refusal

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
