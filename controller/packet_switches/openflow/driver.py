"""The driver ``openflow``: one switch behind the speaker, with a flow entry for each station.

A lab sets its switches together, with the entries of ``Forwarding``: fewer, and without loops
meanwhile. Both keep the tables by the same ``FlowSync``.
"""

from patchlight.controller.circuits.contract import DeviceUnreachable
from patchlight.controller.packet_switches.contract import (
    Applied,
    Lack,
    PortState,
    SwitchState,
    Wish,
)
from patchlight.controller.packet_switches.openflow.client import Speaker
from patchlight.controller.packet_switches.openflow.flow_sync import FlowSync
from patchlight.controller.packet_switches.openflow.flowtable import FlowTable
from patchlight.controller.packet_switches.openflow.forwarding import (
    TABLE_MISS,
    entries_of,
)
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.lab.model import PacketSwitch


class OpenFlowSwitch:
    """One switch. See ``PacketSwitchDriver`` for the methods; the speaker runs already."""

    def __init__(self, switch: PacketSwitch, speaker: Speaker) -> None:
        assert switch.datapath_id is not None
        self._name = switch.name
        self._datapath_id = switch.datapath_id
        self._speaker = speaker
        self._wish = Wish()
        self._flows = FlowSync(speaker)

    @property
    def name(self) -> str:
        """The switch's name in the lab."""
        return self._name

    async def open(self) -> None:
        """Nothing: the switch connects to the speaker."""

    async def close(self) -> None:
        """Stop keeping its table, which stays."""
        await self._flows.close()
        self._flows = FlowSync(self._speaker)

    async def set_forwarding(self, wish: Wish) -> Applied:
        """Change what differs from the wish."""
        self._wish = wish
        there = await self._ports()
        absent = {s: p for s, p in wish.places.items() if p not in there}
        wanted = {
            s: entries_of(*s, p)
            for s, p in wish.places.items()
            if s not in absent
        }
        entries = {entry for of_one in wanted.values() for entry in of_one}
        table = FlowTable.of({TABLE_MISS, *entries})
        applied = await self._flows.set_table(self._datapath_id, table)
        if applied.error is not None:
            raise DeviceUnreachable(
                f"setting the flows of {self._name}: {applied.error}"
            )
        lacks = [Lack(s, f"no port {p}") for s, p in absent.items()]
        refused = {each.entry: each.reason for each in applied.failed}
        refused |= dict.fromkeys(
            applied.held, "an entry of another application conflicts with it"
        )
        for station, of_one in wanted.items():
            reasons = [refused[entry] for entry in of_one if entry in refused]
            lacks += [Lack(station, reasons[0])] if reasons else []
        return Applied(
            applied.added + applied.removed, tuple(lacks), self._foreign()
        )

    async def read(self) -> SwitchState:
        """Its flow entries and counters."""
        try:
            table = await self._flows.read(self._datapath_id)
            counters = await self._speaker.request("counters")
        except PatchlightError as error:
            raise DeviceUnreachable(
                f"reading {self._name}: {error.message}"
            ) from error
        there = await self._ports()
        places = {}
        for station in self._wish.places:
            for port in {port for entry in table for port in entry.outputs}:
                if table.entries.issuperset(entries_of(*station, port)):
                    places[station] = port
        ports = {
            number: PortState(
                int(port["rx_bytes"]), int(port["tx_bytes"]), there[number]
            )
            for each in counters
            if each["datapath_id"] == self._datapath_id
            for port in each["ports"]
            if (number := int(port["port"])) in there
        }
        return SwitchState(places, ports, self._foreign())

    async def release(self) -> None:
        """Remove Patchlight's entries."""
        self._wish = Wish()
        await self._flows.set_table(self._datapath_id, FlowTable())

    async def _ports(self) -> dict[int, bool]:
        """The numbers of its ports, and whether each has a link."""
        try:
            ports = await self._speaker.request(
                "ports", datapath_id=self._datapath_id
            )
        except PatchlightError as error:
            raise DeviceUnreachable(
                f"reading {self._name}: {error.message}"
            ) from error
        return {int(port["port"]): bool(port["up"]) for port in ports}

    def _foreign(self) -> tuple[str, ...]:
        return tuple(
            str(entry)
            for entry in self._flows.above.get(self._datapath_id, ())
        )
