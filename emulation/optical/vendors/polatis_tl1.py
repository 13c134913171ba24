"""The TL1 side of an emulated Polatis. No capture shows a denial: its codes are GR-831's."""

from __future__ import annotations

from collections.abc import Iterable

from patchlight.controller.circuits.contract import SIDES
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.server import Users
from patchlight.emulation.optical.protocols.tl1_messages import Answer, Command, deny, port_numbers
from patchlight.emulation.optical.protocols.tl1_server import (
    Connection,
    Tl1Server,
    read_map_by_hand,
)
from patchlight.emulation.optical.switch_matrix import Reason, RequestRefused
from patchlight.emulation.optical.vendors.polatis import SOFTWARE, PolatisSwitch

_SHUTTER = {"E": "OPEN", "D": "CLOSED", "F": "FAILED"}


class PolatisTl1Server(Tl1Server):
    """TL1 with its commands."""

    port = 3082
    by_hand = read_map_by_hand("RTRV-PATCH:::2:;")

    def __init__(self, device: EmulatedOcs, users: Users) -> None:
        super().__init__(device, users)
        self._switch = PolatisSwitch(device)
        self._handlers |= {
            "RTRV-NETYPE": self._identity,
            "RTRV-INV": self._inventory,
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": lambda connection, command: Answer(),
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._enter,
            "DLT-PATCH": self._delete,
            "RTRV-PORT-SHUTTER": self._shutters,
            "OPR-PORT-SHUTTER": self._close_shutters,
            "RLS-PORT-SHUTTER": self._open_shutters,
            "RTRV-PORT-POWER": self._power,
        }

    def _denial(self, refusal: RequestRefused) -> Answer:
        port = refusal.port
        return {
            Reason.NO_PORT: deny("IIAC", "Invalid port" if port is None else f"No port {port}"),
            Reason.BUSY: deny("IIAC", f"Port {port} is named twice"),
            Reason.LOCKED: deny("SNVS", f"Port {port} is disabled"),
            Reason.FAILED: deny("SROF", f"Port {port} has failed"),
        }.get(refusal.reason, deny("SROF", "Failed"))

    def _aids(self, port: int) -> tuple[str, ...]:
        return tuple(str(self._switch.numbering.to_number(side, port)) for side in SIDES)

    # --- reading ----------------------------------------------------------------------------

    def _identity(self, connection: Connection, command: Command) -> Answer:
        return Answer(lines=(f"Polatis,{self._switch.model},OCS,{SOFTWARE}",))

    def _inventory(self, connection: Connection, command: Command) -> Answer:
        return Answer(lines=(f"OCS::SN={self._switch.serial.replace('-', '')}",))

    def _equipment(self, connection: Connection, command: Command) -> Answer:
        if command.aid.upper() != "SYSTEM" or "PARAMETER=SIZE" not in command.params:
            return deny("IIAC", f"Invalid AID {command.aid}")
        return Answer(lines=(f"SYSTEM:SIZE={self._switch.numbering}",))

    def _patches(self, connection: Connection, command: Command) -> Answer:
        asked = set(self._ports(command.aid))
        pairs = self._switch.pairs()
        return Answer(lines=[f"{i},{o}" for i, o in pairs if {i, o} & asked])

    def _shutters(self, connection: Connection, command: Command) -> Answer:
        ports = self._ports(command.aid)
        return Answer(lines=[f"{port}:{_SHUTTER[self._switch.state(port)]}" for port in ports])

    async def _power(self, connection: Connection, command: Command) -> Answer:
        ports = [port for port in self._ports(command.aid) if self._switch.has_monitor(port)]
        powers = await self._switch.power(ports)
        return Answer(lines=[f"{port}:{dbm:.1f}" for port, dbm in zip(ports, powers, strict=True)])

    # --- changing ---------------------------------------------------------------------------

    async def _enter(self, connection: Connection, command: Command) -> Answer:
        ins, _, outs = command.aid.partition(",")
        lists = self._ports(ins), self._ports(outs)
        if len(lists[0]) != len(lists[1]) or not ins:
            return deny("IIAC", "Lists of different length")
        await self._switch.connect(*lists)
        self._changed("ENT-PATCH", command.aid)
        return Answer()

    async def _delete(self, connection: Connection, command: Command) -> Answer:
        if command.aid.upper() == "ALL":
            await self._switch.disconnect_all()
        elif command.aid:
            await self._switch.disconnect(self._ports(command.aid), ())
        else:
            return deny("IIAC", "Invalid AID")
        self._changed("DLT-PATCH", command.aid)
        return Answer()

    async def _close_shutters(self, connection: Connection, command: Command) -> Answer:
        await self._switch.enable(self._ports(command.aid), on=False)
        return Answer()

    async def _open_shutters(self, connection: Connection, command: Command) -> Answer:
        await self._switch.enable(self._ports(command.aid), on=True)
        return Answer()

    # --- inside -----------------------------------------------------------------------------

    def _ports(self, aid: str) -> list[int]:
        """The ports of a list or range, all if there is none."""
        known: Iterable[int] = self._switch.numbers
        if not aid:
            return list(known)
        found = port_numbers(aid, lambda number: number in self._switch.numbers)
        if found is None:
            raise RequestRefused(Reason.NO_PORT)
        for number in found:
            if number not in self._switch.numbers:
                raise RequestRefused(Reason.NO_PORT, port=number)
        return found
