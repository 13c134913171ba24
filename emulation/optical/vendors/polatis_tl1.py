"""The TL1 side of an emulated Polatis. No capture shows a denial: its codes are GR-831's."""

from patchlight.controller.circuits.contract import SIDES
from patchlight.emulation.optical.device import EmulatedOcs
from patchlight.emulation.optical.protocols.tl1_messages import Answer, Command, deny, port_numbers
from patchlight.emulation.optical.protocols.tl1_server import Tl1Server, read_map_by_hand
from patchlight.emulation.optical.switch_matrix import Reason, RequestRefused
from patchlight.emulation.optical.vendors.polatis import SOFTWARE, PolatisSwitch

_SHUTTER = {"E": "OPEN", "D": "CLOSED", "F": "FAILED"}


class PolatisTl1Server(Tl1Server):
    """TL1 with its commands."""

    by_hand = read_map_by_hand("RTRV-PATCH:::2:;")

    _device: EmulatedOcs

    def __init__(self, device: EmulatedOcs) -> None:
        super().__init__(device)
        self._switch = PolatisSwitch(device)
        self._handlers |= {
            "RTRV-NETYPE": self._identity,
            "RTRV-INV": self._inventory,
            "RTRV-EQPT": self._equipment,
            "ED-EQPT": lambda command: None,
            "RTRV-PATCH": self._patches,
            "ENT-PATCH": self._enter,
            "DLT-PATCH": self._delete,
            "RTRV-PORT-SHUTTER": self._shutters,
            "OPR-PORT-SHUTTER": self._turn_shutters,
            "RLS-PORT-SHUTTER": self._turn_shutters,
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

    def _identity(self, command: Command) -> list[str]:
        return [f"Polatis,{self._switch.model},OCS,{SOFTWARE}"]

    def _inventory(self, command: Command) -> list[str]:
        return [f"OCS::SN={self._switch.serial.replace('-', '')}"]

    def _equipment(self, command: Command) -> Answer:
        if command.aid.upper() != "SYSTEM" or "PARAMETER=SIZE" not in command.params:
            return deny("IIAC", f"Invalid AID {command.aid}")
        return Answer(lines=(f"SYSTEM:SIZE={self._switch.numbering}",))

    def _patches(self, command: Command) -> list[str]:
        ports = set(self._ports(command.aid))
        return [f"{inp},{out}" for inp, out in self._switch.pairs() if {inp, out} & ports]

    def _shutters(self, command: Command) -> list[str]:
        ports = self._ports(command.aid)
        return [f"{port}:{_SHUTTER[self._switch.state(port)]}" for port in ports]

    async def _power(self, command: Command) -> list[str]:
        powers = await self._switch.monitored(self._ports(command.aid))
        return [f"{port}:{dbm:.1f}" for port, dbm in powers.items()]

    async def _enter(self, command: Command) -> Answer | None:
        ins, _, outs = command.aid.partition(",")
        lists = self._ports(ins), self._ports(outs)
        if len(lists[0]) != len(lists[1]) or not ins:
            return deny("IIAC", "Lists of different length")
        await self._switch.connect(*lists)
        self._changed("ENT-PATCH", command.aid)
        return None

    async def _delete(self, command: Command) -> Answer | None:
        if command.aid.upper() == "ALL":
            await self._switch.disconnect_all()
        elif command.aid:
            await self._switch.disconnect(self._ports(command.aid), ())
        else:
            return deny("IIAC", "Invalid AID")
        self._changed("DLT-PATCH", command.aid)
        return None

    async def _turn_shutters(self, command: Command) -> None:
        await self._switch.enable(self._ports(command.aid), on=command.verb.startswith("RLS"))

    def _ports(self, aid: str) -> list[int]:
        """The ports of a list or range, all if there is none."""
        known = self._switch.numbers
        return port_numbers(aid, known.__contains__) if aid else list(known)
