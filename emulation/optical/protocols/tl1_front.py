"""What the TL1 fronts of all vendors have in common: users, sessions, alarms, lists of ports."""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.tl1_server import (
    Answer,
    Command,
    Connection,
    Tl1Server,
    deny,
)
from patchlight.emulation.optical.switch_matrix import RequestRefused

_NOTIFICATIONS = {"*C": "CR", "**": "MJ", "*": "MN"}
_NOTIFIED = re.compile(r"(CR|MJ|MN|NA|NR),")
_OPEN_TO_ALL = ("ACT-USER", "RTRV-HDR")
_PORTS = re.compile(r"(\d{1,9})(?:&&(\d{1,9}))?")
_RANGE_LIMIT = 1 << 16

Users = dict[str, str | None]
Handler = Callable[[Connection, Command], Answer | Awaitable[Answer]]


class Tl1Front(ABC):
    """Speaks for one device. ``users`` maps each user to a password, ``None`` for any.

    A vendor's front adds its commands to ``_handlers``.
    """

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        self._device = device
        self._users = users
        self._server = Tl1Server(
            device.switch.name.upper(), self._execute, device.faults, device.may_change
        )
        self._handlers: dict[str, Handler] = {
            "ACT-USER": self._log_in,
            "CANC-USER": self._log_out,
            "INH-MSG": self._inhibit,
            "INH-MSG-ALL": self._inhibit,
            "ALW-MSG": self._allow,
            "ALW-MSG-ALL": self._allow,
            "RTRV-HDR": lambda connection, command: Answer(),
            "RTRV-ALM-ALL": self._alarms,
            "RTRV-ALM-EQPT": self._alarms,
        }
        # What was reported and not cleared, by its modifier and subject.
        self._standing: dict[tuple[str, str], str] = {}

    @abstractmethod
    def _denial(self, refusal: RequestRefused) -> Answer:
        """The vendor's words for a refusal."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until it goes; the circuits stay."""
        await self._server.serve(reader, writer)

    def report(self, text: str) -> None:
        """Say ``"*C EQPT: 1.1.1: mirror stuck"`` as an alarm to all clients.

        It stands until another one with the code ``A`` says that it has cleared.
        """
        code, _, rest = text.partition(" ")
        modifier, _, line = (part.strip() for part in rest.partition(":"))
        subject, _, about = (part.strip() for part in line.partition(":"))
        if code in _NOTIFICATIONS:
            said = about if _NOTIFIED.match(about) else f"{_NOTIFICATIONS[code]},{about}"
            self._standing[modifier, subject] = said
        else:
            self._standing.pop((modifier, subject), None)
        self._server.report(code, f"REPT ALM {modifier}", (line,))

    async def _execute(self, connection: Connection, command: Command) -> Answer:
        handler = self._handlers.get(command.verb)
        if not connection.user and command.verb not in _OPEN_TO_ALL:
            return deny("PLNA", "Login Not Active")
        if handler is None:
            return deny("IICM", f"Invalid command {command.verb}")
        await self._device.settle()
        try:
            answer = handler(connection, command)
            answer = answer if isinstance(answer, Answer) else await answer
        except RequestRefused as refusal:
            answer = self._denial(refusal)
        await self._device.settle()
        return answer

    def _log_in(self, connection: Connection, command: Command) -> Answer:
        if connection.user:
            return deny("PICC", "Already logged in")
        password = self._users.get(command.aid, "")
        given = command.params[0] if command.params else ""
        if command.aid not in self._users or (password is not None and given != password):
            return deny("PIUI", "Failed: invalid user or password")
        connection.user = command.aid
        return Answer(lines=(f"{command.aid}:{command.aid},2",), comment="NOTICE emulated device")

    def _log_out(self, connection: Connection, command: Command) -> Answer:
        connection.user = ""
        return Answer(bye=True)

    def _alarms(self, connection: Connection, command: Command) -> Answer:
        """What stands: ports whose mirrors are stuck, and what was reported and not cleared."""
        lines = [
            f"{aid},EQPT:CR,FAIL,SA,,,,:mirror stuck"
            for port in sorted(self._device.mirrors.failed)
            for aid in self._aids(port)
        ]
        lines += [f"{aid},{kind}:{said}" for (kind, aid), said in self._standing.items()]
        return Answer(lines=lines)

    def _aids(self, port: int) -> tuple[str, ...]:
        """How the vendor calls both sides of a port."""
        return (str(port),)

    def _inhibit(self, connection: Connection, command: Command) -> Answer:
        connection.inhibited = True
        return Answer()

    def _allow(self, connection: Connection, command: Command) -> Answer:
        connection.inhibited = False
        return Answer()


def port_numbers(text: str, known: Callable[[int], bool]) -> list[int] | None:
    """``1&3&&5`` → 1, 3, 4, 5; ``None`` if it is no such list.

    A range may reach beyond the device: ports that are not ``known`` are left out of it.
    """
    found: list[int] = []
    for match in (_PORTS.fullmatch(part) for part in re.split(r"(?<!&)&(?!&)", text)):
        if match is None:
            return None
        if match[2] is None:
            found.append(int(match[1]))
        elif int(match[2]) - int(match[1]) < _RANGE_LIMIT:
            found += filter(known, range(int(match[1]), int(match[2]) + 1))
    return found
