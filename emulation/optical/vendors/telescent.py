"""Emulates a Telescent: a shell over SSH, and a robot that moves one fibre at a time.

The commands and the output of ``switchstate`` follow a third party's driver; the prompt, the error
messages and the statuses other than A and U are invented.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable

from patchlight.controller.circuits.contract import SIDES, DirectedPort
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.matrices import Phase, Reason, RequestRefused
from patchlight.emulation.optical.protocols.ssh_server import (
    SshServer,
    typed_lines,
)
from patchlight.testbed.lab.portmap import CrossConnect

PROMPT = "NTM> "
_COLUMNS = 12
_CHANGING = ("connect", "unallocate")
_REFUSALS = {
    Reason.NO_PORT: ("", "port {port} does not exist"),
    Reason.BUSY: ("", "port {port} is allocated"),
    Reason.LOCKED: ("", "port {port} is disabled"),
    Reason.ACTIVE: ("", "port {port} is locked"),
    Reason.FAILED: ("", "the robot failed at port {port}"),
}
_LEVELS = {
    "*C": "CRITICAL",
    "**": "MAJOR",
    "*": "MINOR",
    "A": "NOTICE",
}


class TelescentSshServer(SshServer):
    """A shell with its commands. Ports count from 0."""

    by_hand = "ssh -t -p {port} {user}@{host}, then: switchstate"
    refusals = _REFUSALS

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._shells: set[asyncio.StreamWriter] = set()
        self._robot = asyncio.Lock()
        self._unlocked: set[DirectedPort] = set()
        self._handlers: dict[
            str, Callable[[list[str]], Awaitable[list[str]]]
        ] = {
            "switchstate": self._state,
            "connect": self._connect,
            "unlock": self._unlock,
            "unallocate": self._unallocate,
        }

    def report(self, text: str) -> None:
        """Print ``"*C EQPT: 7: robot stuck"`` in every shell."""
        code, _, rest = text.partition(" ")
        for shell in tuple(self._shells):
            shell.write(
                f"\r\n{_LEVELS.get(code, 'NOTICE')}: {rest}\r\n".encode()
            )

    def _refusal(self, refusal: RequestRefused) -> tuple[str, str]:
        if refusal.port is None:
            return (
                "",
                "no such port"
                if refusal.reason is Reason.NO_PORT
                else "failed",
            )
        return super()._refusal(
            RequestRefused(refusal.reason, port=refusal.port - 1)
        )

    async def _session(
        self,
        user: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._shells.add(writer)
        try:
            writer.write(f"Telescent NTM (emulated)\r\n{PROMPT}".encode())
            async for line in typed_lines(reader):
                writer.write(f"{line}\r\n".encode())
                if line.strip() == "exit":
                    return
                await self._do(user, line, writer)
        finally:
            self._shells.discard(writer)

    async def _do(
        self,
        user: str,
        line: str,
        writer: asyncio.StreamWriter,
    ) -> None:
        verb, *arguments = line.split() or [""]
        faults = self._device.faults
        changes = verb in _CHANGING
        async with faults.around_command(changes=changes) as refused:
            if refused:
                lines = [f"ERROR: {refused}"]
            elif (changes or verb == "unlock") and not self._device.may_change(
                user
            ):
                lines = ["ERROR: permission denied: this user may only look"]
            elif verb in self._handlers:
                await self._device.settle()
                try:
                    lines = await self._handlers[verb](arguments)
                except RequestRefused as refusal:
                    lines = [f"ERROR: {self._refusal(refusal)[1]}"]
            else:
                lines = [f"ERROR: unknown command {verb[:40]}"] if verb else []
        for number in range(faults.take_flood()):
            self.report(f"* Alarm {number}")
        answer = "".join(f"{text}\r\n" for text in lines) + PROMPT
        writer.write(faults.spoilt(answer.encode()))
        await writer.drain()

    async def _state(self, arguments: list[str]) -> list[str]:
        rows = -(-self._device.switch.ports // _COLUMNS)
        return [
            f"\x1b[32mR{row}#A\x1b[0m "
            + " ".join(
                self._cell(row * _COLUMNS + at + 1) for at in range(_COLUMNS)
            )
            for row in range(rows)
        ]

    async def _connect(self, arguments: list[str]) -> list[str]:
        force, ports = _parsed(arguments)
        sides = [port.side for port in ports]
        if sides == ["in", "out"]:
            cross_connects = [CrossConnect(ports[0].number, ports[1].number)]
        elif sides == ["in", "out", "in", "out"]:
            there = CrossConnect(ports[0].number, ports[2].number)
            cross_connects = [there, there.reverse]
        else:
            return [
                "ERROR: usage: connect [--force] -in PORT -out PORT | PORT PORT"
            ]
        async with self._robot:
            for c in cross_connects:
                await self._join(c, force=force)
        return [
            f"connected {c.inp - 1} to {c.out - 1}" for c in cross_connects
        ]

    async def _unlock(self, arguments: list[str]) -> list[str]:
        _, ports = _parsed(arguments)
        self._check(*ports)
        self._unlocked |= set(ports)
        return []

    async def _unallocate(self, arguments: list[str]) -> list[str]:
        _, ports = _parsed(arguments)
        async with self._robot:
            for port in ports:
                self._check(port)
                # A port locked on one side only cannot be released.
                if any(
                    self._is_locked(DirectedPort(side, port.number))
                    for side in SIDES
                ):
                    return [f"ERROR: port {port.number - 1} is locked"]
                if circuit := self._device.matrix.at(*port):
                    self._device.remove(circuit)
            await self._device.settle()
        return []

    async def _join(self, c: CrossConnect, *, force: bool) -> None:
        ends = DirectedPort("in", c.inp), DirectedPort("out", c.out)
        self._check(*ends)
        for port in ends:
            if port.number in self._device.matrix.locked:
                raise RequestRefused(Reason.LOCKED, port=port.number)
            if self._is_locked(port):
                raise RequestRefused(Reason.ACTIVE, port=port.number)
        new = self._device.matrix.find(c) is None
        there = {
            circuit
            for port in ends
            if (circuit := self._device.matrix.at(*port))
        }
        if new and there and not force:
            raise RequestRefused(Reason.BUSY, port=c.inp)
        self._unlocked -= set(ends)
        if new:
            self._device.remove_all(there)
            (made,) = await self._device.light([c])
            if made.phase is Phase.FAILED:
                self._device.remove(made)
                await self._device.settle()
                raise RequestRefused(Reason.FAILED, port=c.out)

    def _check(self, *ports: DirectedPort) -> None:
        for port in ports:
            if not 1 <= port.number <= self._device.switch.ports:
                raise RequestRefused(Reason.NO_PORT, port=port.number)

    def _is_locked(self, port: DirectedPort) -> bool:
        return (
            self._device.matrix.at(*port) is not None
            and port not in self._unlocked
        )

    def _cell(self, out: int) -> str:
        matrix = self._device.matrix
        if out > self._device.switch.ports:
            return f"N{out - 1}"
        circuit = matrix.at("out", out)
        if circuit is not None:
            inp = next(c.inp for c in circuit.directions if c.out == out)
            return f"{'AL' if self._is_locked(DirectedPort('out', out)) else 'A'}{inp - 1}"
        status = (
            "F"
            if out in matrix.failed
            else "D"
            if out in matrix.locked
            else "U"
        )
        return f"{status}{out - 1}"


def _parsed(arguments: Iterable[str]) -> tuple[bool, list[DirectedPort]]:
    force = False
    ports = []
    side = ""
    for argument in arguments:
        if argument == "--force":
            force = True
        elif argument in ("-in", "-out"):
            side = argument
        elif re.fullmatch(r"\d{1,6}", argument):
            number = int(argument) + 1
            ports += [
                DirectedPort(named, number)
                for named in SIDES
                if side in ("", f"-{named}")
            ]
            side = ""
        else:
            raise RequestRefused(Reason.NO_PORT)
    return force, ports
