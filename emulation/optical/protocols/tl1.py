"""Serves TL1 for an emulated device: users, sessions, alarms, and faults."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from patchlight.controller.circuits.protocols.tcp import TelnetFilter
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.matrices import Reason, RequestRefused
from patchlight.emulation.optical.protocols.server import ProtocolServer

_PAGE_LINES = 64
_QUIET = re.compile(rb'(?:[^";]+|"(?:[^"\\]|\\.)*")*', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]', re.DOTALL)
_COMMAND_LIMIT = 65536
_ACKNOWLEDGE_EVERY_S = 0.2
_READING = ("RTRV-", "ACT-USER", "CANC-USER", "INH-", "ALW-")
_CTAG = re.compile(r"\w{1,6}", re.ASCII)
_NOTIFICATIONS = {"*C": "CR", "**": "MJ", "*": "MN"}
_NOTIFIED = re.compile(r"(CR|MJ|MN|NA|NR),")


@dataclass(frozen=True)
class Tl1Command:
    """``VERB:TID:AID:CTAG:GB:payload``; ``params`` is the payload split at commas."""

    verb: str
    aid: str
    ctag: str
    params: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Tl1Command:
        """The text before the ``;``. Missing fields are empty; quotes are removed."""
        fields = _split(text.strip(), ":")
        fields += [""] * (6 - len(fields))
        # Some drivers send the payload one field early, without a general block.
        payload = ":".join(fields[5:]).lstrip(":") or fields[4]
        params = tuple(_unquoted(param) for param in _split(payload, ","))
        return cls(
            fields[0].upper(),
            _unquoted(fields[2]),
            fields[3] or "0",
            params,
        )


@dataclass(frozen=True)
class Tl1Answer:
    """The result of a command: a completion code, quoted lines, a comment, an error code.

    ``bye``: the connection ends with it.
    """

    code: str = "COMPLD"
    lines: Sequence[str] = ()
    comment: str = ""
    error: str = ""
    bye: bool = False

    def pages(
        self,
        sid: str,
        ctag: str,
        *,
        repeat: bool,
    ) -> str:
        """The encoded reply. ``repeat``: its pages are whole replies one after another."""
        text = ""
        count = max(1, -(-len(self.lines) // _PAGE_LINES))
        for page in range(count):
            last = page == count - 1
            text += f"{_header(sid)}M  {ctag} {self.code}\r\n"
            if last and self.error:
                text += f"   {self.error}\r\n"
            text += _quoted(
                self.lines[page * _PAGE_LINES : (page + 1) * _PAGE_LINES]
            )
            if last and self.comment:
                text += f"   /* {self.comment.replace('*/', '* /')} */\r\n"
            text += ";" if last or repeat else ">"
        return text


def deny(error: str, comment: str) -> Tl1Answer:
    """A denial with a GR-831 error code and the device's message."""
    return Tl1Answer(
        "DENY",
        (),
        comment,
        error,
    )


def take_commands(buffer: bytearray) -> Iterator[str]:
    """Remove the whole commands from ``buffer``; a ``;`` in quotes does not end one."""
    while True:
        quiet = _QUIET.match(buffer)
        end = quiet.end() if quiet else 0
        if buffer[end : end + 1] != b";":
            return
        text = bytes(buffer[:end]).decode("utf-8", "replace").strip()
        del buffer[: end + 1]
        yield text


def _header(sid: str) -> str:
    return f"\r\n\n   {sid} {time.strftime('%y-%m-%d %H:%M:%S')}\r\n"


def _quoted(lines: Sequence[str]) -> str:
    escaped = (
        line.replace("\\", "\\\\").replace('"', '\\"') for line in lines
    )
    return "".join(f'   "{line}"\r\n' for line in escaped)


def _split(text: str, separator: str) -> list[str]:
    parts = [""]
    for token in _TOKEN.findall(text):
        if token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] == '"':
        return re.sub(
            r"\\(.)",
            r"\1",
            text[1:-1],
            flags=re.DOTALL,
        )
    return text


@dataclass(eq=False)
class Tl1Connection:
    """One client: its user, and whether it gets autonomous messages."""

    writer: asyncio.StreamWriter
    user: str = ""
    inhibited: bool = False


Result = Tl1Answer | Sequence[str] | None
"""A command's result; only lines, or ``None``: completed."""


class Tl1Server(ProtocolServer):
    """Serves TL1 on TCP. A vendor's server adds its commands to ``_handlers``.

    The codes of ``refusals`` are GR-831's.
    """

    refused = ("SROF", "Failed")

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._connections: set[Tl1Connection] = set()
        self._sid = device.switch.name.upper()
        self._atags = itertools.count(1)
        self._handlers: dict[
            str, Callable[[Tl1Command], Result | Awaitable[Result]]
        ] = {
            "RTRV-HDR": lambda command: None,
            "RTRV-ALM-ALL": self._alarms,
            "RTRV-ALM-EQPT": self._alarms,
        }
        # Reports that were not cleared, by modifier and subject.
        self._standing: dict[tuple[str, str], str] = {}

    @staticmethod
    def netcat(command: str) -> str:
        """A shell command that logs in and sends ``command``; see ``ProtocolServer.by_hand``."""
        return f'printf "ACT-USER::{{user}}:1::{{password}};{command}" | nc -q 2 {{host}} {{port}}'

    def _refusal(self, refusal: RequestRefused) -> tuple[str, str]:
        if refusal.reason is Reason.NO_PORT and refusal.port is None:
            return "IIAC", "Invalid port"
        return super()._refusal(refusal)

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        connection = Tl1Connection(writer)
        self._connections.add(connection)
        telnet = TelnetFilter()
        buffer = bytearray()
        try:
            while data := await reader.read(65536):
                buffer += telnet.filter(data)
                for text in take_commands(buffer):
                    if not await self._do(connection, Tl1Command.parse(text)):
                        return
                if len(buffer) > _COMMAND_LIMIT:
                    return
        finally:
            self._connections.discard(connection)

    def report(self, text: str) -> None:
        """Send ``"*C EQPT: 1.1.1: mirror stuck"`` as an alarm to all clients.

        It is active until another one with the code ``A`` clears it.
        """
        code, _, rest = text.partition(" ")
        modifier, _, line = (part.strip() for part in rest.partition(":"))
        subject, _, condition = (part.strip() for part in line.partition(":"))
        if code in _NOTIFICATIONS:
            notified = _NOTIFIED.match(condition)
            alarm = (
                condition
                if notified
                else f"{_NOTIFICATIONS[code]},{condition}"
            )
            self._standing[modifier, subject] = alarm
        else:
            self._standing.pop((modifier, subject), None)
        self._broadcast(code, f"REPT ALM {modifier}", (line,))

    def _broadcast(
        self,
        alarm_code: str,
        verb: str,
        lines: Sequence[str],
    ) -> None:
        head = f"{_header(self._sid)}{alarm_code:<2} {next(self._atags)} {verb}\r\n"
        message = f"{head}{_quoted(lines)};".encode()
        for connection in tuple(self._connections):
            if connection.user and not connection.inhibited:
                connection.writer.write(message)

    def _changed(self, verb: str, what: str) -> Tl1Answer:
        self._broadcast("A", "REPT DBCHG", (f"{verb}:{what[:80]}",))
        return Tl1Answer()

    async def _do(
        self, connection: Tl1Connection, command: Tl1Command
    ) -> bool:
        faults = self._device.faults

        async def stall(left_s: float) -> None:
            while left_s > 0:
                if faults.acknowledge:
                    connection.writer.write(
                        f"\r\nIP {command.ctag}\r\n<".encode()
                    )
                await asyncio.sleep(min(left_s, _ACKNOWLEDGE_EVERY_S))
                left_s -= _ACKNOWLEDGE_EVERY_S

        ctag = command.ctag
        if not _CTAG.fullmatch(ctag):
            ctag = "0"
            answer = deny("IICT", "Invalid correlation tag")
        else:
            changes = not command.verb.startswith(_READING)
            async with faults.around_command(
                changes=changes,
                stall=stall,
            ) as refusal:
                if refusal:
                    answer = deny("SROF", refusal)
                elif (
                    changes
                    and connection.user
                    and not self._device.may_change(connection.user)
                ):
                    answer = deny("PLNA", "Failed: this user may only look")
                else:
                    answer = await self._execute(connection, command)
        for number in range(faults.take_flood()):
            self._broadcast(
                "*", "REPT ALM EQPT", (f"SYSTEM:MN,FLOOD,NSA,{number}",)
            )
        if faults.take_stray():
            stray = deny("ICNV", "Invalid command").pages(
                self._sid, "0", repeat=False
            )
            connection.writer.write(stray.encode())
        pages = answer.pages(self._sid, ctag, repeat=faults.repeat_pages)
        connection.writer.write(faults.spoilt(pages.encode()))
        await connection.writer.drain()
        return not answer.bye

    async def _execute(
        self, connection: Tl1Connection, command: Tl1Command
    ) -> Tl1Answer:
        if not connection.user and command.verb not in (
            "ACT-USER",
            "RTRV-HDR",
        ):
            return deny("PLNA", "Login Not Active")
        match command.verb:
            case "ACT-USER":
                user, password, *_ = (command.aid, *command.params, "")
                if connection.user:
                    return deny("PICC", "Already logged in")
                if not self._device.lets_in(user, password):
                    return deny("PIUI", "Failed: invalid user or password")
                connection.user = user
                return Tl1Answer(
                    lines=(f"{user}:{user},2",),
                    comment="NOTICE emulated device",
                )
            case "CANC-USER":
                connection.user = ""
                return Tl1Answer(bye=True)
            case "INH-MSG" | "INH-MSG-ALL" | "ALW-MSG" | "ALW-MSG-ALL":
                connection.inhibited = command.verb.startswith("INH")
                return Tl1Answer()
        handler = self._handlers.get(command.verb)
        if handler is None:
            return deny("IICM", f"Invalid command {command.verb}")
        await self._device.settle()
        try:
            result = handler(command)
            result = await result if isinstance(result, Awaitable) else result
        except RequestRefused as refusal:
            result = deny(*self._refusal(refusal))
        await self._device.settle()
        return (
            result
            if isinstance(result, Tl1Answer)
            else Tl1Answer(lines=result or ())
        )

    def _alarms(self, command: Tl1Command) -> list[str]:
        lines = [
            f"{aid},EQPT:CR,FAIL,SA,,,,:mirror stuck"
            for port in sorted(self._device.matrix.failed)
            for aid in self._aids(port)
        ]
        lines += [
            f"{aid},{kind}:{alarm}"
            for (kind, aid), alarm in self._standing.items()
        ]
        return lines

    def _aids(self, port: int) -> tuple[str, ...]:
        return (str(port),)
