"""The TL1 side of an emulated device: users, sessions, alarms, and what goes wrong on purpose."""

import asyncio
import itertools
import re
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from patchlight.controller.circuits.protocols.connection import TelnetFilter
from patchlight.emulation.optical.emulated_switch import EmulatedSwitch
from patchlight.emulation.optical.protocols.server import ProtocolServer
from patchlight.emulation.optical.protocols.tl1_messages import (
    Answer,
    Command,
    autonomous,
    deny,
    take_commands,
)
from patchlight.emulation.optical.switch_matrix import RequestRefused

_COMMAND_LIMIT = 65536
_ACKNOWLEDGE_EVERY_S = 0.2
_READING = ("RTRV-", "ACT-USER", "CANC-USER", "INH-", "ALW-")
_CTAG = re.compile(r"\w{1,6}", re.ASCII)
_NOTIFICATIONS = {"*C": "CR", "**": "MJ", "*": "MN"}
_NOTIFIED = re.compile(r"(CR|MJ|MN|NA|NR),")
_OPEN_TO_ALL = ("ACT-USER", "RTRV-HDR")


def read_map_by_hand(command: str) -> str:
    """A shell command that logs in and says ``command``; see ``ProtocolServer.by_hand``."""
    return f'printf "ACT-USER::{{user}}:1::{{password}};{command}" | nc -q 2 {{host}} {{port}}'


@dataclass(eq=False)
class Connection:
    """One client: who it is, and whether it hears autonomous messages."""

    writer: asyncio.StreamWriter
    user: str = ""
    inhibited: bool = False


Result = Answer | Sequence[str] | None
"""What a command came to; lines alone, or ``None``: it is completed."""


class Tl1Server(ProtocolServer):
    """Serves TL1 on TCP. A vendor's server adds its commands to ``_handlers``."""

    def __init__(self, device: EmulatedSwitch) -> None:
        super().__init__(device)
        self._connections: set[Connection] = set()
        self._sid = device.switch.name.upper()
        self._atags = itertools.count(1)
        self._handlers: dict[str, Callable[[Command], Result | Awaitable[Result]]] = {
            "RTRV-HDR": lambda command: None,
            "RTRV-ALM-ALL": self._alarms,
            "RTRV-ALM-EQPT": self._alarms,
        }
        # What was reported and not cleared, by its modifier and subject.
        self._standing: dict[tuple[str, str], str] = {}

    @abstractmethod
    def _denial(self, refusal: RequestRefused) -> Answer:
        """The vendor's words for a refusal."""

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(writer)
        self._connections.add(connection)
        telnet, buffer = TelnetFilter(), bytearray()
        try:
            while data := await reader.read(65536):
                buffer += telnet.filter(data)
                for text in take_commands(buffer):
                    if not await self._do(connection, Command.parse(text)):
                        return
                if len(buffer) > _COMMAND_LIMIT:
                    return
        finally:
            self._connections.discard(connection)

    def report(self, text: str) -> None:
        """Say ``"*C EQPT: 1.1.1: mirror stuck"`` as an alarm to all clients.

        It stands until another one with the code ``A`` says that it has cleared.
        """
        code, _, rest = text.partition(" ")
        modifier, _, line = (part.strip() for part in rest.partition(":"))
        subject, _, condition = (part.strip() for part in line.partition(":"))
        if code in _NOTIFICATIONS:
            notified = _NOTIFIED.match(condition)
            alarm = condition if notified else f"{_NOTIFICATIONS[code]},{condition}"
            self._standing[modifier, subject] = alarm
        else:
            self._standing.pop((modifier, subject), None)
        self._broadcast(code, f"REPT ALM {modifier}", (line,))

    def _broadcast(self, alarm_code: str, verb: str, lines: Sequence[str]) -> None:
        """Say this unasked to every client that is logged in and has not inhibited it."""
        message = autonomous(self._sid, alarm_code, next(self._atags), verb, lines).encode()
        for connection in tuple(self._connections):
            if connection.user and not connection.inhibited:
                connection.writer.write(message)

    def _changed(self, verb: str, what: str) -> None:
        self._broadcast("A", "REPT DBCHG", (f"{verb}:{what[:80]}",))

    async def _do(self, connection: Connection, command: Command) -> bool:
        """Do it and answer; ``False`` ends the connection."""
        faults = self._device.faults

        async def stall(left_s: float) -> None:
            while left_s > 0:
                if faults.acknowledge:
                    connection.writer.write(f"\r\nIP {command.ctag}\r\n<".encode())
                await asyncio.sleep(min(left_s, _ACKNOWLEDGE_EVERY_S))
                left_s -= _ACKNOWLEDGE_EVERY_S

        ctag = command.ctag
        if not _CTAG.fullmatch(ctag):
            ctag, answer = "0", deny("IICT", "Invalid correlation tag")
        else:
            changes = not command.verb.startswith(_READING)
            async with faults.around_command(changes=changes, stall=stall) as refusal:
                if refusal:
                    answer = deny("SROF", refusal)
                elif changes and connection.user and not self._device.may_change(connection.user):
                    answer = deny("PLNA", "Failed: this user may only look")
                else:
                    answer = await self._execute(connection, command)
        for number in range(faults.take_flood()):
            self._broadcast("*", "REPT ALM EQPT", (f"SYSTEM:MN,FLOOD,NSA,{number}",))
        if faults.take_stray():
            stray = deny("ICNV", "Invalid command").pages(self._sid, "0", repeat=False)
            connection.writer.write(stray.encode())
        pages = answer.pages(self._sid, ctag, repeat=faults.repeat_pages)
        connection.writer.write(faults.spoilt(pages.encode()))
        await connection.writer.drain()
        return not answer.bye

    async def _execute(self, connection: Connection, command: Command) -> Answer:
        if not connection.user and command.verb not in _OPEN_TO_ALL:
            return deny("PLNA", "Login Not Active")
        match command.verb:
            case "ACT-USER":
                return self._log_in(connection, command)
            case "CANC-USER":
                connection.user = ""
                return Answer(bye=True)
            case "INH-MSG" | "INH-MSG-ALL" | "ALW-MSG" | "ALW-MSG-ALL":
                connection.inhibited = command.verb.startswith("INH")
                return Answer()
        handler = self._handlers.get(command.verb)
        if handler is None:
            return deny("IICM", f"Invalid command {command.verb}")
        await self._device.settle()
        try:
            result = handler(command)
            result = await result if isinstance(result, Awaitable) else result
        except RequestRefused as refusal:
            result = self._denial(refusal)
        await self._device.settle()
        return result if isinstance(result, Answer) else Answer(lines=result or ())

    def _log_in(self, connection: Connection, command: Command) -> Answer:
        if connection.user:
            return deny("PICC", "Already logged in")
        if not self._device.lets_in(command.aid, command.params[0] if command.params else ""):
            return deny("PIUI", "Failed: invalid user or password")
        connection.user = command.aid
        return Answer(lines=(f"{command.aid}:{command.aid},2",), comment="NOTICE emulated device")

    def _alarms(self, command: Command) -> list[str]:
        """What stands: ports whose mirrors are stuck, and what was reported and not cleared."""
        lines = [
            f"{aid},EQPT:CR,FAIL,SA,,,,:mirror stuck"
            for port in sorted(self._device.matrix.failed)
            for aid in self._aids(port)
        ]
        lines += [f"{aid},{kind}:{alarm}" for (kind, aid), alarm in self._standing.items()]
        return lines

    def _aids(self, port: int) -> tuple[str, ...]:
        """How the vendor calls both sides of a port."""
        return (str(port),)
