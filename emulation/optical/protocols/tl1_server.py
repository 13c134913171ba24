"""The TL1 side of an emulated device: commands in, replies out, as GR-831 frames them."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from patchlight.controller.circuits.protocols.tl1.telnet import TelnetFilter
from patchlight.emulation.optical.faults import Faults

_COMMAND_LIMIT = 65536
_ACKNOWLEDGE_EVERY_S = 0.2
_QUIET = re.compile(rb'(?:[^";]+|"(?:[^"\\]|\\.)*")*', re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]', re.DOTALL)
_READING = ("RTRV-", "ACT-USER", "CANC-USER", "INH-", "ALW-")
_CTAG = re.compile(r"\w{1,6}", re.ASCII)


@dataclass(frozen=True)
class Command:
    """``VERB:TID:AID:CTAG:GB:payload``; ``params`` is the payload split at commas."""

    verb: str
    aid: str
    ctag: str
    params: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Command:
        """What stands before the ``;``. Missing fields are empty; quotes are taken off."""
        fields = _split(text.strip(), ":")
        fields += [""] * (6 - len(fields))
        # Some drivers put the payload one field early; there is no general block to miss.
        payload = ":".join(fields[5:]).lstrip(":") or fields[4]
        params = tuple(_unquoted(param) for param in _split(payload, ","))
        return cls(fields[0].upper(), _unquoted(fields[2]), fields[3] or "0", params)


@dataclass(frozen=True)
class Answer:
    """What a command came to: a completion code, quoted lines, a comment, an error code."""

    code: str = "COMPLD"
    lines: Sequence[str] = ()
    comment: str = ""
    error: str = ""
    changes: bool = False
    bye: bool = False


def deny(error: str, comment: str) -> Answer:
    """A denial with a GR-831 error code and the device's words."""
    return Answer("DENY", (), comment, error)


@dataclass(eq=False)
class Connection:
    """One client: who it is, and whether it hears autonomous messages."""

    writer: asyncio.StreamWriter
    user: str = ""
    inhibited: bool = False


Execute = Callable[[Connection, Command], Awaitable[Answer]]


@dataclass
class Tl1Server:
    """Serves TL1 on TCP. ``execute`` does the commands; ``faults`` are shown on the way.

    ``may_change`` says of a user whether there is more than looking.
    ``page_lines``: longer replies come in pages. ``echo`` and ``prompt`` as on a telnet port.
    """

    sid: str
    execute: Execute
    faults: Faults
    may_change: Callable[[str], bool]
    page_lines: int = 64
    prompt: str = ""
    echo: bool = False
    connections: set[Connection] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._atags = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client from its connection to its end."""
        connection = Connection(writer)
        self.connections.add(connection)
        telnet, buffer = TelnetFilter(), bytearray()
        try:
            writer.write(self.prompt.encode())
            while data := await reader.read(65536):
                buffer += telnet.filter(data)
                for text in _commands(buffer):
                    if self.echo:
                        writer.write(text.encode() + b";\r\n")
                    if not await self._do(connection, Command.parse(text)):
                        return
                if len(buffer) > _COMMAND_LIMIT:
                    return
        except (ConnectionError, TimeoutError):
            return
        finally:
            self.connections.discard(connection)
            writer.close()

    async def _do(self, connection: Connection, command: Command) -> bool:
        """Do it and answer; ``False`` ends the connection."""
        if not _CTAG.fullmatch(command.ctag):
            command = Command(command.verb, command.aid, "0", command.params)
            answer = deny("IICT", "Invalid correlation tag")
        else:
            changes = not command.verb.startswith(_READING)
            mishap = self.faults.mishap(changes=changes)
            if mishap.cut == "before":
                return False
            left_s = mishap.stall_s
            while left_s > 0:
                if self.faults.acknowledge:
                    connection.writer.write(f"\r\nIP {command.ctag}\r\n<".encode())
                await asyncio.sleep(min(left_s, _ACKNOWLEDGE_EVERY_S))
                left_s -= _ACKNOWLEDGE_EVERY_S
            if mishap.refusal:
                answer = deny("SROF", mishap.refusal)
            elif changes and connection.user and not self.may_change(connection.user):
                answer = deny("PLNA", "Failed: this user may only look")
            else:
                answer = await self.execute(connection, command)
            if mishap.cut == "after":
                return False
        for number in range(self.faults.take_flood()):
            self.report("*", "REPT ALM EQPT", (f"SYSTEM:MN,FLOOD,NSA,{number}",))
        pages = "".join(self._pages(command.ctag, answer)).encode()
        connection.writer.write(self.faults.spoilt(pages))
        await connection.writer.drain()
        return not answer.bye

    def report(self, alarm_code: str, verb: str, lines: Sequence[str]) -> None:
        """Say this unasked to every client that is logged in and has not inhibited it."""
        body = "".join(f'   "{_escaped(line)}"\r\n' for line in lines)
        head = f"{self._header()}{alarm_code:<2} {next(self._atags)} {verb}\r\n"
        for connection in tuple(self.connections):
            if connection.user and not connection.inhibited:
                connection.writer.write(f"{head}{body};{self.prompt}".encode())

    def _pages(self, ctag: str, answer: Answer) -> Iterator[str]:
        count = max(1, -(-len(answer.lines) // self.page_lines))
        for page in range(count):
            lines = answer.lines[page * self.page_lines : (page + 1) * self.page_lines]
            last = page == count - 1
            yield f"{self._header()}M  {ctag} {answer.code}\r\n"
            if last and answer.error:
                yield f"   {answer.error}\r\n"
            for line in lines:
                yield f'   "{_escaped(line)}"\r\n'
            if last and answer.comment:
                yield f"   /* {answer.comment.replace('*/', '* /')} */\r\n"
            yield ";" if last or self.faults.repeat_pages else ">"
        yield self.prompt

    def _header(self) -> str:
        return f"\r\n\n   {self.sid} {time.strftime('%y-%m-%d %H:%M:%S')}\r\n"


def _commands(buffer: bytearray) -> Iterator[str]:
    """Take the whole commands out of ``buffer``; a ``;`` in quotes does not end one."""
    while True:
        quiet = _QUIET.match(buffer)
        at = quiet.end() if quiet else 0
        if buffer[at : at + 1] != b";":
            return
        text = bytes(buffer[:at]).decode("utf-8", "replace").strip()
        del buffer[: at + 1]
        yield text


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
        return re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL)
    return text


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
